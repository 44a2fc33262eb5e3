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
        name: the name in `a`, or the name in `b` if the change is "added".
        renamed: the name in `b`, or None if this name equals `name`.
        kind: the kind of an operation, such as "conv", or the type of an array.
        details: descriptions of the change, such as "stride: [1,1] -> [2,2]".
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
    """The differences between two networks `a` and `b`.

    Attributes:
        changes: the differences in the order of the documents; empty if the networks are the same.
        operations: the number of operations in `a`, and the number of operations in `b`.
        weights: the number of weight arrays in `a`, and the number of weight arrays in `b`.
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
        for change in self.changes:
            name = change.name
            if change.renamed is not None:
                name = f"{change.name} -> {change.renamed}"
            details = "; ".join(change.details)
            rows.append((_SIGNS[change.change], change.part, name, change.kind, details))
        counts = [f"{count} {part}" for part, count in self._counts().items()]
        heading = f"{', '.join(counts)} differ" if counts else "nothing differs"
        operations = _two_numbers(*self.operations)
        arrays = _two_numbers(*self.weights)
        title = f"{heading}, of {operations} operations and {arrays} arrays"
        return table_of(title, ("", "part", "name", "kind", "what"), rows)

    def _counts(self) -> dict[str, int]:
        """Return the number of changes of each part, such as {"inputs": 1, "weights": 3}."""
        counts: dict[str, int] = {}
        for change in self.changes:
            plural = "weights" if change.part == "weights" else f"{change.part}s"
            counts[plural] = counts.get(plural, 0) + 1
        return counts


def _two_numbers(a: int, b: int) -> str:
    """Return two numbers as text. Two equal numbers are shown as one."""
    return f"{a:,}" if a == b else f"{a:,} and {b:,}"


def diff(a: Model | Source, b: Model | Source) -> Difference:
    """Compare two networks as documents: structure, types, attributes and weights. Nothing runs.

    Operations are paired by name. If some pairs differ, operations are also paired by structure: by
    kind, type, attributes and order. The pairing with fewer differences determines the result. If
    two networks differ only in names, the operations with new names are "renamed". Kinds of
    operations have the same meaning in all formats, so a network can be compared with its
    conversion to another format.

    Args:
        a, b: models, or sources as in `load`.

    Raises the errors of `load`.

    >>> print(nnef_jax.diff("before.nnef.tgz", "after.nnef.tgz"))
    """
    graph_a, data_a = _graph_and_data(a)
    graph_b, data_b = _graph_and_data(b)
    pairs = paired(graph_a, graph_b)
    changes = [
        *_values("input", _inputs(graph_a), _inputs(graph_b)),
        *_values("output", _outputs(graph_a), _outputs(graph_b)),
        *_operations(graph_a, graph_b, pairs),
        *_states(graph_a, graph_b, pairs),
        *_weights(data_a, data_b, pairs),
    ]
    return Difference(
        changes=tuple(changes),
        operations=(len(graph_a.operations), len(graph_b.operations)),
        weights=(len(data_a), len(data_b)),
    )


def _graph_and_data(source: Model | Source) -> tuple[Graph, dict[str, Any]]:
    """Return the graph of a network, and the arrays of its parameters and states by label."""
    if isinstance(source, Model):
        return source.graph, dict(stored(source))
    network: Network = read(source)
    return network.graph, dict(network.data)


def _inputs(graph: Graph) -> dict[str, str]:
    """Return the types of a graph's inputs by name, as texts."""
    return {value.name: str(value.type) for value in graph.inputs}


def _outputs(graph: Graph) -> dict[str, str]:
    """Return the types of a graph's outputs by name, as texts."""
    pairs = zip(graph.output_names, graph.outputs, strict=True)
    return {name: str(value.type) for name, value in pairs}


def _values(part: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    """Yield the differences of inputs (`part` is "input") or of outputs (`part` is "output").

    `a` and `b` map names of tensors to types. Tensors are paired by name. If the names differ, but
    `a` and `b` have equally many tensors, the tensors are paired in order.
    """
    names_differ = set(a) != set(b)
    if len(a) == len(b) and names_differ:
        pairs = dict(zip(a, b, strict=True))
    else:
        pairs = {name: name for name in a if name in b}
    for name_a, name_b in pairs.items():
        type_a = a[name_a]
        type_b = b[name_b]
        renamed = name_b if name_a != name_b else None
        if type_a != type_b:
            details = (f"{type_a} -> {type_b}",)
            yield Change(part, "changed", name_a, type_a, renamed=renamed, details=details)
        elif renamed:
            yield Change(part, "renamed", name_a, type_a, renamed=renamed)
    # The orders of the names that are in both networks are compared. A difference is reported only
    # if each tensor of `a` has a partner.
    order_a = [name for name in a if name in b]
    order_b = [name for name in b if name in a]
    if len(a) == len(pairs) and order_a != order_b:
        details = (f"order: {', '.join(order_a)} -> {', '.join(order_b)}",)
        first_name = order_a[0]
        yield Change(part, "changed", first_name, kind="", details=details)
    for name, type_a in a.items():
        if name not in pairs:
            yield Change(part, "removed", name, type_a)
    paired_names_b = set(pairs.values())
    for name, type_b in b.items():
        if name not in paired_names_b:
            yield Change(part, "added", name, type_b)


def _operations(a: Graph, b: Graph, pairs: Pairs) -> Iterator[Change]:
    """Yield the removed, changed, renamed and added operations of two graphs."""
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    for name, operation in operations_a.items():
        if name not in pairs.operations:
            yield Change("operation", "removed", name, operation.kind, details=_operands(operation))
            continue
        counterpart = operations_b[pairs.operations[name]]
        details = tuple(_changes(operation, counterpart, pairs))
        renamed = counterpart.name if counterpart.name != operation.name else None
        if details or renamed:
            change = "changed" if details else "renamed"
            yield Change(
                "operation", change, name, operation.kind, renamed=renamed, details=details
            )
    paired_names_b = set(pairs.operations.values())
    for name, operation in operations_b.items():
        if name not in paired_names_b:
            yield Change("operation", "added", name, operation.kind, details=_operands(operation))


def _operands(operation: Operation) -> tuple[str]:
    """Return the details of an added or removed operation: ("of x, w",) for the operands x, w."""
    names = ", ".join([value.name for value in operation.reads()])
    return (f"of {names}",)


def _changes(a: Operation, b: Operation, pairs: Pairs) -> Iterator[str]:
    """Yield a text for each difference between two paired operations, such as "conv -> linear"."""
    if a.kind != b.kind:
        yield f"{a.kind} -> {b.kind}"
    for arguments_a, arguments_b in ((a.attributes, b.attributes), (a.operands, b.operands)):
        before = dict(arguments_a)
        after = dict(arguments_b)
        names_in_order = dict.fromkeys((*before, *after))
        for name in names_in_order:
            if name not in after:
                yield f"no longer {name}: {_shown(before[name])}"
            elif name not in before:
                yield f"now {name}: {_shown(after[name])}"
            elif not pairs.agree(before[name], after[name]):
                yield f"{name}: {_shown(before[name])} -> {_shown(after[name])}"
    # If the kinds differ, the numbers of results may differ too. Surplus results are left out.
    for value_a, value_b in zip(a.writes(), b.writes(), strict=False):
        if value_a.type != value_b.type:
            yield f"{value_a.type} -> {value_b.type}"


def _states(a: Graph, b: Graph, pairs: Pairs) -> Iterator[Change]:
    """Yield a change for each state whose update differs between two networks.

    States in only one network are left out, because `_weights` reports these states.
    """
    updates_b = {state.label: state.update for state in b.states}
    for state in a.states:
        label_b = pairs.labels.get(state.label)
        if label_b not in updates_b:
            continue
        update_b = updates_b[label_b]
        if not pairs.agree(state.update, update_b):
            details = (f"updated by {state.update.name} -> {update_b.name}",)
            yield Change("state", "changed", state.label, str(state.value.type), details=details)


def _weights(a: Mapping[str, Any], b: Mapping[str, Any], pairs: Pairs) -> Iterator[Change]:
    """Yield the differences of the arrays of two networks. `a` and `b` map labels to arrays.

    If two arrays have different types, their items are not compared.
    """
    for label, stored_array in a.items():
        array_a = np.asarray(stored_array)
        type_a = _type(array_a)
        label_b = pairs.labels.get(label)
        if label_b is None or label_b not in b:
            yield Change("weights", "removed", label, type_a)
            continue
        array_b = np.asarray(b[label_b])
        type_b = _type(array_b)
        renamed = label_b if label_b != label else None
        if type_a != type_b:
            details = (f"{type_a} -> {type_b}",)
            yield Change("weights", "changed", label, type_a, renamed=renamed, details=details)
            continue
        texts_and_distance = _distance(array_a, array_b)
        if texts_and_distance is not None:
            details, relative_distance = texts_and_distance
            yield Change(
                "weights",
                "changed",
                label,
                type_a,
                renamed=renamed,
                details=details,
                distance=relative_distance,
            )
        elif renamed:
            yield Change("weights", "renamed", label, type_a, renamed=renamed)
    paired_labels_b = set(pairs.labels.values())
    for label, stored_array in b.items():
        if label not in paired_labels_b:
            yield Change("weights", "added", label, _type(np.asarray(stored_array)))


def _distance(a: Array, b: Array) -> tuple[tuple[str, ...], float] | None:
    """Return the distance of two arrays of one type, or None if they are equal.

    The result has two items: texts that describe the distance, and the relative distance. The
    relative distance is the norm of b - a, divided by the norm of the finite numbers of `a`.
    """
    # The arrays are compared chunk by chunk, because copies in 64 bits of large arrays would take
    # much memory.
    differing_count = 0
    largest_difference = 0.0
    squared_differences = 0.0
    squares_of_a = 0.0
    wide_dtype = np.complex128 if a.dtype.kind == "c" else np.float64
    pairs_of_chunks = zip(chunks(a, wide_dtype), chunks(b, wide_dtype), strict=True)
    for chunk_a, chunk_b in pairs_of_chunks:
        differences = distances(chunk_a, chunk_b)
        differing_count += int(np.count_nonzero(differences))
        largest_difference = max(largest_difference, float(differences.max()))
        # The squares of large numbers overflow to infinity, which is not worth a warning.
        with np.errstate(over="ignore"):
            magnitudes_a = np.abs(chunk_a[np.isfinite(chunk_a)])
            squared_differences += float(np.square(differences).sum())
            squares_of_a += float(np.square(magnitudes_a).sum())
    if differing_count == 0:
        return None
    # If all numbers of `a` are 0, the relative distance is infinite.
    relative_norm = math.inf
    if squares_of_a:
        relative_norm = math.sqrt(squared_differences / squares_of_a)
    details = (
        f"{differing_count:,} of {a.size:,} numbers, by {number(largest_difference)} at most",
        f"norm of the difference {number(relative_norm)} of the whole",
    )
    return details, relative_norm


def distances(a: Array, b: Array) -> Array:
    """Return the absolute differences between the numbers of two arrays.

    A difference is 0 if both numbers are NaN, and infinite if only one of them is NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(b - a)
    # A difference is NaN if one of its two numbers is NaN, or if both are the same infinity.
    differences = np.where(np.isnan(differences), np.inf, differences)
    are_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(are_equal, 0, differences)


def _type(array: Array) -> str:
    """Return the dtype and the shape of an array as text, such as "float32[2,3]"."""
    return f"{array.dtype}{show(array.shape)}"


def _shown(operand: object) -> str:
    """Return the text of an operand or attribute, for a user."""
    if isinstance(operand, Value):
        return operand.name
    if isinstance(operand, Graph):
        return f"a graph of {len(operand.operations)} operations"
    if isinstance(operand, tuple):
        items: Sequence[Any] = operand
        return f"[{', '.join(map(_shown, items))}]"
    return repr(operand) if isinstance(operand, str) else str(operand)
