"""Tells how two networks differ: inputs, outputs, operations, weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import show
from lowering.graph import Graph, Operation, Value
from nnef_jax.measure.array_statistics import chunks
from nnef_jax.measure.pairing import Pairs, named_operations, paired
from nnef_jax.model import Model
from nnef_jax.reading.network import Network
from nnef_jax.reading.read import Source, read
from nnef_jax.results import Result, Table, number, table_of
from nnef_jax.workings import stored

_SIGNS = {"removed": "-", "added": "+", "changed": "~", "renamed": ">"}

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs.

    Attributes:
        part: "input", "output", "state", "operation" or "weights".
        change: "added", "removed", "changed" or "renamed".
        name: the name in `a`, for "added" in `b`.
        renamed: the name in `b` if it differs from `name`.
        kind: the kind of an operation, or the type of an array.
        details: descriptions such as "stride: [1,1] -> [2,2]".
        distance: for weights the norm of the difference, relative to the norm of the finite
            numbers of `a`; infinite if only one of two items is NaN.
    """

    part: str
    change: str
    name: str
    kind: str
    renamed: str | None = None
    details: tuple[str, ...] = ()
    distance: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Difference(Result):
    """How network `b` differs from network `a`.

    Attributes:
        changes: changes in the order of the documents; empty if the networks are the same.
        operations: the numbers of operations of `a` and `b`.
        weights: the numbers of arrays of `a` and `b`.
    """

    changes: tuple[Change, ...]
    operations: tuple[int, int]
    weights: tuple[int, int]

    @property
    def same(self) -> bool:
        """Tell whether the networks are equal, including names."""
        return not self.changes

    def to_dict(self) -> dict[str, object]:
        """Return the attributes, and whether the networks are the `same`."""
        return super().to_dict() | {"same": self.same}

    def table(self) -> Table:
        """Return a table with a line for each change: - removed, + added, ~ changed, > renamed."""
        rows = [
            (
                _SIGNS[x.change],
                x.part,
                x.name if x.renamed is None else f"{x.name} -> {x.renamed}",
                x.kind,
                "; ".join(x.details),
            )
            for x in self.changes
        ]
        counts = [f"{n} {part}" for part, n in self._counts().items()]
        heading = f"{', '.join(counts)} differ" if counts else "nothing differs"
        sizes = [
            f"{a:,}" if a == b else f"{a:,} and {b:,}" for a, b in (self.operations, self.weights)
        ]
        title = f"{heading}, of {sizes[0]} operations and {sizes[1]} arrays"
        return table_of(title, ("", "part", "name", "kind", "what"), rows)

    def _counts(self) -> dict[str, int]:
        parts = [change.part for change in self.changes]
        names = {part: part if part == "weights" else f"{part}s" for part in parts}
        return {name: parts.count(part) for part, name in names.items()}


def diff(a: Model | Source, b: Model | Source) -> Difference:
    """Compare two networks as documents: structure, types, attributes and weights. Nothing runs.

    Operations are paired by name. If pairing by structure (kind, type, attributes and order) leaves
    fewer differences, it is used instead: in a network with new names every operation is "renamed".
    Kinds have one meaning in all formats, so that a network can be compared with its conversion.

    Args:
        a, b: models, or sources as in `load`.

    Raises the errors of `load`.

    >>> print(nnef_jax.diff("before.nnef.tgz", "after.nnef.tgz"))
    """
    (graph_a, data_a), (graph_b, data_b) = map(_graph_and_data, (a, b))
    pairs = paired(graph_a, graph_b)
    changes = [
        *_values("input", _inputs(graph_a), _inputs(graph_b)),
        *_values("output", _outputs(graph_a), _outputs(graph_b)),
        *_operations(graph_a, graph_b, pairs),
        *_states(graph_a, graph_b, pairs),
        *_weights(data_a, data_b, pairs),
    ]
    operations = len(graph_a.operations), len(graph_b.operations)
    return Difference(tuple(changes), operations, (len(data_a), len(data_b)))


def _graph_and_data(source: Model | Source) -> tuple[Graph, dict[str, Any]]:
    """Return the graph, and the arrays of parameters and states by label."""
    if isinstance(source, Model):
        return source.graph, dict(stored(source))
    network: Network = read(source)
    return network.graph, dict(network.data)


def _inputs(graph: Graph) -> dict[str, str]:
    return {value.name: str(value.type) for value in graph.inputs}


def _outputs(graph: Graph) -> dict[str, str]:
    pairs = zip(graph.output_names, graph.outputs, strict=True)
    return {name: str(value.type) for name, value in pairs}


def _values(part: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    """Yield differences of inputs or outputs.

    They are paired by name, or in order if as many have other names.
    """
    if len(a) == len(b) and set(a) != set(b):
        pairs = list(zip(a, b, strict=True))
    else:
        pairs = [(name, name) for name in a if name in b]
    for x, y in pairs:
        if a[x] != b[y] or x != y:
            details = (f"{a[x]} -> {b[y]}",) if a[x] != b[y] else ()
            change = "changed" if details else "renamed"
            yield Change(part, change, x, a[x], y if x != y else None, details)
    order_a, order_b = ([name for name in side if name in a and name in b] for side in (a, b))
    if len(a) == len(pairs) and order_a != order_b:
        details = (f"order: {', '.join(order_a)} -> {', '.join(order_b)}",)
        yield Change(part, "changed", order_a[0], "", details=details)
    yield from [Change(part, "removed", x, a[x]) for x in a if x not in {p[0] for p in pairs}]
    yield from [Change(part, "added", y, b[y]) for y in b if y not in {p[1] for p in pairs}]


def _operations(a: Graph, b: Graph, pairs: Pairs) -> Iterator[Change]:
    first, second = named_operations(a), named_operations(b)
    for name, operation in first.items():
        if name not in pairs.operations:
            yield Change("operation", "removed", name, operation.kind, details=_operands(operation))
            continue
        other = second[pairs.operations[name]]
        details = tuple(_changes(operation, other, pairs))
        renamed = other.name if other.name != operation.name else None
        if details or renamed:
            change = "changed" if details else "renamed"
            yield Change("operation", change, name, operation.kind, renamed, details)
    partners = set(pairs.operations.values())
    for name, operation in second.items():
        if name not in partners:
            yield Change("operation", "added", name, operation.kind, details=_operands(operation))


def _operands(operation: Operation) -> tuple[str]:
    return (f"of {', '.join(value.name for value in operation.reads())}",)


def _changes(a: Operation, b: Operation, pairs: Pairs) -> Iterator[str]:
    """Yield differences between two operations that are paired."""
    if a.kind != b.kind:
        yield f"{a.kind} -> {b.kind}"
    for x, y in ((a.attributes, b.attributes), (a.operands, b.operands)):
        old, new = dict(x), dict(y)
        for name in dict.fromkeys((*old, *new)):
            if name not in new:
                yield f"no longer {name}: {_shown(old[name])}"
            elif name not in old:
                yield f"now {name}: {_shown(new[name])}"
            elif not pairs.agree(old[name], new[name]):
                yield f"{name}: {_shown(old[name])} -> {_shown(new[name])}"
    for x, y in zip(a.writes(), b.writes(), strict=False):
        if x.type != y.type:
            yield f"{x.type} -> {y.type}"


def _states(a: Graph, b: Graph, pairs: Pairs) -> Iterator[Change]:
    """Yield states whose update differs; `_weights` reports added and removed states."""
    updates = {state.label: state.update for state in b.states}
    for state in a.states:
        label = pairs.labels.get(state.label)
        if label in updates and not pairs.agree(state.update, updates[label]):
            details = (f"updated by {state.update.name} -> {updates[label].name}",)
            yield Change("state", "changed", state.label, str(state.value.type), details=details)


def _weights(a: Mapping[str, Any], b: Mapping[str, Any], pairs: Pairs) -> Iterator[Change]:
    for label, array in a.items():
        other = pairs.labels.get(label)
        old = np.asarray(array)
        kind = _type(old)
        if other is None or other not in b:
            yield Change("weights", "removed", label, kind)
            continue
        new = np.asarray(b[other])
        renamed = other if other != label else None
        if _type(new) != kind:
            yield Change("weights", "changed", label, kind, renamed, (f"{kind} -> {_type(new)}",))
        elif (details := _distance(old, new)) is not None:
            yield Change("weights", "changed", label, kind, renamed, *details)
        elif renamed:
            yield Change("weights", "renamed", label, kind, renamed)
    partners = set(pairs.labels.values())
    yield from [
        Change("weights", "added", x, _type(np.asarray(b[x]))) for x in b if x not in partners
    ]


def _distance(a: Array, b: Array) -> tuple[tuple[str, ...], float] | None:
    """Return the distance of two arrays of one type as texts and as a number; None if equal."""
    count, largest, squares, squares_of_a = 0, 0.0, 0.0, 0.0  # sums over chunks
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    for x, y in zip(chunks(a, wide), chunks(b, wide), strict=True):
        differences = distances(x, y)
        count += int(np.count_nonzero(differences))
        largest = max(largest, float(differences.max()))
        with np.errstate(over="ignore"):
            squares += float(np.square(differences).sum())
            squares_of_a += float(np.square(np.abs(x[np.isfinite(x)])).sum())
    if not count:
        return None
    relative = math.sqrt(squares / squares_of_a) if squares_of_a else math.inf
    details = (
        f"{count:,} of {a.size:,} numbers, by {number(largest)} at most",
        f"norm of the difference {number(relative)} of the whole",
    )
    return details, relative


def distances(a: Array, b: Array) -> Array:
    """Return the absolute difference of each pair of numbers: 0 for two NaNs, infinity for one."""
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(b - a)
    differences = np.where(np.isnan(differences), np.inf, differences)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, differences)


def _type(array: Array) -> str:
    return f"{array.dtype}{show(array.shape)}"


def _shown(operand: object) -> str:
    if isinstance(operand, Value):
        return operand.name
    if isinstance(operand, Graph):
        return f"a graph of {len(operand.operations)} operations"
    if isinstance(operand, tuple):
        items: Sequence[Any] = operand
        return f"[{', '.join(map(_shown, items))}]"
    return repr(operand) if isinstance(operand, str) else str(operand)
