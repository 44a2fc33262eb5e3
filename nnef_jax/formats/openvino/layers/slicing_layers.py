"""Functions for layers that slice, crop or pad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lowering.errors import InvalidOperation, InvalidShape
from lowering.graph import Value
from nnef_jax.flattening.along_axes import SliceBounds, cropped, sliced
from nnef_jax.flattening.list_padding import padded_lists
from nnef_jax.flattening.operators.attributes import integers, number, text
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import (
    integers_at,
    legacy,
    number_at,
    opsets,
)


@opsets("Slice")
def _slice(
    site: LayerSite,
    x: Value,
    *,
    begin: list[int] = integers_at(1),
    end: list[int] = integers_at(2),
    step: list[int] = integers_at(3),
) -> Value:
    """Slice a tensor along the axes in input 4. Without input 4, slice the first axes."""
    axes = site.axes(4) if site.has(4) else range(len(begin))
    bounds = zip(begin, end, step, strict=True)
    bounds_by_axis = dict(zip(axes, bounds, strict=True))
    return sliced(site, x, bounds_by_axis)


def _mask(site: LayerSite, name: str, count: int, *, default: bool = False) -> list[bool]:
    """Return the attribute `name` as a list of `count` bools.

    If the attribute has fewer items, the missing items at the end are `default`.
    """
    numbers = site.ints(name, [])
    mask = [number != 0 for number in numbers[:count]]
    missing = count - len(mask)
    return mask + [default] * missing


class _StridedSlice(NamedTuple):
    """The steps of a strided slice: slice axes of the input, drop axes, then add axes.

    `dropped_axes` are axes of the input. The slice takes a single item along each of these axes.
    `added_axes` are axes of the result.
    """

    bounds_by_axis: dict[int, SliceBounds]
    dropped_axes: list[int]
    added_axes: list[int]


@legacy("StridedSlice", with_bound=True)
@opsets("StridedSlice", with_bound=False)
def _strided_slice(site: LayerSite, x: Value, *, with_bound: bool) -> Value:
    """Slice a tensor as TensorFlow's strided_slice does.

    `with_bound` is the bit in `begin_mask` and `end_mask` that stands for "use the bound": 1 before
    version 10, and 0 since then.
    """
    steps = _steps_of_slice(site, len(x.type.shape), with_bound=with_bound)
    only_slices = not steps.dropped_axes and not steps.added_axes
    x = sliced(site, x, steps.bounds_by_axis, final=only_slices)
    if steps.dropped_axes:
        x = site.step_or_last(not steps.added_axes).squeeze(x, axes=steps.dropped_axes)
    return site.last.unsqueeze(x, axes=steps.added_axes) if steps.added_axes else x


def _steps_of_slice(site: LayerSite, rank: int, *, with_bound: bool) -> _StridedSlice:
    """Read the bounds and the masks of a strided slice. `rank` is the number of axes of the input.

    At each index of the bounds, the masks choose one of four cases: the slice takes a range of an
    axis, takes one item and drops the axis, adds an axis, or skips axes. `with_bound` is the bit in
    `begin_mask` and `end_mask` that stands for "use the bound".
    """
    begin = site.integers(1)
    end = site.integers(2)
    count = max(len(begin), len(end))
    steps = site.integers(3) if site.has(3) else []
    steps += [1] * (count - len(steps))
    begin_mask = _mask(site, "begin_mask", count, default=with_bound)
    end_mask = _mask(site, "end_mask", count, default=with_bound)
    adds_axis = _mask(site, "new_axis_mask", count)
    takes_item = _mask(site, "shrink_axis_mask", count)
    skips_axes = _mask(site, "ellipsis_mask", count)
    bounds_by_axis: dict[int, SliceBounds] = {}
    axis = 0  # the next axis of the input
    result_axis = 0  # the next axis of the result
    added_axes: list[int] = []  # axes of the result
    dropped_axes: list[int] = []  # axes of the input
    for i in range(count):
        if skips_axes[i]:  # as `...` in an index of numpy
            # Each later bound belongs to an axis of the input, unless the bound adds an axis.
            later_axes = adds_axis[i + 1 :].count(False)
            skipped = rank - axis - later_axes
            axis += skipped
            result_axis += skipped
            continue
        if adds_axis[i]:  # as `None` in an index of numpy
            added_axes.append(result_axis)
            result_axis += 1
            continue
        if axis >= rank:
            raise InvalidShape(f"it has more bounds than the {rank} axes of its input")
        first = begin[i] if begin_mask[i] == with_bound else None
        if takes_item[i]:  # as an integer in an index of numpy; the axis is dropped later
            index = 0 if first is None else first
            next_index = None if index == -1 else index + 1  # None is the end of the axis
            bounds_by_axis[axis] = (index, next_index, 1)
            dropped_axes.append(axis)
        else:
            last = end[i] if end_mask[i] == with_bound else None
            bounds_by_axis[axis] = (first, last, steps[i])
            result_axis += 1
        axis += 1
    return _StridedSlice(bounds_by_axis, dropped_axes, added_axes)


@legacy("Crop")
def _crop(
    site: LayerSite,
    x: Value,
    *,
    axes: Sequence[int] = integers("axis", ()),
    offsets: Sequence[int] = integers("offset", ()),
) -> Value:
    """Crop a tensor along axes.

    The attributes `crop_begin` and `crop_end` have the numbers of items to cut off at both ends. If
    these attributes are missing, `offsets` are the numbers of items to cut off at the start. The
    extents of the result are then the attribute `dim`, or the extents of input 1, or the declared
    extents.
    """
    axes = [site.axis(axis) for axis in axes]
    if not axes:
        axes, offsets = _crop_elements(site)
    ends: list[int] = []
    if site.has_attribute("crop_begin"):
        offsets = site.ints("crop_begin")
        for axis, cut_off in zip(axes, site.ints("crop_end"), strict=True):
            ends.append(x.type.shape[axis] - cut_off)
    elif site.has_attribute("dim"):
        for offset, extent in zip(offsets, site.ints("dim"), strict=True):
            ends.append(offset + extent)
    else:
        shape = site.shape(1) if site.has(1) else site.declared
        for axis, offset in zip(axes, offsets, strict=True):
            ends.append(offset + shape[axis])
    bounds_by_axis: dict[int, SliceBounds] = {}
    for axis, offset, end in zip(axes, offsets, ends, strict=True):
        bounds_by_axis[axis] = (offset, end, 1)
    return sliced(site, x, bounds_by_axis)


def _crop_elements(site: LayerSite) -> tuple[list[int], list[int]]:
    """Return the axes and the offsets that the `<crop>` elements of a layer declare.

    Version 2 has such an element for each axis. Later versions have lists as attributes instead.
    """
    element = site.layer.element
    data = element.child("data", "crop-data", "crop_data") or element
    axes: list[int] = []
    offsets: list[int] = []
    for child in (*element.children, *data.children):
        if child.tag != "crop":
            continue
        if "axis" in child.attributes:
            axes.append(site.axis(int(child.attributes["axis"])))
        offsets.append(int(child.attributes.get("offset", 0)))
    return axes, offsets


# Maps the attribute `pad_mode` to the attribute `border` of the operation `pad`.
_BORDERS = {
    "constant": "constant", "edge": "replicate", "reflect": "reflect", "symmetric": "reflect-even",
}  # fmt: skip


_MODE = text("pad_mode", "constant")


@legacy("Pad", begin=integers("pads_begin"), end=integers("pads_end"), value=number("pad_value", 0))
@opsets("Pad", begin=integers_at(1), end=integers_at(2), value=number_at(3, 0.0))
def _pad(
    site: LayerSite,
    x: Value,
    *,
    mode: str = _MODE,
    begin: Sequence[int],
    end: Sequence[int],
    value: float,
) -> Value:
    """Pad a tensor, and crop it where the padding is negative."""
    if mode not in _BORDERS:
        raise InvalidOperation(f"there is no pad_mode '{mode}'")
    border = _BORDERS[mode]
    pairs = list(zip(begin, end, strict=True))
    tensor, pairs = padded_lists(site, x, pairs, border, value)
    if site.graph.is_list(tensor) and not any(map(any, pairs)):
        return site.last.copy(tensor)
    tensor = cropped(site, tensor, dict(enumerate(pairs)))
    padding = [(max(before, 0), max(after, 0)) for before, after in pairs]
    return site.last.pad(tensor, padding=padding, border=border, value=value)
