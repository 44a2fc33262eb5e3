"""Adds slices, splits and reductions along axes to a graph, for layers and nodes of any format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
Part = tuple[int | None, int | None, int]  # begin, end and step of a Python slice


def sliced(
    site: Site[TensorGraph], x: Tensor, parts: Mapping[int, Part], *, final: bool = True
) -> Any:
    """Slice a tensor along the axes that are keys of `parts`.

    The value for an axis is its begin, end and step, as in a Python slice. Bounds beyond the axis
    are clipped to the axis. If `final`, the slice is the last operation of the layer or node.
    """
    has_symbols = any(is_symbolic(n) for part in parts.values() for n in part)
    if isinstance(x, Constant) and x.array.size <= LARGEST and not has_symbols:
        every_item = (None, None, 1)
        slices = [slice(*parts.get(axis, every_item)) for axis in range(site.rank(x))]
        return Constant(x.array[tuple(slices)], x.type, derived=True)
    axes: list[int] = []
    bounds: list[tuple[int, int, int]] = []
    lengths: dict[int, int] = {}
    for axis, (begin, end, step) in sorted(parts.items()):
        if step == 0:
            raise InvalidOperation("a step is 0")
        if _counts_from_end(begin) or _counts_from_end(end):
            # Padding would shift the bounds that count from the end.
            site.graph.require_items(x, [axis])
        extent = site.shape(x)[axis]
        if extent is UNKNOWN or is_symbolic(begin) or is_symbolic(end):
            begin = 0 if begin is None else begin
            is_number = end is not None and not is_symbolic(end)
            if is_number and end == 0 and step > 0:
                lengths[axis] = 0
                continue
            begins_inside = is_symbolic(begin) or begin >= 0
            if step < 0 or not begins_inside:
                site.known_shape(x)  # raises ExtentNeeded for an open extent
            if end is None or (is_number and end >= FAR):
                end = 0  # the end of the axis
            bounds.append((begin, end, step))
        else:
            items = range(extent)[begin:end:step]
            lengths[axis] = len(items)
            if items == range(extent):
                continue
            # A negative end would count from the end of the axis.
            stop = items.stop if items.stop >= 0 else -FAR - 1
            bounds.append((items.start, stop, step))
        axes.append(axis)
    add = site.step_or_last(final)
    if 0 in lengths.values():
        shape = [lengths.get(i, n) for i, n in enumerate(site.known_shape(x))]
        return add.constant(shape=shape, value=(), dtype=site.dtype_of(x))
    if not axes:
        return add.copy(x) if final else x
    begins, ends, steps = zip(*bounds, strict=True)
    return add.slice(x, axes=axes, begin=begins, end=ends, stride=steps)


def _counts_from_end(bound: int | None) -> bool:
    return bound is not None and not is_symbolic(bound) and bound < 0


def cropped(site: Site[TensorGraph], x: Tensor, around: Mapping[int, Sequence[int]]) -> Any:
    """Remove the items that negative padding cuts off a tensor.

    `around` maps an axis to its padding (before, after). Positive numbers are ignored here.
    """
    parts: dict[int, Part] = {}
    for axis, (before, after) in around.items():
        if before < 0 or after < 0:
            end = after if after < 0 else None
            parts[axis] = (max(-before, 0), end, 1)
    return sliced(site, x, parts, final=False) if parts else x


def cut(site: Site[TensorGraph], x: Tensor, axis: int, lengths: Sequence[int]) -> list[Any]:
    """Split a tensor along an axis into consecutive parts, one for each item of `lengths`."""
    total = site.shape(x)[axis]
    if min(lengths, default=0) < 0:
        raise InvalidShape(f"lengths must not be negative, they are {list(lengths)}")
    if total is not UNKNOWN and sum(lengths) != total:
        message = f"lengths {list(lengths)} do not add up to the {total} items of axis {axis}"
        raise InvalidShape(message)
    if len(lengths) == 1:
        return [site.last.copy(x)]
    if 0 not in lengths and len(lengths) > 1 and not isinstance(x, Constant):
        common = math.gcd(*lengths)
        return site.last.split(x, axis=axis, ratios=[n // common for n in lengths])
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


def divided(site: Site[TensorGraph], x: Tensor, axis: int, count: int) -> list[Any]:
    """Split a tensor along an axis into `count` equal parts."""
    extent = site.shape(x)[axis]
    if count < 1 or (extent is not UNKNOWN and extent % count):
        raise InvalidShape(f"{count} parts do not divide the {extent} items of axis {axis}")
    if count == 1:
        return [site.last.copy(x)]
    if extent is UNKNOWN:
        return site.last.split(x, axis=axis, ratios=[1] * count)
    return cut(site, x, axis, [extent // count] * count)


def reduced(
    site: Site[TensorGraph],
    x: Tensor,
    axes: Sequence[int],
    steps: tuple[str, str, str],
    *,
    keeps: bool,
    back: str = "",
) -> Any:
    """Add the operations of a reduction, of which the last one is the operation of the site.

    `steps` is an item of `REDUCTIONS`. If `back` is not "", the result is cast to this dtype. The
    reduced axes have extent 1 in the result if `keeps` is set; otherwise they are removed.
    """
    before, kind, after = steps
    attributes: dict[str, Any] = {"axes": axes}
    is_mean_of_integers = kind == "mean_reduce" and is_integer(site.dtype_of(x))
    if kind == "sum_reduce" or is_mean_of_integers:
        kind = "sum_reduce"
        attributes["normalize"] = is_mean_of_integers
    last_steps: list[Any] = [("cast", [], {"dtype": back})] if back else []
    if not keeps:
        last_steps.append(("squeeze", [], {"axes": axes}))
    if before == "exp" and not any(site.shape(x)[a] == 0 for a in axes):
        # Overflow is avoided by log(sum(exp(x))) = log(sum(exp(x - m))) + m, where m is the largest
        # item, or the nearest finite number if that item is infinite.
        largest = site.step.max_reduce(x, axes=axes)
        largest = site.step.clamp(largest, *map(float, ends_of(site.dtype_of(x))))
        x = site.step.sub(x, largest)
        last_steps.insert(0, ("add", [largest], {}))
    if after == "sqrt":
        x = getattr(site.step, before)(x)
        x = getattr(site.step, kind)(x, **attributes)
        x = site.root(x, site.step_or_last(not last_steps))
        return site.chain(x, *last_steps) if last_steps else x
    return site.chain(x, (before, [], {}), (kind, [], attributes), (after, [], {}), *last_steps)
