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
from lowering.kernels.suppression import best_mask, filled_first, overlap, suppressed
from lowering.ops import require, rules

_CHOICES = "it chooses boxes"


def _detection_type(
    locations: TensorType, confidences: TensorType, priors: TensorType,
    anchor_confidences: TensorType, anchor_locations: TensorType, num_classes: int,
    background_label: int, top_k: int, keep_top_k: int, share_location: bool,
    variance_encoded: bool, normalized: bool, input_size: tuple[int, int],
) -> TensorType:  # fmt: skip
    """Check the arguments of `detection_output`, and return the type of its result."""
    require.length("input_size", input_size, 2, "a height and a width")
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
    """Return the number of prior boxes. `shape` is the shape of the operand with the boxes."""
    items_of_a_box = 4 if normalized else 5  # unless normalized, an image number comes first
    return shape[-1] // items_of_a_box


def _rows_of_an_image(boxes: int, classes: int, top_k: int, keep_top_k: int) -> int:
    """Return the largest number of detections of an image.

    The number is `keep_top_k` if `keep_top_k` is positive. If not, each class may have a detection
    for each box, but at most `top_k` detections if `top_k` is positive.
    """
    if keep_top_k > 0:
        return keep_top_k
    return classes * _limited(boxes, top_k)


def _limited(boxes: int, top_k: int) -> int:
    """Return the number of boxes, but at most `top_k` if `top_k` is positive."""
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
    score. The row after the last detection has the image -1, and the rows after it are zeros.

    `locations` has the changes of the prior boxes, and `confidences` has a score for each box and
    class. `priors` has the boxes, and the variances, by which the changes are multiplied. Boxes
    suppress each other only within a class. Of each class the `top_k` best boxes are compared,
    and of all classes of an image the `keep_top_k` best boxes remain.

    - `anchor_locations`: changes that are applied to the prior boxes first, or False
    - `anchor_confidences`: two scores for each box, or False. If the second one is below
      `objectness_threshold`, the box is only in the class `background_label`.
    - `share_location`: whether all classes of a box have one location
    - `variance_encoded`: whether `priors` has no variances
    - `center_size`: whether changes are for the centre and the extents, instead of the corners
    - `clip_before`: whether all boxes are clipped to [0, 1]
    - `clip_after`: whether the detections are clipped to [0, 1]
    - `decrease_label`: whether a box is only in its best class, and class numbers begin at 0
    - `normalized`: whether prior boxes are divided by the input's extents already. Otherwise they
      are divided here by `input_size` (height, width).
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
    boxes, variances = _boxes_and_variances(priors, count, normalized, variance_encoded, size)
    offsets = locations.reshape(batch, count, location_sets, 4)
    scores = confidences.reshape(batch, count, num_classes)
    if anchor_confidences is not False:
        # An anchor has two scores, of which the second one is for an object.
        objectness = widened(jnp.asarray(anchor_confidences)).reshape(batch, count, 2)[..., 1]
        is_empty = objectness < objectness_threshold
        scores = _with_empty_boxes(scores, is_empty, background_label)
    boxes = jnp.broadcast_to(boxes, (batch, *boxes.shape[1:]))
    variances = jnp.broadcast_to(variances, (batch, *variances.shape[1:]))
    if anchor_locations is not False:
        # The boxes are refined twice: here for all classes, and then by `locations`.
        moves = widened(jnp.asarray(anchor_locations)).reshape(batch, count, 1, 4)
        boxes = _decoded(boxes[:, :, None], variances[:, :, None], moves, center_size)[:, :, 0]
    decoded = _decoded(boxes[:, :, None], variances[:, :, None], offsets, center_size)
    if clip_before:
        decoded = jnp.clip(decoded, 0, 1)
    detections = partial(
        _detections_of_image,
        background_label=background_label,
        decrease_label=decrease_label,
        confidence_threshold=confidence_threshold,
        nms_threshold=nms_threshold,
        most=_limited(count, top_k),
        keep=_rows_of_an_image(count, num_classes, top_k, keep_top_k),
    )
    rows, is_filled = jax.vmap(detections)(decoded, scores)  # (batch, keep, 6)
    if clip_after:
        rows = rows.at[..., 2:].set(jnp.clip(rows[..., 2:], 0, 1))
    return _rows_of_all_images(rows, is_filled).astype(dtype).reshape(1, 1, -1, 7)


def _detections_of_image(
    boxes: Array, scores: Array, *, background_label: int, decrease_label: bool,
    confidence_threshold: float, nms_threshold: float, most: int, keep: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return rows (keep, 6) with an image's detections, and the mask (keep,) of filled rows.

    A row is (class, score, x1, y1, x2, y2). `boxes` has the shape (boxes, location sets, 4), and
    `scores` has the shape (boxes, classes). Of each class the `most` best boxes are compared. The
    other parameters are as in `detection_output`.
    """
    location_sets = boxes.shape[1]
    classes = jnp.arange(scores.shape[1])

    def chosen_of_class(class_scores: Array, eligible: Array, label: Array) -> Array:
        """Return the indices (most,) of the boxes of a class that are not suppressed."""
        # If all classes share the locations, there is only the set 0.
        class_boxes = boxes[:, jnp.minimum(label, location_sets - 1)]
        eligible = best_mask(class_scores, eligible, most)
        return suppressed(class_boxes, class_scores, eligible, most, nms_threshold)

    if decrease_label:
        eligible = _best_class_mask(scores, confidence_threshold, most)
    else:
        eligible = scores > confidence_threshold
    if background_label >= 0:
        eligible = eligible & (classes[None, :] != background_label)
    chosen = jax.vmap(chosen_of_class)(scores.T, eligible.T, classes)
    is_box = chosen >= 0  # (classes, most)
    chosen_scores = jnp.take_along_axis(scores.T, jnp.maximum(chosen, 0), axis=1)
    # From here on, the boxes of all classes lie along one axis.
    is_filled = best_mask(chosen_scores.reshape(-1), is_box.reshape(-1), keep)
    labels = jnp.broadcast_to(classes[:, None], chosen.shape).reshape(-1)
    box_index = jnp.maximum(chosen.reshape(-1), 0)
    chosen_boxes = boxes[box_index, jnp.minimum(labels, location_sets - 1)]
    shown_labels = labels - 1 if decrease_label else labels
    label_column = shown_labels[:, None].astype(chosen_boxes.dtype)
    columns = [label_column, chosen_scores.reshape(-1, 1), chosen_boxes]
    rows, is_filled = filled_first(jnp.concatenate(columns, axis=1), is_filled)
    # If there are fewer rows than `keep`, empty rows follow.
    missing = max(keep - len(rows), 0)
    rows = jnp.pad(rows, [(0, missing), (0, 0)])
    is_filled = jnp.pad(is_filled, [(0, missing)])
    return rows[:keep], is_filled[:keep]


def _best_class_mask(scores: Array, threshold: float, most: int) -> Array:
    """Return the mask (boxes, classes) of the best class of each of the `most` best boxes.

    `scores` has the shape (boxes, classes). Class 0 is the background, which is not compared. A box
    without a score of at least the threshold has no best class.
    """
    class_numbers = jnp.arange(scores.shape[1])[None, :]
    best_class = jnp.argmax(scores[:, 1:], axis=1) + 1
    is_confident = scores >= threshold
    is_best_class = is_confident & (class_numbers == best_class[:, None])
    # The best score is -inf for a box without a best class.
    best_score = jnp.where(is_best_class, scores, -jnp.inf).max(axis=1)
    is_among_best = best_mask(best_score, jnp.isfinite(best_score), most)
    return is_best_class & is_among_best[:, None]


def _with_empty_boxes(scores: Array, is_empty: Array, background_label: int) -> Array:
    """Return `scores` (batch, boxes, classes), changed for boxes without an object.

    Where `is_empty` (batch, boxes) is true, the score of the class `background_label` becomes 1,
    and all other scores become 0.
    """
    is_background = jnp.arange(scores.shape[-1]) == background_label
    background_scores = is_background.astype(scores.dtype)[None, None, :]
    return jnp.where(is_empty[..., None], background_scores, scores)


def _rows_of_all_images(rows: Array, filled: Array) -> Array:
    """Put the image's number before each of the rows (batch, keep, 6), and move filled rows first.

    The result has the shape (batch * keep, 7). `filled` (batch, keep) tells which rows are
    filled. The row after the last filled row has the image -1, and the rows after it are zeros.
    """
    batch, keep, _ = rows.shape
    images = jnp.broadcast_to(jnp.arange(batch)[:, None, None], (batch, keep, 1))
    numbered = jnp.concatenate([images.astype(rows.dtype), rows], axis=2).reshape(-1, 7)
    numbered, is_filled = filled_first(numbered, filled.reshape(-1))
    numbered = jnp.where(is_filled[:, None], numbered, 0.0)
    is_end = jnp.arange(len(numbered)) == jnp.sum(is_filled)
    image_column = jnp.where(is_end, -1.0, numbered[:, 0])
    return numbered.at[:, 0].set(image_column)


def _boxes_and_variances(
    priors: Array, count: int, normalized: bool, variance_encoded: bool, size: Array
) -> tuple[Array, Array]:
    """Return prior boxes and their variances, each of shape (1 or batch, count, 4).

    `priors` has the shape (1 or batch, 2, count * 4), with the boxes and then the variances. If
    `variance_encoded` is true, there are only boxes, and the variances are 1. If `normalized`
    is false, a box has five items: the number of an image, and four ends, which are divided
    here by `size`.
    """
    batch = priors.shape[0]
    items_of_a_box = 4 if normalized else 5
    boxes = priors.reshape(batch, -1, count, items_of_a_box)[:, 0]
    if not normalized:
        ends = boxes[..., 1:]  # without the image
        boxes = ends / size[None, None, :]
    if variance_encoded:
        return boxes, jnp.ones_like(boxes)
    # Variances have four items for each box, even if boxes have five items.
    variances = priors.reshape(batch, 2, -1)[:, 1, : 4 * count]
    return boxes, variances.reshape(batch, count, 4)


def _decoded(boxes: Array, variances: Array, offsets: Array, center_size: bool) -> Array:
    """Return boxes (..., 4) that are moved and scaled by changes. A change is variance * offset.

    If `center_size` is false, the changes are added to the corners. If `center_size` is true, the
    first two changes move the centre by change * extent, and the last two changes scale the extents
    by exp(change).
    """
    changes = variances * offsets
    if not center_size:
        return boxes + changes
    low = boxes[..., :2]
    high = boxes[..., 2:]
    extent = high - low
    new_centre = changes[..., :2] * extent + (low + high) / 2
    new_extent = jnp.exp(changes[..., 2:]) * extent
    return jnp.concatenate([new_centre - new_extent / 2, new_centre + new_extent / 2], axis=-1)


def _proposal_type(
    scores: TensorType, deltas: TensorType, image: TensorType, anchors: tuple[float, ...],
    feature_stride: int, pre_nms: int, post_nms: int,
) -> tuple[TensorType, TensorType]:  # fmt: skip
    """Check the arguments of `proposal`, and return the types of its results."""
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
    shape (batch, 2 * anchors, height, width). Along axis 1, the second half of the scores is for
    objects. `deltas` has the shape (batch, 4 * anchors, height, width). `anchors` are boxes x1, y1,
    x2, y2 relative to the position of an item. The distance of two positions is `feature_stride`.
    `image` has three or four items: the height, the width, and one or two scales. A region should
    have at least the extents `min_size` * scale. The `pre_nms` best regions of an image are
    compared. The row after the last region of an image has the image -1, and the rows of the image
    after it are zeros.

    - `coordinate_scale`, `size_scale`: the numbers by which deltas are divided
    - `pixel_offset`: the number that is added to the difference of two ends to give an extent
    - `clips_anchors`: whether anchors are clipped to the image
    - `clips_before`: whether all regions are clipped to the image
    - `clips_after`: whether the selected regions are clipped to the image
    - `swaps`: whether y is before x in anchors, deltas and regions, as in TensorFlow
    - `truncates`: whether extents are truncated to integers, and regions that are too small or
      have no positive score are left out. Otherwise a region that is too small has the score 0.
    - `normalizes`: whether regions are divided by the extents of the image
    - `later_ties`: whether of equal scores the last wins
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
    corner_limits = extents if swaps else extents[::-1]
    limits = jnp.concatenate([corner_limits, corner_limits])
    # Item 2 of `info` is the scale of the second extent. Item 3, if there is one, is the scale of
    # the first extent.
    has_two_scales = info.shape[0] > 3
    first_scale = info[3] if has_two_scales else info[2]
    smallest = jnp.stack([first_scale, info[2]]) * min_size

    ends = limits - pixel_offset
    if clips_anchors:
        boxes = _clipped(boxes, ends)

    def best_regions(image_scores: Array, image_deltas: Array) -> tuple[Array, Array, Array]:
        """Return the best regions of an image, their scores, and whether each row has a region.

        `image_scores` has the shape (2 * anchors, height, width), and `image_deltas` the shape
        (4 * anchors, height, width). The results have `post_nms` rows.
        """
        # The moves have the shape (height, width, anchors, 4).
        moves = image_deltas.reshape(count, 4, height, width).transpose(2, 3, 0, 1)
        centre_moves = moves[..., :2] / coordinate_scale
        log_factors = moves[..., 2:] / size_scale
        regions = _moved(boxes, centre_moves, log_factors, pixel_offset)
        if clips_before:
            regions = _clipped(regions, ends)
        regions = regions.reshape(-1, 4)
        object_scores = image_scores[count:].transpose(1, 2, 0).reshape(-1)
        sizes = regions[:, 2:] - regions[:, :2] + pixel_offset
        if truncates:
            is_large = jnp.all(jnp.trunc(sizes) >= smallest[None], axis=-1)
            ranked_scores = object_scores
            eligible = is_large & (object_scores > 0)
        else:
            is_large = jnp.all(sizes >= smallest[None], axis=-1)
            ranked_scores = jnp.where(is_large, object_scores, 0.0)
            eligible = jnp.ones_like(is_large)
        if later_ties:
            # Of equal scores, the first one wins. Here the last one must win, so the order is
            # reversed.
            regions, ranked_scores, eligible = regions[::-1], ranked_scores[::-1], eligible[::-1]
        if pre_nms > 0:
            eligible = best_mask(ranked_scores, eligible, pre_nms)
        overlap_of = partial(overlap, offset=pixel_offset)
        chosen = suppressed(regions, ranked_scores, eligible, post_nms, nms_threshold, overlap_of)
        is_filled = chosen >= 0
        best = regions[jnp.maximum(chosen, 0)]
        if clips_after:
            best = _clipped(best, limits)
        if normalizes:
            best = best / limits[None]
        best = jnp.where(is_filled[:, None], best, 0.0)
        return best, jnp.where(is_filled, ranked_scores[chosen], 0.0), is_filled

    regions, region_scores, is_filled = jax.vmap(best_regions)(scores, deltas)
    images = jnp.broadcast_to(jnp.arange(batch, dtype=regions.dtype)[:, None], is_filled.shape)
    # The row after the last region of an image has the image -1.
    is_end = jnp.arange(post_nms)[None, :] == jnp.sum(is_filled, axis=1, keepdims=True)
    images_after = jnp.where(is_end, -1.0, 0.0)
    image_column = jnp.where(is_filled, images, images_after)[..., None]
    rows = jnp.concatenate([image_column, regions], axis=-1)
    return rows.reshape(-1, 5).astype(dtype), region_scores.reshape(-1).astype(dtype)


def _clipped(boxes: Array, ends: Array) -> Array:
    """Clip each end of boxes (..., 4) to the range from 0 to the end's item of `ends` (4,)."""
    ones = (1,) * (boxes.ndim - 1)
    return jnp.minimum(jnp.maximum(boxes, 0), ends.reshape(*ones, 4))


def _moved(boxes: Array, moves: Array, log_factors: Array, pixel_offset: float) -> Array:
    """Return boxes (..., 4) that are moved by move * extent, and scaled by exp(log_factor).

    An extent is the difference of two ends plus `pixel_offset`.
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    extent = high - low + pixel_offset
    new_centre = moves * extent + (low + extent / 2)
    new_extent = jnp.exp(log_factors) * extent
    return jnp.concatenate([new_centre - new_extent / 2, new_centre + new_extent / 2], axis=-1)


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
    """Check the arguments of `ctc_greedy_decoder`, and return the type of its result."""
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
    x = jnp.asarray(probabilities)
    mask = jnp.asarray(mask)
    step_count, _, class_count = x.shape
    best = jnp.argmax(x, axis=2).astype(jnp.int32)
    is_first = jnp.arange(step_count)[:, None] == 0
    has_step = is_first | (mask != 0)
    is_inside = jnp.cumprod(has_step.astype(jnp.int32), axis=0) > 0
    previous = jnp.concatenate([jnp.full_like(best[:1], -1), best[:-1]])
    is_label = is_inside & (best != class_count - 1)
    if merges:
        is_label = is_label & (best != previous)

    def packed(path: Array, is_label: Array) -> Array:
        """Return the labels of a path, followed by -1."""
        classes, is_filled = filled_first(path, is_label)
        return jnp.where(is_filled, classes, -1)

    paths = jax.vmap(packed, in_axes=(1, 1))(best, is_label)
    return paths.astype(x.dtype)[:, :, None, None]
