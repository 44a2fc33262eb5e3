"""Finds the largest shapes of the lists in a network."""

from __future__ import annotations

from collections.abc import Mapping

from lowering import Dimensions, SymbolValues
from lowering.extents import Shape, is_known
from lowering.graph import Graph, Value
from nnef_jax.flattening.symbolic import SymbolicShapes


def list_shapes(graph: Graph) -> Mapping[Value, Shape]:
    """Return the largest shape of each list in a graph.

    A list is a tensor whose number of items is computed in a run. The result is empty if the
    extents of the inputs are open.
    """
    has_lists = bool(graph.symbols)
    has_known_inputs = all(is_known(x.type.shape) for x in graph.inputs)
    if not has_lists or not has_known_inputs:
        return {}
    largest_values = _largest_values(graph)
    symbolic = SymbolicShapes(graph, Dimensions(), largest_values)
    values = SymbolValues(largest_values)
    shapes: dict[Value, Shape] = {}
    for operation in graph.operations:
        for x in operation.writes():
            if not is_known(x.type.shape):
                shapes[x] = values.bounds(tuple(symbolic.shape_of(x)))
    return shapes


def _largest_values(graph: Graph) -> dict[str, int]:
    """Return the largest value of each symbol in extents, also in the graphs of attributes."""
    largest_values: dict[str, int] = {}
    for operation in graph.operations:
        attributes = dict(operation.attributes)
        # The operation "counted" makes a list. Its attributes are the symbol and the largest value.
        # But if an operation has a rule, a user has defined the operation with this name.
        if operation.kind == "counted" and operation.rule is None:
            largest_values[str(attributes["extent"])] = int(str(attributes["most"]))
        for body in attributes.values():
            if isinstance(body, Graph):
                largest_values |= _largest_values(body)
    return largest_values
