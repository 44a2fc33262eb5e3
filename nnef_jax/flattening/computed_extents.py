"""Turns computed integers, such as the result of a `sum`, into extents of tensors."""

from __future__ import annotations

from typing import Any

from lowering.extents import is_known, volume
from lowering.graph import Value, is_integer
from lowering.location import Span
from nnef_jax.flattening.lists import ListEmission

_RESHAPES = frozenset({"cast", "copy", "reshape", "squeeze", "unsqueeze"})
_MOST_AXES = 64  # the largest rank of jax's arrays


def extents_of(graph: ListEmission, x: Value, span: Span | None) -> list[Any] | None:
    """Return the items of a computed tensor of integers, in row-major order, as extents.

    An item that the network computes becomes a symbol. If such an item has no upper bound, or if
    the tensor cannot be the extents of an array, return None.
    """
    shape = x.type.shape
    if not is_integer(x.type.dtype) or not is_known(shape) or volume(shape) > _MOST_AXES:
        return None
    extents: list[Any] = []
    for index in range(volume(shape)):
        extent = _extent(graph, x, index, span)
        if extent is None:
            return None
        extents.append(extent)
    return extents


def _extent(graph: ListEmission, x: Value, index: int, span: Span | None) -> Any:
    """Return an item of a tensor as an extent, or None if the item has no upper bound.

    `index` is the index of the item in row-major order.
    """
    operation = graph.computations.operation_of(x)
    if operation is None:
        return _counted_extent(graph, x, index, span)  # an input, such as an iteration's number
    operands: dict[str, Any] = dict(operation.operands)
    first_operand = next(iter(operands.values()), None)
    if operation.kind == "constant":
        items: Any = dict(operation.attributes)["value"]
        # If `value` has a single item, all items of the constant are equal to this item.
        return graph.symbols.dimensions.of(items[index if len(items) > 1 else 0])
    is_reshape = operation.kind in _RESHAPES and not graph.bounds.wraps(operation)
    if is_reshape and isinstance(first_operand, Value) and is_integer(first_operand.type.dtype):
        return _extent(graph, first_operand, index, span)
    if operation.kind == "concat" and len(x.type.shape) == 1:
        index_in_part = index
        for part in operands["values"]:
            length = part.type.shape[0]
            if index_in_part < length:
                return _extent(graph, part, index_in_part, span)
            index_in_part -= length
    return _counted_extent(graph, x, index, span)


def _counted_extent(graph: ListEmission, x: Value, index: int, span: Span | None) -> Any:
    """Return an extent for an item of a tensor, or None if no bounds of the items are known.

    The extent is a symbol, which is never negative. If the item may be negative, the extent is the
    difference of two symbols, one of which is 0.
    """
    most, least = graph.bounds.most(x), graph.bounds.least(x)
    if most is None or least is None:
        return None
    item = _item(graph, x, index, span)
    if least >= 0 and not graph.bounds.is_count(x):
        # The largest number of an empty list is the smallest integer. It counts as 0.
        item = graph.insert("max", {"x": item, "y": 0}, span)
    positive_part = graph.defined_symbol(item, max(most, 0), span)
    if least >= 0:
        return positive_part
    negated = graph.insert("neg", {"x": item}, span)
    return positive_part - graph.defined_symbol(negated, -least, span)


def _item(graph: ListEmission, x: Value, index: int, span: Span | None) -> Value:
    """Return an item of a tensor as a tensor of shape (1,). `index` is in row-major order."""
    if len(x.type.shape) != 1:
        operands = {"input": x}
        x = graph.insert("reshape", operands, span, shape=(-1,), axis_start=0, axis_count=-1)
    if x.type.shape != (1,):
        window = {"axes": (0,), "begin": (index,), "end": (index + 1,), "stride": (1,)}
        x = graph.insert("slice", {"input": x}, span, **window)
    return x
