"""Adds slices, splits and reductions along axes to a graph, for layers and nodes of any format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_symbolic, largest_of, smallest_of
from lowering.graph import Value, is_integer
from lowering.symbol_values import symbols_in
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.hostvalues import LARGEST
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph

FAR = 2**31 - 1  # an end beyond any axis

# The names of the three operations of each reduction: one on the items, the reduction itself, and
# one on its result. "" stands for no operation. L2 is sqrt(sum_reduce(sqr(x))).
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
        return _sliced_constant(x, slices)
    bounds_by_axis: dict[int, tuple[int, int, int]] = {}  # only of axes that the slice changes
    lengths: dict[int, int] = {}  # maps axes to constant extents of the result
    for axis, (begin, end, step) in sorted(slices.items()):
        if step == 0:
            raise InvalidOperation("a step is 0")
        extent = site.shape(x)[axis]
        has_open_bounds = extent is UNKNOWN or is_symbolic(begin) or is_symbolic(end)
        if _has_counted_extent(site, x, axis, begin, end):
            x = _sliced_list(site, x, axis, begin, end, step)
        elif not has_open_bounds:
            items = range(extent)[begin:end:step]
            lengths[axis] = len(items)
            if items != range(extent):
                # range(5)[::-1] stops at -1, but the operation counts -1 from the end of the axis.
                stop = items.stop if items.stop >= 0 else -FAR - 1
                bounds_by_axis[axis] = (items.start, stop, step)
        elif _is_number(end) and end == 0 and step > 0:
            # The slice has no items. The operation would take an end of 0 as the end of the axis.
            lengths[axis] = 0
        else:
            bounds_by_axis[axis] = _open_bounds(site, x, begin, end, step)
    add = site.step_or_last(final)
    if 0 in lengths.values():
        return _without_items(site, add, x, lengths)
    if not bounds_by_axis:
        return add.copy(x) if final else x
    begins, ends, steps = zip(*bounds_by_axis.values(), strict=True)
    return add.slice(x, axes=[*bounds_by_axis], begin=begins, end=ends, stride=steps)


def _sliced_constant(x: Constant, slices: Mapping[int, SliceBounds]) -> Constant:
    """Slice a constant tensor on the host. The arguments are as for `sliced`."""
    index: list[slice] = [slice(None)] * x.array.ndim
    for axis, bounds in slices.items():
        index[axis] = slice(*bounds)
    return Constant(x.array[tuple(index)], x.type, derived=True)


def _without_items(
    site: Site[TensorGraph], add: ByKind, x: Tensor, lengths: Mapping[int, int]
) -> Any:
    """Add a constant without items.

    The constant has the dtype of `x`. It has the shape of `x` too, except along the axes in
    `lengths`. `lengths` maps each such axis to its extent in the constant. At least one of these
    extents is 0.
    """
    shape = list(site.known_shape(x))
    for axis, length in lengths.items():
        shape[axis] = length
    return add.constant(shape=shape, value=(), dtype=site.dtype_of(x))


def _has_counted_extent(site: Site[TensorGraph], x: Tensor, axis: int, *numbers: Any) -> bool:
    """Tell whether an axis's extent, or one of `numbers`, contains a symbol for a count.

    The network computes such a count of items in a run. `numbers` are, for example, the bounds of a
    slice.
    """
    if not site.graph.has_lists:
        return False
    symbols = symbols_in((site.known_shape(x)[axis], *numbers))
    return not symbols.isdisjoint(site.graph.symbols.most)


def _sliced_list(
    site: Site[TensorGraph],
    x: Tensor,
    axis: int,
    begin: Any,
    end: Any,
    step: int,
    limit: Any = FAR,
) -> Tensor:
    """Slice a tensor along an axis, and count the items of the result in a run.

    The number of items is at most the extent `limit`. The number is computed by operations of the
    graph. An expression of jax's symbols, such as n - 1, would be wrong for a list without items,
    because jax assumes that each symbol is at least 1.
    """
    graph = site.graph
    extent = site.known_shape(x)[axis]
    begins_at_0 = begin in (None, 0)
    goes_to_end = end is None or _is_beyond_axes(end)
    if step == 1 and begins_at_0 and goes_to_end:
        return x
    length = graph.extent_tensor(extent, site.span)
    first: Any  # the index of the first item, by default the first or the last index of the axis
    stop: Any  # the index at which the slice ends; the item at this index is left out
    if step > 0:
        low, high = 0, length
        first, stop = low, high
    else:
        low, high = -1, site.step.sub(length, 1)
        first, stop = high, low
    if begin is not None:
        first = _place(site, begin, length, low, high)
    if end is not None:
        stop = _place(site, end, length, low, high)
    distance = site.step.sub(stop, first) if step > 0 else site.step.sub(first, stop)
    count = site.step.max(distance, 0)
    if abs(step) != 1:
        # The quotient is rounded up: a slice from 0 to 5 with the step 2 has 3 items.
        count = site.step.div(site.step.add(count, abs(step) - 1), abs(step))
    limit = smallest_of([limit, _limit_of_slice(extent, begin, end, step)])
    # `places` are the indices first, first + step, first + 2 * step and so on.
    distances = site.step.mul(site.positions(graph.bound(limit)), step)
    places = site.step.add(distances, first)
    return site.listed(site.step.gather(x, places, axis=axis), axis, count, limit)


def _place(site: Site[TensorGraph], bound: Any, length: Value, low: Any, high: Any) -> Value:
    """Return the index at which a slice begins or ends, as a tensor of shape (1,).

    `bound` is the begin or the end of the slice. A negative bound counts from the end of the axis.
    `length` is the extent of the axis. The index is clipped to the range from `low` to `high`.
    """
    if not is_symbolic(bound):
        bound = max(min(bound, FAR), -FAR)  # indices are integers of 32 bits
    place = site.graph.extent_tensor(bound, site.span)
    from_end = site.step.add(place, length)
    if is_symbolic(bound):
        # Only a run tells whether the bound is negative.
        place = site.step.select(site.step.lt(place, 0), from_end, place)
    elif bound < 0:
        place = from_end
    return site.step.min(site.step.max(place, low), high)


def _limit_of_slice(extent: Any, begin: Any, end: Any, step: int) -> Any:
    """Return an upper bound of the number of items in a slice of an axis.

    `extent` is the extent of the axis. The bound ignores `end` if `end` may be negative.
    """
    limit = extent
    if step > 0:
        has_end = _is_number(end) and 0 <= end < FAR
        if has_end or (is_symbolic(end) and _is_single_symbol(end)):
            limit = smallest_of([limit, end])
        if _is_number(begin):
            from_begin = -begin if begin < 0 else limit - begin
            limit = largest_of([smallest_of([limit, from_begin]), 0])
    stride = abs(step)
    return limit if stride == 1 else (limit + (stride - 1)) // stride  # rounded up


def _is_single_symbol(extent: Any) -> bool:
    """Tell whether an extent is a symbol such as n0, and not an expression such as n0 - 1."""
    return str(extent) in symbols_in(extent)


def _open_bounds(
    site: Site[TensorGraph], x: Tensor, begin: int | None, end: int | None, step: int
) -> tuple[int, int, int]:
    """Return (begin, end, stride) of a slice. The axis's extent or a bound may be unknown.

    If the slice goes to the end of the axis, `end` is 0 in the result.
    """
    start = 0 if begin is None else begin
    counts_from_end = _is_number(start) and start < 0
    if step < 0 or counts_from_end:
        # The first item depends on the extent: ExtentNeeded is raised if the extent is open.
        site.known_shape(x)
    if end is None or _is_beyond_axes(end):
        return start, 0, step
    return start, end, step


def _is_number(bound: int | None) -> TypeGuard[int]:
    """Tell whether a bound of a slice is a number, not None and not symbolic."""
    return bound is not None and not is_symbolic(bound)


def _is_beyond_axes(end: int | None) -> bool:
    """Tell whether the end of a slice is a number beyond the end of any axis."""
    return _is_number(end) and end >= FAR


def cropped(site: Site[TensorGraph], x: Tensor, around: Mapping[int, Sequence[int]]) -> Any:
    """Remove the items of a tensor that negative padding cuts off.

    `around` maps an axis to its padding (before, after). A negative number is the number of items
    to remove. Positive numbers have no effect here.
    """
    slices: dict[int, SliceBounds] = {}
    for axis, (before, after) in around.items():
        begin = max(-before, 0)
        end = after if after < 0 else None  # a negative end counts from the end of the axis
        if begin > 0 or end is not None:
            slices[axis] = (begin, end, 1)
    return sliced(site, x, slices, final=False) if slices else x


def split_by_lengths(
    site: Site[TensorGraph], x: Tensor, axis: int, lengths: Sequence[int]
) -> list[Any]:
    """Split a tensor along an axis into consecutive parts with the lengths `lengths`."""
    if _has_counted_extent(site, x, axis, *lengths):
        return _split_list(site, x, axis, lengths)
    total = site.shape(x)[axis]
    if min(lengths, default=0) < 0:
        raise InvalidShape(f"lengths must not be negative, they are {list(lengths)}")
    if total is not UNKNOWN and sum(lengths) != total:
        message = f"lengths {list(lengths)} do not add up to the {total} items of axis {axis}"
        raise InvalidShape(message)
    if len(lengths) == 1:
        return [site.last.copy(x)]
    has_items_in_each = len(lengths) > 0 and 0 not in lengths
    if has_items_in_each and not isinstance(x, Constant):
        # The ratios of the lengths 4 and 6 are 2 and 3.
        divisor = math.gcd(*lengths)
        ratios = [length // divisor for length in lengths]
        return site.last.split(x, axis=axis, ratios=ratios)
    parts: list[Any] = []
    start = 0
    for length in lengths:
        end = start + length
        if length == 0:
            part = _without_items(site, site.last, x, {axis: 0})
        else:
            part = site.last.slice(x, axes=(axis,), begin=(start,), end=(end,), stride=(1,))
        parts.append(part)
        start = end
    return parts


def _split_list(site: Site[TensorGraph], x: Tensor, axis: int, lengths: Sequence[Any]) -> list[Any]:
    """Split a tensor along an axis. The extent, or a length, depends on values in a run."""
    graph = site.graph
    parts: list[Any] = []
    start: Any = 0
    for length in lengths:
        end = start + length
        if is_symbolic(length) and not _is_single_symbol(length):
            # Operations of the graph compute a length such as n0 - 2, as they do for a slice.
            limit = largest_of([length, 0])
            part = _sliced_list(site, x, axis, start, end, step=1, limit=limit)
        else:
            first = graph.extent_tensor(start, site.span)
            places = site.step.add(site.positions(graph.bound(length)), first)
            part = site.step.gather(x, places, axis=axis)
        if _is_single_symbol(length):
            part = graph.counted(site.tensor(part), axis, length, site.span)
        parts.append(part)
        start = end
    return parts


def split_evenly(site: Site[TensorGraph], x: Tensor, axis: int, count: int) -> list[Any]:
    """Split a tensor along an axis into `count` equal parts."""
    if _has_counted_extent(site, x, axis):
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

    `steps` is a value of `REDUCTIONS`, such as ("sqr", "sum_reduce", "sqrt"). If `result_dtype` is
    not "", the result is cast to this dtype. If `keeps_axes`, the reduced axes have extent 1 in the
    result, otherwise they are removed. The result has the name of the layer or node.
    """
    before, kind, after = steps
    attributes: dict[str, Any] = {"axes": axes}
    # The mean of integers is computed as a normalized sum, so that it is an integer.
    is_mean_of_integers = kind == "mean_reduce" and is_integer(site.dtype_of(x))
    if kind == "sum_reduce" or is_mean_of_integers:
        kind = "sum_reduce"
        attributes["normalize"] = is_mean_of_integers
    last_steps: list[Any] = []  # name, operands and attributes of operations that follow `after`
    is_empty = any(site.shape(x)[axis] == 0 for axis in axes)
    if before == "exp" and not is_empty:  # without items, there is no largest item
        # Overflow is avoided by log(sum(exp(x))) = log(sum(exp(x - m))) + m, where m is the largest
        # item, or the nearest finite number if that item is infinite.
        least_finite, greatest_finite = ends_of(site.dtype_of(x))
        largest = site.step.max_reduce(x, axes=axes)
        largest = site.step.clamp(largest, float(least_finite), float(greatest_finite))
        x = site.step.sub(x, largest)
        last_steps.append(("add", [largest], {}))
    if result_dtype:
        last_steps.append(("cast", [], {"dtype": result_dtype}))
    if not keeps_axes:
        last_steps.append(("squeeze", [], {"axes": axes}))
    if after != "sqrt":
        return site.chain(x, (before, [], {}), (kind, [], attributes), (after, [], {}), *last_steps)
    # At 0, the derivative of the operation "sqrt" is infinite, and that of `site.root` is 0.
    x = getattr(site.step, before)(x)
    x = getattr(site.step, kind)(x, **attributes)
    is_root_last = not last_steps
    x = site.root(x, site.step_or_last(is_root_last))
    return x if is_root_last else site.chain(x, *last_steps)
