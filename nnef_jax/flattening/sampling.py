"""Resizes, pools of samples in regions, and suppression of boxes, which formats say alike."""

from __future__ import annotations

from typing import Any

from lowering.graph import Value
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.site import Site

_RESIZE: dict[str, Any] = {
    "scales": (), "sizes": (), "nearest_mode": "floor", "cubic_coeff_a": -0.75,
    "exclude_outside": False, "antialias": False, "extrapolation_value": 0.0,
}  # fmt: skip


def resized(
    add: ByKind, x: Any, mode: str, coordinates: str, region: Any = False, **attributes: Any
) -> Any:
    """Add a resize to `sizes` or by `scales`, an item for each axis."""
    attributes = _RESIZE | attributes
    return add.resize(
        x, region, mode=mode, coordinate_transformation_mode=coordinates, **attributes
    )


def roi_aligned(
    site: Site[Any],
    x: Any,
    rois: Any,
    images: Any,
    *,
    scale: float,
    shift: float,
    **attributes: Any,
) -> Any:
    """Add a pool of samples in regions (x1, y1, x2, y2). Corners are scaled, then shifted."""
    rois = site.step.mul(rois, scale)
    rois = site.step.add(rois, shift) if shift else rois
    return site.last.roi_align(x, rois, images, **attributes)


def suppressed(
    site: Site[Any], boxes: Any, scores: Any, *, score: float, **attributes: Any
) -> tuple[Value, Value, Value]:
    """Suppress boxes that overlap better ones of their class.

    Inputs 2 to 4 are how many boxes of a class remain at most, the largest overlap, and the lowest
    score, by default 0, 0 and `score`. The results are the indices (image, class, box) of boxes
    that remain, padded by -1, their scores, and their number.
    """
    most = int(min(site.scalar(2, 0), site.known_shape(boxes)[1]))
    return site.last.sorted_suppression(
        boxes, scores, max_output_boxes_per_class=most, iou_threshold=site.scalar(3, 0),
        score_threshold=site.scalar(4, score), **attributes,
    )  # fmt: skip


def note_count(site: Site[Any], count: Any, *lists: Value) -> None:
    """Give lists of boxes their `count` of items. Padding can be told from these."""
    items = site.cast(count, site.graph.builder.integer)
    site.graph.counts.update(dict.fromkeys(lists, Count(0, items, marked=True)))
