"""Slices and padding of the dialect: bounds are clamped, and negative padding cuts items off."""

from __future__ import annotations

from collections.abc import Sequence

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, show
from lowering.ops import require
from lowering.ops.require import normal_axes, normal_axis
from nnef_jax.flattening.operators.attributes import integer, integers, text
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.operators.registry import AXES, argument, operator

_LOWEST = -(1 << 62)  # below every index


def new_axes(site: CallSite) -> list[int]:
    """Return the new axes in ascending order. A repeated axis stands for the next one."""
    axes = site.ints("axes")
    rank = site.rank() + len(axes)
    distinct: list[int] = []
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        distinct.append(max(axis, distinct[-1] + 1) if distinct else axis)
    return distinct


def channels(site: CallSite) -> tuple[int, ...]:
    """Return the shape of a window of `size` channels along the second axis."""
    shape = site.shape()
    if len(shape) < 2:
        raise InvalidShape(f"'input' {show(shape)} must have channels along its second axis")
    return (1, site.int("size")) + (1,) * (len(shape) - 2)


@operator("slice")
def sliced(
    site: CallSite,
    input: TractOperand,
    *,
    axes: Sequence[int] = AXES,
    begin: Sequence[int] = integers("begin"),
    end: Sequence[int] = integers("end"),
    stride: Sequence[int] = integers("stride"),
) -> TractOperand:
    """Slice with clamped bounds. A negative stride takes the items between the bounds backwards."""
    for name, items in (("begin", begin), ("end", end), ("stride", stride)):
        if items or name != "stride":
            require.length(name, items, len(axes), "axes")
    strides = stride or [1] * len(axes)
    if 0 in strides:
        raise InvalidOperation(f"'stride' must not be 0, it is {list(strides)}")
    shape = site.shape(input)
    bounds = [_bounds(shape, *items) for items in zip(axes, begin, end, strides, strict=True)]
    first, last = ([pair[i] for pair in bounds] for i in (0, 1))
    return site.last.slice(input, axes=axes, begin=first, end=last, stride=stride)


def _bounds(shape: Shape, axis: int, begin: int, end: int, step: int) -> tuple[int, int]:
    """Return the bounds of the kind `slice`, whose first bound is the first item that is taken."""
    extent = shape[axis]
    if extent is UNKNOWN or any(x is UNKNOWN or is_symbolic(x) for x in (begin, end, step)):
        if is_symbolic(step) or step is UNKNOWN or step > 0:
            return begin, end
        return end - 1, _LOWEST if begin == 0 else begin - 1
    first, last, _ = slice(begin, None if end == 0 else end).indices(extent)
    if step < 0 and first > last:
        raise InvalidShape(
            f"'begin' {begin} lies behind 'end' {end} in the {extent} items of 'input' "
            f"{show(shape)} along axis {axis}",
            hint="'begin' is the lower bound with a negative stride, too: the items between the "
            "bounds are taken backwards",
        )
    if first >= last:
        return extent, extent
    return (first, last) if step > 0 else (last - 1, first - 1 if first else -extent - 1)


@operator("tract_core_downsample")
def downsample(
    site: CallSite,
    input: TractOperand,
    *,
    axis: int = integer("axis"),
    stride: int = integer("stride"),
    modulo: int = integer("modulo"),
) -> TractOperand:
    """Take every `stride`-th item along an axis, from index `modulo` on."""
    require.not_negative(modulo=modulo)
    if stride == 0:
        raise InvalidOperation("'stride' must not be 0")
    axes = normal_axes([axis], site.rank())
    return sliced(site, input, axes=axes, begin=[modulo], end=[0], stride=[stride])


@operator("pad")
def pad(
    site: CallSite,
    input: TractOperand,
    *,
    padding: Sequence[tuple[int, int]] = argument("padding"),
    border: str = text("border"),
) -> TractOperand:
    """Pad an input. Negative padding cuts items off first, as in ONNX."""
    shape = site.shape(input)
    require.length("padding", padding, len(shape), "axes of 'input'")
    cut = [tuple(-p if _is_cut(p) else 0 for p in pair) for pair in padding]
    slices = {
        # If all items are cut off, the slice is empty, at the end.
        axis: (extent, extent) if extent == sum(pair) else (pair[0], -pair[1])
        for axis, (extent, pair) in enumerate(zip(shape, cut, strict=True))
        if any(pair)
    }
    if slices:
        if any(shape[axis] < sum(cut[axis]) for axis in slices):
            message = (
                f"'padding' {list(padding)} cuts off more items than 'input' {show(shape)} has"
            )
            raise InvalidShape(message)
        begin, end = map(list, zip(*slices.values(), strict=True))
        step = site.step_on("input")
        input = step.slice(input, axes=list(slices), begin=begin, end=end, stride=[])
        padding = [(0 if _is_cut(a) else a, 0 if _is_cut(b) else b) for a, b in padding]
    border = "replicate" if border == "replicated" else border
    return site.last.pad(input, padding=padding, border=border)


def _is_cut(items: int) -> bool:
    return not is_symbolic(items) and items < 0
