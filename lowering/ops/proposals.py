"""Detections and proposals: the best of the boxes that a network refines.

The results have fixed sizes. Sources: SSD, Liu et al. 2016, arXiv:1512.02325; Faster R-CNN, Ren et
al. 2015, arXiv:1506.01497; DetectionOutput, Proposal and CTCGreedyDecoder of OpenVINO's operation
sets.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, differ, show, volume
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import widened
from lowering.kernels.suppression import filled_first, overlap, suppressed
from lowering.ops import require, rules

_CHOICES = "it chooses boxes"


def _detection_type(
    locations: TensorType, confidences: TensorType, priors: TensorType,
    anchor_confidences: TensorType, anchor_locations: TensorType, num_classes: int,
    background_label: int, top_k: int, keep_top_k: int, share_location: bool,
    variance_encoded: bool, normalized: bool,
) -> TensorType:  # fmt: skip
    if num_classes < 1:
        raise InvalidOperation(f"'num_classes' must be positive, it is {num_classes}")
    location_sets = 1 if share_location else num_classes
    items_of_a_box = {
        "locations": 4 * location_sets,
        "confidences": num_classes,
        "anchor_confidences": 2,
        "anchor_locations": 4,
    }
    operands = {"locations": locations, "confidences": confidences}
    if anchor_confidences != ABSENT:
        operands["anchor_confidences"] = anchor_confidences
    if anchor_locations != ABSENT:
        operands["anchor_locations"] = anchor_locations
    require.same_dtype(require.floating, priors=priors, **operands)
    require.layout("[B,K,N]", priors=priors)
    batch = locations.shape[0] if locations.shape else UNKNOWN
    boxes = _prior_count(priors.shape, normalized)
    for name, operand in operands.items():
        items = items_of_a_box[name]
        if not operand.shape or differ(volume(operand.shape[1:]), boxes * items):
            raise InvalidShape(
                f"'{name}' {show(operand.shape)} must have {items} items for each of {boxes} boxes"
            )
        if differ(operand.shape[0], batch):
            raise InvalidShape(f"'{name}' {show(operand.shape)} must have {batch} images")
    if differ(priors.shape[0], 1) and differ(priors.shape[0], batch):
        raise InvalidShape(f"'priors' {show(priors.shape)} must have 1 or {batch} images")
    if variance_encoded and differ(priors.shape[1], 1):
        raise InvalidShape(f"'priors' {show(priors.shape)} must have boxes alone")
    if not variance_encoded and differ(priors.shape[1], 2):
        raise InvalidShape(f"'priors' {show(priors.shape)} must have boxes and variances")
    require.int32(top_k=top_k, keep_top_k=keep_top_k, background_label=background_label)
    rows = batch * _rows_of_an_image(boxes, num_classes, top_k, keep_top_k)
    return TensorType((1, 1, rows, 7), locations.dtype)


def _prior_count(shape: tuple[int, ...], normalized: bool) -> int:
    items_of_a_box = 4 if normalized else 5
    return shape[-1] // items_of_a_box


def _rows_of_an_image(boxes: int, classes: int, top_k: int, keep_top_k: int) -> int:
    """Return the largest number of detections of an image.

    It is `keep_top_k` if this is positive. Otherwise each of the classes has as many detections
    as there are boxes, but at most `top_k` if that is positive.
    """
    if keep_top_k > 0:
        return keep_top_k
    return classes * _limited(boxes, top_k)


def _limited(boxes: int, top_k: int) -> int:
    return min(top_k, boxes) if top_k > 0 else boxes


@rules.rule("detection_output", _detection_type, not_differentiable=_CHOICES)
def detection_output(
    locations: Array, confidences: Array, priors: Array,
    anchor_confidences: Array | Literal[False], anchor_locations: Array | Literal[False],
    num_classes: int, background_label: int, top_k: int, keep_top_k: int, share_location: bool,
    variance_encoded: bool, center_size: bool, nms_threshold: float, confidence_threshold: float,
    clip_before: bool, clip_after: bool, decrease_label: bool, normalized: bool,
    input_size: tuple[int, int], objectness_threshold: float,
) -> Array:  # fmt: skip
    """Return the detections of a network that refines prior boxes (SSD), of shape (1, 1, rows, 7).

    A row is (image, class, score, x1, y1, x2, y2). Rows are sorted by image, class and falling
    score. The row after the last detection has the image -1, and further rows are zeros.

    `locations` has the changes of the prior boxes, `confidences` has a score for each box and
    class, and `priors` has the boxes and, unless `variance_encoded` is true, the variances that
    are factors of the changes. If `share_location` is true, all classes of a box have the same
    location. Boxes suppress each other only within a class, of which the `top_k` best boxes are
    compared. Of all classes of an image the `keep_top_k` best boxes remain. If `decrease_label`
    is true, a box is only in its best class, and class numbers begin at 0.
    """
    dtype = jnp.asarray(locations).dtype
    locations, confidences, priors = (
        widened(jnp.asarray(x)) for x in (locations, confidences, priors)
    )
    batch = locations.shape[0]
    count = _prior_count(priors.shape, normalized)
    location_sets = 1 if share_location else num_classes
    height, width = input_size
    size = jnp.asarray([width, height, width, height], priors.dtype)
    boxes, variances = _boxes(priors, count, normalized, variance_encoded, size)
    offsets = locations.reshape(batch, count, location_sets, 4)
    scores = confidences.reshape(batch, count, num_classes)
    if anchor_confidences is not False:
        objectness = widened(jnp.asarray(anchor_confidences)).reshape(batch, count, 2)[..., 1]
        is_empty = objectness < objectness_threshold
        scores = _background_where(is_empty, scores, background_label)
    boxes = jnp.broadcast_to(boxes, (batch, *boxes.shape[1:]))
    variances = jnp.broadcast_to(variances, (batch, *variances.shape[1:]))
    if anchor_locations is not False:
        moves = widened(jnp.asarray(anchor_locations)).reshape(batch, count, 1, 4)
        boxes = _decoded(boxes[:, :, None], variances[:, :, None], moves, center_size)[:, :, 0]
    decoded = _decoded(boxes[:, :, None], variances[:, :, None], offsets, center_size)
    if clip_before:
        decoded = jnp.clip(decoded, 0, 1)
    most = _limited(count, top_k)
    keep = _rows_of_an_image(count, num_classes, top_k, keep_top_k)

    def eligible_boxes(scores: Array) -> Array:
        """Return the mask (boxes, classes) of the boxes of an image that may become detections.

        `scores` has the shape (boxes, classes). A box may become a detection of a class if its
        score is above the threshold and the class is not the background. With `decrease_label`
        the class must also be the best one of the box.
        """
        eligible = scores > confidence_threshold
        if decrease_label:
            best_class = jnp.argmax(scores[:, 1:], axis=1) + 1
            is_confident = scores >= confidence_threshold
            eligible = is_confident & (jnp.arange(num_classes)[None, :] == best_class[:, None])
            best_score = jnp.where(eligible, scores, -jnp.inf).max(axis=1)
            eligible = eligible & _best_mask(best_score, jnp.isfinite(best_score), most)[:, None]
        if background_label >= 0:
            eligible = eligible & (jnp.arange(num_classes) != background_label)[None, :]
        return eligible

    def detections(decoded: Array, scores: Array) -> tuple[Array, Array]:
        """Return rows (keep, 6) with an image's detections, and the mask (keep,) of filled rows.

        A row is (class, score, x1, y1, x2, y2). `decoded` has the shape (boxes, location sets,
        4), and `scores` has the shape (boxes, classes).
        """

        def suppressed_in_class(score: Array, eligible: Array, label: Array) -> Array:
            sides = decoded[:, jnp.minimum(label, location_sets - 1)]
            eligible = _best_mask(score, eligible, most)
            return suppressed(sides, score, eligible, most, nms_threshold)

        eligible = eligible_boxes(scores)
        classes = jnp.arange(num_classes)
        chosen = jax.vmap(suppressed_in_class)(scores.T, eligible.T, classes)  # (classes, most)
        is_box = chosen >= 0
        values = jnp.take_along_axis(scores.T, jnp.maximum(chosen, 0), axis=1)
        filled = _best_mask(values.reshape(-1), is_box.reshape(-1), keep)
        labels = jnp.broadcast_to(classes[:, None], chosen.shape).reshape(-1)
        index = jnp.maximum(chosen.reshape(-1), 0)
        box = decoded[index, jnp.minimum(labels, location_sets - 1)]
        if decrease_label:
            labels = labels - 1
        labels = labels[:, None].astype(box.dtype)
        rows = jnp.concatenate([labels, values.reshape(-1, 1), box], axis=1)
        missing = max(keep - len(rows), 0)
        rows, filled = filled_first(rows, filled)
        rows = jnp.pad(rows, [(0, missing), (0, 0)])
        filled = jnp.pad(filled, [(0, missing)])
        return rows[:keep], filled[:keep]

    rows, filled = jax.vmap(detections)(decoded, scores)  # (batch, keep, 6)
    if clip_after:
        rows = rows.at[..., 2:].set(jnp.clip(rows[..., 2:], 0, 1))
    return _rows_of_all_images(rows, filled).astype(dtype).reshape(1, 1, -1, 7)


def _background_where(is_empty: Array, scores: Array, background_label: int) -> Array:
    """Return `scores` (batch, boxes, classes), changed for boxes without an object.

    Where `is_empty` (batch, boxes) is true, the score of the background is 1 and all others are
    0.
    """
    is_background = jnp.arange(scores.shape[-1]) == background_label
    background = is_background.astype(scores.dtype)[None, None, :]
    return jnp.where(is_empty[..., None], background, scores)


def _rows_of_all_images(rows: Array, filled: Array) -> Array:
    """Put the image's number before each of the rows (batch, keep, 6), and move filled rows first.

    The result has the shape (batch * keep, 7). `filled` (batch, keep) tells which rows are
    filled. The row after the last filled row has the image -1, and further rows are zeros.
    """
    batch, keep, _ = rows.shape
    images = jnp.broadcast_to(jnp.arange(batch)[:, None, None], (batch, keep, 1))
    rows = jnp.concatenate([images.astype(rows.dtype), rows], axis=2).reshape(-1, 7)
    rows, filled = filled_first(rows, filled.reshape(-1))
    rows = jnp.where(filled[:, None], rows, 0.0)
    end = jnp.arange(len(rows)) == jnp.sum(filled)
    return rows.at[:, 0].set(jnp.where(end, -1.0, rows[:, 0]))


def _best_mask(scores: Array, eligible: Array, most: int) -> Array:
    """Return the mask of the `most` largest scores among the eligible scores.

    `scores`, `eligible` and the mask have the shape (n,). Of equal scores the first win.
    """
    if most >= len(scores):
        return eligible
    order = jnp.argsort(jnp.where(eligible, -scores, jnp.inf), stable=True)
    rank = jnp.zeros(len(scores), jnp.int32)
    rank = rank.at[order].set(jnp.arange(len(scores), dtype=jnp.int32))
    return eligible & (rank < most)


def _boxes(
    priors: Array, count: int, normalized: bool, variance_encoded: bool, size: Array
) -> tuple[Array, Array]:
    """Return prior boxes and their variances, each of shape (1 or batch, count, 4).

    `priors` has the shape (1 or batch, 2, count * 4), with the boxes and then the variances. If
    `variance_encoded` is true, there are only boxes, and the variances are 1. If `normalized`
    is false, a box has five items, of which the first is an image, and its ends are divided by
    `size`.
    """
    batch = priors.shape[0]
    items = 4 if normalized else 5  # the first of five items is the image
    rows = priors.reshape(batch, -1, count, items)[..., items - 4 :]
    boxes = rows[:, 0]
    if not normalized:
        boxes = boxes / size[None, None, :]
    if variance_encoded:
        return boxes, jnp.ones_like(boxes)
    # Variances have four items for each box, even if boxes have five items.
    variances = priors.reshape(batch, 2, -1)[:, 1, : 4 * count]
    return boxes, variances.reshape(batch, count, 4)


def _decoded(boxes: Array, variances: Array, offsets: Array, center_size: bool) -> Array:
    if not center_size:
        return boxes + variances * offsets
    low = boxes[..., :2]
    high = boxes[..., 2:]
    extent = high - low
    centre = (low + high) / 2
    centre = variances[..., :2] * offsets[..., :2] * extent + centre
    extent = jnp.exp(variances[..., 2:] * offsets[..., 2:]) * extent
    return jnp.concatenate([centre - extent / 2, centre + extent / 2], axis=-1)


def _proposal_type(
    scores: TensorType, deltas: TensorType, image: TensorType, anchors: tuple[float, ...],
    feature_stride: int, pre_nms: int, post_nms: int,
) -> tuple[TensorType, TensorType]:  # fmt: skip
    require.same_dtype(require.floating, scores=scores, deltas=deltas)
    require.layout("[B,2A,H,W]", scores=scores)
    count = len(anchors) // 4
    require.length("anchors", anchors, 4 * count, f"ends of {count} boxes")
    require.not_negative(post_nms=post_nms)
    require.int32(feature_stride=feature_stride, pre_nms=pre_nms, post_nms=post_nms)
    require.floating(image=image)
    if volume(image.shape) < 3:
        raise InvalidShape(f"'image' {show(image.shape)} must have height, width and scales")
    batch, _, height, width = scores.shape
    require.shape("deltas", deltas, (batch, 4 * count, height, width), "4 for each anchor")
    require.indexable(scores=scores, deltas=deltas)
    require.shape("scores", scores, (batch, 2 * count, height, width), "2 for each anchor")
    rows = batch * post_nms
    return TensorType((rows, 5), scores.dtype), TensorType((rows,), scores.dtype)


@rules.rule("proposal", _proposal_type, not_differentiable=_CHOICES)
def proposal(
    scores: Array, deltas: Array, image: Array, anchors: tuple[float, ...], feature_stride: int,
    min_size: float, pre_nms: int, post_nms: int, nms_threshold: float,
    coordinate_scale: float = 1.0, size_scale: float = 1.0, pixel_offset: float = 1.0,
    clips_before: bool = True, clips_after: bool = False, clips_anchors: bool = False,
    swaps: bool = False, truncates: bool = False, normalizes: bool = False,
    later_ties: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the best regions (image, x1, y1, x2, y2) and their scores.

    The results have the shapes (batch * post_nms, 5) and (batch * post_nms,). `scores` has the
    shape (batch, 2 * anchors, height, width), of which the second half is for objects, and
    `deltas` has the shape (batch, 4 * anchors, height, width). `anchors` are boxes x1, y1, x2,
    y2 relative to the position of an item. `image` has three or four items: the height, the
    width, and one or two factors of `min_size`, the least extents of a region.

    If `swaps` is true, y is before x in anchors, deltas and regions, as in TensorFlow. The row
    after the last region of an image has the image -1, and the image's further rows are zeros.
    """
    dtype = jnp.asarray(scores).dtype
    scores, deltas = (widened(jnp.asarray(x)) for x in (scores, deltas))
    info = widened(jnp.asarray(image)).reshape(-1)
    batch, _, height, width = scores.shape
    anchor_boxes = jnp.asarray(np.array(anchors, np.float32).reshape(1, 1, -1, 4), scores.dtype)
    count = anchor_boxes.shape[2]
    shifts = _shifts(height, width, feature_stride, scores.dtype, swaps)
    boxes = shifts + anchor_boxes  # (height, width, anchors, 4)
    extents = info[:2]  # height, width
    limits = extents if swaps else extents[::-1]
    limits = jnp.concatenate([limits, limits])
    has_two_scales = info.shape[0] > 3
    first_scale = info[3 if has_two_scales else 2]
    smallest = jnp.stack([first_scale, info[2]]) * min_size

    def clipped(boxes: Array, offset: float = pixel_offset) -> Array:
        ends = (limits - offset).reshape((1,) * (boxes.ndim - 1) + (4,))
        return jnp.minimum(jnp.maximum(boxes, 0), ends)

    def moved(delta: Array) -> Array:
        """Return the boxes (height, width, anchors, 4) of an image, moved and scaled by its deltas.

        `delta` has the shape (4 * anchors, height, width).
        """
        moves = delta.reshape(count, 4, height, width).transpose(2, 3, 0, 1)
        start = clipped(boxes) if clips_anchors else boxes
        extent = start[..., 2:] - start[..., :2] + pixel_offset
        centre = start[..., :2] + extent / 2
        centre = moves[..., :2] / coordinate_scale * extent + centre
        extent = jnp.exp(moves[..., 2:] / size_scale) * extent
        regions = jnp.concatenate([centre - extent / 2, centre + extent / 2], axis=-1)
        return clipped(regions) if clips_before else regions

    def best_regions(score: Array, delta: Array) -> tuple[Array, Array, Array]:
        """Return the best regions of an image, their scores, and whether each row has a region.

        `score` has the shape (2 * anchors, height, width), and `delta` the shape (4 * anchors,
        height, width). The results have `post_nms` rows.
        """
        regions = moved(delta).reshape(-1, 4)
        values = score[count:].transpose(1, 2, 0).reshape(-1)
        sizes = regions[:, 2:] - regions[:, :2] + pixel_offset
        if truncates:
            sizes = jnp.trunc(sizes)
        fits = jnp.all(sizes >= smallest[None], axis=-1)
        if truncates:
            fits = fits & (values > 0)
        if later_ties:
            regions, values, fits = regions[::-1], values[::-1], fits[::-1]
        if truncates:
            ranked = values
            eligible = fits
        else:
            ranked = jnp.where(fits, values, 0.0)
            eligible = jnp.ones_like(fits)
        if pre_nms > 0:
            eligible = _best_mask(ranked, eligible, pre_nms)
        shared = partial(overlap, offset=pixel_offset)
        chosen = suppressed(regions, ranked, eligible, post_nms, nms_threshold, shared)
        filled = chosen >= 0
        best = regions[jnp.maximum(chosen, 0)]
        if clips_after:
            best = clipped(best, 0.0)
        if normalizes:
            best = best / limits[None]
        best = jnp.where(filled[:, None], best, 0.0)
        return best, jnp.where(filled, ranked[chosen], 0.0), filled

    regions, values, filled = jax.vmap(best_regions)(scores, deltas)
    images = jnp.broadcast_to(jnp.arange(batch, dtype=regions.dtype)[:, None], filled.shape)
    end = jnp.arange(post_nms)[None, :] == jnp.sum(filled, axis=1, keepdims=True)
    images = jnp.where(filled, images, jnp.where(end, -1.0, 0.0))
    rows = jnp.concatenate([images[..., None], regions], axis=-1)
    return rows.reshape(-1, 5).astype(dtype), values.reshape(-1).astype(dtype)


def _shifts(
    height: int, width: int, stride: int, dtype: np.dtype[np.generic], swaps: bool
) -> Array:
    """Return the positions of all items, as shifts (height, width, 1, 4) of anchor boxes.

    Positions are multiples of `stride`. A shift is x, y, x, y, or y, x, y, x if `swaps` is
    true.
    """
    grid = (height, width, 1)
    y = lax.broadcasted_iota(dtype, grid, 0) * stride
    x = lax.broadcasted_iota(dtype, grid, 1) * stride
    ends = [y, x] if swaps else [x, y]
    return jnp.stack([*ends, *ends], axis=-1)


def _decoder_type(probabilities: TensorType, mask: TensorType) -> TensorType:
    require.floating(probabilities=probabilities)
    require.layout("[T,B,C]", probabilities=probabilities)
    time, batch, _ = probabilities.shape
    require.shape("mask", mask, (time, batch), "it says which steps a sequence has")
    return TensorType((batch, time, 1, 1), probabilities.dtype)


@rules.rule("ctc_greedy_decoder", _decoder_type, not_differentiable="its results are indices")
def ctc_greedy_decoder(probabilities: Array, mask: Array, merges: bool) -> Array:
    """Return the classes of the most probable path without blanks, followed by -1.

    `probabilities` has the shape (time steps, batch, classes), `mask` has the shape (time
    steps, batch), and the result has the shape (batch, time steps, 1, 1). The last class is the
    blank. If `merges` is true, equal neighbours become one class. A sequence ends before the
    first 0 of its mask, but has at least the first time step (Graves et al. 2006).
    """
    x, mask = jnp.asarray(probabilities), jnp.asarray(mask)
    time, _, classes = x.shape
    best = jnp.argmax(x, axis=2).astype(jnp.int32)
    is_inside = jnp.where(jnp.arange(time)[:, None] == 0, True, mask != 0)
    is_inside = jnp.cumprod(is_inside.astype(jnp.int32), axis=0) > 0
    before = jnp.concatenate([jnp.full_like(best[:1], -1), best[:-1]])
    is_label = is_inside & (best != classes - 1)
    if merges:
        is_label = is_label & (best != before)

    def packed(best: Array, is_label: Array) -> Array:
        rows, filled = filled_first(best, is_label)
        return jnp.where(filled, rows, -1)

    paths = jax.vmap(packed, (1, 1))(best, is_label)
    return paths.astype(x.dtype)[:, :, None, None]
