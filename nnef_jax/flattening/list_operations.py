"""Operations on lists whose extents the document promises to agree, or that need fixed numbers.

`list_operation` has a function for each kind that needs operations before it or after it. All other
kinds are computed by their ordinary rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering.extents import is_symbolic
from lowering.graph import Value, is_float
from lowering.location import Span
from lowering.ops import BY_ITEM
from nnef_jax.flattening.emission import ByName, ends_of
from nnef_jax.flattening.lists import ListEmission


def list_operation(
    graph: ListEmission, kind: str, operands: ByName, attributes: ByName, span: Span | None
) -> ByName | list[Value]:
    """Return the operands for an operation that may read lists, or its results if it was added."""
    function = _FUNCTIONS.get(kind)
    return operands if function is None else function(graph, operands, attributes, span)


def _scatter_nd(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Give the updates of a scatter the extents of its indices, except of the last axis."""
    return _with_extents_of_indices(graph, operands, len(operands["indices"].type.shape) - 1, span)


def _scatter_elements(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Give the updates of a scatter the extents of its indices."""
    return _with_extents_of_indices(graph, operands, len(operands["indices"].type.shape), span)


def _with_extents_of_indices(
    graph: ListEmission, operands: ByName, axis_count: int, span: Span | None
) -> ByName:
    indices, updates = operands["indices"], operands["updates"]
    if not isinstance(updates, Value) or not (graph.is_list(indices) or graph.is_list(updates)):
        return operands
    extents = dict(enumerate(graph.shape_of(indices)[:axis_count]))
    return {**operands, "updates": _with_extents(graph, updates, extents, span)}


def _broadcast(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Give a list the extents of the shape to which it is broadcast."""
    x = operands["input"]
    if not graph.is_list(x):
        return operands
    shape = attributes["shape"]
    new_axes = len(shape) - len(x.type.shape)
    extents: dict[int, Any] = {}
    for axis, extent in enumerate(graph.shape_of(x)):
        if is_symbolic(extent) and new_axes + axis >= 0:
            extents[axis] = shape[new_axes + axis]
    return {**operands, "input": _with_extents(graph, x, extents, span)}


def _by_item(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Give the operands of an elementwise operation one extent where lists differ in extents.

    The extents of an axis are equal when the network runs, or some of them are 1.
    """
    tensors = {name: x for name, x in operands.items() if isinstance(x, Value)}
    if not any(map(graph.is_list, tensors.values())):
        return operands
    rank = max(len(x.type.shape) for x in tensors.values())
    for axis in range(rank):
        tensors = _with_one_extent(graph, tensors, axis, span)
    return {**operands, **tensors}


def _with_one_extent(
    graph: ListEmission, tensors: Mapping[str, Value], axis: int, span: Span | None
) -> Mapping[str, Value]:
    """Return the operands of an elementwise operation, which agree in the extent of an axis."""
    extents: dict[str, Any] = {}
    for name, x in tensors.items():
        shape = graph.shape_of(x)
        is_one = axis >= len(shape) or (not is_symbolic(shape[axis]) and shape[axis] == 1)
        if not is_one:
            extents[name] = shape[axis]
    if len(set(extents.values())) < 2 or not any(map(is_symbolic, extents.values())):
        return tensors
    numbers = [n for n in extents.values() if not is_symbolic(n)]
    extent = numbers[0] if numbers else _common_extent(graph, list(extents.values()), span)
    results = dict(tensors)
    for name, before in extents.items():
        if is_symbolic(before):
            results[name] = _spread(graph, tensors[name], axis, extent, span)
    return results


def _common_extent(graph: ListEmission, extents: Sequence[Any], span: Span | None) -> Any:
    """Return the symbol for the extent to which extents broadcast: the first that is not 1."""
    count = graph.extent_tensor(extents[-1], span)
    for extent in reversed(extents[:-1]):
        number = graph.extent_tensor(extent, span)
        is_one = graph.insert("eq", {"x": number, "y": 1}, span)
        operands = {"condition": is_one, "true_value": count, "false_value": number}
        count = graph.insert("select", operands, span)
    return graph.defined_symbol(count, max(map(graph.bound, extents)), span)


def _spread(graph: ListEmission, x: Value, axis: int, extent: Any, span: Span | None) -> Value:
    """Return a list with another extent of an axis, which equals its own unless that is 1.

    If the list has one item, the result repeats it.
    """
    length = graph.extent_tensor(graph.shape_of(x)[axis], span)
    last = graph.insert("sub", {"x": length, "y": 1}, span)
    most = graph.bound(extent)
    numbers = {"start": 0, "end": most, "step": 1, "dtype": graph.builder.integer}
    places = graph.insert("range", {}, span, **numbers)
    places = graph.insert("min", {"x": places, "y": last}, span)
    places = graph.insert("max", {"x": places, "y": 0}, span)
    result = graph.insert("gather", {"input": x, "indices": places}, span, axis=axis)
    return graph.counted(result, axis, extent, span) if is_symbolic(extent) else result


def _concat(graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None) -> ByName:
    """Give the parts of a concatenation the extents of the first part along the other axes.

    If the first part has a known extent, lists among the other parts get as many items.
    """
    first, *further = operands["values"]
    if not any(map(graph.is_list, operands["values"])):
        return operands
    axis = attributes["axis"] % len(first.type.shape)
    extents = {i: n for i, n in enumerate(graph.shape_of(first)) if i != axis}
    parts: list[Value] = []
    for part in further:
        for i, extent in extents.items():
            is_counted = is_symbolic(graph.shape_of(part)[i])
            if is_counted and not is_symbolic(extent):
                part = _spread(graph, part, i, extent, span)
        parts.append(_with_extents(graph, part, extents, span))
    return {**operands, "values": [first, *parts]}


def _with_extents(
    graph: ListEmission, x: Value, extents: Mapping[int, Any], span: Span | None
) -> Value:
    """Return `x` with other symbols for its extents, by axis, which have the same values."""
    for axis, extent in extents.items():
        is_same = graph.shape_of(x)[axis] - extent == 0
        if is_symbolic(extent) and not is_same:
            x = graph.counted(x, axis, extent, span)
    return x


def _topk(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName | list[Value]:
    """Choose the best items of a list, or a computed number of the best items.

    The results have at most as many items as the list.
    """
    x = operands["input"]
    k = attributes["k"]
    extent = graph.shape_of(x)[attributes["axis"]]
    if not (is_symbolic(extent) or is_symbolic(k)):
        return operands
    axis = attributes["axis"] % len(x.type.shape)
    bounds = graph.bound(extent), graph.bound(k)
    if is_symbolic(extent):
        worst = _end(x.type.dtype, largest=not attributes["largest"])
        x = graph.filled(x, axis, worst, span)
    fixed = {**attributes, "axis": axis, "k": min(bounds)}
    results = graph.insert("topk", {**operands, "input": x}, span, **fixed)
    if is_symbolic(k) and k - extent == 0:
        return [graph.counted(y, axis, extent, span) for y in results]
    numbers = {"x": graph.extent_tensor(extent, span), "y": graph.extent_tensor(k, span)}
    count = graph.insert("min", numbers, span)
    return [graph.listed(y, axis, count, min(bounds), span) for y in results]


def _end(dtype: str, largest: bool) -> float:
    """Return the largest or the least number of a dtype, for real numbers infinity."""
    if is_float(dtype):
        return math.inf if largest else -math.inf
    return ends_of(dtype)[largest]


_FUNCTIONS: Mapping[str, Callable[..., ByName | list[Value]]] = {
    **dict.fromkeys(BY_ITEM, _by_item),
    "concat": _concat,
    "scatter_nd": _scatter_nd,
    "scatter_elements": _scatter_elements,
    "broadcast": _broadcast,
    "topk": _topk,
}
