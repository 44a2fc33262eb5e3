"""Resampling of space: Interpolate, Interp, Resample, grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site

_COORDINATES = {
    "half_pixel": "half_pixel", "pytorch_half_pixel": "pytorch_half_pixel",
    "asymmetric": "asymmetric", "align_corners": "align_corners",
    "tf_half_pixel_for_nn": "half_pixel",
}  # fmt: skip
_ROUNDINGS = {
    "round_prefer_floor": "round_prefer_floor",
    "round_prefer_ceil": "round_prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
    "simple": "floor",
}


def _resized(
    site: Site, x: Value, sizes: Sequence[int], mode: str, coordinates: str, **other: Any
) -> Value:
    given: dict[str, Any] = {
        "scales": (), "sizes": tuple(sizes), "mode": mode,
        "coordinate_transformation_mode": coordinates, "nearest_mode": "floor",
        "cubic_coeff_a": -0.75, "exclude_outside": False, "antialias": False,
        "extrapolation_value": 0.0,
    }  # fmt: skip
    return site.emit("resize", {"input": x, "roi": False}, **(given | other))


@opsets("Interpolate")
def _interpolate(site: Site) -> Value:
    """Resize along axes, to sizes or by scales; set 1 has sizes alone, set 11 sizes or scales."""
    x = site.tensor(0)
    shape = list(site.known_shape())
    opset = site.layer.opset
    mode = site.text("mode")
    if opset in ("opset1", "") and "coordinate_transformation_mode" not in site.layer.attributes:
        axes = site.ints("axes")
        for axis, size in zip(axes, site.integers(1), strict=True):
            shape[axis] = size
        corners = site.flag("align_corners", True) and mode != "nearest"
        coordinates = "align_corners" if corners else "asymmetric"
        return _resized(
            site, x, shape, {"cubic": "cubic", "area": "linear"}.get(mode, mode), coordinates
        )
    begin, end = site.ints("pads_begin", [0]), site.ints("pads_end", [0])
    if any((*begin, *end)):
        around = tuple(
            (begin[i] if i < len(begin) else 0, end[i] if i < len(end) else 0)
            for i in range(len(shape))
        )
        x = site.insert("pad", {"input": x}, padding=around, border="constant", value=0.0)
        shape = list(x.type.shape)
    by_scales = site.text("shape_calculation_mode") == "scales"
    if opset == "opset4":
        sizes, scales = site.known(1).reshape(-1), site.known(2).reshape(-1)
        axes = site.integers(3) if site.has(3) else list(range(len(shape)))
    else:
        sizes = scales = site.known(1).reshape(-1)
        axes = site.integers(2) if site.has(2) else list(range(len(shape)))
    axes = [site.axis(a) for a in axes]
    factors: dict[int, float] = {}
    for i, axis in enumerate(axes):
        before = shape[axis]
        shape[axis] = math.floor(before * float(scales[i]) + 1e-6) if by_scales else int(sizes[i])
        factors[axis] = float(scales[i]) if by_scales else shape[axis] / before
    return _interpolated(site, x, shape, mode, factors, by_scales=by_scales)


def _interpolated(
    site: Site,
    x: Value,
    shape: Sequence[int],
    mode: str,
    factors: dict[int, float],
    *,
    by_scales: bool,
) -> Value:
    coordinates = site.text("coordinate_transformation_mode", "half_pixel")
    nearest = site.text("nearest_mode", "round_prefer_floor")
    if coordinates not in _COORDINATES or nearest not in _ROUNDINGS:
        raise InvalidOperation(f"there is no mode '{coordinates}' or '{nearest}'")
    antialias = site.flag("antialias") or mode in ("bilinear_pillow", "bicubic_pillow")
    shrinks = any(f < 1 for f in factors.values())
    other: dict[str, Any] = {
        "nearest_mode": _ROUNDINGS[nearest],
        "cubic_coeff_a": site.number("cube_coeff", -0.75),
    }
    if mode == "nearest" and nearest == "simple" and shrinks:
        other["nearest_mode"] = "ceil"
    if mode in ("bilinear_pillow", "bicubic_pillow"):
        other |= {"antialias": True, "exclude_outside": True}
        mode, coordinates = ("cubic" if mode == "bicubic_pillow" else "linear"), "half_pixel"
        if mode == "cubic":
            other["cubic_coeff_a"] = site.number("cube_coeff", -0.5)
    elif mode in ("linear", "linear_onnx"):
        # Of the two `linear` alone widens its kernel where it shrinks and is asked to.
        other["antialias"] = antialias and mode == "linear"
        other["exclude_outside"] = other["antialias"]
        mode = "linear"
    elif mode not in ("nearest", "cubic"):
        raise InvalidOperation(f"there is no mode '{mode}'")
    return _resized(site, x, shape, mode, _COORDINATES[coordinates], **other)


@legacy("Interp")
def _interp(site: Site) -> Value:
    """Interpolate linearly to the declared extents, corners on corners unless said otherwise."""
    x = site.tensor(0)
    begin, end = site.int("pad_beg", 0), site.int("pad_end", 0)
    if begin or end:
        rank = len(x.type.shape)
        if min(begin, end) < 0:
            axes = tuple(range(2, rank))
            ends = tuple(n + min(end, 0) for n in x.type.shape[2:])
            x = site.insert(
                "slice",
                {"input": x},
                axes=axes,
                begin=(max(-begin, 0),) * len(axes),
                end=ends,
                stride=(1,) * len(axes),
            )
        around = ((0, 0), (0, 0), *((max(begin, 0), max(end, 0)),) * (rank - 2))
        if max(begin, end) > 0:
            x = site.insert("pad", {"input": x}, padding=around, border="constant", value=0.0)
    wanted = [x.type.shape[0], x.type.shape[1], *(site.layer.outputs[0].shape or ())[2:]]
    coordinates = "align_corners" if site.flag("align_corners", True) else "asymmetric"
    return _resized(site, x, wanted, "linear", coordinates)


@legacy("Resample")
def _resample(site: Site) -> Value:
    """Repeat the nearest items, or interpolate between centres; `antialias` widens the kernel."""
    x = site.tensor(0)
    wanted = [x.type.shape[0], x.type.shape[1], *(site.layer.outputs[0].shape or ())[2:]]
    if site.text("type").endswith("nearest"):
        return _resized(site, x, wanted, "nearest", "asymmetric")
    shrinks = any(n < m for n, m in zip(wanted, x.type.shape, strict=True))
    antialias = site.flag("antialias") and shrinks
    return _resized(
        site, x, wanted, "linear", "half_pixel", antialias=antialias, exclude_outside=antialias
    )


@opsets("GridSample")
def _grid_sample(site: Site) -> Value:
    given = {"input": site.tensor(0), "grid": site.tensor(1)}
    modes = {"bilinear": "bilinear", "nearest": "nearest", "bicubic": "bicubic"}
    return site.emit(
        "grid_sample", given, mode=modes.get(site.text("mode", "bilinear"), "bilinear"),
        padding_mode=site.text("padding_mode", "zeros"), align_corners=site.flag("align_corners"),
    )  # fmt: skip
