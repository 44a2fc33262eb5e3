"""Computed tensors of integers as extents of other tensors, such as the result of a `sum`."""

from __future__ import annotations

from typing import Any

from lowering.extents import is_known, volume
from lowering.graph import Value, is_integer
from lowering.location import Span
from nnef_jax.flattening.lists import ListEmission

_RESHAPES = frozenset({"cast", "copy", "reshape", "squeeze", "unsqueeze"})
_MOST_AXES = 64  # an array of jax has at most so many


def extents_of(graph: ListEmission, x: Value, span: Span | None) -> list[Any] | None:
    """Return the items of a computed tensor of integers, in row-major order, as extents.

    An item that the network computes becomes a symbol. None is returned if there is no bound for
    the item.
    """
    shape = x.type.shape
    if not is_integer(x.type.dtype) or not is_known(shape) or volume(shape) > _MOST_AXES:
        return None
    extents: list[Any] = []
    for i in range(volume(shape)):
        extent = _extent(graph, x, i, span)
        if extent is None:
            return None
        extents.append(extent)
    return extents


def _extent(graph: ListEmission, x: Value, i: int, span: Span | None) -> Any:
    """Return item `i` of a tensor, in row-major order, as an extent. None if it has no bound."""
    operation = graph.computations.operation_of(x)
    if operation is None:
        return None
    operands: dict[str, Any] = dict(operation.operands)
    attributes: dict[str, Any] = dict(operation.attributes)
    first = next(iter(operands.values()), None)
    if operation.kind == "constant":
        items = attributes["value"]
        return graph.symbols.dimensions.of(items[i if len(items) > 1 else 0])
    if operation.kind in _RESHAPES and isinstance(first, Value) and is_integer(first.type.dtype):
        return _extent(graph, first, i, span)
    if operation.kind == "concat" and len(x.type.shape) == 1:
        for part in operands["values"]:
            extent = part.type.shape[0]
            if i < extent:
                return _extent(graph, part, i, span)
            i -= extent
    most = graph.bounds.most(x)
    if most is None:
        return None
    count = x
    if len(x.type.shape) != 1:
        shape = {"shape": (-1,), "axis_start": 0, "axis_count": -1}
        count = graph.insert("reshape", {"input": count}, span, **shape)
    if volume(x.type.shape) > 1:
        window = {"axes": (0,), "begin": (i,), "end": (i + 1,), "stride": (1,)}
        count = graph.insert("slice", {"input": count}, span, **window)
    return graph.defined_symbol(count, most, span)
