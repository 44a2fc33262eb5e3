"""Functions for layers with regions: suppression of overlapping boxes, pools, and regions of YOLO.

Suppression returns the indices of the boxes that remain, padded with -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import flag, integer, integers, number, text, word
from nnef_jax.flattening.operators.registry import operation
from nnef_jax.flattening.sampling import box_lists, roi_aligned, suppressed
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import operator, opsets, tensor


def _in_output_type(site: LayerSite, *indices: Value) -> list[Value]:
    """Cast indices to the element type in the attribute `output_type`.

    If the layer does not have the attribute, the indices are returned unchanged.
    """
    if not site.has_attribute("output_type"):
        return list(indices)
    return [site.cast(x, site.dtype("output_type")) for x in indices]


def _has_centre(site: LayerSite) -> bool:
    """Tell whether a box is given by its centre and its size, not by two of its corners."""
    has_centre = site.word("box_encoding", "corner", "center") == "center"
    return has_centre or site.flag("center_point_box")


def _has_count(site: LayerSite) -> bool:
    """Tell whether the layer returns the number of remaining boxes. Layers of opset5 and 9 do."""
    return site.layer.opset in ("opset5", "opset9")


def _softening(site: LayerSite) -> dict[str, Any]:
    """Return the attributes of NonMaxSuppression. `sigma` is input 5, or 0 without input 5."""
    return {"sigma": site.scalar(5, 0)}


def _rotation(site: LayerSite) -> dict[str, Any]:
    """Return the attributes of NMSRotated. `rotation` is the direction of positive angles."""
    return {"rotation": "clockwise" if site.flag("clockwise", True) else "counterclockwise"}


@operator("NonMaxSuppression", attributes=_softening, has_count=_has_count, has_centre=_has_centre)
@opsets("NMSRotated", attributes=_rotation, has_count=True, has_centre=_has_centre)
def _suppression(
    site: LayerSite,
    boxes: Value,
    scores: Value,
    *,
    attributes: dict[str, Any],
    has_count: bool,
    has_centre: bool,
    sorts: bool = flag("sort_result_descending", True),
) -> Any:
    """Return the indices of the boxes that remain after suppression, as rows (image, class, box).

    From operation set 5 on, return also the scores and the number of the remaining boxes. The boxes
    of NMSRotated are (x, y, width, height, angle), where (x, y) is the centre.
    """
    indices, selected_scores, count = suppressed(
        site, boxes, scores, score=0, center_point_box=has_centre, sorts=sorts, **attributes
    )
    if site.net.is_legacy and site.declared:
        # The file declares the number of rows. If fewer boxes remain, rows of -1 are added.
        declared_count = site.declared[0]
        if declared_count > 0:
            indices = site.cut_or_padded(indices, axis=0, size=declared_count, value=-1.0)
    indices, count = _in_output_type(site, indices, count)
    if has_count:
        # The count says which rows are boxes. Without it, later layers would also process the
        # padding rows as if they were boxes.
        indices, selected_scores = box_lists(site, count, indices, selected_scores)
    results = [indices, selected_scores, count]
    output_count = max(len(site.layer.outputs), 1)
    return results[:output_count]


_ORDERS = {"score": "score", "classid": "class", "none": "none"}


def _order(site: LayerSite) -> str:
    """Return the order in which the attribute `sort_result_type` sorts the remaining boxes."""
    order = site.text("sort_result_type", "none")
    if order not in _ORDERS:
        raise InvalidOperation(f"'sort_result_type' must be one of {', '.join(_ORDERS)}")
    return _ORDERS[order]


# Reads the attribute that says whether boxes are sorted across images.
_SORTS_ACROSS_IMAGES = flag("sort_result_across_batch")
_CLASS_ATTRIBUTES: dict[str, Any] = {
    "score_threshold": number("score_threshold", 0), "top_k": integer("nms_top_k", -1),
    "keep_top_k": integer("keep_top_k", -1), "background": integer("background_class", -1),
    "pixel_offset": lambda site: 0.0 if site.flag("normalized", True) else 1.0,
    "across": _SORTS_ACROSS_IMAGES,
}  # fmt: skip


def _matrix_order(site: LayerSite) -> str:
    """Return the order of the boxes in the results of the layer MatrixNms.

    If boxes are sorted across images, the order is in the attribute `sort_result_type`. Otherwise
    the runtime ignores this attribute, and the order is "score".
    """
    order = _order(site)
    return order if _SORTS_ACROSS_IMAGES(site) else "score"


def _box_counts(site: LayerSite) -> Any:
    """Return the number of boxes of each image (input 2), or False if the layer ignores input 2.

    The layer reads input 2 if the scores in input 1 have two axes.
    """
    reads_counts = site.has(2) and len(site.shape(1)) == 2
    return site.tensor(2) if reads_counts else False


@opsets(
    "MatrixNms",
    results=operation(
        "matrix_suppression", tensor(0), tensor(1), **_CLASS_ATTRIBUTES, order=_matrix_order,
        decay=text("decay_function", "linear"), sigma=number("gaussian_sigma", 2),
        post_threshold=number("post_threshold", 0),
    ),
)  # fmt: skip
@opsets(
    "MulticlassNms",
    results=operation(
        "multiclass_suppression", tensor(0), tensor(1), _box_counts, **_CLASS_ATTRIBUTES,
        order=_order, eta=number("nms_eta", 1), iou_threshold=number("iou_threshold", 0),
    ),
)  # fmt: skip
def _several_classes(site: LayerSite, *, results: Sequence[Value]) -> list[Value]:
    """Return the remaining boxes, their indices, and the number of remaining boxes of each image.

    A box is a row (class, score, x1, y1, x2, y2).
    """
    boxes, indices, counts = results
    return [boxes, *_in_output_type(site, indices, counts)]


# Pools of regions of interest


@operator("ROIPooling")
def _roi_pooling(
    site: LayerSite, x: Value, rois: Value, *, method: str = word("method", "max", "bilinear")
) -> Value:
    """Pool regions of `x` by the maxima of bins, or by samples with bilinear interpolation.

    `rois` has rows (image, x1, y1, x2, y2). If `method` is "max", the attribute `spatial_scale`
    multiplies the corners. If `method` is "bilinear", the corners are fractions of the image. The
    result of a region with a negative `image` is 0.
    """
    default_size = site.ints("output_size", site.ints("output_roi", [0, 0]))
    pooled_height = site.int("pooled_h", default_size[0])
    pooled_width = site.int("pooled_w", default_size[-1])
    size = [pooled_height, pooled_width]
    image_column = site.part(rois, axis=1, first=0, last=1)
    images = site.step.squeeze(site.step.cast(image_column, dtype="int32"), axes=(1,))
    boxes = site.part(rois, axis=1, first=1, last=5)
    if method == "max":
        scaled = site.step.mul(boxes, site.number("spatial_scale"))
        pooled = site.step.max_roi_pool(x, scaled, images, output_size=size)
    else:
        height, width = site.known_shape()[2:]
        factors = [width - 1, height - 1, width - 1, height - 1]
        to_box_end = [0, 0, 1, 1]  # x2 and y2 are the last pixel. The box ends behind this pixel
        scaled = _scaled(site, boxes, factors, to_box_end)
        sampling = "aligned" if min(size) > 1 else "symmetric"
        pooled = site.step.roi_resample(x, scaled, images, output_size=size, method=sampling)
    exists = site.step.cast(site.step.ge(image_column, 0.0), dtype=x.type.dtype)
    return site.last.mul(pooled, site.unsqueezed(exists, (2, 3)))


_POOL_ATTRIBUTES: dict[str, Any] = {
    "channels": integer("output_dim"), "scale": number("spatial_scale"),
    "rows": integer("spatial_bins_y", 1), "columns": integer("spatial_bins_x", 1),
}  # fmt: skip


@operator("PSROIPooling", mode=text("mode", "average"), **_POOL_ATTRIBUTES)
@opsets("DeformablePSROIPooling", mode="bilinear_deformable", **_POOL_ATTRIBUTES)
def _position_sensitive(
    site: LayerSite, *, mode: str, channels: int, scale: float, rows: int, columns: int
) -> Value:
    """Pool regions. Each bin of a region is pooled from its own channels of input 0.

    `scale` is a factor for the coordinates of regions. In the bilinear modes, `rows` * `columns`
    samples are averaged. The mode "average" averages all items of a bin instead.
    """
    if mode not in ("average", "bilinear", "bilinear_deformable"):
        raise InvalidOperation(f"'mode' '{mode}' is not supported")
    offset_attributes: dict[str, float] = {}
    if mode == "bilinear_deformable":
        offset_attributes["offset_scale"] = site.number("trans_std", 1)
    operands = {"input": site.tensor(0), "rois": site.tensor(1)}
    if site.has(2) and not site.flag("no_trans"):
        operands["offsets"] = site.tensor(2)
    return site.emit(
        "position_sensitive_roi_pool", operands, output_channels=channels,
        group_size=site.int("group_size", site.int("pooled_height", 1)), spatial_scale=scale,
        mode=mode.removeprefix("bilinear_"), bins=(rows, columns), **offset_attributes,
    )  # fmt: skip


def _scaled(
    site: LayerSite, rois: Value, factors: Sequence[float], offsets: Sequence[float]
) -> Value:
    """Compute rois * factors + offsets for regions of shape (regions, items).

    `factors` and `offsets` have a number for each item of a region.
    """
    factor_row = derived(np.array([factors], np.float32))
    offset_row = derived(np.array([offsets], np.float32))
    return site.step.add(site.step.mul(rois, factor_row), offset_row)


def _samples(site: LayerSite) -> dict[str, Any]:
    """Return a dict of attributes: extents of a pooled region, and the number of samples."""
    height = site.int("pooled_h")
    width = site.int("pooled_w")
    return {"output_size": (height, width), "sampling_ratio": site.int("sampling_ratio")}


_ALIGN_ATTRIBUTES: dict[str, Any] = {"scale": number("spatial_scale"), "samples": _samples}


@opsets("ROIAlign", **_ALIGN_ATTRIBUTES)
def _roi_align(
    site: LayerSite,
    *,
    corners: str = text("aligned_mode", "asymmetric"),
    mode: str = text("mode"),
    scale: float,
    samples: dict[str, Any],
) -> Value:
    """Pool samples of regions (x1, y1, x2, y2) of input 0.

    `corners` is the formula for the coordinates of corners in input 0:

    - "asymmetric": x * scale
    - "half_pixel_for_nn": x * scale - 0.5
    - "half_pixel": (x + 0.5) * scale - 0.5
    """
    shifts = {"asymmetric": 0, "half_pixel_for_nn": -0.5, "half_pixel": scale / 2 - 0.5}
    if corners not in shifts:
        raise InvalidOperation(f"'aligned_mode' must be one of {', '.join(shifts)}")
    least = 1.0 if corners == "asymmetric" else 0.0  # the lower bound of a region's extents
    return roi_aligned(
        site,
        *site.first_inputs(3),
        scale=scale,
        shift=shifts[corners],
        mode=mode,
        least=least,
        **samples,
    )


@opsets("ROIAlignRotated", **_ALIGN_ATTRIBUTES)
def _rotated_roi_align(
    site: LayerSite,
    *,
    is_clockwise: bool = flag("clockwise_mode"),
    scale: float,
    samples: dict[str, Any],
) -> Value:
    """Pool samples of rotated regions (x, y, width, height, angle), where (x, y) is the centre."""
    angle_factor = 1.0 if is_clockwise else -1.0
    factors = [scale, scale, scale, scale, angle_factor]
    to_pixel_centres = [-0.5, -0.5, 0, 0, 0]
    rois = _scaled(site, site.tensor(1), factors, to_pixel_centres)
    return site.last.roi_align(site.tensor(0), rois, site.tensor(2), mode="avg", **samples)


@opsets("ExperimentalDetectronROIFeatureExtractor")
def _roi_feature_extractor(
    site: LayerSite,
    *,
    size: int = integer("output_size"),
    samples: int = integer("sampling_ratio"),
    scales: list[int] = integers("pyramid_scales"),
    is_aligned: bool = flag("aligned"),
) -> Any:
    """Pool each region from one level of a pyramid of feature maps.

    Return the pooled regions and the regions themselves. Input 0 has the regions, and the other
    inputs are the levels.
    """
    step = site.step
    rois, *levels = site.tensors()
    if len(scales) < len(levels):
        raise InvalidOperation(f"'pyramid_scales' must have {len(levels)} items")
    region_level = _pyramid_level(site, rois, len(levels))
    region_level = site.unsqueezed(region_level, (2, 3))  # shape (regions, 1, 1, 1)
    images = derived(np.zeros(site.known_shape(rois)[0], np.int64))  # all regions are in image 0
    sampling = {"output_size": (size, size), "sampling_ratio": samples, "mode": "avg", "least": 1.0}
    # All regions are pooled from each level, and the result of the region's level is selected.
    result: Value | float = 0.0
    for i, features in enumerate(levels):
        corners = step.mul(rois, 1 / scales[i])
        if is_aligned:
            corners = step.sub(corners, 0.5)
        pooled = step.roi_align(features, corners, images, **sampling)
        is_at_level = step.eq(region_level, float(i))
        is_last = i == len(levels) - 1
        result = site.step_or_last(is_last).select(is_at_level, pooled, result)
    return [result, rois]


def _pyramid_level(site: LayerSite, rois: Value, count: int) -> Value:
    """Return the level of each region in a pyramid of `count` levels.

    The result has shape (regions, 1). By equation 1 of arXiv:1612.03144, the level is
    floor(2 + log2(sqrt(area) / 224)). Regions without an area get the level -1. There is no such
    level, so the results of these regions are 0.
    """
    step = site.step
    left, top, right, bottom = step.split(rois, axis=1, ratios=(1, 1, 1, 1))
    area = step.mul(step.sub(right, left), step.sub(bottom, top))
    exists = step.gt(area, 0.0)
    root = step.sqrt(step.max(area, 0.0))
    relative = step.add(step.div(root, 224.0), 1e-6)
    level = step.floor(step.add(step.log2(relative), 2.0))
    level = step.clamp(level, 0.0, float(count - 1))
    return step.select(exists, level, -1.0)


@operator("RegionYolo")
def _region_yolo(
    site: LayerSite,
    x: Value,
    *,
    coords: int = integer("coords", 4),
    classes: int = integer("classes"),
    is_softmax: bool = flag("do_softmax", True),
) -> Value:
    """Apply the logistic function to the centre (x, y) and the objectness of each region of YOLO.

    Width and height are not changed. If `is_softmax`, a softmax is applied to the scores of the
    classes, and the axes `axis` to `end_axis` of the result are joined. Otherwise the logistic
    function is applied to the scores.
    """
    batch, channels, height, width = x.type.shape
    regions = site.int("num") if is_softmax else len(site.ints("mask", []))
    # The items of a region are its coordinates, its objectness, and a score for each class.
    items = coords + classes + 1
    if regions * items != channels:
        message = f"{regions} regions of {items} items do not fit {channels} channels"
        raise InvalidOperation(message)
    split = site.reshaped(x, [batch, regions, items, height, width])
    first_score = coords + 1
    centre = site.step.sigmoid(site.part(split, axis=2, first=0, last=2))
    size = site.part(split, axis=2, first=2, last=coords)
    if is_softmax:
        objectness = site.step.sigmoid(site.part(split, axis=2, first=coords, last=first_score))
        scores = site.part(split, axis=2, first=first_score, last=items)
        parts = [centre, size, objectness, site.step.softmax(scores, axes=(2,))]
    else:
        objectness_and_scores = site.part(split, axis=2, first=coords, last=items)
        parts = [centre, size, site.step.sigmoid(objectness_and_scores)]
    activated = site.step.concat(parts, axis=2)
    result = site.reshaped(activated, [batch, channels, height, width])
    if not is_softmax:
        return result
    return site.flattened(result, first=site.axis_of("axis", 1), last=site.axis_of("end_axis", 3))


@opsets("ExperimentalDetectronTopKROIs")
def _top_k_rois(
    site: LayerSite, rois: Value, probabilities: Value, *, most: int = integer("max_rois", 0)
) -> Value:
    """Return the regions with the highest probabilities, in shape (most, 4)."""
    count = min(most, site.known_shape(probabilities)[0])
    _, best_indices = site.step.topk(probabilities, axis=0, k=count, largest=True)
    return site.last.gather(rois, best_indices, axis=0)
