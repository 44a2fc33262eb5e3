"""The room that the lists of a network need."""

from __future__ import annotations

from collections.abc import Mapping

from lowering import Dimensions, SymbolValues
from lowering.extents import Shape, is_known
from lowering.graph import Graph, Value
from nnef_jax.flattening.symbolic import SymbolicShapes


def list_shapes(graph: Graph) -> Mapping[Value, Shape]:
    """Return the largest shape of each list in a graph.

    The result is empty if the extents of the inputs are open.
    """
    if not graph.symbols or not all(is_known(x.type.shape) for x in graph.inputs):
        return {}
    most = _largest_numbers(graph)
    symbolic = SymbolicShapes(graph, Dimensions(), most)
    values = SymbolValues(most)
    shapes: dict[Value, Shape] = {}
    for operation in graph.operations:
        for x in operation.writes():
            if not is_known(x.type.shape):
                shapes[x] = values.bounds(tuple(symbolic.shape_of(x)))
    return shapes


def _largest_numbers(graph: Graph) -> dict[str, int]:
    """Return the largest value of each symbol of a graph, also of the symbols of its bodies."""
    most: dict[str, int] = {}
    for operation in graph.operations:
        attributes = dict(operation.attributes)
        if operation.kind == "counted" and operation.rule is None:
            most[str(attributes["extent"])] = int(str(attributes["most"]))
        for body in attributes.values():
            if isinstance(body, Graph):
                most |= _largest_numbers(body)
    return most
