"""Proposals and detections of two-stage networks, from boxes in a tensor.

The results have fixed sizes. Sources: Faster R-CNN, Ren et al. 2015, arXiv:1506.01497;
GenerateProposals and the operations ExperimentalDetectron* of OpenVINO's operation sets.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidShape
from lowering.extents import differ, show, volume
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.kernels.suppression import filled_first, overlap, suppressed
from lowering.ops import require, rules

_CHOICES = "it chooses boxes"
_LARGEST_LOG_FACTOR = math.log(1000 / 16)  # the upper bound of log dw and log dh


def refined(boxes: Array, deltas: Array, offset: float, largest: float) -> Array:
    """Return boxes (..., 4) moved and scaled by deltas (dx, dy, log dw, log dh).

    A box is x1, y1, x2, y2. The width of a box is x2 - x1 + offset, and the height is y2 - y1 +
    offset. The centre moves by dx * width and dy * height. The new width is dw * width, and the
    new height is dh * height. `largest` is the upper bound of log dw and log dh.
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    moves, log_factors = deltas[..., :2], deltas[..., 2:]
    extent = high - low + offset
    new_centre = low + extent / 2 + moves * extent
    new_extent = jnp.exp(jnp.minimum(log_factors, largest)) * extent
    new_low = new_centre - new_extent / 2
    new_high = new_centre + new_extent / 2 - offset
    return jnp.concatenate([new_low, new_high], axis=-1)


def _proposals_type(
    image: TensorType, anchors: TensorType, deltas: TensorType, scores: TensorType, pre_nms: int,
    post_nms: int, scales: bool,
) -> tuple[TensorType, TensorType, TensorType]:  # fmt: skip
    """Check the arguments of `anchored_proposals`, and return the types of its results."""
    require.same_dtype(require.floating, anchors=anchors, deltas=deltas, scores=scores)
    require.layout("[B,A,H,W]", scores=scores)
    require.layout("[H,W,A,4]", anchors=anchors)
    require.not_negative(pre_nms=pre_nms, post_nms=post_nms)
    require.int32(post_nms=post_nms)
    require.floating(image=image)
    require.indexable(scores=scores, deltas=deltas)
    batch, count, height, width = scores.shape
    require.shape("deltas", deltas, (batch, 4 * count, height, width), "4 for each of 'scores'")
    require.shape("anchors", anchors, (height, width, count, 4), "a box for each of 'scores'")
    if len(image.shape) != 2 or differ(image.shape[0], batch):
        raise InvalidShape(f"'image' {show(image.shape)} must have a row for each image")
    least_items = 3 if scales else 2
    if image.shape[1] < least_items:
        raise InvalidShape(f"rows of 'image' {show(image.shape)} must have height, width, scales")
    rows = batch * post_nms
    regions = TensorType((rows, 4), scores.dtype)
    require.indexable(regions=regions)
    return (
        regions,
        TensorType((rows,), scores.dtype),
        TensorType((batch,), "int32"),
    )


@rules.rule("anchored_proposals", _proposals_type, not_differentiable=_CHOICES)
def anchored_proposals(
    image: Array, anchors: Array, deltas: Array, scores: Array, min_size: float, pre_nms: int,
    post_nms: int, nms_threshold: float, pixel_offset: float, overlap_offset: float, scales: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return the best regions (x1, y1, x2, y2), their scores, and each image's number of regions.

    The results have the shapes (batch * post_nms, 4), (batch * post_nms,) and (batch,).
    `scores` has the shape (batch, anchors, height, width), `deltas` the shape (batch, 4 *
    anchors, height, width), and `anchors` the shape (height, width, anchors, 4).

    A row of `image` has the height and the width of an image. If `scales` is true, one or two
    scales follow in the row, and a region has at least the width and height `min_size` * scale.
    The extent of a box is the difference of two ends plus `pixel_offset`. For overlaps the
    extent is the difference plus `overlap_offset`. The `pre_nms` best regions of an image are
    compared, and at most `post_nms` of them are returned. Regions are sorted by image. Rows
    after the last region of the last image are 0.
    """
    dtype = jnp.asarray(scores).dtype
    image_rows, anchors, deltas, scores = (
        widened(jnp.asarray(x)) for x in (image, anchors, deltas, scores)
    )
    batch, count, height, width = scores.shape
    # The moves have the shape (batch, height, width, anchors, 4).
    moves = deltas.reshape(batch, count, 4, height, width).transpose(0, 3, 4, 1, 2)
    flat_scores = scores.transpose(0, 2, 3, 1).reshape(batch, -1)
    most = min(pre_nms, volume(scores.shape[1:]))
    overlap_of = partial(overlap, offset=overlap_offset, touches=False)
    if not most:  # no region can be selected
        rows = jnp.zeros((batch * post_nms, 5), dtype)
        return rows[:, :4], rows[:, 4], jnp.zeros(batch, jnp.int32)

    def regions_of_image(
        info: Array, image_moves: Array, image_scores: Array
    ) -> tuple[Array, Array, Array]:
        """Return the best regions of an image, their scores, and whether each row has a region.

        `info` is a row of `image`, `image_moves` are the deltas (height, width, anchors, 4),
        and `image_scores` has one item for each anchor and position.
        """
        regions = refined(anchors, image_moves, pixel_offset, _LARGEST_LOG_FACTOR).reshape(-1, 4)
        image_height, image_width = info[0], info[1]
        image_ends = jnp.stack([image_width, image_height, image_width, image_height])
        ends = image_ends - pixel_offset
        regions = jnp.maximum(jnp.minimum(regions, ends[None]), 0)
        # `scale` has the scales of the width and of the height. Item 2 of `info` is the scale of
        # the height. The last item is the scale of the width. If there is one scale, item 2 is the
        # last item.
        scale = jnp.stack([info[-1], info[2]]) if scales else jnp.ones(2, info.dtype)
        sizes = regions[:, 2:] - regions[:, :2] + pixel_offset
        best = jnp.argsort(-image_scores, stable=True)[:most]
        best_regions, best_scores = regions[best], image_scores[best]
        is_large = jnp.all(sizes[best] >= (min_size * scale)[None], axis=1)
        chosen = suppressed(
            best_regions, best_scores, is_large, post_nms, nms_threshold, overlap_of
        )
        # For the index -1 the row has an arbitrary region. The last result marks it as empty.
        return best_regions[chosen], best_scores[chosen], chosen >= 0

    regions, region_scores, has_region = jax.vmap(regions_of_image)(image_rows, moves, flat_scores)
    rows = jnp.concatenate([regions, region_scores[..., None]], axis=-1).reshape(-1, 5)
    rows, is_filled = filled_first(rows, has_region.reshape(-1))
    rows = jnp.where(is_filled[:, None], rows, 0).astype(dtype)
    return rows[:, :4], rows[:, 4], jnp.sum(has_region, axis=1, dtype=jnp.int32)


def _refined_type(
    rois: TensorType, deltas: TensorType, scores: TensorType, keep: int, weights: tuple[float, ...]
) -> tuple[TensorType, TensorType, TensorType]:
    """Check the arguments of `refined_detections`, and return the types of its results."""
    require.same_dtype(require.floating, rois=rois, deltas=deltas, scores=scores)
    require.layout("[N,4]", rois=rois)
    require.layout("[N,C]", scores=scores)
    count, classes = scores.shape
    require.length("weights", weights, 4, "numbers of a box")
    require.int32(keep=keep)
    require.indexable(deltas=deltas)
    require.shape("rois", rois, (count, 4), "one for each row of 'scores'")
    require.shape("deltas", deltas, (count, 4 * classes), "4 for each of 'scores'")
    return (
        TensorType((keep, 4), rois.dtype),
        TensorType((keep,), "int32"),
        TensorType((keep,), rois.dtype),
    )


@rules.rule("refined_detections", _refined_type, not_differentiable=_CHOICES)
def refined_detections(
    rois: Array, deltas: Array, scores: Array, score_threshold: float, nms_threshold: float,
    keep_per_class: int, keep: int, largest: float, weights: tuple[float, ...],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return the refined regions (x1, y1, x2, y2), their classes and their scores.

    The results have the shapes (keep, 4), (keep,) and (keep,). `rois` has the shape (n, 4),
    `deltas` the shape (n, 4 * classes), and `scores` the shape (n, classes). The deltas (dx,
    dy, log dw, log dh) are divided by `weights`, and `largest` is the upper bound of log dw and
    log dh. The first class is the background, which is left out. Boxes suppress each other only
    within a class. At most `keep_per_class` boxes of a class remain, where a negative number
    means no limit. Rows are sorted by class and, within a class, by falling score. If more than
    `keep` boxes remain, rows are sorted only by falling score. Rows after the last box are 0.
    """
    dtype = jnp.asarray(rois).dtype
    rois, deltas, scores = (widened(jnp.asarray(x)) for x in (rois, deltas, scores))
    count, classes = scores.shape
    moves = deltas.reshape(count, classes, 4) / jnp.asarray(weights, deltas.dtype)[None, None]
    boxes = jnp.maximum(refined(rois[:, None], moves, offset=1.0, largest=largest), 0)
    # A region without area becomes the box 0, 0, 0, 0 with the score 0.
    has_area = jnp.all(rois[:, 2:] > rois[:, :2], axis=1)
    boxes = jnp.where(has_area[:, None, None], boxes, 0)
    scores = jnp.where(has_area[:, None], scores, 0)
    most = min(keep_per_class, count) if keep_per_class >= 0 else count
    if not most or not classes:  # no box can be selected
        no_scores = jnp.zeros(keep, dtype)
        return jnp.zeros((keep, 4), dtype), jnp.zeros(keep, jnp.int32), no_scores
    overlap_of = partial(overlap, offset=1.0, touches=False)

    def select(boxes: Array, scores: Array) -> Array:
        """Return the indices of the remaining boxes of one class."""
        eligible = scores > score_threshold
        return suppressed(boxes, scores, eligible, most, nms_threshold, overlap_of)

    chosen = jax.vmap(select, in_axes=(1, 1))(boxes, scores)  # (classes, most)
    labels = jnp.broadcast_to(jnp.arange(classes, dtype=jnp.int32)[:, None], chosen.shape)
    # From here on, the boxes of all classes lie along one axis. Class 0 is the background.
    remains = ((chosen >= 0) & (labels > 0)).reshape(-1)
    labels = labels.reshape(-1)
    box_index = jnp.maximum(chosen.reshape(-1), 0)
    flat_scores = jnp.where(remains, scores[box_index, labels], -jnp.inf)
    are_too_many = jnp.sum(remains) > keep
    order_by_score = jnp.lexsort((box_index, -flat_scores))
    # The boxes are sorted by class already. The remaining boxes are moved to the front.
    order_by_class = jnp.argsort(~remains, stable=True)
    order = jnp.where(are_too_many, order_by_score, order_by_class)
    # If there are fewer boxes than rows, the index -1 stands for no box.
    missing = max(keep - len(order), 0)
    order = jnp.pad(order, (0, missing), constant_values=-1)[:keep]
    is_filled = remains[order] & (order >= 0)
    result_boxes = jnp.where(is_filled[:, None], boxes[box_index[order], labels[order]], 0)
    result_labels = jnp.where(is_filled, labels[order], 0)
    result_scores = jnp.where(is_filled, flat_scores[order], 0)
    return result_boxes.astype(dtype), result_labels, result_scores.astype(dtype)
