"""Pictures of video, a plane of brightness and two of colour, as red, green and blue."""

from __future__ import annotations

from collections.abc import Callable

from lowering.errors import InvalidShape
from lowering.extents import show
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.site import Site

# ITU-R BT.601 in the range of video: what u - 128 and v - 128 add to red, green and blue.
_COLOURS = ((0.0, 1.596), (-0.391, -0.813), (2.018, 0.0))
_BRIGHTNESS = 1.164


def _rows(site: Site, x: Value, begin: int, end: int) -> Value:
    return site.insert("slice", {"input": x}, axes=(1,), begin=(begin,), end=(end,), stride=(1,))


def _colour(site: Site, chroma: Value, i: int, shape: tuple[int, int, int]) -> Value:
    """Return one of the two colours, [batch,rows/2,columns/2,2], at each pixel."""
    batch, height, width = shape
    window = {"axes": (3,), "begin": (i,), "end": (i + 1,), "stride": (1,)}
    one = site.insert("slice", {"input": chroma}, **window)
    blocks = site.reshaped(one, (batch, height // 2, 1, width // 2, 1))
    blocks = site.insert("tile", {"input": blocks}, repeats=(1, 1, 2, 1, 2))
    return site.insert("sub", {"x": site.reshaped(blocks, (batch, height, width, 1)), "y": 128.0})


def _planes(site: Site, *, interleaved: bool) -> tuple[Value, Value]:
    """Return brightness [batch,rows,columns,1] and colours [batch,rows/2,columns/2,2], as reals."""
    parts = [site.cast(x, site.real) for x in site.tensors()]
    if len(parts) == 1:
        batch, rows, width, _ = site.known_shape()
        height = rows * 2 // 3
        if rows % 3 or height % 2 or width % 2:
            raise InvalidShape(
                f"{show(site.shape())} is no picture with colours at every 2nd pixel"
            )
        colours = _rows(site, parts[0], height, rows)
        parts[0] = _rows(site, parts[0], 0, height)
        half = (batch, height // 2, width // 2)
        if interleaved:
            return parts[0], site.reshaped(colours, (*half, 2))
        split = site.reshaped(colours, (batch, 2, *half[1:]))
        return parts[0], site.transposed(split, (0, 2, 3, 1))
    if len(parts) == 2:
        return parts[0], parts[1]
    return parts[0], site.insert("concat", {"values": parts[1:]}, axis=3)


def _coloured(*, interleaved: bool, blue_first: bool) -> Callable[[Site], Value]:
    def meaning(site: Site) -> Value:
        brightness, chroma = _planes(site, interleaved=interleaved)
        batch, height, width, _ = site.known_shape(brightness)
        if chroma.type.shape != (batch, height // 2, width // 2, 2) or height % 2 or width % 2:
            raise InvalidShape(
                f"colours {show(chroma.type.shape)} do not go with {show(brightness.type.shape)}"
            )
        y = site.insert("sub", {"x": brightness, "y": 16.0})
        y = site.insert("mul", {"x": y, "y": _BRIGHTNESS})
        u, v = (_colour(site, chroma, i, (batch, height, width)) for i in range(2))
        parts: list[Value] = []
        for by_u, by_v in _COLOURS[::-1] if blue_first else _COLOURS:
            part = y
            for x, factor in ((u, by_u), (v, by_v)):
                if factor:
                    scaled = site.insert("mul", {"x": x, "y": factor})
                    part = site.insert("add", {"x": part, "y": scaled})
            parts.append(part)
        whole = site.insert("concat", {"values": parts}, axis=3)
        whole = site.insert("clamp", {"x": whole, "a": 0.0, "b": 255.0})
        dtype = site.dtype_of(0)
        if is_float(dtype):
            return site.emit("copy", {"x": whole})
        rounded = site.insert("round", {"x": whole}, ties="away")
        return site.emit("cast", {"input": rounded}, dtype=dtype)

    return meaning


for _type, _is_interleaved in (("NV12", True), ("I420", False)):
    for _order, _is_blue_first in (("RGB", False), ("BGR", True)):
        _meaning = _coloured(interleaved=_is_interleaved, blue_first=_is_blue_first)
        opsets(f"{_type}to{_order}")(_meaning)
