"""Meanings of layers that slice, crop or pad."""

from __future__ import annotations

from collections.abc import Sequence

from lowering.errors import InvalidOperation, InvalidShape
from lowering.graph import Value
from nnef_jax.flattening.along_axes import Part, cropped, sliced
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
    axes = site.axes(4) if site.has(4) else range(len(begin))
    bounds = zip(begin, end, step, strict=True)
    return sliced(site, x, dict(zip(axes, bounds, strict=True)))


def _mask(site: LayerSite, name: str, count: int, default: bool) -> list[bool]:
    """Return a mask of `count` items. Items that are missing in the attribute are `default`."""
    items = [bool(item) for item in site.ints(name, [])[:count]]
    missing = count - len(items)
    return items + [default] * missing


@legacy("StridedSlice", bounds=True)
@opsets("StridedSlice", bounds=False)
def _strided_slice(site: LayerSite, x: Value, *, bounds: bool) -> Value:
    """Slice a tensor as TensorFlow's strided_slice does.

    Masks may replace bounds: they take all items of an axis, add an axis, take one item and drop
    the axis, or skip axes. `bounds` is the value in `begin_mask` and `end_mask` with which the
    bound is used: 1 before version 10, and 0 since then.
    """
    begin = site.integers(1)
    end = site.integers(2)
    count = max(len(begin), len(end))
    steps = site.integers(3) if site.has(3) else []
    steps += [1] * (count - len(steps))
    begins = _mask(site, "begin_mask", count, bounds)
    ends = _mask(site, "end_mask", count, bounds)
    adds = _mask(site, "new_axis_mask", count, False)
    takes = _mask(site, "shrink_axis_mask", count, False)
    skips = _mask(site, "ellipsis_mask", count, False)
    rank = len(x.type.shape)
    parts: dict[int, Part] = {}
    axis = 0  # the next axis of the input
    out = 0  # the next axis of the result
    added: list[int] = []
    dropped: list[int] = []
    for i in range(count):
        if skips[i]:
            skipped = rank - axis - adds[i + 1 :].count(False)
            axis += skipped
            out += skipped
            continue
        if adds[i]:
            added.append(out)
            out += 1
            continue
        if axis >= rank:
            raise InvalidShape(f"it has more bounds than the {rank} axes of its input")
        first = begin[i] if begins[i] == bounds else None
        if takes[i]:
            index = 0 if first is None else first
            following = index + 1 if index != -1 else None
            parts[axis] = (index, following, 1)
            dropped.append(axis)
        else:
            last = end[i] if ends[i] == bounds else None
            parts[axis] = (first, last, steps[i])
            out += 1
        axis += 1
    x = sliced(site, x, parts, final=not dropped and not added)
    if dropped:
        x = site.step_or_last(not added).squeeze(x, axes=dropped)
    return site.last.unsqueeze(x, axes=added) if added else x


@legacy("Crop")
def _crop(
    site: LayerSite,
    x: Value,
    *,
    axes: Sequence[int] = integers("axis", ()),
    offsets: Sequence[int] = integers("offset", ()),
) -> Value:
    """Crop a tensor to the extents of input 1, to `dim`, or by `crop_begin` and `crop_end`."""
    element = site.layer.element
    axes = [site.axis(a) for a in axes]
    if not axes:  # version 2 has an element for each axis instead of lists
        data = element.child("data", "crop-data", "crop_data") or element
        crops = [e for e in (*element.children, *data.children) if e.tag == "crop"]
        axes = [site.axis(int(e.attributes["axis"])) for e in crops if "axis" in e.attributes]
        offsets = [int(e.attributes.get("offset", 0)) for e in crops]
    if site.has_attribute("crop_begin"):
        offsets = site.ints("crop_begin")
        crops_behind = site.ints("crop_end")
        ends = [x.type.shape[a] - n for a, n in zip(axes, crops_behind, strict=True)]
    elif site.has_attribute("dim"):
        ends = [o + d for o, d in zip(offsets, site.ints("dim"), strict=True)]
    else:
        shape = site.shape(1) if site.has(1) else site.declared
        ends = [o + shape[a] for a, o in zip(axes, offsets, strict=True)]
    parts: dict[int, Part] = {a: (o, e, 1) for a, o, e in zip(axes, offsets, ends, strict=True)}
    return sliced(site, x, parts)


_MODES = {
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
    if mode not in _MODES:
        raise InvalidOperation(f"there is no pad_mode '{mode}'")
    around = list(zip(begin, end, strict=True))
    x = cropped(site, x, dict(enumerate(around)))
    around = [(max(p, 0), max(q, 0)) for p, q in around]
    return site.last.pad(x, padding=around, border=_MODES[mode], value=value)
