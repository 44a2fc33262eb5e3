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

# If labels have no other separator, "_" may separate the names of modules. This is tried only in
# networks with more than 60 units.
_MANY_UNITS = 60
_ENDS_IN_NUMBER = re.compile(r".*\d", re.DOTALL)


@dataclass(slots=True)
class OperationUnit:
    """An operation, together with the operations that prepare its constant operands.

    The list `operations` ends with the main operation. The operations before it prepare parameters
    and constants for the main operation only.
    """

    operations: list[Operation]
    path: Path = ()

    @property
    def main(self) -> Operation:
        """Return the last operation of the unit. All others prepare operands for it."""
        return self.operations[-1]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the chain of fragment calls from which the main operation comes."""
        return self.main.calls


def units_of(graph: Graph) -> list[OperationUnit]:
    """Return the operations of a graph as units, in an order in which they can be computed."""
    positions = _positions_of_dependent(graph)
    # An operation without a position prepares a constant. It joins the unit of the first operation
    # that reads its results. The operations are visited in reverse order, so the positions of all
    # readers are known.
    first_readers: dict[Value, int] = {}
    for index, operation in reversed([*enumerate(graph.operations)]):
        if operation not in positions:
            readers: list[int] = []
            for value in operation.writes():
                if value in first_readers:
                    readers.append(first_readers[value])
            positions[operation] = min(readers, default=index)
        position = positions[operation]
        for value in operation.reads():
            first_readers[value] = min(position, first_readers.get(value, position))
    units: dict[int, OperationUnit] = {}
    for operation in graph.operations:
        unit = units.setdefault(positions[operation], OperationUnit(operations=[]))
        unit.operations.append(operation)
    return [units[position] for position in sorted(units)]


def _positions_of_dependent(graph: Graph) -> dict[Operation, int]:
    """Return the index of each operation that depends on an input or a state of a graph.

    If the graph has neither inputs nor states, all operations have an index.
    """
    inputs = {*graph.inputs, *(state.value for state in graph.states)}
    dependent_on_inputs: set[Value] = set(inputs)
    positions: dict[Operation, int] = {}
    for index, operation in enumerate(graph.operations):
        depends_on_input = not dependent_on_inputs.isdisjoint(operation.reads())
        if depends_on_input or not inputs:
            dependent_on_inputs.update(operation.writes())
            positions[operation] = index
    return positions


def count_live_tensors(units: Sequence[OperationUnit], graph: Graph) -> list[int]:
    """Return the number of live tensors before each unit, and after the last unit.

    A tensor is live before unit i if a unit before i writes the tensor, and unit i or a later unit
    reads it. Outputs of the graph are live until the end.
    """
    writers: dict[Value, int] = {}
    last_readers: dict[Value, int] = {}
    for index, unit in enumerate(units):
        for operation in unit.operations:
            for value in operation.reads():
                if value in writers:
                    last_readers[value] = index
            writers.update(dict.fromkeys(operation.writes(), index))
    for value in graph.outputs:
        if value in writers:
            # An output is also live after the last unit.
            last_readers[value] = len(units)
    # A tensor is live from the unit after its writer until its last reader. If unit 2 writes the
    # tensor, and unit 5 is its last reader, the count rises by 1 at unit 3 and falls by 1 at unit
    # 6.
    changes = [0] * (len(units) + 2)
    for value, last_reader in last_readers.items():
        changes[writers[value] + 1] += 1
        changes[last_reader + 1] -= 1
    return list(accumulate(changes))[: len(units) + 1]


def find_modules(units: Sequence[OperationUnit], graph: Graph, live_counts: Sequence[int]) -> None:
    """Set the attribute `path` of each unit: the path of the unit's module.

    All units of a fragment call are in one module, and may be in modules inside it. Their paths
    therefore have a common start. `live_counts` is the result of `count_live_tensors` for the
    units. If the names in the graph show no modules, the paths stay empty.
    """
    paths = _paths_by_names(units, graph)
    if paths is None:
        return
    spans = _spans_of_calls(units)
    # All units of a span are in one call, and so in one module. The path of a span is the common
    # prefix of the known paths in the span.
    known_paths: list[Path | None] = []
    for start, end in spans:
        paths_in_span = [path for path in paths[start:end] if path is not None]
        known_paths.append(shared_start(paths_in_span))
    span_paths = _paths_of_spans(known_paths, spans, live_counts)
    for (start, end), span_path in zip(spans, span_paths, strict=True):
        has_several_units = end - start > 1
        for index in range(start, end):
            own_path = paths[index] if has_several_units else None
            units[index].path = span_path if own_path is None else own_path


def _paths_by_names(units: Sequence[OperationUnit], graph: Graph) -> list[Path | None] | None:
    """Return the path of each unit's module. The paths come from names in the graph.

    A path is None if the names do not show the unit's module. The result is None if the names show
    no modules at all.
    """
    names = ModuleNames(graph)
    paths = [names.by_labels(unit.operations) for unit in units]
    if _are_distinctive(paths):
        paths = _with_paths_by_name(units, paths, names)
    elif len(units) > _MANY_UNITS:
        paths = _paths_by_words(units, graph)
    if _are_distinctive(paths):
        return paths
    # The labels of parameters show no modules, so the names of operations are tried.
    paths = [components(unit.main.name)[:-1] or None for unit in units]
    named_count = sum(path is not None for path in paths)
    are_mostly_named = 2 * named_count >= len(units)
    return paths if are_mostly_named else None


def _paths_by_words(units: Sequence[OperationUnit], graph: Graph) -> list[Path | None]:
    """Return a path for each unit: the words with which the labels of all its parameters begin.

    Here "_" separates words, and words are the names of modules. The path is None if the unit reads
    no parameter with such a label.
    """
    words_by_value: dict[Value, Path] = {}
    for parameter in graph.parameters:
        *words, _last_word = parameter.label.split("_")
        words_by_value[parameter.value] = tuple(words)
    paths: list[Path | None] = []
    for unit in units:
        label_words: list[Path] = []
        for operation in unit.operations:
            for value in operation.reads():
                words = words_by_value.get(value)
                if words:
                    label_words.append(words)
        paths.append(shared_start(label_words))
    return paths


def _with_paths_by_name(
    units: Sequence[OperationUnit], by_labels: Sequence[Path | None], names: ModuleNames
) -> list[Path | None]:
    """Return the paths `by_labels`, with paths from names of operations for units that lack one.

    If a unit has no path in `by_labels`, the name of its main operation may contain a path. The
    unit gets this path if it is a prefix of a neighbouring path: of the nearest path in
    `by_labels` before the unit, or after the unit.
    """
    nearest_before = [*accumulate(by_labels, _latest)]
    nearest_after = [*accumulate(reversed(by_labels), _latest)]
    nearest_after.reverse()
    paths = [*by_labels]
    for index, unit in enumerate(units):
        if by_labels[index]:
            continue
        path = names.by_name(unit.main)
        if path is None:
            continue
        for neighbour in (nearest_before[index], nearest_after[index]):
            if neighbour is not None and neighbour[: len(path)] == path:
                paths[index] = path
    return paths


def _latest(last: Path | None, path: Path | None) -> Path | None:
    """Return `path`, or `last` if `path` is None or empty."""
    return path or last


def _are_distinctive(paths: Sequence[Path | None]) -> bool:
    """Tell whether there are more than two different paths."""
    return len({path for path in paths if path}) > 2


def _spans_of_calls(units: Sequence[OperationUnit]) -> list[tuple[int, int]]:
    """Divide the units into ranges (start, end).

    Consecutive units of the same outermost call form a range. A unit without a call is a range by
    itself.
    """
    spans: list[tuple[int, int]] = []
    last_call: tuple[Call, ...] = ()
    for index, unit in enumerate(units):
        # `call` is a tuple of the outermost call, or an empty tuple for a unit without a call.
        call = unit.calls[:1]
        if call and call == last_call:
            start, _ = spans.pop()
            spans.append((start, index + 1))
        else:
            spans.append((index, index + 1))
        last_call = call
    return spans


def _paths_of_spans(
    known_paths: Sequence[Path | None],
    spans: Sequence[tuple[int, int]],
    live_counts: Sequence[int],
) -> list[Path]:
    """Return the path of each span's module. A span is a range of units (start, end).

    `known_paths` has the path of each span, or None for a span without a path. A span without a
    path takes a prefix of a known path: of the last one before it, or of the first one after it.
    The prefix has at least the names with which both of these paths begin.
    """
    span_count = len(spans)
    known_indices = [index for index, path in enumerate(known_paths) if path is not None]
    paths = [path or () for path in known_paths]
    for before, after in pairwise([-1, *known_indices, span_count]):
        first_unknown = before + 1
        if first_unknown == after:
            # There is no span without a path between the spans `before` and `after`.
            continue
        path_before = paths[before] if before >= 0 else ()
        path_after = paths[after] if after < span_count else ()
        # A cut divides the spans without a path. Spans before the cut take a prefix of
        # `path_before`, and spans from the cut on take a prefix of `path_after`.
        cuts = range(first_unknown, after + 1)
        narrowest_cut = _narrowest_cut(cuts, spans, live_counts)
        shared_length = len(shared_start([path_before, path_after]) or ())
        for index in range(first_unknown, after):
            path = path_before if index < narrowest_cut else path_after
            paths[index] = _numbered_start(path, shared_length)
    return paths


def _narrowest_cut(
    cuts: range, spans: Sequence[tuple[int, int]], live_counts: Sequence[int]
) -> int:
    """Return the cut at which the fewest tensors are live.

    A cut is the index of the span after the cut. Several cuts may have the fewest live tensors. The
    last of these is taken: an activation after a sum then belongs to the block before the cut. If
    `cuts` reach the end of the network, the first of these is taken.
    """
    counts: dict[int, int] = {}
    for cut in cuts:
        is_at_end = cut == len(spans)
        unit_after_cut = -1 if is_at_end else spans[cut][0]
        counts[cut] = live_counts[unit_after_cut]
    reach_end = cuts[-1] == len(spans)
    order = cuts if reach_end else reversed(cuts)
    return min(order, key=counts.__getitem__)


def _numbered_start(path: Path, shared_length: int) -> Path:
    """Cut a path after its last numbered module: "blocks.3.attention" becomes "blocks.3".

    The last name in the path is always cut off, even if it has a number. The result has at least
    `shared_length` names.
    """
    for length in range(len(path) - 1, shared_length, -1):
        last_name = path[length - 1]
        if _ENDS_IN_NUMBER.fullmatch(last_name):
            return path[:length]
    return path[:shared_length]
