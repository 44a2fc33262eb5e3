"""Finds the module of each operation, as the framework that wrote the network had it.

Exporters keep the names of modules in the labels of parameters ("blocks.3.attention.query.weight"),
or in the names of tensors. What has no such name belongs where its neighbours do: between two
modules the boundary is where fewest tensors are alive.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lowering.graph import Call, Graph, Operation, Value
from nnef_jax.module_names import ModuleNames, Path, components, shared_start

_MANY = 60  # units, from which on a "_" in labels is taken for what separates modules
_ENDS_IN_NUMBER = re.compile(r".*\d", re.DOTALL)


@dataclass(slots=True)
class OperationUnit:
    """An operation, after those that prepare parameters and constants for it alone."""

    operations: list[Operation]
    path: Path = ()

    @property
    def main(self) -> Operation:
        """Return the operation that the others prepare something for."""
        return self.operations[-1]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the chain of fragment calls that it came from."""
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
    # What depends on no input goes to the first operation that reads it.
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
    """Return how many tensors units before each unit made that it or later units read."""
    made: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, unit in enumerate(units):
        for operation in unit.operations:
            for value in operation.reads():
                if value in made:
                    last[value] = index
            made.update(dict.fromkeys(operation.writes(), index))
    last |= {value: len(units) for value in graph.outputs if value in made}
    change = [0] * (len(units) + 2)
    for value, end in last.items():
        change[made[value] + 1] += 1
        change[end + 1] -= 1
    return list(accumulate(change))[: len(units) + 1]


def find_modules(units: Sequence[OperationUnit], graph: Graph, living: Sequence[int]) -> None:
    """Give each unit the path of its module; of those in one fragment call, a common one first."""
    names = ModuleNames(graph)
    known = [names.by_labels(unit.operations) for unit in units]
    if _tell(known):
        known = _named(units, known, names)
    elif len(units) > _MANY:
        labels = {p.value: tuple(p.label.split("_"))[:-1] for p in graph.parameters}
        known = [
            shared_start([labels[v] for x in unit.operations for v in x.reads() if labels.get(v)])
            for unit in units
        ]
    if not _tell(known):
        known = [components(unit.main.name)[:-1] or None for unit in units]
        if 2 * sum(path is not None for path in known) < len(units):
            return
    spans = _invocations(units)
    anchors = [shared_start([p for p in known[a:b] if p is not None]) for a, b in spans]
    for (a, b), path in zip(spans, _filled(anchors, spans, living), strict=True):
        for index in range(a, b):
            unit = known[index]
            # In a call, the path that its operations share comes before the call.
            units[index].path = unit if unit is not None and b - a > 1 else path


def _named(
    units: Sequence[OperationUnit], known: Sequence[Path | None], names: ModuleNames
) -> list[Path | None]:
    """Add the paths that names of operations tell, where the parameters before or after agree."""
    before = [*accumulate(known, _latest)]
    after = [*accumulate(reversed(known), _latest)][::-1]
    found = [*known]
    for index, unit in enumerate(units):
        if not known[index] and (path := names.by_name(unit.main)) is not None:
            near = [x for x in (before[index], after[index]) if x is not None]
            if any(x[: len(path)] == path for x in near):
                found[index] = path
    return found


def _latest(last: Path | None, path: Path | None) -> Path | None:
    return path or last


def _tell(paths: Sequence[Path | None]) -> bool:
    """Tell whether paths say something of a network."""
    return len({path for path in paths if path}) > 2


def _invocations(units: Sequence[OperationUnit]) -> list[tuple[int, int]]:
    """Return the ranges of units that come from one call each; others stand alone."""
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
    """Give operations between two known paths to one of them, or to the module that has both."""
    known = [index for index, path in enumerate(anchors) if path is not None]
    found = [path or () for path in anchors]
    for before, after in zip([-1, *known], [*known, len(anchors)], strict=True):
        if after - before < 2:
            continue
        left = found[before] if before >= 0 else ()
        right = found[after] if after < len(anchors) else ()
        cuts = range(before + 1, after + 1)
        counts = [living[spans[cut][0]] if cut < len(spans) else living[-1] for cut in cuts]
        # The last of the narrowest places: an activation after a sum belongs to what it ends.
        order = cuts if after == len(anchors) else reversed(cuts)
        counted = dict(zip(cuts, counts, strict=True))
        cut = min(order, key=counted.__getitem__)
        shared = len(shared_start([left, right]) or ())
        for index in range(before + 1, after):
            found[index] = _block(left if index < cut else right, shared)
    return found


def _block(path: Path, shared: int) -> Path:
    """Return the start of a path down to the last numbered module that has modules of its own."""
    for length in range(len(path) - 1, shared, -1):
        if _ENDS_IN_NUMBER.fullmatch(path[length - 1]):
            return path[:length]
    return path[:shared]
