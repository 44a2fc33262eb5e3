"""Functions for slices and padding.

Bounds of slices are clamped, and negative padding cuts items off.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, show
from lowering.ops import require
from lowering.ops.require import normal_axes, normal_axis
from nnef_jax.flattening.hostvalues import is_plain
from nnef_jax.flattening.operators.attributes import integer, integers, text
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.operators.registry import AXES, argument, operator

_LOWEST = -(1 << 62)  # an index below every index of an axis


def new_axes(site: CallSite) -> list[int]:
    """Return the axes in the argument `axes` in ascending order, as indices in the result.

    An axis that occurs again stands for the next axis that is not in the list: [1, 1] returns
    [1, 2].
    """
    axes = site.ints("axes")
    rank = site.rank() + len(axes)
    distinct: list[int] = []
    lowest_free = 0
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        free_axis = max(axis, lowest_free)
        distinct.append(free_axis)
        lowest_free = free_axis + 1
    return distinct


def channels(site: CallSite) -> tuple[int, ...]:
    """Return the shape of a window that covers `size` channels: (1, size, 1, ...)."""
    shape = site.shape()
    if len(shape) < 2:
        raise InvalidShape(f"'input' {show(shape)} must have channels along its second axis")
    spatial_rank = len(shape) - 2
    return (1, site.int("size"), *[1] * spatial_rank)


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
    """Slice a tensor along axes. Bounds outside an axis are clamped to the axis.

    If a stride is negative, the items between the bounds are taken from the last to the first.
    """
    require.length("begin", begin, len(axes), "axes")
    require.length("end", end, len(axes), "axes")
    if stride:
        require.length("stride", stride, len(axes), "axes")
    strides = stride or [1] * len(axes)
    if 0 in strides:
        raise InvalidOperation(f"'stride' must not be 0, it is {list(strides)}")
    shape = site.shape(input)
    first_bounds: list[int] = []
    last_bounds: list[int] = []
    for axis, low, high, step in zip(axes, begin, end, strides, strict=True):
        first, last = _bounds(shape, axis, low, high, step)
        first_bounds.append(first)
        last_bounds.append(last)
    return site.last.slice(input, axes=axes, begin=first_bounds, end=last_bounds, stride=stride)


def _bounds(shape: Shape, axis: int, begin: int, end: int, step: int) -> tuple[int, int]:
    """Return the bounds of a slice along an axis, in the order of the kind `slice`.

    `begin` and `end` are the bounds in tract's order, in which `begin` is always the lower one. The
    kind `slice` begins a slice with a negative step at its highest item. For example, the bounds 1
    and 4 with the step -1 take the items 3, 2, 1. The kind has the bounds 3 and 0 for this slice.
    `shape` is the shape of the tensor.
    """
    are_known = shape[axis] is not UNKNOWN and is_plain((begin, end, step))
    if are_known:
        return _known_bounds(shape, axis, begin, end, step)
    is_backward = is_plain([step]) and step < 0
    if not is_backward:
        return begin, end
    before_lowest = _LOWEST if begin == 0 else begin - 1
    return end - 1, before_lowest


def _known_bounds(shape: Shape, axis: int, begin: int, end: int, step: int) -> tuple[int, int]:
    """Return the result of `_bounds` for constant numbers. Bounds are clamped to the axis."""
    extent = shape[axis]
    stop = None if end == 0 else end  # an end of 0 stands for the end of the axis
    first, last, _ = slice(begin, stop).indices(extent)
    if step < 0 and first > last:
        raise InvalidShape(
            f"'begin' {begin} lies behind 'end' {end} in the {extent} items of 'input' "
            f"{show(shape)} along axis {axis}",
            hint="'begin' is the lower bound with a negative stride, too: the items between the "
            "bounds are taken backwards",
        )
    if first >= last:
        return extent, extent  # an empty slice
    if step > 0:
        return first, last
    # The index before 0 is not written as -1, which would be the last item of the axis.
    before_lowest = first - 1 if first > 0 else -extent - 1
    return last - 1, before_lowest


@operator("tract_core_downsample")
def downsample(
    site: CallSite,
    input: TractOperand,
    *,
    axis: int = integer("axis"),
    stride: int = integer("stride"),
    modulo: int = integer("modulo"),
) -> TractOperand:
    """Take every `stride`-th item along an axis, beginning with the index `modulo`."""
    require.not_negative(modulo=modulo)
    if stride == 0:
        raise InvalidOperation("'stride' must not be 0")
    axes = normal_axes([axis], site.rank())
    end_of_axis = 0
    return sliced(site, input, axes=axes, begin=[modulo], end=[end_of_axis], stride=[stride])


@operator("pad")
def pad(
    site: CallSite,
    input: TractOperand,
    *,
    padding: Sequence[tuple[int, int]] = argument("padding"),
    border: str = text("border"),
) -> TractOperand:
    """Pad an input. As in ONNX, negative padding first cuts items off at the ends of axes."""
    require.length("padding", padding, site.rank(input), "axes of 'input'")
    cuts = any(_cut_items(before) or _cut_items(after) for before, after in padding)
    if cuts:
        input = _cut(site, input, padding)
        # `_cut` has applied the negative padding, so 0 replaces negative padding.
        padding = [
            (before + _cut_items(before), after + _cut_items(after)) for before, after in padding
        ]
    if border == "replicated":
        border = "replicate"
    return site.last.pad(input, padding=padding, border=border)


def _cut(site: CallSite, input: TractOperand, padding: Sequence[tuple[int, int]]) -> TractOperand:
    """Cut items off at the ends of axes where `padding` is negative.

    `padding` has a pair (before, after) for each axis. For example, the pair (-2, 1) cuts off 2
    items at the start of the axis, and none at its end.
    """
    shape = site.shape(input)
    axes: list[int] = []
    begin: list[int] = []
    end: list[int] = []
    for axis, (extent, (before, after)) in enumerate(zip(shape, padding, strict=True)):
        cut_before = _cut_items(before)
        cut_after = _cut_items(after)
        cut_off = cut_before + cut_after
        if cut_off == 0:
            continue
        if extent < cut_off:
            message = "cuts off more items than 'input'"
            raise InvalidShape(f"'padding' {list(padding)} {message} {show(shape)} has")
        axes.append(axis)
        if extent == cut_off:  # the slice is empty, and lies at the end of the axis
            begin.append(extent)
            end.append(extent)
        else:
            begin.append(cut_before)
            end.append(-cut_after)  # 0 stands for the end of the axis
    return site.step_on("input").slice(input, axes=axes, begin=begin, end=end, stride=[])


def _cut_items(padding: int) -> int:
    """Return the number of items that negative padding cuts off, such as 2 for -2 and 0 for 3."""
    is_negative = not is_symbolic(padding) and padding < 0
    return -padding if is_negative else 0
