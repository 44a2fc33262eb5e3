"""Pairs the operations and the variables of two graphs, by name or by structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowering.graph import Graph, Operation, Value
from nnef_jax.analysis.matching import TensorKind, match

# The largest number of pairs of operations. Pairing more of them by structure would take minutes.
_MOST_PAIRS = 40_000_000


@dataclass(frozen=True, slots=True)
class Pairs:
    """The counterparts in a second graph of operations, variables and tensors of a first graph.

    Attributes:
        operations: names of operations.
        labels: labels of variables.
        values: tensors.
    """

    operations: Mapping[str, str]
    labels: Mapping[str, str]
    values: Mapping[Value, Value]

    def agree(self, a: object, b: object) -> bool:
        """Tell whether two operands or attributes are equal constants, or paired tensors."""
        if isinstance(a, tuple) and isinstance(b, tuple):
            items: tuple[Any, ...] = a
            partners: tuple[Any, ...] = b
            return len(items) == len(partners) and all(map(self.agree, items, partners))
        if isinstance(a, Value):
            return self.values.get(a) is b
        if isinstance(a, Graph) and isinstance(b, Graph):  # They are the bodies of loops.
            return _are_equal(a, b)
        if isinstance(b, Value):
            return False
        are_nan = a != a and b != b  # NaN differs from itself.
        return a == b or are_nan


def paired(a: Graph, b: Graph) -> Pairs:
    """Pair the operations of two graphs by name, or by structure.

    First the operations are paired by name. If some of these pairs differ, the operations are also
    paired by structure, and the pairing with fewer differing operations is returned. Names mislead
    if an exporter numbers the tensors, since a new operation changes the numbers of all later
    tensors.
    """
    labels = {pair.a: pair.b for pair in match(_variables(a), _variables(b), {})}
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    by_name = _pairs(a, b, labels, _matched(_kinds(operations_a), _kinds(operations_b)))
    differing = _count_differing(a, b, by_name)
    is_too_large = len(operations_a) * len(operations_b) > _MOST_PAIRS
    if not differing or is_too_large:
        return by_name
    # The prefixes make all names differ, so that only structure and order count.
    structures_a = {f"a:{name}": x for name, x in _structures(operations_a).items()}
    structures_b = {f"b:{name}": x for name, x in _structures(operations_b).items()}
    matched = _matched(structures_a, structures_b)
    names = {x.removeprefix("a:"): y.removeprefix("b:") for x, y in matched.items()}
    by_structure = _pairs(a, b, labels, names)
    is_better = _count_differing(a, b, by_structure) < differing
    return by_structure if is_better else by_name


def named_operations(graph: Graph) -> dict[str, Operation]:
    """Return the operations of a graph by name.

    If two operations have the same name, the second one is listed as 'name (2)'.
    """
    operations: dict[str, Operation] = {}
    for operation in graph.operations:
        name = operation.name
        count = 1
        while name in operations:
            count += 1
            name = f"{operation.name} ({count})"
        operations[name] = operation
    return operations


def _pairs(a: Graph, b: Graph, labels: Mapping[str, str], operations: Mapping[str, str]) -> Pairs:
    operations_a = named_operations(a)
    operations_b = named_operations(b)
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
    for name_a, name_b in operations.items():
        # Operations that are paired by name may have different numbers of results.
        results = zip(operations_a[name_a].writes(), operations_b[name_b].writes(), strict=False)
        values.update(results)
    return Pairs(operations, labels, values)


def _count_differing(a: Graph, b: Graph, pairs: Pairs) -> int:
    """Return the number of operations that have no counterpart, or one that differs."""
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    equal_pairs = 0
    for name_a, name_b in pairs.operations.items():
        operation_a = operations_a[name_a]
        operation_b = operations_b[name_b]
        items_a = operation_a.attributes, operation_a.operands
        items_b = operation_b.attributes, operation_b.operands
        if operation_a.kind == operation_b.kind and pairs.agree(items_a, items_b):
            equal_pairs += 1
    return len(operations_a) + len(operations_b) - 2 * equal_pairs


def _are_equal(a: Graph, b: Graph) -> bool:
    """Tell whether two graphs are equal except for names."""
    pairs = paired(a, b)
    updates_a = tuple([state.update for state in a.states])
    updates_b = tuple([state.update for state in b.states])
    have_equal_results = pairs.agree((a.outputs, updates_a), (b.outputs, updates_b))
    return have_equal_results and _count_differing(a, b, pairs) == 0


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
    structures: dict[str, TensorKind] = {}
    for name, operation in operations.items():
        operand_count = len(list(operation.reads()))
        text = f"{operation.kind} {_structure(operation.attributes)} {operand_count}"
        structures[name] = TensorKind(text, _shape(operation))
    return structures


def _structure(attribute: Any) -> str:
    if isinstance(attribute, tuple):
        items: tuple[Any, ...] = attribute
        return f"({', '.join(map(_structure, items))})"
    if isinstance(attribute, Graph):
        return str(len(attribute.operations))
    return repr(attribute)


def _shape(operation: Operation) -> tuple[int, ...]:
    return next((value.type.shape for value in operation.writes()), ())
