"""Layers of Detectron's networks of two stages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.site import Site


@opsets("ExperimentalDetectronPriorGridGenerator")
def _prior_grid_generator(site: Site) -> Value:
    """Return boxes [n,4] around the middle of each item of the features."""
    priors = site.tensor(0)
    extents: list[int] = []
    steps: list[float] = []
    for axis, (size, stride) in enumerate((("h", "stride_y"), ("w", "stride_x")), 2):
        extents.append(site.int(size, 0) or site.known_shape(1)[axis])
        step = site.number(stride, 0) or site.known_shape(2)[axis] / extents[-1]
        steps.append(step)
    site.spend(4 * math.prod(extents))
    y, x = (step * (np.arange(n) + 0.5) for n, step in zip(extents, steps, strict=True))
    y, x = np.meshgrid(y, x, indexing="ij")
    centres = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4).astype(np.float32)
    around = site.insert("unsqueeze", {"input": priors}, axes=(0,))
    boxes = site.insert("add", {"x": Constant(centres, "f32", derived=True), "y": around})
    if not site.flag("flatten", True):
        return site.reshaped(boxes, [*extents, priors.type.shape[0], 4])
    return site.emit("reshape", {"input": boxes}, shape=(-1,), axis_start=0, axis_count=2)


@opsets("ExperimentalDetectronGenerateProposalsSingleImage")
def _generate_proposals_single_image(site: Site) -> Any:
    """Return the best regions [n,4] of one image, and their scores [n], 0 behind them."""
    scores = site.tensor(3)
    count, height, width = site.known_shape(scores)
    found = site.emit(
        "anchored_proposals",
        {
            "image": site.reshaped(site.tensor(0), [1, *site.shape(0)]),
            "anchors": site.reshaped(site.tensor(1), [height, width, count, 4]),
            "deltas": site.reshaped(site.tensor(2), [1, 4 * count, height, width]),
            "scores": site.reshaped(scores, [1, count, height, width]),
        },
        scales=False,
        pixel_offset=1.0,
        overlap_offset=0.0,
        **_limits(site),
    )
    return list(found[:2])


@opsets("GenerateProposals")
def _generate_proposals(site: Site) -> Any:
    """Return the best regions [n,4] of images, their scores [n], how many an image has."""
    names = ("image", "anchors", "deltas", "scores")
    offset = 0.0 if site.flag("normalized", True) else 1.0
    found = site.emit(
        "anchored_proposals",
        {name: site.tensor(i) for i, name in enumerate(names)},
        scales=True,
        pixel_offset=offset,
        overlap_offset=offset,
        **_limits(site),
    )
    return [*found[:2], site.cast(found[2], site.dtype("roi_num_type"))]


def _limits(site: Site) -> dict[str, Any]:
    return {
        "min_size": site.number("min_size"),
        "nms_threshold": site.number("nms_threshold"),
        "pre_nms": site.int("pre_nms_count"),
        "post_nms": site.int("post_nms_count"),
    }


@opsets("ExperimentalDetectronDetectionOutput")
def _detection_output(site: Site) -> Any:
    """Return boxes [n,4], their classes [n] and scores [n], 0 behind them."""
    names = ("rois", "deltas", "scores")
    found = site.emit(
        "refined_detections",
        {name: site.tensor(i) for i, name in enumerate(names)},
        score_threshold=site.number("score_threshold"),
        nms_threshold=site.number("nms_threshold"),
        keep_per_class=site.int("post_nms_count"),
        keep=site.int("max_detections_per_image"),
        largest=site.number("max_delta_log_wh"),
        weights=site.numbers("deltas_weights"),
    )
    return list(found)


@opsets("ExperimentalDetectronTopKROIs")
def _top_k_rois(site: Site) -> Value:
    """Return the regions [n,4] of the highest probabilities."""
    rois, probabilities = site.tensor(0), site.tensor(1)
    count = min(site.int("max_rois", 0), site.known_shape(probabilities)[0])
    _, best = site.insert("topk", {"input": probabilities}, axis=0, k=count, largest=True)
    return site.emit("gather", {"input": rois, "indices": best}, axis=0)
