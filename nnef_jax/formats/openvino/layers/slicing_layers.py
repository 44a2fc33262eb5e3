"""Parts of tensors, and what is put around them."""

from __future__ import annotations

from lowering.errors import InvalidOperation, InvalidShape
from lowering.graph import Value
from nnef_jax.flattening.along_axes import Part, cropped, sliced
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets


@opsets("Slice")
def _slice(site: LayerSite, x: Value) -> Value:
    begin, end, step = (site.integers(i) for i in (1, 2, 3))
    axes = site.axes(4) if site.has(4) else range(len(begin))
    bounds = zip(begin, end, step, strict=True)
    return sliced(site, x, dict(zip(axes, bounds, strict=True)))


@operator("StridedSlice")
def _strided_slice(site: LayerSite, x: Value) -> Value:
    """Cut as tensorflow does: masks ignore bounds, add axes, take one item, stand for the rest.

    Before version 10 a 1 in `begin_mask` and `end_mask` uses the bound, since then it ignores it.
    """
    begin, end = site.integers(1), site.integers(2)
    count = max(len(begin), len(end))
    step = site.integers(3) if site.has(3) else [1] * count

    def mask(name: str, default: bool = False) -> list[bool]:
        found = site.ints(name, [])
        return [bool(x) for x in (found + [default] * count)[:count]]

    is_legacy = site.net.is_legacy
    free, open_end = (
        [m != is_legacy for m in mask(name, is_legacy)] for name in ("begin_mask", "end_mask")
    )
    adds, takes, rest = map(mask, ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask"))
    rank = len(x.type.shape)
    parts: dict[int, Part] = {}
    axis, new, gone, out = 0, list[int](), list[int](), 0
    for i in range(count):
        if rest[i]:
            skipped = rank - axis - adds[i + 1 :].count(False)
            axis, out = axis + skipped, out + skipped
        elif adds[i]:
            new.append(out)
            out += 1
        elif axis >= rank:
            raise InvalidShape(f"it has more bounds than the {rank} axes of its input")
        elif takes[i]:
            at = 0 if free[i] else begin[i]
            parts[axis] = (at, at + 1 if at != -1 else None, 1)
            gone.append(axis)
            axis += 1
        else:
            first, last = None if free[i] else begin[i], None if open_end[i] else end[i]
            parts[axis] = (first, last, step[i] if i < len(step) else 1)
            axis, out = axis + 1, out + 1
    x = sliced(site, x, parts, final=not gone and not new)
    if gone:
        x = site.step_or_last(not new).squeeze(x, axes=gone)
    return site.last.unsqueeze(x, axes=new) if new else x


@legacy("Crop")
def _crop(site: LayerSite, x: Value) -> Value:
    """Cut to the extents of a second input, to `dim`, or by `crop_begin` and `crop_end`."""
    element, attributes = site.layer.element, site.layer.attributes
    axes, offsets = [site.axis(a) for a in site.ints("axis", [])], site.ints("offset", [])
    if not axes:  # of version 2: an element for each axis
        data = element.child("data", "crop-data", "crop_data") or element
        crops = [e for e in (*element.children, *data.children) if e.tag == "crop"]
        axes = [site.axis(int(e.attributes["axis"])) for e in crops if "axis" in e.attributes]
        offsets = [int(e.attributes.get("offset", 0)) for e in crops]
    if "crop_begin" in attributes:
        offsets, after = site.ints("crop_begin"), site.ints("crop_end")
        ends = [x.type.shape[a] - e for a, e in zip(axes, after, strict=True)]
    elif "dim" in attributes:
        ends = [o + d for o, d in zip(offsets, site.ints("dim"), strict=True)]
    else:
        wanted = site.shape(1) if site.has(1) else site.declared
        ends = [o + wanted[a] for a, o in zip(axes, offsets, strict=True)]
    parts: dict[int, Part] = {a: (o, e, 1) for a, o, e in zip(axes, offsets, ends, strict=True)}
    return sliced(site, x, parts)


_MODES = {
    "constant": "constant", "edge": "replicate", "reflect": "reflect", "symmetric": "reflect-even",
}  # fmt: skip


@operator("Pad")
def _pad(site: LayerSite) -> Value:
    x, mode = site.tensor(0), site.text("pad_mode", "constant")
    begin, end = site.integers_at(1, "pads_begin"), site.integers_at(2, "pads_end")
    value = site.number("pad_value", 0) if site.net.is_legacy else site.scalar(3, 0.0)
    if mode not in _MODES:
        raise InvalidOperation(f"there is no pad_mode '{mode}'")
    around = list(zip(begin, end, strict=True))
    x = cropped(site, x, dict(enumerate(around)))
    around = [(max(p, 0), max(q, 0)) for p, q in around]
    return site.last.pad(x, padding=around, border=_MODES[mode], value=value)
