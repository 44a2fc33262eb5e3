"""Suppresses boxes that overlap better ones, and pools regions.

Of boxes that remain there are indices, -1 behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.counts import Count
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import operator, opsets


def _typed(site: LayerSite, *indices: Value) -> list[Value]:
    """Return indices in the integers that the layer says."""
    if "output_type" not in site.layer.attributes:
        return list(indices)
    return [site.cast(x, site.dtype("output_type")) for x in indices]


@operator("NonMaxSuppression")
@opsets("NMSRotated")
def _suppression(site: LayerSite, boxes: Value, scores: Value) -> Any:
    """Return indices (image, class, box), from set 5 on with scores and how many there are.

    Rotated boxes are (centre x, y, width, height, angle).
    """
    is_rotated = site.operator == "nmsrotated"
    way = "clockwise" if site.flag("clockwise", True) else "counterclockwise"
    is_centre = site.choice("box_encoding", "corner", "center", default="corner") == "center"
    indices, values, count = site.last.sorted_suppression(
        boxes, scores, **({"rotation": way} if is_rotated else {"sigma": site.scalar(5, 0)}),
        max_output_boxes_per_class=int(min(site.scalar(2, 0), boxes.type.shape[1])),
        iou_threshold=site.scalar(3, 0.0), score_threshold=site.scalar(4, 0.0),
        center_point_box=is_centre or site.flag("center_point_box"),
        sorts=site.flag("sort_result_descending", True),
    )  # fmt: skip
    if site.net.is_legacy and site.declared and site.declared[0] > 0:
        indices = site.fitted(indices, 0, site.declared[0], -1.0)
    indices, count = _typed(site, indices, count)
    if is_rotated or site.layer.opset in ("opset5", "opset9"):  # before, their length is fixed
        # Layers behind take no others for boxes.
        items = Count(0, site.cast(count, site.integer), marked=True)
        site.graph.counts.update(dict.fromkeys((indices, values), items))
    return [indices, values, count][: max(len(site.layer.outputs), 1)]


_ORDERS = {"score": "score", "classid": "class", "none": "none"}


@opsets("MatrixNms", "MulticlassNms")
def _several_classes(site: LayerSite) -> Any:
    """Return boxes with their classes and scores, their indices, how many an image has.

    Whatever the layer says the runtime sorts those of MatrixNms, whose scores are lowered, by class
    across images alone.
    """
    order, is_matrix = site.text("sort_result_type", "none"), site.operator == "matrixnms"
    if order not in _ORDERS:
        raise InvalidOperation(f"'sort_result_type' must be one of {', '.join(_ORDERS)}")
    across = site.flag("sort_result_across_batch")
    how: dict[str, Any] = {
        "score_threshold": site.number("score_threshold", 0),
        "top_k": site.int("nms_top_k", -1),
        "keep_top_k": site.int("keep_top_k", -1),
        "background": site.int("background_class", -1),
        "pixel_offset": 0.0 if site.flag("normalized", True) else 1.0,
        "order": _ORDERS[order] if across or not is_matrix else "score",
        "across": across,
    }
    if is_matrix:
        rows, indices, count = site.last.matrix_suppression(
            *site.first(2), **how, decay=site.text("decay_function", "linear"),
            sigma=site.number("gaussian_sigma", 2), post_threshold=site.number("post_threshold", 0),
        )  # fmt: skip
    else:
        counts: Any = site.tensor(2) if site.has(2) and len(site.shape(1)) == 2 else False
        rows, indices, count = site.last.multiclass_suppression(
            *site.first(2), counts, **how, eta=site.number("nms_eta", 1),
            iou_threshold=site.number("iou_threshold", 0),
        )  # fmt: skip
    return [rows, *_typed(site, indices, count)]


# Pools of regions of interest


@operator("ROIPooling")
def _roi_pooling(site: LayerSite, x: Value, rois: Value) -> Value:
    """Pool regions (image, x1, y1, x2, y2): maxima of bins, or items between corners."""
    size = site.ints("output_size", site.ints("output_roi", [0, 0]))
    size = [site.int("pooled_h", size[0]), site.int("pooled_w", size[-1])]
    first = site.part(rois, 1, 0, 1)
    image = site.step.squeeze(site.step.cast(first, dtype="int32"), axes=(1,))
    box = site.part(rois, 1, 1, 5)
    if site.choice("method", "max", "bilinear", default="max") == "max":
        scaled = site.step.mul(box, site.number("spatial_scale"))
        found = site.step.max_roi_pool(x, scaled, image, output_size=size)
    else:
        height, width = site.known_shape()[2:]
        scaled = _scaled(site, box, [width - 1, height - 1] * 2, [0, 0, 1, 1])
        method = "aligned" if min(size) > 1 else "symmetric"
        found = site.step.roi_resample(x, scaled, image, output_size=size, method=method)
    alive = site.step.cast(site.step.ge(first, 0.0), dtype=x.type.dtype)
    return site.last.mul(found, site.unsqueezed(alive, (2, 3)))


@operator("PSROIPooling")
@opsets("DeformablePSROIPooling")
def _position_sensitive(site: LayerSite) -> Value:
    is_deformable = site.operator == "deformablepsroipooling"
    mode = "bilinear_deformable" if is_deformable else site.text("mode", "average")
    if mode not in ("average", "bilinear", "bilinear_deformable"):
        raise InvalidOperation(f"the mode '{mode}' is not supported")
    moved = {"offset_scale": site.number("trans_std", 1)} if "deformable" in mode else {}
    operands = {"input": site.tensor(0), "rois": site.tensor(1)}
    if site.has(2) and not site.flag("no_trans"):
        operands["offsets"] = site.tensor(2)
    return site.emit(
        "position_sensitive_roi_pool", operands, output_channels=site.int("output_dim"),
        group_size=site.int("group_size", site.int("pooled_height", 1)),
        spatial_scale=site.number("spatial_scale"), mode=mode.removeprefix("bilinear_"),
        bins=(site.int("spatial_bins_y", 1), site.int("spatial_bins_x", 1)), **moved,
    )  # fmt: skip


def _scaled(site: LayerSite, rois: Value, factors: Sequence[float], more: Sequence[float]) -> Value:
    """Return regions times one row, plus another."""
    factor, offset = (derived(np.array([row], np.float32)) for row in (factors, more))
    return site.step.add(site.step.mul(rois, factor), offset)


@opsets("ROIAlign", "ROIAlignRotated")
def _roi_align(site: LayerSite) -> Value:
    """Pool samples of regions (x1, y1, x2, y2), whose corners are places of items or of pixels.

    Rotated ones are (centre x, y, width, height, angle).
    """
    mode, scale = site.text("aligned_mode", "asymmetric"), site.number("spatial_scale")
    if site.operator == "roialignrotated":
        turn = 1.0 if site.flag("clockwise_mode") else -1.0
        rois = _scaled(site, site.tensor(1), [*[scale] * 4, turn], [-0.5, -0.5, 0, 0, 0])
        how: dict[str, Any] = {"mode": "avg"}
    else:
        more = {"asymmetric": 0, "half_pixel_for_nn": -0.5, "half_pixel": scale / 2 - 0.5}
        if mode not in more:
            raise InvalidOperation(f"'aligned_mode' must be one of {', '.join(more)}")
        rois = _scaled(site, site.tensor(1), [scale] * 4, [more[mode]] * 4)
        how = {"mode": site.text("mode"), "least": 1.0 if mode == "asymmetric" else 0.0}
    return site.last.roi_align(
        site.tensor(0), rois, site.tensor(2), **how,
        output_size=(site.int("pooled_h"), site.int("pooled_w")),
        sampling_ratio=site.int("sampling_ratio"),
    )  # fmt: skip


@opsets("ExperimentalDetectronROIFeatureExtractor")
def _roi_feature_extractor(site: LayerSite) -> Any:
    """Pool each region from the level of a pyramid that suits its area; return regions too.

    The level is 2 for the area of 224 x 224 items, one more for four times that
    (arXiv:1612.03144, equation 1).
    """
    rois, *levels = site.tensors()
    step, size, samples = site.step, site.int("output_size"), site.int("sampling_ratio")
    scales = site.ints("pyramid_scales")
    if len(scales) < len(levels):
        raise InvalidOperation(f"'pyramid_scales' must have {len(levels)} items")
    aligned = site.flag("aligned")
    left, top, right, bottom = step.split(rois, axis=1, ratios=(1, 1, 1, 1))
    area = step.mul(step.sub(right, left), step.sub(bottom, top))
    exists = step.gt(area, 0.0)
    root = step.sqrt(step.max(area, 0.0))
    relative = step.add(step.div(root, 224.0), 1e-6)
    level = step.floor(step.add(step.log2(relative), 2.0))
    level = step.clamp(level, 0.0, float(len(levels) - 1))
    level = site.unsqueezed(step.select(exists, level, -1.0), (2, 3))
    images = derived(np.zeros(site.known_shape(rois)[0], np.int64))
    how = {"output_size": (size, size), "sampling_ratio": samples, "mode": "avg", "least": 1.0}
    total: Any = 0.0
    for i, features in enumerate(levels):
        corners = _scaled(site, rois, [1 / scales[i]] * 4, [-0.5 if aligned else 0] * 4)
        pooled = step.roi_align(features, corners, images, **how)
        here = step.eq(level, float(i))
        total = site.step_or_last(i == len(levels) - 1).select(here, pooled, total)
    return [total, rois]


@opsets("ExperimentalDetectronTopKROIs")
def _top_k_rois(site: LayerSite, rois: Value, probabilities: Value) -> Value:
    """Return the regions [n,4] of the highest probabilities."""
    count = min(site.int("max_rois", 0), site.known_shape(probabilities)[0])
    _, best = site.step.topk(probabilities, axis=0, k=count, largest=True)
    return site.last.gather(rois, best, axis=0)
