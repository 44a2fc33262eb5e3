"""Detections and proposals: the best of the boxes that a network refines; results have fixed sizes.

Sources: SSD, Liu et al. 2016, arXiv:1512.02325; Faster R-CNN, Ren et al. 2015, arXiv:1506.01497;
DetectionOutput, Proposal and CTCGreedyDecoder of OpenVINO's operation sets.
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
from lowering.kernels.suppression import first, overlap, suppressed
from lowering.ops import require, rules

_CHOICES = "it chooses boxes"


def _detection_type(
    locations: TensorType, confidences: TensorType, priors: TensorType,
    anchor_confidences: TensorType, anchor_locations: TensorType, num_classes: int,
    background_label: int, top_k: int, keep_top_k: int, share_location: bool,
    variance_encoded: bool, normalized: bool,
) -> TensorType:  # fmt: skip
    sets = 1 if share_location else num_classes
    if num_classes < 1:
        raise InvalidOperation(f"'num_classes' must be positive, it is {num_classes}")
    items = {
        "locations": (locations, 4 * sets),
        "confidences": (confidences, num_classes),
        "anchor_confidences": (anchor_confidences, 2),
        "anchor_locations": (anchor_locations, 4),
    }
    items = {name: item for name, item in items.items() if item[0] != ABSENT}
    operands = {name: operand for name, (operand, _) in items.items()}
    require.same_dtype(require.real, priors=priors, **operands)
    require.layout("[B,K,N]", priors=priors)
    batch, boxes = (locations.shape or (UNKNOWN,))[0], _priors(priors.shape, normalized)
    for name, (operand, each) in items.items():
        if not operand.shape or differ(volume(operand.shape[1:]), boxes * each):
            raise InvalidShape(
                f"'{name}' {show(operand.shape)} must have {each} items for each of {boxes} boxes"
            )
        if differ(operand.shape[0], batch):
            raise InvalidShape(f"'{name}' {show(operand.shape)} must have {batch} images")
    if differ(priors.shape[0], 1) and differ(priors.shape[0], batch):
        raise InvalidShape(f"'priors' {show(priors.shape)} must have 1 or {batch} images")
    if differ(priors.shape[1], 1 if variance_encoded else 2):
        kinds = "boxes alone" if variance_encoded else "boxes and variances"
        raise InvalidShape(f"'priors' {show(priors.shape)} must have {kinds}")
    require.int32(top_k=top_k, keep_top_k=keep_top_k, background_label=background_label)
    rows = batch * _rows(boxes, num_classes, top_k, keep_top_k)
    return TensorType((1, 1, rows, 7), locations.dtype)


def _priors(shape: tuple[int, ...], normalized: bool) -> int:
    return shape[-1] // (4 if normalized else 5)


def _rows(boxes: int, classes: int, top_k: int, keep_top_k: int) -> int:
    """Return the largest number of rows of an image."""
    return keep_top_k if keep_top_k > 0 else classes * (min(top_k, boxes) if top_k > 0 else boxes)


@rules.rule("detection_output", _detection_type, not_differentiable=_CHOICES)
def detection_output(
    locations: Array, confidences: Array, priors: Array,
    anchor_confidences: Array | Literal[False], anchor_locations: Array | Literal[False],
    num_classes: int, background_label: int, top_k: int, keep_top_k: int, share_location: bool,
    variance_encoded: bool, center_size: bool, nms_threshold: float, confidence_threshold: float,
    clip_before: bool, clip_after: bool, decrease_label: bool, normalized: bool,
    input_size: tuple[int, int], objectness_threshold: float,
) -> Array:  # fmt: skip
    """Return rows (image, class, score, x1, y1, x2, y2) of detections, [1,1,rows,7].

    Rows are sorted by image, class and falling score. The row behind the last has image -1, further
    rows are zeros. Boxes suppress each other within a class; of all classes the `keep_top_k` best
    remain. With `decrease_label` a box has its best class only, and class numbers begin at 0.
    """
    dtype = jnp.asarray(locations).dtype
    locations, confidences, priors = (
        widened(jnp.asarray(x)) for x in (locations, confidences, priors)
    )
    batch, count = locations.shape[0], _priors(priors.shape, normalized)
    sets = 1 if share_location else num_classes
    size = jnp.asarray([*input_size[::-1], *input_size[::-1]], priors.dtype)
    boxes, variances = _boxes(priors, count, normalized, variance_encoded, size)
    offsets = locations.reshape(batch, count, sets, 4)
    scores = confidences.reshape(batch, count, num_classes)
    if anchor_confidences is not False:
        objectness = widened(jnp.asarray(anchor_confidences)).reshape(batch, count, 2)[..., 1]
        is_background = jnp.arange(num_classes) == background_label
        background = is_background.astype(scores.dtype)[None, None, :]
        scores = jnp.where((objectness < objectness_threshold)[..., None], background, scores)
    boxes, variances = (jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in (boxes, variances))
    if anchor_locations is not False:
        moves = widened(jnp.asarray(anchor_locations)).reshape(batch, count, 1, 4)
        boxes = _decoded(boxes[:, :, None], variances[:, :, None], moves, center_size)[:, :, 0]
    decoded = _decoded(boxes[:, :, None], variances[:, :, None], offsets, center_size)
    if clip_before:
        decoded = jnp.clip(decoded, 0, 1)
    most = min(top_k, count) if top_k > 0 else count
    keep = _rows(count, num_classes, top_k, keep_top_k)

    def of_image(decoded: Array, scores: Array) -> tuple[Array, Array]:
        eligible = scores > confidence_threshold
        if decrease_label:
            best = jnp.argmax(scores[:, 1:], axis=1) + 1
            eligible = (scores >= confidence_threshold) & (
                jnp.arange(num_classes)[None, :] == best[:, None]
            )
            joint = jnp.where(eligible, scores, -jnp.inf).max(axis=1)
            eligible = eligible & _best(joint, jnp.isfinite(joint), most)[:, None]
        if background_label >= 0:
            eligible = eligible & (jnp.arange(num_classes) != background_label)[None, :]

        def of_class(score: Array, eligible: Array, label: Array) -> Array:
            sides = decoded[:, jnp.minimum(label, sets - 1)]
            eligible = _best(score, eligible, most)
            return suppressed(sides, score, eligible, most, nms_threshold)

        classes = jnp.arange(num_classes)
        chosen = jax.vmap(of_class)(scores.T, eligible.T, classes)  # [classes,most]
        is_box = chosen >= 0
        values = jnp.take_along_axis(scores.T, jnp.maximum(chosen, 0), axis=1)
        filled = _best(values.reshape(-1), is_box.reshape(-1), keep)
        labels = jnp.broadcast_to(classes[:, None], chosen.shape).reshape(-1)
        box = decoded[jnp.maximum(chosen.reshape(-1), 0), jnp.minimum(labels, sets - 1)]
        labels = labels - 1 if decrease_label else labels
        rows = jnp.concatenate(
            [labels[:, None].astype(box.dtype), values.reshape(-1, 1), box], axis=1
        )
        missing = max(keep - len(rows), 0)
        rows, filled = first(rows, filled)
        rows, filled = (
            jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in (rows, filled)
        )
        return rows[:keep], filled[:keep]

    rows, filled = jax.vmap(of_image)(decoded, scores)  # [batch,keep,6]
    images = jnp.broadcast_to(jnp.arange(batch)[:, None, None], (batch, keep, 1))
    rows = jnp.concatenate([images.astype(rows.dtype), rows], axis=2).reshape(-1, 7)
    if clip_after:
        rows = rows.at[:, 3:].set(jnp.clip(rows[:, 3:], 0, 1))
    rows, filled = first(rows, filled.reshape(-1))
    rows = jnp.where(filled[:, None], rows, 0.0)
    end = jnp.arange(len(rows)) == jnp.sum(filled)
    rows = rows.at[:, 0].set(jnp.where(end, -1.0, rows[:, 0]))
    return rows.astype(dtype).reshape(1, 1, -1, 7)


def _best(scores: Array, eligible: Array, most: int) -> Array:
    """Return the mask of the `most` best eligible scores; of equal scores the first win."""
    if most >= len(scores):
        return eligible
    order = jnp.argsort(jnp.where(eligible, -scores, jnp.inf), stable=True)
    rank = jnp.zeros(len(scores), jnp.int32).at[order].set(jnp.arange(len(scores), dtype=jnp.int32))
    return eligible & (rank < most)


def _boxes(
    priors: Array, count: int, normalized: bool, variance_encoded: bool, size: Array
) -> tuple[Array, Array]:
    """Return prior boxes and their variances, each [1 or batch,count,4]."""
    items = 4 if normalized else 5
    rows = priors.reshape(priors.shape[0], -1, count, items)[..., items - 4 :]
    boxes = rows[:, 0] if normalized else rows[:, 0] / size[None, None, :]
    if variance_encoded:
        return boxes, jnp.ones_like(boxes)
    # Variances have four items a box even if boxes have five.
    flat = priors.reshape(priors.shape[0], 2, -1)[:, 1, : 4 * count]
    return boxes, flat.reshape(priors.shape[0], count, 4)


def _decoded(boxes: Array, variances: Array, offsets: Array, center_size: bool) -> Array:
    if not center_size:
        return boxes + variances * offsets
    low, high = boxes[..., :2], boxes[..., 2:]
    extent, centre = high - low, (low + high) / 2
    centre = variances[..., :2] * offsets[..., :2] * extent + centre
    extent = jnp.exp(variances[..., 2:] * offsets[..., 2:]) * extent
    return jnp.concatenate([centre - extent / 2, centre + extent / 2], axis=-1)


def _proposal_type(
    scores: TensorType, deltas: TensorType, image: TensorType, anchors: tuple[float, ...],
    feature_stride: int, pre_nms: int, post_nms: int,
) -> tuple[TensorType, TensorType]:  # fmt: skip
    require.same_dtype(require.real, scores=scores, deltas=deltas)
    require.layout("[B,2A,H,W]", scores=scores)
    count = len(anchors) // 4
    require.length("anchors", anchors, 4 * count, f"ends of {count} boxes")
    require.not_negative(post_nms=post_nms)
    require.int32(feature_stride=feature_stride, pre_nms=pre_nms, post_nms=post_nms)
    require.real(image=image)
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

    `anchors` are boxes relative to the position of an item. `image` [1,3 or 4] is height, width and
    one or two scales. With `swaps` y is before x in anchors, deltas and regions, as in TensorFlow.
    The row behind the last region of an image has image -1, further rows are zeros.
    """
    dtype = jnp.asarray(scores).dtype
    scores, deltas = (widened(jnp.asarray(x)) for x in (scores, deltas))
    info = widened(jnp.asarray(image)).reshape(-1)
    batch, _, height, width = scores.shape
    anchor_boxes = jnp.asarray(np.array(anchors, np.float32).reshape(1, 1, -1, 4), scores.dtype)
    count = anchor_boxes.shape[2]
    shift_y, shift_x = (
        lax.broadcasted_iota(scores.dtype, (height, width, 1), axis) * feature_stride
        for axis in (0, 1)
    )
    shifts, limits = [shift_x, shift_y], info[1::-1]
    if swaps:
        shifts, limits = shifts[::-1], info[:2]
    boxes = jnp.stack([*shifts, *shifts], axis=-1) + anchor_boxes  # [h,w,anchors,4]
    limits = jnp.concatenate([limits, limits])
    smallest = jnp.stack([info[3 if info.shape[0] > 3 else 2], info[2]]) * min_size

    def clipped(boxes: Array, offset: float = pixel_offset) -> Array:
        ends = (limits - offset).reshape((1,) * (boxes.ndim - 1) + (4,))
        return jnp.minimum(jnp.maximum(boxes, 0), ends)

    def moved(delta: Array) -> Array:
        """Return the boxes moved by the deltas of an image [h,w,anchors,4]."""
        moves = delta.reshape(count, 4, height, width).transpose(2, 3, 0, 1)
        start = clipped(boxes) if clips_anchors else boxes
        extent = start[..., 2:] - start[..., :2] + pixel_offset
        centre = start[..., :2] + extent / 2
        centre = moves[..., :2] / coordinate_scale * extent + centre
        extent = jnp.exp(moves[..., 2:] / size_scale) * extent
        regions = jnp.concatenate([centre - extent / 2, centre + extent / 2], axis=-1)
        return clipped(regions) if clips_before else regions

    def of_image(score: Array, delta: Array) -> tuple[Array, Array, Array]:
        """Return the best regions of an image, their scores, and whether each row has a region."""
        regions = moved(delta).reshape(-1, 4)
        values = score[count:].transpose(1, 2, 0).reshape(-1)
        sizes = regions[:, 2:] - regions[:, :2] + pixel_offset
        fits = jnp.all((jnp.trunc(sizes) if truncates else sizes) >= smallest[None], axis=-1)
        if truncates:
            fits = fits & (values > 0)
        if later_ties:
            regions, values, fits = regions[::-1], values[::-1], fits[::-1]
        ranked = values if truncates else jnp.where(fits, values, 0.0)
        eligible = fits if truncates else jnp.ones_like(fits)
        eligible = _best(ranked, eligible, pre_nms) if pre_nms > 0 else eligible
        shared = partial(overlap, offset=pixel_offset)
        chosen = suppressed(regions, ranked, eligible, post_nms, nms_threshold, shared)
        filled = chosen >= 0
        best = regions[jnp.maximum(chosen, 0)]
        best = clipped(best, 0.0) if clips_after else best
        best = best / limits[None] if normalizes else best
        best = jnp.where(filled[:, None], best, 0.0)
        return best, jnp.where(filled, ranked[chosen], 0.0), filled

    regions, values, filled = jax.vmap(of_image)(scores, deltas)
    images = jnp.broadcast_to(jnp.arange(batch, dtype=regions.dtype)[:, None], filled.shape)
    end = jnp.arange(post_nms)[None, :] == jnp.sum(filled, axis=1, keepdims=True)
    images = jnp.where(filled, images, jnp.where(end, -1.0, 0.0))
    rows = jnp.concatenate([images[..., None], regions], axis=-1)
    return rows.reshape(-1, 5).astype(dtype), values.reshape(-1).astype(dtype)


def _decoder_type(probabilities: TensorType, mask: TensorType) -> TensorType:
    require.real(probabilities=probabilities)
    require.layout("[T,B,C]", probabilities=probabilities)
    time, batch, _ = probabilities.shape
    require.shape("mask", mask, (time, batch), "it says which steps a sequence has")
    return TensorType((batch, time, 1, 1), probabilities.dtype)


@rules.rule("ctc_greedy_decoder", _decoder_type, not_differentiable="its results are indices")
def ctc_greedy_decoder(probabilities: Array, mask: Array, merges: bool) -> Array:
    """Return the classes of the best path [B,T,1,1], without blanks and padded with -1.

    The last class is blank. With `merges` equal neighbours are one class. A sequence ends before
    the first 0 of its mask, but has the first step at least (Graves et al. 2006).
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
        rows, filled = first(best, is_label)
        return jnp.where(filled, rows, -1)

    paths = jax.vmap(packed, (1, 1))(best, is_label)
    return paths.astype(x.dtype)[:, :, None, None]
