"""Finds the module of each operation in the framework that exported the network.

Exporters keep the names of modules in labels of parameters ("blocks.3.attention.query.weight"), or
in names of tensors. An operation without such a name belongs to the module of an operation before
or after it. The boundary between the two modules is placed where the fewest tensors are alive.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lowering.graph import Call, Graph, Operation, Value
from nnef_jax.parameters.module_names import ModuleNames, Path, components, shared_start

_MANY = 60  # The number of units above which "_" in labels may separate names of modules.
_ENDS_IN_NUMBER = re.compile(r".*\d", re.DOTALL)


@dataclass(slots=True)
class OperationUnit:
    """An operation, after the operations that prepare parameters and constants only for it."""

    operations: list[Operation]
    path: Path = ()

    @property
    def main(self) -> Operation:
        """Return the last operation, for which the others prepare operands."""
        return self.operations[-1]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the chain of fragment calls from which the main operation comes."""
        return self.main.calls


def units_of(graph: Graph) -> list[OperationUnit]:
    """Return the operations of a graph as units, in an order in which they can be computed."""
    inputs = {*graph.inputs, *(state.value for state in graph.states)}
    varying: set[Value] = set(inputs)
    place: dict[Operation, int] = {}
    for index, operation in enumerate(graph.operations):
        if not inputs or not varying.isdisjoint(operation.reads()):
            varying.update(operation.writes())
            place[operation] = index
    # An operation that depends on no input joins the first operation that reads its results.
    earliest: dict[Value, int] = {}
    for index in range(len(graph.operations) - 1, -1, -1):
        operation = graph.operations[index]
        if operation not in place:
            readers = [earliest[v] for v in operation.writes() if v in earliest]
            place[operation] = min(readers, default=index)
        for value in operation.reads():
            earliest[value] = min(place[operation], earliest.get(value, place[operation]))
    units: dict[int, OperationUnit] = {}
    for operation in graph.operations:
        units.setdefault(place[operation], OperationUnit([])).operations.append(operation)
    return [units[index] for index in sorted(units)]


def alive(units: Sequence[OperationUnit], graph: Graph) -> list[int]:
    """Return the number of live tensors before each unit, and after the last unit.

    A tensor is live before a unit if an earlier unit writes it, and this or a later unit reads it.
    """
    writers: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, unit in enumerate(units):
        for operation in unit.operations:
            for value in operation.reads():
                if value in writers:
                    last[value] = index
            writers.update(dict.fromkeys(operation.writes(), index))
    last |= {value: len(units) for value in graph.outputs if value in writers}
    change = [0] * (len(units) + 2)
    for value, end in last.items():
        change[writers[value] + 1] += 1
        change[end + 1] -= 1
    return list(accumulate(change))[: len(units) + 1]


def find_modules(units: Sequence[OperationUnit], graph: Graph, living: Sequence[int]) -> None:
    """Set the path of each unit's module. Units of one fragment call share the start of a path."""
    names = ModuleNames(graph)
    paths = [names.by_labels(unit.operations) for unit in units]
    if _are_distinctive(paths):
        paths = _with_paths_by_name(units, paths, names)
    elif len(units) > _MANY:
        labels = {p.value: tuple(p.label.split("_"))[:-1] for p in graph.parameters}
        paths = []
        for unit in units:
            values = [value for operation in unit.operations for value in operation.reads()]
            paths.append(shared_start([labels[value] for value in values if labels.get(value)]))
    if not _are_distinctive(paths):
        paths = [components(unit.main.name)[:-1] or None for unit in units]
        if 2 * sum(path is not None for path in paths) < len(units):
            return
    spans = _invocations(units)
    anchors: list[Path | None] = []
    for start, end in spans:
        anchors.append(shared_start([p for p in paths[start:end] if p is not None]))
    for (start, end), span_path in zip(spans, _filled(anchors, spans, living), strict=True):
        is_call = end - start > 1
        for index in range(start, end):
            path = paths[index]
            # Within a call, a unit that has its own path keeps it.
            units[index].path = path if path is not None and is_call else span_path


def _with_paths_by_name(
    units: Sequence[OperationUnit], by_labels: Sequence[Path | None], names: ModuleNames
) -> list[Path | None]:
    """Add paths from names of operations that agree with a path from labels before or after."""
    before = [*accumulate(by_labels, _latest)]
    after = [*accumulate(reversed(by_labels), _latest)][::-1]
    paths = [*by_labels]
    for index, unit in enumerate(units):
        path = None if by_labels[index] else names.by_name(unit.main)
        if path is not None:
            neighbours = [x for x in (before[index], after[index]) if x is not None]
            if any(x[: len(path)] == path for x in neighbours):
                paths[index] = path
    return paths


def _latest(last: Path | None, path: Path | None) -> Path | None:
    return path or last


def _are_distinctive(paths: Sequence[Path | None]) -> bool:
    """Tell whether there are more than two different paths."""
    return len({path for path in paths if path}) > 2


def _invocations(units: Sequence[OperationUnit]) -> list[tuple[int, int]]:
    """Return ranges (start, end) of units: all units of one call, or one unit without a call."""
    spans: list[tuple[int, int]] = []
    for index, unit in enumerate(units):
        if spans and unit.calls and units[index - 1].calls[:1] == unit.calls[:1]:
            spans[-1] = spans[-1][0], index + 1
        else:
            spans.append((index, index + 1))
    return spans


def _filled(
    anchors: Sequence[Path | None], spans: Sequence[tuple[int, int]], living: Sequence[int]
) -> list[Path]:
    """Return the path of each span.

    A span without a path takes the start of the path before or after it, or their common start.
    """
    indices = [index for index, path in enumerate(anchors) if path is not None]
    paths = [path or () for path in anchors]
    for before, after in zip([-1, *indices], [*indices, len(anchors)], strict=True):
        if after - before < 2:
            continue
        left = paths[before] if before >= 0 else ()
        right = paths[after] if after < len(anchors) else ()
        cuts = range(before + 1, after + 1)
        counts: dict[int, int] = {}  # the number of live tensors, by cut
        for cut in cuts:
            counts[cut] = living[spans[cut][0]] if cut < len(spans) else living[-1]
        # Between two paths, the last of equally narrow cuts is taken, so that an activation after a
        # sum belongs to the block before the cut. After the last path, the first of equally narrow
        # cuts is taken.
        order = cuts if after == len(anchors) else reversed(cuts)
        cut = min(order, key=counts.__getitem__)
        shared = len(shared_start([left, right]) or ())
        for index in range(before + 1, after):
            path = left if index < cut else right
            paths[index] = _block(path, shared)
    return paths


def _block(path: Path, shared: int) -> Path:
    """Return the longest proper start of a path that ends in a numbered module, such as "blocks.3".

    If no such start has more than `shared` modules, return the first `shared` modules.
    """
    for length in range(len(path) - 1, shared, -1):
        if _ENDS_IN_NUMBER.fullmatch(path[length - 1]):
            return path[:length]
    return path[:shared]
