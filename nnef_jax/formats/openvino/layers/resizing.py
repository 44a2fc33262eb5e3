"""Resampling of space: Interpolate, Interp, Resample, grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site

_COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn",
)  # fmt: skip
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")

# Methods and cases of NNEF's operations, which extents grow by whole factors with.
_METHODS = {
    "half_pixel": "symmetric", "pytorch_half_pixel": "symmetric", "asymmetric": "asymmetric",
    "align_corners": "aligned",
}  # fmt: skip
_REPEATING = (
    ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
)  # fmt: skip


def _resized(
    add: Callable[..., Value], x: Value, sizes: Sequence[int], mode: str, coordinates: str,
    **other: Any,
) -> Value:  # fmt: skip
    """Add a resize to sizes, or by `scales` if these are among the others."""
    shape = x.type.shape
    ratios = list(zip(shape, sizes, strict=True))
    if not other.get("scales") and all(n and m % n == 0 for n, m in ratios):
        factor = [m // n for n, m in ratios]
        if factor[:2] == [1, 1]:
            rounding = other.get("nearest_mode", "floor")
            if mode == "nearest" and (coordinates, rounding) in _REPEATING:
                return add("nearest_upsample", {"input": x}, factor=factor[2:])
            if mode == "linear" and coordinates in _METHODS and is_float(x.type.dtype):
                how = {"method": _METHODS[coordinates], "border": "replicate"}
                return add("multilinear_upsample", {"input": x}, factor=factor[2:], **how)
    given: dict[str, Any] = {
        "scales": (), "sizes": () if other.get("scales") else tuple(sizes), "mode": mode,
        "coordinate_transformation_mode": coordinates, "nearest_mode": "floor",
        "cubic_coeff_a": -0.75, "exclude_outside": False, "antialias": False,
        "extrapolation_value": 0.0,
    }  # fmt: skip
    given |= other
    if coordinates == "tf_half_pixel_for_nn":
        is_down = given["nearest_mode"] in ("floor", "round_prefer_floor")
        if mode != "nearest" or not is_down:  # axes that keep their extent would move
            raise InvalidOperation(f"'{coordinates}' is supported where nearest is rounded down")
    return add("resize", {"input": x, "roi": False}, **given)


@opsets("Interpolate")
def _interpolate(site: Site) -> Value:
    """Resize along axes, to sizes or by scales; set 1 has sizes alone, set 11 sizes or scales."""
    x = _around(site, site.tensor(0))
    rank = len(x.type.shape)
    if site.layer.opset in ("opset1", "") and "shape_calculation_mode" not in site.layer.attributes:
        axes = [site.axis(a) for a in site.ints("axes")]
        mode = site.choice("mode", "nearest", "linear", "cubic")
        coordinates = "align_corners" if site.flag("align_corners", True) else "asymmetric"
        given = dict(zip(axes, site.integers(1), strict=True))
        return _interpolated(site, x, mode, coordinates, "simple", given, {})
    mode = site.choice(
        "mode", "nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow", "bicubic_pillow"
    )
    coordinates = site.choice("coordinate_transformation_mode", *_COORDINATES, default="half_pixel")
    nearest = site.choice("nearest_mode", *_ROUNDINGS, default="round_prefer_floor")
    by_scales = site.choice("shape_calculation_mode", "sizes", "scales") == "scales"
    of_set_4 = site.layer.opset == "opset4"
    port = 2 if of_set_4 else 1
    axes = [site.axis(a) for a in site.integers(port + 1)] if site.has(port + 1) else range(rank)
    if by_scales:
        factors = site.known(port).reshape(-1).astype(float).tolist()
        scales = dict(zip(axes, factors, strict=True))
        return _interpolated(site, x, mode, coordinates, nearest, {}, scales)
    sizes = dict(zip(axes, site.integers(1), strict=True))
    return _interpolated(site, x, mode, coordinates, nearest, sizes, {})


def _around(site: Site, x: Value) -> Value:
    begin, end = site.ints("pads_begin", [0]), site.ints("pads_end", [0])
    if not any((*begin, *end)):
        return x
    rank = len(x.type.shape)
    begin, end = ((pads + [0] * rank)[:rank] for pads in (begin, end))
    around = tuple(zip(begin, end, strict=True))
    return site.insert("pad", {"input": x}, padding=around, border="constant", value=0.0)


def _interpolated(
    site: Site, x: Value, mode: str, coordinates: str, nearest: str,
    sizes: dict[int, int], scales: dict[int, float],
) -> Value:  # fmt: skip
    """Resize along the axes that have a size or a scale."""
    shape = list(site.known_shape(x))
    wanted = list(shape)
    for axis, size in sizes.items():
        wanted[axis] = size
    for axis, scale in scales.items():
        wanted[axis] = math.floor(shape[axis] * scale + 1e-6)
    other: dict[str, Any] = {"cubic_coeff_a": site.number("cube_coeff", -0.75)}
    antialias = site.flag("antialias")
    if mode in ("bilinear_pillow", "bicubic_pillow"):
        other |= {"antialias": True, "exclude_outside": True}
        mode, coordinates = ("cubic" if mode == "bicubic_pillow" else "linear"), "half_pixel"
        if mode == "cubic":
            other["cubic_coeff_a"] = site.number("cube_coeff", -0.5)
    elif mode in ("linear", "linear_onnx"):
        # The runtime of 2026.4 widens the kernel of 'linear' alone, and only of five axes or more.
        antialias = antialias and mode == "linear" and len(shape) > 4
        other |= {"antialias": antialias, "exclude_outside": antialias}
        mode = "linear"
    if scales and coordinates != "align_corners":  # an extent that is cut off has no part in places
        exact = tuple(scales.get(axis, 1.0) for axis in range(len(shape)))
        if any(n * s != m for n, s, m in zip(shape, exact, wanted, strict=True)):
            other["scales"] = exact
    if mode == "nearest" and nearest == "simple":
        # Axes that shrink are rounded up, others down.
        shrinks = [
            scales.get(i, m / n) < 1 for i, (n, m) in enumerate(zip(shape, wanted, strict=True))
        ]
        fewer = [m if s else n for s, n, m in zip(shrinks, shape, wanted, strict=True)]
        if any(shrinks) and fewer != wanted:
            x = _resized(
                site.insert, x, fewer, mode, coordinates, **other | _part(other, shrinks, "ceil")
            )
            other |= _part(other, [not s for s in shrinks], "floor")
        else:
            other["nearest_mode"] = "ceil" if any(shrinks) else "floor"
    elif mode == "nearest":
        other["nearest_mode"] = nearest
    return _resized(site.emit, x, wanted, mode, coordinates, **other)


def _part(other: dict[str, Any], axes: Sequence[bool], rounding: str) -> dict[str, Any]:
    """Return what resizes some axes alone."""
    scales = other.get("scales", ())
    kept = tuple(s if is_one else 1.0 for s, is_one in zip(scales, axes, strict=False))
    return {"nearest_mode": rounding} | ({"scales": kept} if kept else {})


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
    return _resized(site.emit, x, wanted, "linear", coordinates)


@legacy("Resample")
def _resample(site: Site) -> Value:
    """Repeat the nearest items, or interpolate between centres; `antialias` widens the kernel."""
    x = site.tensor(0)
    wanted = [x.type.shape[0], x.type.shape[1], *(site.layer.outputs[0].shape or ())[2:]]
    if site.text("type").endswith("nearest"):
        return _resized(site.emit, x, wanted, "nearest", "asymmetric")
    shrinks = any(n < m for n, m in zip(wanted, x.type.shape, strict=True))
    antialias = site.flag("antialias") and shrinks
    return _resized(
        site.emit, x, wanted, "linear", "half_pixel", antialias=antialias, exclude_outside=antialias
    )


@opsets("GridSample")
def _grid_sample(site: Site) -> Value:
    given = {"input": site.tensor(0), "grid": site.tensor(1)}
    return site.emit(
        "grid_sample", given,
        mode=site.choice("mode", "bilinear", "nearest", "bicubic", default="bilinear"),
        padding_mode=site.choice("padding_mode", "zeros", "border", "reflection", default="zeros"),
        align_corners=site.flag("align_corners"),
    )  # fmt: skip
