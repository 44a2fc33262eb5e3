"""Pairs the operations and the variables of two graphs, by name or by structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowering.graph import Graph, Operation, Value
from nnef_jax.analysis.matching import TensorKind, match

# Operations are paired by structure only if there are at most this many possible pairs. With more
# possible pairs, pairing would take minutes.
_MOST_PAIRS = 40_000_000


@dataclass(frozen=True, slots=True)
class Pairs:
    """Maps the operations, variables and tensors of one graph to counterparts in another graph.

    Attributes:
        operations: a dict from names of operations in the first graph to names in the second.
        labels: a dict from labels of variables in the first graph to labels in the second.
        values: a dict from tensors of the first graph to tensors of the second.
    """

    operations: Mapping[str, str]
    labels: Mapping[str, str]
    values: Mapping[Value, Value]

    def agree(self, a: object, b: object) -> bool:
        """Tell whether two operands or attributes are equal constants, or paired tensors.

        `a` belongs to the first graph, and `b` to the second graph.
        """
        if isinstance(a, tuple) and isinstance(b, tuple):
            items_a: tuple[Any, ...] = a
            items_b: tuple[Any, ...] = b
            return len(items_a) == len(items_b) and all(map(self.agree, items_a, items_b))
        if isinstance(a, Value):
            return self.values.get(a) is b
        # A constant does not agree with a tensor.
        if isinstance(b, Value):
            return False
        if isinstance(a, Graph) and isinstance(b, Graph):
            # The attributes are graphs, such as the bodies of loops.
            return _are_equal(a, b)
        are_nan = a != a and b != b  # Only NaN differs from itself.
        return a == b or are_nan


def paired(a: Graph, b: Graph) -> Pairs:
    """Pair the operations of two graphs by name, or by structure.

    First the operations are paired by name. If some of these pairs differ, the operations are also
    paired by structure, and the pairing with fewer differing operations is returned. The names may
    be numbers from a converter. Then a new operation changes the names of all later tensors, and
    pairing by name finds wrong pairs.
    """
    labels = _matched(_variables(a), _variables(b))
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    matched_names = _matched(_kinds(operations_a), _kinds(operations_b))
    pairs_by_name = _pairs(a, b, labels=labels, operations=matched_names)
    differing_by_name = _count_differing(a, b, pairs_by_name)
    if differing_by_name == 0:
        return pairs_by_name
    # For large graphs, pairing by structure would take too long.
    if len(operations_a) * len(operations_b) > _MOST_PAIRS:
        return pairs_by_name
    # `_matched` pairs equal names first. The prefixes make all names different, so `_matched` pairs
    # only by structure and order.
    structures_a = {f"a:{name}": kind for name, kind in _structures(operations_a).items()}
    structures_b = {f"b:{name}": kind for name, kind in _structures(operations_b).items()}
    matched_structures: dict[str, str] = {}
    for prefixed_a, prefixed_b in _matched(structures_a, structures_b).items():
        matched_structures[prefixed_a.removeprefix("a:")] = prefixed_b.removeprefix("b:")
    pairs_by_structure = _pairs(a, b, labels=labels, operations=matched_structures)
    if _count_differing(a, b, pairs_by_structure) < differing_by_name:
        return pairs_by_structure
    return pairs_by_name


def named_operations(graph: Graph) -> dict[str, Operation]:
    """Return a dict from names to the operations of a graph.

    If two operations have the same name, the second one is listed as 'name (2)'.
    """
    operations: dict[str, Operation] = {}
    for operation in graph.operations:
        name = operation.name
        number = 1
        while name in operations:
            number += 1
            name = f"{operation.name} ({number})"
        operations[name] = operation
    return operations


def _pairs(a: Graph, b: Graph, labels: Mapping[str, str], operations: Mapping[str, str]) -> Pairs:
    """Pair the tensors of two graphs, whose operations and variables are paired already.

    `operations` maps names of operations in `a` to names in `b`, and `labels` maps labels of
    variables in `a` to labels in `b`. Inputs are paired by name. If both graphs have the same
    number of inputs, an input without a namesake is paired by its position.
    """
    values: dict[Value, Value] = {}
    inputs_b = {value.name: value for value in b.inputs}
    have_equally_many = len(a.inputs) == len(b.inputs)
    for position, input_a in enumerate(a.inputs):
        if input_a.name in inputs_b:
            values[input_a] = inputs_b[input_a.name]
        elif have_equally_many:
            values[input_a] = b.inputs[position]
    variables_b = {variable.label: variable.value for variable in (*b.parameters, *b.states)}
    for variable_a in (*a.parameters, *a.states):
        label_b = labels.get(variable_a.label)
        if label_b in variables_b:
            values[variable_a.value] = variables_b[label_b]
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    for name_a, name_b in operations.items():
        results_a = operations_a[name_a].writes()
        results_b = operations_b[name_b].writes()
        # Paired operations may have different numbers of results. Surplus results are not paired.
        values.update(zip(results_a, results_b, strict=False))
    return Pairs(operations, labels, values)


def _count_differing(a: Graph, b: Graph, pairs: Pairs) -> int:
    """Return the number of operations without an equal counterpart, summed over both graphs.

    A pair of different operations adds 2 to the number.
    """
    operations_a = named_operations(a)
    operations_b = named_operations(b)
    equal_pairs = 0
    for name_a, name_b in pairs.operations.items():
        operation_a = operations_a[name_a]
        operation_b = operations_b[name_b]
        arguments_a = operation_a.attributes, operation_a.operands
        arguments_b = operation_b.attributes, operation_b.operands
        if operation_a.kind == operation_b.kind and pairs.agree(arguments_a, arguments_b):
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
    """Map names in `a` to the names of their counterparts in `b`."""
    return {pair.a: pair.b for pair in match(a, b, names={})}


def _variables(graph: Graph) -> dict[str, TensorKind]:
    """Return a dict that maps the label of a variable to the variable's dtype and shape."""
    kinds: dict[str, TensorKind] = {}
    for variable in (*graph.parameters, *graph.states):
        tensor_type = variable.value.type
        kinds[variable.label] = TensorKind(f"variable {tensor_type.dtype}", tensor_type.shape)
    return kinds


def _kinds(operations: Mapping[str, Operation]) -> dict[str, TensorKind]:
    """Return a dict that maps the name of an operation to the operation's kind and shape."""
    kinds: dict[str, TensorKind] = {}
    for name, operation in operations.items():
        kinds[name] = TensorKind(operation.kind, _shape(operation))
    return kinds


def _structures(operations: Mapping[str, Operation]) -> dict[str, TensorKind]:
    """Return a dict that maps the name of an operation to the operation's structure.

    A structure consists of the kind, the attributes, the number of operands, and the shape.
    """
    structures: dict[str, TensorKind] = {}
    for name, operation in operations.items():
        operand_count = len(list(operation.reads()))
        text = f"{operation.kind} {_structure(operation.attributes)} {operand_count}"
        structures[name] = TensorKind(text, _shape(operation))
    return structures


def _structure(attribute: Any) -> str:
    """Return a text for an attribute. The text of a graph is its number of operations."""
    if isinstance(attribute, tuple):
        items: tuple[Any, ...] = attribute
        return f"({', '.join(map(_structure, items))})"
    if isinstance(attribute, Graph):
        return str(len(attribute.operations))
    return repr(attribute)


def _shape(operation: Operation) -> tuple[int, ...]:
    """Return the shape of an operation's first result, or () if it has no result."""
    for value in operation.writes():
        return value.type.shape
    return ()
