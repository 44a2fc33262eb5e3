"""Adds slices, splits and reductions along axes to a graph, for layers and nodes of any format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, ceil_div, is_symbolic
from lowering.graph import Value, is_integer
from lowering.symbol_values import symbols_in
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.hostvalues import LARGEST
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph

FAR = 2**31 - 1  # an end beyond any axis

# For each reduction, three kinds of operations: the one applied to the items before the reduction,
# the reduction, and the one applied to its result. "" stands for no operation.
REDUCTIONS: Mapping[str, tuple[str, str, str]] = {
    "Max": ("", "max_reduce", ""), "Min": ("", "min_reduce", ""), "Sum": ("", "sum_reduce", ""),
    "Prod": ("", "product_reduce", ""), "Mean": ("", "mean_reduce", ""),
    "L1": ("abs", "sum_reduce", ""), "L2": ("sqr", "sum_reduce", "sqrt"),
    "SumSquare": ("sqr", "sum_reduce", ""), "LogSum": ("", "sum_reduce", "log"),
    "LogSumExp": ("exp", "sum_reduce", "log"),
}  # fmt: skip
SliceBounds = tuple[int | None, int | None, int]  # begin, end and step of a Python slice


def sliced(
    site: Site[TensorGraph], x: Tensor, slices: Mapping[int, SliceBounds], *, final: bool = True
) -> Any:
    """Slice a tensor along the axes that are keys of `slices`.

    The value for an axis is (begin, end, step), as in a Python slice. Bounds beyond the axis are
    clipped to the axis. If `final`, the slice is the last operation of the layer or node.
    """
    has_symbols = any(any(map(is_symbolic, bounds)) for bounds in slices.values())
    if isinstance(x, Constant) and x.array.size <= LARGEST and not has_symbols:
        index: list[Any] = [slice(None)] * site.rank(x)
        for axis, bounds in slices.items():
            index[axis] = slice(*bounds)
        return Constant(x.array[tuple(index)], x.type, derived=True)
    bounds_by_axis: dict[int, tuple[int, int, int]] = {}  # only of axes that the slice changes
    lengths: dict[int, int] = {}  # the extents of the result that are known, by axis
    for axis, (begin, end, step) in sorted(slices.items()):
        if step == 0:
            raise InvalidOperation("a step is 0")
        extent = site.shape(x)[axis]
        if _is_of_list(site, x, axis, begin, end):
            x = _sliced_list(site, x, axis, begin, end, step)
            continue
        has_open_bounds = extent is UNKNOWN or is_symbolic(begin) or is_symbolic(end)
        if has_open_bounds:
            ends_at_0 = _is_number(end) and end == 0
            if ends_at_0 and step > 0:
                lengths[axis] = 0
            else:
                bounds_by_axis[axis] = _open_bounds(site, x, begin, end, step)
            continue
        items = range(extent)[begin:end:step]
        lengths[axis] = len(items)
        if items != range(extent):
            # A negative end would count from the end of the axis.
            stop = items.stop if items.stop >= 0 else -FAR - 1
            bounds_by_axis[axis] = (items.start, stop, step)
    add = site.step_or_last(final)
    if 0 in lengths.values():
        shape = list(site.known_shape(x))
        for axis, length in lengths.items():
            shape[axis] = length
        return add.constant(shape=shape, value=(), dtype=site.dtype_of(x))
    if not bounds_by_axis:
        return add.copy(x) if final else x
    begins, ends, steps = zip(*bounds_by_axis.values(), strict=True)
    return add.slice(x, axes=[*bounds_by_axis], begin=begins, end=ends, stride=steps)


def _is_of_list(site: Site[TensorGraph], x: Tensor, axis: int, *bounds: Any) -> bool:
    """Tell whether the axis, or a bound of a slice along it, has a number that values tell."""
    if not site.graph.has_lists:
        return False
    symbols = [symbols_in(n) for n in (site.known_shape(x)[axis], *bounds)]
    return not site.graph.symbols.most.keys().isdisjoint(set().union(*symbols))


def _sliced_list(
    site: Site[TensorGraph],
    x: Tensor,
    axis: int,
    begin: Any,
    end: Any,
    step: int,
    most: int = FAR,
) -> Tensor:
    """Slice a tensor along an axis, and count the items of the result, which is a list.

    There are at most `most` items, as the caller knows.

    The number of items is computed by operations of the graph. An expression of jax's symbols, such
    as n - 1, would be wrong for a list without items, because jax takes each symbol for at least 1.
    """
    graph = site.graph
    extent = site.known_shape(x)[axis]
    takes_all = begin in (None, 0) and (end is None or (_is_number(end) and end >= FAR))
    if step == 1 and takes_all:
        return x
    length = graph.extent_tensor(extent, site.span)
    low: Any = 0
    high = length
    if step < 0:  # the slice begins at the last item, and ends before the first
        low = -1
        high = site.step.sub(length, 1)
    ends = (low, high) if step > 0 else (high, low)
    first = ends[0] if begin is None else _place(site, begin, length, low, high)
    last = ends[1] if end is None else _place(site, end, length, low, high)
    distance = site.step.sub(last, first) if step > 0 else site.step.sub(first, last)
    count = site.step.max(distance, 0)
    if abs(step) != 1:
        count = site.step.div(site.step.add(count, abs(step) - 1), abs(step))
    most = min(most, _most_items(graph, extent, begin, end, step))
    places = site.step.add(site.step.mul(site.positions(most), step), first)
    return site.listed(site.step.gather(x, places, axis=axis), axis, count)


def _place(site: Site[TensorGraph], bound: Any, length: Value, low: Any, high: Any) -> Value:
    """Return the place where a slice begins or ends, as a tensor of shape (1,).

    `length` is the extent of the axis, and `low` and `high` are the least and the greatest place. A
    negative bound counts from the end of the axis.
    """
    if not is_symbolic(bound):
        bound = max(min(bound, FAR), -FAR)
    place = site.graph.extent_tensor(bound, site.span)
    from_end = site.step.add(place, length)
    if is_symbolic(bound):
        place = site.step.select(site.step.lt(place, 0), from_end, place)
    elif bound < 0:
        place = from_end
    return site.step.min(site.step.max(place, low), high)


def _most_items(graph: TensorGraph, extent: Any, begin: Any, end: Any, step: int) -> int:
    """Return the largest number of items that a slice along an axis of an extent can have."""
    most = graph.bound(extent)
    if step > 0:
        if end is not None and not is_symbolic(end) and end >= 0:
            most = min(most, end)
        elif is_symbolic(end) and _is_count(end):
            most = min(most, graph.bound(end))
        if begin is not None and not is_symbolic(begin) and begin >= 0:
            most = max(most - begin, 0)
    return ceil_div(most, abs(step))


def _is_count(extent: Any) -> bool:
    """Tell whether an extent is a single symbol, which is never negative."""
    return str(extent) in symbols_in(extent)


def _open_bounds(
    site: Site[TensorGraph], x: Tensor, begin: int | None, end: int | None, step: int
) -> tuple[int, int, int]:
    """Return (begin, end, stride) of a slice along an axis whose extent or bounds are open.

    If the slice goes to the end of the axis, `end` is 0 in the result.
    """
    start = 0 if begin is None else begin
    if step < 0 or _counts_from_end(start):
        site.known_shape(x)  # raises ExtentNeeded for an open extent
    if end is None:
        return start, 0, step
    is_beyond_axis = _is_number(end) and end >= FAR
    return start, 0 if is_beyond_axis else end, step


def _is_number(bound: int | None) -> TypeGuard[int]:
    """Tell whether a bound of a slice is a number, not None and not symbolic."""
    return bound is not None and not is_symbolic(bound)


def _counts_from_end(bound: int | None) -> bool:
    """Tell whether a bound of a slice is a negative number, which counts from the end."""
    return _is_number(bound) and bound < 0


def cropped(site: Site[TensorGraph], x: Tensor, around: Mapping[int, Sequence[int]]) -> Any:
    """Remove the items of a tensor that negative padding cuts off.

    `around` maps an axis to its padding (before, after). Positive numbers of padding have no effect
    here.
    """
    slices: dict[int, SliceBounds] = {}
    for axis, (before, after) in around.items():
        begin = max(-before, 0)
        end = after if after < 0 else None
        if begin > 0 or end is not None:
            slices[axis] = (begin, end, 1)
    return sliced(site, x, slices, final=False) if slices else x


def split_by_lengths(
    site: Site[TensorGraph], x: Tensor, axis: int, lengths: Sequence[int]
) -> list[Any]:
    """Split a tensor along an axis into consecutive parts with the lengths `lengths`."""
    if _is_of_list(site, x, axis, *lengths):
        return _split_list(site, x, axis, lengths)
    total = site.shape(x)[axis]
    if min(lengths, default=0) < 0:
        raise InvalidShape(f"lengths must not be negative, they are {list(lengths)}")
    if total is not UNKNOWN and sum(lengths) != total:
        message = f"lengths {list(lengths)} do not add up to the {total} items of axis {axis}"
        raise InvalidShape(message)
    if len(lengths) == 1:
        return [site.last.copy(x)]
    has_items_in_each = len(lengths) > 1 and 0 not in lengths
    if has_items_in_each and not isinstance(x, Constant):
        divisor = math.gcd(*lengths)
        ratios = [length // divisor for length in lengths]
        return site.last.split(x, axis=axis, ratios=ratios)
    parts: list[Any] = []
    start = 0
    for length in lengths:
        if length:
            window = {"begin": (start,), "end": (start + length,), "stride": (1,)}
            parts.append(site.last.slice(x, axes=(axis,), **window))
        else:
            shape = list(site.known_shape(x))
            shape[axis] = 0
            parts.append(site.last.constant(shape=shape, value=(), dtype=site.dtype_of(x)))
        start += length
    return parts


def _split_list(site: Site[TensorGraph], x: Tensor, axis: int, lengths: Sequence[Any]) -> list[Any]:
    """Split a tensor along an axis into parts, if values tell its extent or the lengths."""
    graph = site.graph
    parts: list[Any] = []
    start: Any = 0
    for length in lengths:
        end = start + length
        if is_symbolic(length) and not _is_count(length):
            part = _sliced_list(site, x, axis, start, end, 1, graph.bound(length))
        else:
            first = graph.extent_tensor(start, site.span)
            places = site.step.add(site.positions(graph.bound(length)), first)
            part = site.step.gather(x, places, axis=axis)
        if _is_count(length):
            part = graph.counted(site.tensor(part), axis, length, site.span)
        parts.append(part)
        start = end
    return parts


def split_evenly(site: Site[TensorGraph], x: Tensor, axis: int, count: int) -> list[Any]:
    """Split a tensor along an axis into `count` equal parts."""
    if _is_of_list(site, x, axis):
        length = site.known_shape(x)[axis] // count
        return _split_list(site, x, axis, [length] * count)
    extent = site.shape(x)[axis]
    is_open = extent is UNKNOWN
    if count < 1 or (not is_open and extent % count != 0):
        raise InvalidShape(f"{count} parts do not divide the {extent} items of axis {axis}")
    if count == 1:
        return [site.last.copy(x)]
    if is_open:
        return site.last.split(x, axis=axis, ratios=[1] * count)
    return split_by_lengths(site, x, axis, [extent // count] * count)


def reduced(
    site: Site[TensorGraph],
    x: Tensor,
    axes: Sequence[int],
    steps: tuple[str, str, str],
    *,
    keeps_axes: bool,
    result_dtype: str = "",
) -> Any:
    """Add the operations of a reduction, such as a sum or a norm, along axes; return the result.

    `steps` is a value of `REDUCTIONS`: the kind of the operation before the reduction, the kind of
    the reduction, and the kind of the operation after it. If `result_dtype` is not "", the result
    is cast to this dtype. If `keeps_axes`, the reduced axes have extent 1 in the result, otherwise
    they are removed. The result has the name of the layer or node.
    """
    before, kind, after = steps
    attributes: dict[str, Any] = {"axes": axes}
    is_mean_of_integers = kind == "mean_reduce" and is_integer(site.dtype_of(x))
    if kind == "sum_reduce" or is_mean_of_integers:
        kind = "sum_reduce"
        attributes["normalize"] = is_mean_of_integers
    last_steps: list[Any] = []  # the operations after `after`: kinds, operands and attributes
    if result_dtype:
        last_steps.append(("cast", [], {"dtype": result_dtype}))
    if not keeps_axes:
        last_steps.append(("squeeze", [], {"axes": axes}))
    is_empty = any(site.shape(x)[axis] == 0 for axis in axes)
    if before == "exp" and not is_empty:
        # Overflow is avoided by log(sum(exp(x))) = log(sum(exp(x - m))) + m, where m is the largest
        # item, or the nearest finite number if that item is infinite.
        least_finite, greatest_finite = ends_of(site.dtype_of(x))
        largest = site.step.max_reduce(x, axes=axes)
        largest = site.step.clamp(largest, float(least_finite), float(greatest_finite))
        x = site.step.sub(x, largest)
        last_steps.insert(0, ("add", [largest], {}))
    if after == "sqrt":
        x = getattr(site.step, before)(x)
        x = getattr(site.step, kind)(x, **attributes)
        x = site.root(x, site.step_or_last(not last_steps))
        return site.chain(x, *last_steps) if last_steps else x
    return site.chain(x, (before, [], {}), (kind, [], attributes), (after, [], {}), *last_steps)
