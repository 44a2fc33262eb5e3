"""Prepares operations on lists: tensors whose number of items is counted in a run.

The document promises that certain extents agree, such as those of two addends. Here such extents
get the same symbol. Some kinds of operations, such as "concat", need additional operations before
or after them. `list_operation` adds these. All other kinds are computed by their ordinary rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering.extents import is_symbolic, largest_of, smallest_of
from lowering.graph import Value, is_float
from lowering.location import Span
from lowering.ops import BY_ITEM
from lowering.symbol_values import symbols_in
from nnef_jax.flattening.emission import ByName, ends_of
from nnef_jax.flattening.lists import ListEmission


def list_operation(
    graph: ListEmission, kind: str, operands: ByName, attributes: ByName, span: Span | None
) -> ByName | list[Value]:
    """Prepare an operation that may read lists, before the operation is added to a graph.

    Returns:
        The operands of the operation. For some kinds, the function adds the operation itself, and
            returns a list of the operation's results.
    """
    function = _FUNCTIONS.get(kind)
    return operands if function is None else function(graph, operands, attributes, span)


def _scatter_nd(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Return the operands of a scatter. The updates get the symbols of the indices' extents.

    The last axis of the indices is ignored.
    """
    axis_count = len(operands["indices"].type.shape) - 1
    return _with_extents_of_indices(graph, operands, axis_count, span)


def _scatter_elements(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Return the operands of a scatter. The updates get the symbols of the indices' extents."""
    axis_count = len(operands["indices"].type.shape)
    return _with_extents_of_indices(graph, operands, axis_count, span)


def _with_extents_of_indices(
    graph: ListEmission, operands: ByName, axis_count: int, span: Span | None
) -> ByName:
    """Return the operands of a scatter. The updates get the symbols of the indices' extents.

    Only the first `axis_count` axes of the indices are considered.
    """
    indices, updates = operands["indices"], operands["updates"]
    if not isinstance(updates, Value):
        return operands
    if not (graph.is_list(indices) or graph.is_list(updates)):
        return operands
    extents = dict(enumerate(graph.shape_of(indices)[:axis_count]))
    return {**operands, "updates": _with_extents(graph, updates, extents, span)}


def _broadcast(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName | list[Value]:
    """Return the operands of a broadcast, or the result in a list.

    The input and `shape` are broadcast to each other. Along each axis, their extents get the same
    symbol, as the extents of operands of an elementwise operation do. If an extent of `shape`
    changes, the broadcast is added here.
    """
    x = operands["input"]
    shape = graph.symbols.dimensions.of(tuple(attributes["shape"]))
    if not isinstance(x, Value):
        return operands
    if not (graph.is_list(x) or any(_is_counted(graph, extent) for extent in shape)):
        return operands
    extents = list(shape)
    # New axes come first. Their number is negative if `shape` has fewer axes than the input.
    new_axis_count = len(shape) - len(x.type.shape)
    for i in range(max(new_axis_count, 0), len(shape)):
        axis = i - new_axis_count
        extent, new_extent = graph.shape_of(x)[axis], shape[i]
        is_counted = _is_counted(graph, extent)
        is_new_counted = _is_counted(graph, new_extent)
        if is_counted and is_new_counted:
            if extent - new_extent != 0:
                extents[i] = _common_extent(graph, [extent, new_extent], span)
                x = _spread(graph, x, axis, extents[i], span)
        elif is_counted and not is_symbolic(new_extent) and new_extent != 1:
            x = _spread(graph, x, axis, new_extent, span)
        elif is_new_counted and not is_symbolic(extent) and extent != 1:
            extents[i] = extent
    operands = {**operands, "input": x}
    if extents == list(shape):
        return operands
    return [graph.insert("broadcast", operands, span, shape=tuple(extents))]


def _is_counted(graph: ListEmission, extent: Any) -> bool:
    """Tell whether an extent depends on numbers of items, and on no symbol of the user."""
    symbols = symbols_in(extent)
    return bool(symbols) and symbols <= graph.symbols.most.keys()


def _by_item(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName:
    """Return the operands of an elementwise operation, with equal symbols for equal extents.

    The document promises that the operands' extents along an axis are equal in a run, except
    extents of 1.
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
    """Return the operands of an elementwise operation, with the same extent along one axis.

    `tensors` maps names of operands to the operands that are tensors.
    """
    extents: dict[str, Any] = {}  # maps operands to extents, except extents of 1
    for name, x in tensors.items():
        shape = graph.shape_of(x)
        is_one = axis >= len(shape) or (not is_symbolic(shape[axis]) and shape[axis] == 1)
        if not is_one:
            extents[name] = shape[axis]
    are_equal = len(set(extents.values())) < 2
    if are_equal or not any(map(is_symbolic, extents.values())):
        return tensors
    numbers = [n for n in extents.values() if not is_symbolic(n)]
    common_extent = numbers[0] if numbers else _common_extent(graph, list(extents.values()), span)
    results = dict(tensors)
    for name, extent in extents.items():
        if is_symbolic(extent):
            results[name] = _spread(graph, tensors[name], axis, common_extent, span)
    return results


def _common_extent(graph: ListEmission, extents: Sequence[Any], span: Span | None) -> Any:
    """Return a symbol for the extent to which `extents` broadcast.

    In a run, the value of the symbol is the first of `extents` that is not 1, or 1 if all are 1.
    For the extents a, b and c, the symbol has the value `a if a != 1 else (b if b != 1 else c)`.
    """
    count = graph.extent_tensor(extents[-1], span)
    for extent in reversed(extents[:-1]):
        number = graph.extent_tensor(extent, span)
        is_one = graph.insert("eq", {"x": number, "y": 1}, span)
        operands = {"condition": is_one, "true_value": count, "false_value": number}
        count = graph.insert("select", operands, span)
    return graph.defined_symbol(count, largest_of(extents), span)


def _spread(graph: ListEmission, x: Value, axis: int, extent: Any, span: Span | None) -> Value:
    """Return a list with the extent `extent` along an axis.

    In a run, `x` has either this extent already, or a single item. The result repeats a single
    item.
    """
    length = graph.extent_tensor(graph.shape_of(x)[axis], span)
    last = graph.insert("sub", {"x": length, "y": 1}, span)
    most = graph.bound(extent)
    numbers = {"start": 0, "end": most, "step": 1, "dtype": graph.builder.integer}
    places = graph.insert("range", {}, span, **numbers)
    # Indices beyond the last item become the last index. In an empty list, all indices become 0.
    places = graph.insert("min", {"x": places, "y": last}, span)
    places = graph.insert("max", {"x": places, "y": 0}, span)
    result = graph.insert("gather", {"input": x, "indices": places}, span, axis=axis)
    return graph.counted(result, axis, extent, span) if is_symbolic(extent) else result


def _concat(graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None) -> ByName:
    """Return the operands of a concatenation, with the extents of the first part in all parts.

    The extents along the axis of the concatenation stay as they are. If an extent of the first part
    is a number, lists among the other parts get this number of items.
    """
    first, *further_parts = operands["values"]
    if not any(map(graph.is_list, operands["values"])):
        return operands
    axis = attributes["axis"] % len(first.type.shape)
    extents = {i: extent for i, extent in enumerate(graph.shape_of(first)) if i != axis}
    parts = [first]
    for part in further_parts:
        for i, extent in extents.items():
            is_counted = is_symbolic(graph.shape_of(part)[i])
            if is_counted and not is_symbolic(extent):
                part = _spread(graph, part, i, extent, span)
        parts.append(_with_extents(graph, part, extents, span))
    return {**operands, "values": parts}


def _with_extents(
    graph: ListEmission, x: Value, extents: Mapping[int, Any], span: Span | None
) -> Value:
    """Return a list with new symbols for its extents. In a run, the extents stay the same.

    `extents` maps axes to the symbols. Entries of `extents` that are numbers are ignored.
    """
    for axis, extent in extents.items():
        is_same = graph.shape_of(x)[axis] - extent == 0
        if is_symbolic(extent) and not is_same:
            x = graph.counted(x, axis, extent, span)
    return x


def _topk(
    graph: ListEmission, operands: ByName, attributes: ByName, span: Span | None
) -> ByName | list[Value]:
    """Add an operation that chooses the `k` best items of a list. Return the results, as lists.

    If neither the extent nor `k` is symbolic, add nothing and return the operands. The results have
    at most as many items as the list.
    """
    x = operands["input"]
    k = attributes["k"]
    extent = graph.shape_of(x)[attributes["axis"]]
    if not (is_symbolic(extent) or is_symbolic(k)):
        return operands
    axis = attributes["axis"] % len(x.type.shape)
    limit = smallest_of([extent, k])
    most = graph.bound(limit)
    if is_symbolic(extent):
        # The padding behind the items becomes the worst number, so the operation chooses padding
        # last.
        worst = _end(x.type.dtype, largest=not attributes["largest"])
        x = graph.filled(x, axis, worst, span)
    fixed_attributes = {**attributes, "axis": axis, "k": most}
    results = graph.insert("topk", {**operands, "input": x}, span, **fixed_attributes)
    chooses_all = is_symbolic(k) and k - extent == 0
    if chooses_all:
        return [graph.counted(y, axis, extent, span) for y in results]
    numbers = {"x": graph.extent_tensor(extent, span), "y": graph.extent_tensor(k, span)}
    count = graph.insert("min", numbers, span)
    return [graph.listed(y, axis, count, limit, span) for y in results]


def _end(dtype: str, largest: bool) -> float:
    """Return the largest number of a dtype if `largest`, otherwise the least number.

    For a dtype of real numbers, the result is infinity or -infinity.
    """
    if is_float(dtype):
        return math.inf if largest else -math.inf
    least_number, largest_number = ends_of(dtype)
    return largest_number if largest else least_number


_FUNCTIONS: Mapping[str, Callable[..., ByName | list[Value]]] = {
    **dict.fromkeys(BY_ITEM, _by_item),
    "concat": _concat,
    "scatter_nd": _scatter_nd,
    "scatter_elements": _scatter_elements,
    "broadcast": _broadcast,
    "topk": _topk,
}
