"""Finds the module of each operation in the framework that exported the network.

Exporters keep the names of modules in labels of parameters ("blocks.3.attention.query.weight"), or
in names of tensors. An operation without such a name belongs to the module of an operation before
or after it. The boundary between the two modules is placed where the fewest tensors are alive.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from lowering.graph import Call, Graph, Operation, Value
from nnef_jax.parameters.module_names import ModuleNames, Path, components, shared_start

# In a network of more units, "_" in labels may separate names of modules.
_MANY_UNITS = 60
_ENDS_IN_NUMBER = re.compile(r".*\d", re.DOTALL)


@dataclass(slots=True)
class OperationUnit:
    """An operation, together with the operations that prepare its constant operands.

    The list `operations` ends with the operation. Before it are the operations that prepare
    parameters and constants only for it.
    """

    operations: list[Operation]
    path: Path = ()

    @property
    def main(self) -> Operation:
        """Return the last operation of the unit, for which the others prepare operands."""
        return self.operations[-1]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the chain of fragment calls from which the main operation comes."""
        return self.main.calls


def units_of(graph: Graph) -> list[OperationUnit]:
    """Return the operations of a graph as units, in an order in which they can be computed."""
    inputs = {*graph.inputs, *(state.value for state in graph.states)}
    varying: set[Value] = set(inputs)
    positions: dict[Operation, int] = {}  # the index of the main operation of the unit
    for index, operation in enumerate(graph.operations):
        depends_on_input = not varying.isdisjoint(operation.reads())
        if depends_on_input or not inputs:
            varying.update(operation.writes())
            positions[operation] = index
    # An operation that depends on no input joins the first operation that reads its results.
    first_readers: dict[Value, int] = {}
    for index, operation in reversed([*enumerate(graph.operations)]):
        if operation not in positions:
            readers = [
                first_readers[value] for value in operation.writes() if value in first_readers
            ]
            positions[operation] = min(readers, default=index)
        position = positions[operation]
        for value in operation.reads():
            first_readers[value] = min(position, first_readers.get(value, position))
    units: dict[int, OperationUnit] = {}
    for operation in graph.operations:
        units.setdefault(positions[operation], OperationUnit([])).operations.append(operation)
    return [units[position] for position in sorted(units)]


def live_counts(units: Sequence[OperationUnit], graph: Graph) -> list[int]:
    """Return the number of live tensors before each unit, and after the last unit.

    A tensor is live before a unit if an earlier unit writes it, and the unit or a later one reads
    it.
    """
    writers: dict[Value, int] = {}
    last_readers: dict[Value, int] = {}
    for index, unit in enumerate(units):
        for operation in unit.operations:
            for value in operation.reads():
                if value in writers:
                    last_readers[value] = index
            writers.update(dict.fromkeys(operation.writes(), index))
    last_readers |= {value: len(units) for value in graph.outputs if value in writers}
    # A tensor is live from the unit after its writer until its last reader.
    changes = [0] * (len(units) + 2)
    for value, last_reader in last_readers.items():
        changes[writers[value] + 1] += 1
        changes[last_reader + 1] -= 1
    return list(accumulate(changes))[: len(units) + 1]


def find_modules(units: Sequence[OperationUnit], graph: Graph, live_counts: Sequence[int]) -> None:
    """Set the path of each unit's module. Units of one fragment call share the start of a path.

    `live_counts` is the result of the function `live_counts`.
    """
    names = ModuleNames(graph)
    paths = [names.by_labels(unit.operations) for unit in units]
    if _are_distinctive(paths):
        paths = _with_paths_by_name(units, paths, names)
    elif len(units) > _MANY_UNITS:
        paths = _paths_by_words(units, graph)
    if not _are_distinctive(paths):
        paths = [components(unit.main.name)[:-1] or None for unit in units]
        named_count = sum(path is not None for path in paths)
        if 2 * named_count < len(units):
            return
    spans = _invocations(units)
    anchors: list[Path | None] = []
    for start, end in spans:
        anchors.append(shared_start([path for path in paths[start:end] if path is not None]))
    span_paths = _paths_of_spans(anchors, spans, live_counts)
    for (start, end), span_path in zip(spans, span_paths, strict=True):
        is_call = end - start > 1
        for index in range(start, end):
            own_path = paths[index] if is_call else None
            units[index].path = span_path if own_path is None else own_path


def _paths_by_words(units: Sequence[OperationUnit], graph: Graph) -> list[Path | None]:
    """Return a path for each unit: the words with which the labels of all its parameters begin.

    This is for labels in which "_" separates the names of modules. The path is None if there is
    none.
    """
    labels: dict[Value, Path] = {}
    for parameter in graph.parameters:
        labels[parameter.value] = tuple(parameter.label.split("_"))[:-1]
    paths: list[Path | None] = []
    for unit in units:
        values = [value for operation in unit.operations for value in operation.reads()]
        paths.append(shared_start([labels[value] for value in values if labels.get(value)]))
    return paths


def _with_paths_by_name(
    units: Sequence[OperationUnit], by_labels: Sequence[Path | None], names: ModuleNames
) -> list[Path | None]:
    """Return `by_labels`, with further paths that come from the names of operations.

    A path from a name is used if the nearest path from labels before or after the operation begins
    with it.
    """
    before = [*accumulate(by_labels, _latest)]
    after = [*accumulate(reversed(by_labels), _latest)][::-1]
    paths = [*by_labels]
    for index, unit in enumerate(units):
        path = None if by_labels[index] else names.by_name(unit.main)
        if path is not None:
            neighbours = [p for p in (before[index], after[index]) if p is not None]
            if any(neighbour[: len(path)] == path for neighbour in neighbours):
                paths[index] = path
    return paths


def _latest(last: Path | None, path: Path | None) -> Path | None:
    return path or last


def _are_distinctive(paths: Sequence[Path | None]) -> bool:
    """Tell whether there are more than two different paths."""
    return len({path for path in paths if path}) > 2


def _invocations(units: Sequence[OperationUnit]) -> list[tuple[int, int]]:
    """Return ranges (start, end) of units.

    Consecutive units of the same call form a range, and a unit without a call is a range of its
    own.
    """
    spans: list[tuple[int, int]] = []
    for index, unit in enumerate(units):
        if spans and unit.calls and units[index - 1].calls[:1] == unit.calls[:1]:
            spans[-1] = spans[-1][0], index + 1
        else:
            spans.append((index, index + 1))
    return spans


def _paths_of_spans(
    anchors: Sequence[Path | None], spans: Sequence[tuple[int, int]], live_counts: Sequence[int]
) -> list[Path]:
    """Return the module's path of each span, a range of units (start, end).

    `anchors` are the paths that are known. A span without a path takes the start of the path before
    or after it, or the common start of both paths.
    """
    indices = [index for index, path in enumerate(anchors) if path is not None]
    paths = [path or () for path in anchors]
    for before, after in pairwise([-1, *indices, len(anchors)]):
        is_gap = after > before + 1
        if not is_gap:
            continue
        left = paths[before] if before >= 0 else ()
        right = paths[after] if after < len(anchors) else ()
        cuts = range(before + 1, after + 1)
        counts: dict[int, int] = {}  # the number of live tensors, by cut
        for cut in cuts:
            counts[cut] = live_counts[spans[cut][0]] if cut < len(spans) else live_counts[-1]
        # Between two paths, the last of equally narrow cuts is taken, so that an activation after a
        # sum belongs to the block before the cut. After the last path, the first of equally narrow
        # cuts is taken.
        order = cuts if after == len(anchors) else reversed(cuts)
        cut = min(order, key=counts.__getitem__)
        shared_length = len(shared_start([left, right]) or ())
        for index in range(before + 1, after):
            path = left if index < cut else right
            paths[index] = _numbered_start(path, shared_length)
    return paths


def _numbered_start(path: Path, shared_length: int) -> Path:
    """Return the longest proper start of a path that ends in a numbered module, such as "blocks.3".

    If no such start has more than `shared_length` modules, return the first `shared_length`
    modules.
    """
    for length in range(len(path) - 1, shared_length, -1):
        if _ENDS_IN_NUMBER.fullmatch(path[length - 1]):
            return path[:length]
    return path[:shared_length]
