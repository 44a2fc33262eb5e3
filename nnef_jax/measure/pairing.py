"""Pairs the operations and the variables of two graphs: by name, or by structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowering.graph import Graph, Operation, Value
from nnef_jax.analysis.matching import TensorKind, match

_MOST = 40_000_000  # pairs of operations; pairing more of them by structure would take minutes


@dataclass(frozen=True, slots=True)
class Pairs:
    """The parts of a second graph by their counterparts in a first graph.

    Attributes:
        operations: names of operations.
        labels: labels of variables.
        values: tensors.
    """

    operations: Mapping[str, str]
    labels: Mapping[str, str]
    values: Mapping[Value, Value]

    def agree(self, a: object, b: object) -> bool:
        """Tell whether operands or attributes are the same constant, or paired tensors."""
        if isinstance(a, tuple) and isinstance(b, tuple):
            items: tuple[Any, ...] = a
            partners: tuple[Any, ...] = b
            return len(items) == len(partners) and all(map(self.agree, items, partners))
        if isinstance(a, Value):
            return self.values.get(a) is b
        if isinstance(a, Graph) and isinstance(b, Graph):  # the body of a loop
            return _are_equal(a, b)
        return not isinstance(b, Value) and (a == b or (a != a and b != b))  # two NaNs are equal


def paired(a: Graph, b: Graph) -> Pairs:
    """Pair the operations of two graphs by name, or by structure if fewer of them then differ.

    Names may mislead, if an exporter has numbered the tensors.
    """
    labels = {pair.a: pair.b for pair in match(_variables(a), _variables(b), {})}
    first, second = named_operations(a), named_operations(b)
    by_name = _pairs(a, b, labels, _matched(_kinds(first), _kinds(second)))
    differing = _differing(a, b, by_name)
    if not differing or len(first) * len(second) > _MOST:
        return by_name
    # With these prefixes no names are equal, so that only structure and order count.
    prefixed = [
        {f"{side}{name}": tensor for name, tensor in _structures(operations).items()}
        for side, operations in (("a:", first), ("b:", second))
    ]
    operation_names = {x[2:]: y[2:] for x, y in _matched(*prefixed).items()}
    by_structure = _pairs(a, b, labels, operation_names)
    return by_structure if _differing(a, b, by_structure) < differing else by_name


def named_operations(graph: Graph) -> dict[str, Operation]:
    """Return operations by name; the second operation with a name is 'name (2)'."""
    operations: dict[str, Operation] = {}
    for operation in graph.operations:
        name, count = operation.name, 1
        while name in operations:
            count += 1
            name = f"{operation.name} ({count})"
        operations[name] = operation
    return operations


def _pairs(a: Graph, b: Graph, labels: Mapping[str, str], operations: Mapping[str, str]) -> Pairs:
    first, second = named_operations(a), named_operations(b)
    values: dict[Value, Value] = {}
    inputs = {value.name: value for value in b.inputs}
    equally_many = len(a.inputs) == len(b.inputs)
    for index, value in enumerate(a.inputs):
        if value.name in inputs:
            values[value] = inputs[value.name]
        elif equally_many:
            values[value] = b.inputs[index]
    variables = {x.label: x.value for x in (*b.parameters, *b.states)}
    for variable in (*a.parameters, *a.states):
        if labels.get(variable.label) in variables:
            values[variable.value] = variables[labels[variable.label]]
    for x, y in operations.items():
        values.update(zip(first[x].writes(), second[y].writes(), strict=False))
    return Pairs(operations, labels, values)


def _differing(a: Graph, b: Graph, pairs: Pairs) -> int:
    """Count operations without a counterpart, or with a counterpart that differs."""
    first, second = named_operations(a), named_operations(b)
    equal_pairs = 0
    for x, y in pairs.operations.items():
        old, new = first[x], second[y]
        equal_pairs += old.kind == new.kind and pairs.agree(
            (old.attributes, old.operands), (new.attributes, new.operands)
        )
    return len(first) + len(second) - 2 * equal_pairs


def _are_equal(a: Graph, b: Graph) -> bool:
    """Tell whether two graphs are equal apart from names."""
    pairs = paired(a, b)
    ends = [(graph.outputs, tuple([x.update for x in graph.states])) for graph in (a, b)]
    return not _differing(a, b, pairs) and pairs.agree(*ends)


def _matched(a: Mapping[str, TensorKind], b: Mapping[str, TensorKind]) -> dict[str, str]:
    return {pair.a: pair.b for pair in match(a, b, {})}


def _variables(graph: Graph) -> dict[str, TensorKind]:
    variables = (*graph.parameters, *graph.states)
    return {
        x.label: TensorKind(f"variable {x.value.type.dtype}", x.value.type.shape) for x in variables
    }


def _kinds(operations: Mapping[str, Operation]) -> dict[str, TensorKind]:
    return {name: TensorKind(x.kind, _shape(x)) for name, x in operations.items()}


def _structures(operations: Mapping[str, Operation]) -> dict[str, TensorKind]:
    return {
        name: TensorKind(f"{x.kind} {_structure(x.attributes)} {len(list(x.reads()))}", _shape(x))
        for name, x in operations.items()
    }


def _structure(attribute: Any) -> str:
    if isinstance(attribute, tuple):
        items: tuple[Any, ...] = attribute
        return f"({', '.join(map(_structure, items))})"
    return f"{len(attribute.operations)}" if isinstance(attribute, Graph) else repr(attribute)


def _shape(operation: Operation) -> tuple[int, ...]:
    return next((value.type.shape for value in operation.writes()), ())
