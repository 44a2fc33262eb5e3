"""Adds slices, splits and reductions along axes to a graph, for layers and nodes of any format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import is_integer
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
        if _counts_from_end(begin) or _counts_from_end(end):
            # Padding would shift the bounds that count from the end.
            site.graph.require_items(x, [axis])
        extent = site.shape(x)[axis]
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


def split_evenly(site: Site[TensorGraph], x: Tensor, axis: int, count: int) -> list[Any]:
    """Split a tensor along an axis into `count` equal parts."""
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
