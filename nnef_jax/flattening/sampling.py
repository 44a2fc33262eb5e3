"""Adds resizes, pools of regions and suppression of boxes, for layers and nodes of any format."""

from __future__ import annotations

import math
from typing import Any

from lowering.graph import Value
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import TensorGraph

_RESIZE_DEFAULTS: dict[str, Any] = {
    "scales": (), "sizes": (), "nearest_mode": "floor", "cubic_coeff_a": -0.75,
    "exclude_outside": False, "antialias": False, "extrapolation_value": 0.0,
}  # fmt: skip


def resized(
    add: ByKind, x: Tensor, mode: str, coordinates: str, region: Tensor | bool = False,
    **attributes: object,
) -> Any:  # fmt: skip
    """Add a resize of x. `attributes` has either the new extents `sizes` or the factors `scales`.

    `sizes` or `scales` has an item for each axis. `mode` is the interpolation, such as "linear",
    and `coordinates` says how positions in the result are mapped to positions in `x`.
    """
    attributes = _RESIZE_DEFAULTS | attributes
    return add.resize(
        x, region, mode=mode, coordinate_transformation_mode=coordinates, **attributes
    )


def roi_aligned(
    site: Site[TensorGraph],
    x: Tensor,
    rois: Tensor,
    images: Tensor,
    *,
    scale: float,
    shift: float,
    **attributes: object,
) -> Any:
    """Add an operation that pools samples in regions of images (RoI align).

    `rois` has shape (regions, 4): the corners (x1, y1, x2, y2) of each region. The corners are
    multiplied by `scale`, then `shift` is added to them. `images` has the index of each region's
    image.
    """
    rois = site.step.mul(rois, scale)
    if shift != 0:
        rois = site.step.add(rois, shift)
    return site.last.roi_align(x, rois, images, **attributes)


def suppressed(
    site: Site[TensorGraph], boxes: Tensor, scores: Tensor, *, score: float, **attributes: object
) -> tuple[Value, Value, Value]:
    """Add a non-maximum suppression: it drops boxes that overlap a better box of the same class.

    Three inputs of the site must be constant or left out: input 2 is the largest number of boxes in
    a class, by default 0; input 3 is the largest allowed overlap, by default 0; input 4 is the
    lowest score of a box, by default `score`.

    Returns:
        Three tensors: the indices (image, class, box) of the remaining boxes, padded with -1; the
            scores of these boxes; and their number.
    """
    graph = site.graph
    if graph.is_list(boxes) or graph.is_list(scores):
        # The scores behind the items of a list are below all thresholds, so that no padding is
        # selected. Axis 1 of the boxes and axis 2 of the scores have the boxes.
        boxes = graph.filled(site.tensor(boxes), 1, 0, site.span)
        scores = graph.filled(site.tensor(scores), 2, -math.inf, site.span)
    _, box_count, *_ = site.known_shape(boxes)  # the first axis has the images
    most = int(min(site.scalar(2, 0), graph.bound(box_count)))
    return site.last.sorted_suppression(
        boxes, scores, max_output_boxes_per_class=most, iou_threshold=site.scalar(3, 0),
        score_threshold=site.scalar(4, score), **attributes,
    )  # fmt: skip


def box_lists(site: Site[TensorGraph], count: Tensor, *tensors: Value) -> list[Value]:
    """Return tensors as lists of `count` boxes each. Lists that are outputs are padded with -1."""
    item_count = site.cast(count, site.graph.builder.integer)
    lists = [site.listed(x, 0, item_count) for x in tensors]
    site.graph.list_padding.update(dict.fromkeys(lists, -1))
    return lists
