"""Runs items in batches through one program, while other items are read and written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nnef_jax import Model
from nnef_jax.cli.dataset import ItemArrays
from nnef_jax.cli.inputs import Array
from nnef_jax.cli.outputs import by_name

_Compute = Callable[[Sequence[Mapping[str, Array]]], dict[str, Any]]


def groups_of(reads: Iterator[ItemArrays], size: int, *, stop: bool) -> Iterator[list[ItemArrays]]:
    """Group items in order. Each group except the last has `size` items without an error."""
    group: list[ItemArrays] = []
    count = 0
    for read in reads:
        if isinstance(read.outcome, Exception) and stop:
            raise read.outcome
        group.append(read)
        if not isinstance(read.outcome, Exception):
            count += 1
        if count == size:
            yield group
            group = []
            count = 0
    if group:
        yield group


def computing(model: Model, devices: Sequence[Any], size: int) -> _Compute:
    """Return a function that starts to compute a batch of items on devices.

    The function takes arrays by input name for each item, and returns outputs by name without
    waiting for them. Batches are padded to `size` rows, so that only one program is compiled.
    """
    sharding = None
    if len(devices) > 1:
        mesh = jax.make_mesh((len(devices),), ("batch",), (AxisType.Auto,), devices=devices)
        sharding = NamedSharding(mesh, PartitionSpec("batch"))

    def compute(items: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        padding = [items[-1]] * (size - len(items))
        rows = [*items, *padding]
        stacked = {x.name: np.concatenate([row[x.name] for row in rows]) for x in model.inputs}
        outputs = model(*jax.device_put(list(stacked.values()), sharding))
        return by_name(model, outputs)

    return compute


def results_of(
    compute: _Compute,
    groups: Iterator[list[ItemArrays]],
    done: Callable[[int], None],
) -> Iterator[ItemArrays]:
    """Yield the result of each item, in order.

    A group of items is computed on devices while the caller uses the results of the previous group.
    `done` is called with the number of finished items.
    """
    running: deque[tuple[list[ItemArrays], dict[str, Any]]] = deque()
    count = 0
    for group in chain(groups, [None]):
        if group is not None:
            items = [read.outcome for read in group if not isinstance(read.outcome, Exception)]
            running.append((group, compute(items) if items else {}))
        # After the last group, all groups are finished. Before that, one group stays in
        # computation.
        most_running = 0 if group is None else 1
        while len(running) > most_running:
            reads, outputs = running.popleft()
            yield from _rows(reads, outputs)
            count += len(reads)
            done(count)


def _rows(reads: Sequence[ItemArrays], outputs: Mapping[str, Any]) -> Iterator[ItemArrays]:
    arrays = {name: np.asarray(array) for name, array in outputs.items()}
    row = 0
    for read in reads:
        if isinstance(read.outcome, Exception):
            yield read
        else:
            yield ItemArrays(read.item, {name: array[row] for name, array in arrays.items()})
            row += 1
