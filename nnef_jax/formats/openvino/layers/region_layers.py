"""Pools of regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers import everywhere, opsets


@everywhere("ROIPooling")
def _roi_pooling(site: LayerSite) -> Value:
    """Pool regions (image, x1, y1, x2, y2): maxima of bins, or items between corners."""
    x, rois = site.first(2)
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
    return site.last.mul(found, site.unsqueezed(alive, 2, 3))


@everywhere("PSROIPooling")
def _psroi_pooling(site: LayerSite) -> Value:
    mode = site.text("mode", "average")
    if mode == "bilinear_deformable":
        return _deformable_psroi_pooling(site)
    if mode not in ("average", "bilinear"):
        raise InvalidOperation(f"the mode '{mode}' is not supported")
    return _position_sensitive(site, mode)


def _position_sensitive(site: LayerSite, mode: str, **attributes: Any) -> Value:
    operands = {"input": site.tensor(0), "rois": site.tensor(1)}
    if site.has(2) and not site.flag("no_trans"):
        operands["offsets"] = site.tensor(2)
    return site.emit(
        "position_sensitive_roi_pool", operands, output_channels=site.int("output_dim"),
        group_size=site.int("group_size", site.int("pooled_height", 1)),
        spatial_scale=site.number("spatial_scale"), mode=mode,
        bins=(site.int("spatial_bins_y", 1), site.int("spatial_bins_x", 1)), **attributes,
    )  # fmt: skip


@opsets("DeformablePSROIPooling")
def _deformable_psroi_pooling(site: LayerSite) -> Value:
    return _position_sensitive(site, "deformable", offset_scale=site.number("trans_std", 1))


def _scaled(site: LayerSite, rois: Value, factors: Sequence[float], more: Sequence[float]) -> Value:
    """Return regions times one row, plus another."""
    factor, offset = (derived(np.array([row], np.float32)) for row in (factors, more))
    return site.step.add(site.step.mul(rois, factor), offset)


def _aligned(site: LayerSite, rois: Value, images: Value, mode: str, **attributes: Any) -> Value:
    return site.last.roi_align(
        site.tensor(0), rois, images, mode=mode, **attributes,
        output_size=(site.int("pooled_h"), site.int("pooled_w")),
        sampling_ratio=site.int("sampling_ratio"),
    )  # fmt: skip


@opsets("ROIAlign")
def _roi_align(site: LayerSite) -> Value:
    """Pool samples of regions (x1, y1, x2, y2), whose corners are places of items or of pixels."""
    mode, scale = site.text("aligned_mode", "asymmetric"), site.number("spatial_scale")
    more = {"asymmetric": 0, "half_pixel_for_nn": -0.5, "half_pixel": scale / 2 - 0.5}
    if mode not in more:
        raise InvalidOperation(f"'aligned_mode' must be one of {', '.join(more)}")
    rois = _scaled(site, site.tensor(1), [scale] * 4, [more[mode]] * 4)
    least = 1.0 if mode == "asymmetric" else 0.0
    return _aligned(site, rois, site.tensor(2), site.text("mode"), least=least)


@opsets("ROIAlignRotated")
def _roi_align_rotated(site: LayerSite) -> Value:
    """Pool samples of regions (centre x, y, width, height, angle)."""
    scale, turn = site.number("spatial_scale"), 1.0 if site.flag("clockwise_mode") else -1.0
    rois = _scaled(site, site.tensor(1), [*[scale] * 4, turn], [-0.5, -0.5, 0, 0, 0])
    return _aligned(site, rois, site.tensor(2), "avg")


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
    level = site.unsqueezed(step.select(exists, level, -1.0), 2, 3)
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
def _top_k_rois(site: LayerSite) -> Value:
    """Return the regions [n,4] of the highest probabilities."""
    rois, probabilities = site.first(2)
    count = min(site.int("max_rois", 0), site.known_shape(probabilities)[0])
    _, best = site.step.topk(probabilities, axis=0, k=count, largest=True)
    return site.last.gather(rois, best, axis=0)
