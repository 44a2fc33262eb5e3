"""Tells how two networks differ in inputs, outputs, operations and weights."""

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
    """One difference between two networks `a` and `b`.

    Attributes:
        part: "input", "output", "state", "operation" or "weights".
        change: "added", "removed", "changed" or "renamed".
        name: the name in `a`; if the change is "added", the name in `b`.
        renamed: the name in `b` if it differs from `name`.
        kind: the kind of an operation, or the type of an array.
        details: descriptions such as "stride: [1,1] -> [2,2]".
        distance: for weights, the norm of the difference relative to the norm of the finite numbers
            of `a`. It is infinite if an item is NaN in only one of the networks.
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
    """The differences of network `b` from network `a`.

    Attributes:
        changes: the differences in the order of the documents; empty if the networks are the same.
        operations: the numbers of operations of `a` and of `b`.
        weights: the numbers of arrays of `a` and of `b`.
    """

    changes: tuple[Change, ...]
    operations: tuple[int, int]
    weights: tuple[int, int]

    @property
    def same(self) -> bool:
        """Tell whether the networks are equal, including names."""
        return not self.changes

    def to_dict(self) -> dict[str, object]:
        """Return the attributes and `same` as a dict of values that JSON can hold."""
        return super().to_dict() | {"same": self.same}

    def table(self) -> Table:
        """Return a table with a line for each difference.

        The first column has - for removed, + for added, ~ for changed and > for renamed.
        """
        rows: list[tuple[str, ...]] = []
        for x in self.changes:
            name = x.name if x.renamed is None else f"{x.name} -> {x.renamed}"
            rows.append((_SIGNS[x.change], x.part, name, x.kind, "; ".join(x.details)))
        counts = [f"{n} {part}" for part, n in self._counts().items()]
        heading = f"{', '.join(counts)} differ" if counts else "nothing differs"
        operations = _two_numbers(*self.operations)
        arrays = _two_numbers(*self.weights)
        title = f"{heading}, of {operations} operations and {arrays} arrays"
        return table_of(title, ("", "part", "name", "kind", "what"), rows)

    def _counts(self) -> dict[str, int]:
        parts = [change.part for change in self.changes]
        names = {part: part if part == "weights" else f"{part}s" for part in parts}
        return {name: parts.count(part) for part, name in names.items()}


def _two_numbers(a: int, b: int) -> str:
    return f"{a:,}" if a == b else f"{a:,} and {b:,}"


def diff(a: Model | Source, b: Model | Source) -> Difference:
    """Compare two networks as documents: structure, types, attributes and weights. Nothing runs.

    Operations are paired by name. If some pairs differ, operations are also paired by structure: by
    kind, type, attributes and order. The pairing with fewer differences counts. In a network with
    new names, pairing by structure makes every operation "renamed". Kinds of operations have the
    same meaning in all formats, so a network can be compared with its conversion to another format.

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
    """Return the graph of a network, and the arrays of its parameters and states by label."""
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
    """Yield the differences of inputs or of outputs; `part` is "input" or "output".

    `a` and `b` have the types by name. Tensors are paired by name. If both networks have equally
    many tensors, but the names differ, the tensors are paired in order.
    """
    if len(a) == len(b) and set(a) != set(b):
        pairs = list(zip(a, b, strict=True))
    else:
        pairs = [(name, name) for name in a if name in b]
    for name_a, name_b in pairs:
        type_a = a[name_a]
        type_b = b[name_b]
        renamed = name_b if name_a != name_b else None
        if type_a != type_b:
            yield Change(part, "changed", name_a, type_a, renamed, (f"{type_a} -> {type_b}",))
        elif renamed:
            yield Change(part, "renamed", name_a, type_a, renamed)
    order_a = [name for name in a if name in b]
    order_b = [name for name in b if name in a]
    if len(a) == len(pairs) and order_a != order_b:
        details = (f"order: {', '.join(order_a)} -> {', '.join(order_b)}",)
        yield Change(part, "changed", order_a[0], "", details=details)
    partners = dict(pairs)
    paired_b = set(partners.values())
    yield from [Change(part, "removed", name, a[name]) for name in a if name not in partners]
    yield from [Change(part, "added", name, b[name]) for name in b if name not in paired_b]


def _operations(a: Graph, b: Graph, pairs: Pairs) -> Iterator[Change]:
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    for name, operation in operations_a.items():
        if name not in pairs.operations:
            yield Change("operation", "removed", name, operation.kind, details=_operands(operation))
            continue
        partner = operations_b[pairs.operations[name]]
        details = tuple(_changes(operation, partner, pairs))
        renamed = partner.name if partner.name != operation.name else None
        if details or renamed:
            change = "changed" if details else "renamed"
            yield Change("operation", change, name, operation.kind, renamed, details)
    partners = set(pairs.operations.values())
    for name, operation in operations_b.items():
        if name not in partners:
            yield Change("operation", "added", name, operation.kind, details=_operands(operation))


def _operands(operation: Operation) -> tuple[str]:
    return (f"of {', '.join(value.name for value in operation.reads())}",)


def _changes(a: Operation, b: Operation, pairs: Pairs) -> Iterator[str]:
    """Yield a text for each difference between two paired operations, such as "conv -> linear"."""
    if a.kind != b.kind:
        yield f"{a.kind} -> {b.kind}"
    for items_a, items_b in ((a.attributes, b.attributes), (a.operands, b.operands)):
        before = dict(items_a)
        after = dict(items_b)
        for name in dict.fromkeys((*before, *after)):
            if name not in after:
                yield f"no longer {name}: {_shown(before[name])}"
            elif name not in before:
                yield f"now {name}: {_shown(after[name])}"
            elif not pairs.agree(before[name], after[name]):
                yield f"{name}: {_shown(before[name])} -> {_shown(after[name])}"
    # Operations of other kinds may have other numbers of results.
    for value_a, value_b in zip(a.writes(), b.writes(), strict=False):
        if value_a.type != value_b.type:
            yield f"{value_a.type} -> {value_b.type}"


def _states(a: Graph, b: Graph, pairs: Pairs) -> Iterator[Change]:
    """Yield a change for each state whose update differs.

    States that only one network has are left out, because `_weights` reports them.
    """
    updates = {state.label: state.update for state in b.states}
    for state in a.states:
        label = pairs.labels.get(state.label)
        if label in updates and not pairs.agree(state.update, updates[label]):
            details = (f"updated by {state.update.name} -> {updates[label].name}",)
            yield Change("state", "changed", state.label, str(state.value.type), details=details)


def _weights(a: Mapping[str, Any], b: Mapping[str, Any], pairs: Pairs) -> Iterator[Change]:
    for label, stored_array in a.items():
        array = np.asarray(stored_array)
        kind = _type(array)
        partner = pairs.labels.get(label)
        if partner is None or partner not in b:
            yield Change("weights", "removed", label, kind)
            continue
        array_b = np.asarray(b[partner])
        kind_b = _type(array_b)
        renamed = partner if partner != label else None
        if kind_b != kind:
            yield Change("weights", "changed", label, kind, renamed, (f"{kind} -> {kind_b}",))
            continue
        distance = _distance(array, array_b)
        if distance is not None:
            details, relative = distance
            yield Change("weights", "changed", label, kind, renamed, details, relative)
        elif renamed:
            yield Change("weights", "renamed", label, kind, renamed)
    partners = set(pairs.labels.values())
    for label, stored_array in b.items():
        if label not in partners:
            yield Change("weights", "added", label, _type(np.asarray(stored_array)))


def _distance(a: Array, b: Array) -> tuple[tuple[str, ...], float] | None:
    """Return the distance of two arrays of one type, or None if they are equal.

    The result has texts that describe the distance, and the number `Change.distance`.
    """
    # The figures are summed over chunks of the arrays.
    count = 0
    largest = 0.0
    squares = 0.0
    squares_of_a = 0.0
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
    """Return the absolute difference of each pair of numbers.

    The difference is 0 if both numbers are NaN, and infinite if only one of them is NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(b - a)
    differences = np.where(np.isnan(differences), np.inf, differences)
    are_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(are_equal, 0, differences)


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
