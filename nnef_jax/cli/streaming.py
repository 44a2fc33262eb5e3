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
    """Yield groups of items in order.

    Each group has `size` items without an error, and may also have items with an error. The last
    group may have fewer items. If `stop` is true, the first error is raised.
    """
    group: list[ItemArrays] = []
    items_without_error = 0
    for read in reads:
        group.append(read)
        if not isinstance(read.outcome, Exception):
            items_without_error += 1
        elif stop:
            raise read.outcome
        if items_without_error == size:
            yield group
            group = []
            items_without_error = 0
    if group:
        yield group


def computing(model: Model, devices: Sequence[Any], size: int) -> _Compute:
    """Return a function that starts to compute a batch of items on devices.

    The function takes a list of items, each a dict from names of inputs to arrays. It returns a
    dict from names of outputs to arrays, before the arrays are computed. Batches are padded to
    `size` rows, so that only one program is compiled.
    """
    sharding = None
    # On several devices, the first axis of each input is divided among the devices.
    if len(devices) > 1:
        mesh = jax.make_mesh((len(devices),), ("batch",), (AxisType.Auto,), devices=devices)
        sharding = NamedSharding(mesh, PartitionSpec("batch"))

    def compute(items: Sequence[Mapping[str, Array]]) -> dict[str, Any]:
        """Pad the items to a full batch, and start to compute the batch."""
        padding = [items[-1]] * (size - len(items))  # The last item is repeated.
        padded_items = [*items, *padding]
        batches: list[Array] = []
        for spec in model.inputs:
            batches.append(np.concatenate([item[spec.name] for item in padded_items]))
        outputs = model(*jax.device_put(batches, sharding))
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
    # These are the groups whose results are not yielded yet, and their outputs.
    running: deque[tuple[list[ItemArrays], dict[str, Any]]] = deque()
    finished_items = 0
    # After the last group comes None. The iteration for None finishes all groups.
    for group in chain(groups, [None]):
        if group is not None:
            items = [read.outcome for read in group if not isinstance(read.outcome, Exception)]
            outputs = compute(items) if items else {}
            running.append((group, outputs))
        # While the newest group is computed, the results of earlier groups are yielded.
        most_running = 0 if group is None else 1
        while len(running) > most_running:
            reads, outputs = running.popleft()
            yield from _rows(reads, outputs)
            finished_items += len(reads)
            done(finished_items)


def _rows(reads: Sequence[ItemArrays], outputs: Mapping[str, Any]) -> Iterator[ItemArrays]:
    """Yield the result of each item of a group: its row of the outputs, or its error."""
    arrays = {name: np.asarray(array) for name, array in outputs.items()}
    next_row = 0
    for read in reads:
        if isinstance(read.outcome, Exception):
            yield read
            continue
        rows = {name: array[next_row] for name, array in arrays.items()}
        next_row += 1
        yield ItemArrays(read.item, rows)
