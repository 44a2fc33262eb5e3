"""Items between items: Resize, Upsample, grids, regions of interest; suppression of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.counts import Count
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_CROP = "tf_crop_and_resize"
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", _CROP,
)  # fmt: skip
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _resized(site: NodeSite, x: Any, mode: str, coordinates: str, **other: Any) -> Any:
    given: dict[str, Any] = {
        "scales": (), "sizes": (), "nearest_mode": "floor", "cubic_coeff_a": -0.75,
        "exclude_outside": False, "antialias": False, "extrapolation_value": 0.0,
        "coordinate_transformation_mode": coordinates,
    }  # fmt: skip
    return site.last.resize(x, other.pop("roi", False), mode=mode, **given | other)


def _of_all_axes(items: Sequence[Any], axes: Sequence[int], default: Sequence[Any]) -> Any:
    """Return items of some axes and defaults of the others. Raises InvalidOperation."""
    if len(items) != len(axes):
        raise InvalidOperation(f"{list(items)} must have an item for each of {len(axes)} axes")
    found = list(default)
    for axis, item in zip(axes, items, strict=True):
        found[axis] = item
    return tuple(found)


@operator("Resize", since=11)
def _resize(site: NodeSite, x: Any) -> Any:
    """Resize axes by scales, or to sizes of which a policy may keep the ratio."""
    rank = site.rank()
    axes = [site.axis(a) for a in site.ints("axes", tuple(range(rank)))]
    mode = site.choice("mode", "nearest", "linear", "cubic", default="nearest")
    coordinates = "coordinate_transformation_mode"
    coordinates = site.choice(coordinates, *_COORDINATES, default="half_pixel")
    other: dict[str, Any] = {
        "nearest_mode": site.choice("nearest_mode", *_ROUNDINGS, default="round_prefer_floor"),
        "cubic_coeff_a": site.number("cubic_coeff_a", -0.75),
        "exclude_outside": site.flag("exclude_outside"),
        "antialias": site.flag("antialias") and mode != "nearest",
        "extrapolation_value": site.number("extrapolation_value", 0),
    }
    if coordinates == _CROP:
        other["roi"] = _region(site, axes, rank)
    has_scales, has_sizes = (site.has(i) and site.shape(i) != (0,) for i in (2, 3))
    if has_scales == has_sizes:
        found = "both are" if has_scales else "none is"
        raise InvalidOperation(f"one of 'scales' and 'sizes' must be given, {found}")
    if has_scales:
        scales = [float(s) for s in site.known(2)]
        other["scales"] = _of_all_axes(scales, axes, [1.0] * rank)
    else:
        other |= _sizes(site, axes)
    return _resized(site, x, mode, coordinates, **other)


def _sizes(site: NodeSite, axes: Sequence[int]) -> dict[str, Any]:
    """Return the extents wanted, or the one scale by which axes come next to them."""
    policies = ("stretch", "not_larger", "not_smaller")
    policy = site.choice("keep_aspect_ratio_policy", *policies, default="stretch")
    site.graph.require_items(site.operand(0), axes)
    shape, sizes = site.known_shape(), site.integers(3)
    wanted = _of_all_axes(sizes, axes, shape)
    if policy == "stretch":
        return {"sizes": wanted}
    choose = min if policy == "not_larger" else max
    scale = choose(wanted[a] / shape[a] for a in axes)
    return {"scales": tuple(scale if a in axes else 1.0 for a in range(len(shape))), "rounds": True}


def _region(site: NodeSite, axes: Sequence[int], rank: int) -> Any:
    """Return the starts and the ends of a region along all axes."""
    roi, count = site.operand(1), len(axes)
    if list(axes) == list(range(rank)):
        return roi
    ends = site.constant([0, 1], site.dtype_of(roi))
    ends = site.step.concat([site.tensor(roi), site.tensor(ends)], axis=0)
    starts = _of_all_axes(range(count), axes, [2 * count] * rank)
    stops = _of_all_axes(range(count, 2 * count), axes, [2 * count + 1] * rank)
    return site.step.gather(ends, site.constant([*starts, *stops], "int64"), axis=0)


@operator("Upsample")
@operator("Resize", since=10)
def _upsample(site: NodeSite, x: Any) -> Any:
    """Resize by scales, first items on first items; the nearest is at an end of an item."""
    if "height_scale" in site.node.attributes:
        scales = [1.0, 1.0, site.number("height_scale"), site.number("width_scale")]
    else:
        found: Any = site.known(1) if site.has(1) else site.numbers("scales")
        scales = [float(s) for s in found]
    mode = site.choice("mode", "nearest", "linear", "bilinear", default="nearest")
    if mode != "nearest":
        return _resized(site, x, "linear", "asymmetric", scales=tuple(scales))
    for rounding, shrinks in (("ceil", True), ("floor", False)):
        part = tuple(s if (s < 1) == shrinks else 1.0 for s in scales)
        if any(s != 1 for s in part):
            given = {"scales": part, "nearest_mode": rounding}
            x = _resized(site, x, "nearest", "asymmetric", **given)
    return x


@operator("GridSample")
def _grid_sample(site: NodeSite, x: Any, grid: Any) -> Any:
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    given = "linear" if site.version >= 20 else "bilinear"
    mode = site.choice("mode", *modes, *modes.values(), "nearest", default=given)
    paddings = ("zeros", "border", "reflection")
    return site.last.grid_sample(
        x, grid, mode=modes.get(mode, mode), align_corners=site.flag("align_corners"),
        padding_mode=site.choice("padding_mode", *paddings, default="zeros"),
    )  # fmt: skip


@operator("RoiAlign")
def _roi_align(site: NodeSite, x: Any, rois: Any, image: Any) -> Any:
    """Pool samples of regions (x1, y1, x2, y2), whose corners are places of items or of pixels.

    Before version 16 corners are places of items. A maximum is that of neighbours of samples, times
    their shares.
    """
    modes, default = ("half_pixel", "output_half_pixel"), "half_pixel"
    coordinates = site.choice("coordinate_transformation_mode", *modes, default=default)
    is_half = coordinates == "half_pixel" and site.version >= 16
    rois = site.step.mul(rois, site.number("spatial_scale", 1))
    rois = site.step.sub(rois, 0.5) if is_half else rois
    mode = site.choice("mode", "avg", "max", default="avg")
    return site.last.roi_align(
        x, rois, image, output_size=(site.int("output_height", 1), site.int("output_width", 1)),
        sampling_ratio=site.int("sampling_ratio", 0), least=0.0 if is_half else 1.0,
        mode="max_share" if mode == "max" else mode,
    )  # fmt: skip


@operator("MaxRoiPool")
def _max_roi_pool(site: NodeSite, x: Any, rois: Any) -> Any:
    """Pool regions (image, x1, y1, x2, y2)."""
    image = site.squeezed(site.cast(site.part(rois, 1, 0, 1), "int32"), 1)
    rois = site.step.mul(site.part(rois, 1, 1, 5), site.number("spatial_scale", 1))
    return site.last.max_roi_pool(x, rois, image, output_size=site.ints("pooled_shape"))


@operator("NonMaxSuppression")
def _non_max_suppression(site: NodeSite, boxes: Any, scores: Any) -> Value:
    """Return the places (image, class, box) of what remains, padded by -1, and note how many."""

    def number(i: int, default: float = 0.0) -> float:
        return float(site.known(i).reshape(-1)[0]) if site.has(i) else default

    rows, _, count = site.last.sorted_suppression(
        boxes, scores, max_output_boxes_per_class=int(min(number(2), site.known_shape()[1])),
        iou_threshold=number(3), score_threshold=number(4, float(np.finfo(np.float32).min)),
        center_point_box=site.flag("center_point_box"), sorts=False,
    )  # fmt: skip
    rows = site.cast(rows, site.computed("int64"))
    site.graph.counts[rows] = Count(0, site.whole(count), marked=True)
    return rows
