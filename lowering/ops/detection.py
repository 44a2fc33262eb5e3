"""Selects items by value. The results have the indices of the items, in int32.

The number of rows of a result is the largest number of items that may be selected. Rows after the
last selected item hold -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import (
    MAX_EXTENT,
    UNKNOWN,
    differ,
    is_static,
    is_symbolic,
    show,
    volume,
)
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import widened
from lowering.kernels.suppression import overlap, rotated_overlap, softened, suppressed
from lowering.ops import require, rules
from lowering.ops.require import normal_axis
from lowering.tracing import Context

_INDICES = "its results are indices"
_ROTATIONS = ("none", "clockwise", "counterclockwise")


def _suppression_type(
    boxes: TensorType,
    scores: TensorType,
    max_output_boxes_per_class: int,
    score_threshold: TensorType,
) -> TensorType:
    """Check the arguments of `non_max_suppression`, and return the type of its result."""
    require.floating(boxes=boxes, scores=scores)
    require.layout("[batches,boxes,4]", boxes=boxes)
    require.layout("[batches,classes,boxes]", scores=scores)
    if differ(boxes.shape[0], scores.shape[0]) or differ(boxes.shape[1], scores.shape[2]):
        raise InvalidShape(
            f"'boxes' {show(boxes.shape)} and 'scores' {show(scores.shape)} must have as many "
            "batches and boxes",
            hint="'scores' has the shape [batches,classes,boxes]",
        )
    if score_threshold != ABSENT:
        require.same_dtype(scores=scores, score_threshold=score_threshold)
        require.one(score_threshold=score_threshold)
    require.not_negative(max_output_boxes_per_class=max_output_boxes_per_class)
    most = _limited(scores.shape[2], max_output_boxes_per_class)
    return TensorType((scores.shape[0] * scores.shape[1] * most, 3), "int32")


def _limited(boxes: int, limit: int) -> int:
    """Return the smaller one of a number of boxes and a limit. A limit of 0 means no limit."""
    return boxes if boxes is UNKNOWN or limit == 0 else min(boxes, limit)


@rules.rule("non_max_suppression", _suppression_type, not_differentiable=_INDICES)
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: int,
    iou_threshold: float,
    score_threshold: Array | Literal[False],
    center_point_box: bool,
) -> Array:
    """Select boxes of each class by score, and return their indices as rows (batch, class, box).

    `boxes` has the shape (batches, boxes, 4), and `scores` has the shape (batches, classes,
    boxes). A box is left out if its score is not above `score_threshold`, or if its
    intersection over union with a selected box of higher score is above `iou_threshold`. At
    most `max_output_boxes_per_class` boxes of a class are selected, where 0 means no limit,
    unlike in ONNX.

    Rows are sorted by batch, by class and by falling score, and rows with equal scores by box.
    The number of rows is the largest number of boxes that may be selected. Rows after the last
    selected box hold -1.

    A box is given by two opposite corners in any order, as y, x, y, x. If `center_point_box` is
    true, it is given as centre x, centre y, width, height.
    """
    wide_boxes = widened(jnp.asarray(boxes))
    wide_scores = widened(jnp.asarray(scores))
    if wide_scores.size == 0:
        return jnp.zeros((0, 3), jnp.int32)  # there is no box that may be selected
    corners = _corners(wide_boxes, center_point_box)
    most = _limited(wide_boxes.shape[1], max_output_boxes_per_class)
    eligible = jnp.ones(wide_scores.shape, bool)
    if score_threshold is not False:
        eligible = wide_scores > widened(jnp.asarray(score_threshold)).reshape(())

    def select(corners: Array, scores: Array, eligible: Array) -> Array:
        return suppressed(corners, scores, eligible, most, iou_threshold)

    # All classes of an image share the corners.
    select_by_class = jax.vmap(select, in_axes=(None, 0, 0))
    # The indices of boxes have the shape (batches, classes, most).
    box_index = jax.vmap(select_by_class)(corners, wide_scores, eligible)
    rows = _index_rows(box_index)
    is_filled = rows[:, 2] >= 0
    order = jnp.argsort(~is_filled, stable=True)  # filled rows come first
    return jnp.where(is_filled[:, None], rows, -1)[order]


def _index_rows(box_index: Array) -> Array:
    """Return rows (batch, class, box) for indices of boxes (batches, classes, most)."""
    batch_index = lax.broadcasted_iota(jnp.int32, box_index.shape, 0)
    class_index = lax.broadcasted_iota(jnp.int32, box_index.shape, 1)
    return jnp.stack([batch_index, class_index, box_index], axis=-1).reshape(-1, 3)


def _corners(boxes: Array, center_point_box: bool) -> Array:
    """Return boxes (..., 4) as the lower corner and then the upper corner.

    `boxes` has two opposite corners of each box. If `center_point_box` is true, it has the centre
    and the extents of each box instead.
    """
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        return jnp.concatenate([first - second / 2, first + second / 2], axis=-1)
    return jnp.concatenate([jnp.minimum(first, second), jnp.maximum(first, second)], axis=-1)


def _non_zero_type(input: TensorType) -> TensorType:
    require.indexable(input=input)
    return TensorType((len(input.shape), volume(input.shape)), "int32")


@rules.rule("non_zero", _non_zero_type, not_differentiable=_INDICES)
def non_zero(input: Array) -> Array:
    """Return the indices (axes, items) of all non-zero items in row-major order, then -1.

    The result has a column for each item of the input. Columns after the last non-zero item
    hold -1.
    """
    x = jnp.asarray(input)
    (flat_index,) = jnp.nonzero(x.reshape(-1), size=x.size, fill_value=-1)
    flat_index = flat_index.astype(jnp.int32)[None, :]
    # The stride of an axis is the distance of neighbours along this axis in the flat input. With
    # the shape (2, 3) the strides are (3, 1), and the flat index 5 has the indices 5 // 3 % 2 = 1
    # and 5 // 1 % 3 = 2.
    strides: list[Any] = [volume(x.shape[axis + 1 :]) for axis in range(x.ndim)]
    return jnp.where(flat_index < 0, -1, flat_index // _column(strides) % _column(x.shape))


def _column(numbers: Sequence[int]) -> Array:
    """Return numbers, which may be symbolic, as a column of int32."""
    if any(map(is_symbolic, numbers)):
        return jnp.stack([jnp.asarray(n).astype(jnp.int32) for n in numbers])[:, None]
    return jnp.asarray(np.array(numbers, np.int32)[:, None])


def _sorted_type(
    boxes: TensorType, scores: TensorType, max_output_boxes_per_class: int, rotation: str = "none"
) -> tuple[TensorType, TensorType, TensorType]:
    """Check the arguments of `sorted_suppression`, and return the types of its results."""
    require.one_of("rotation", rotation, _ROTATIONS)
    if rotation != "none":
        require.layout("[batches,boxes,5]", boxes=boxes)
        # `_suppression_type` expects the four numbers of boxes without an angle.
        boxes = TensorType((*boxes.shape[:2], 4), boxes.dtype)
    limit = max_output_boxes_per_class
    # The call also checks the operands. For `_suppression_type` the limit 0 means no limit, but
    # here the limit 0 means no rows.
    row_count, _ = _suppression_type(boxes, scores, limit or 1, score_threshold=ABSENT).shape
    if limit == 0:
        row_count = 0
    return (
        TensorType((row_count, 3), "int32"),
        TensorType((row_count, 3), scores.dtype),
        TensorType((1,), "int32"),
    )


@rules.rule("sorted_suppression", _sorted_type, not_differentiable=_INDICES)
def sorted_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: int,
    iou_threshold: float,
    score_threshold: float,
    center_point_box: bool,
    sorts: bool,
    sigma: float = 0.0,
    rotation: str = "none",
) -> tuple[Array, Array, Array]:
    """Return rows (batch, class, box), rows (batch, class, score), and the number of rows (1,).

    The boxes are selected as in `non_max_suppression`. Row i of the second result has the score
    of the box in row i of the first result. Rows after the last box hold -1.

    - `max_output_boxes_per_class`: if it is 0, there are no rows
    - `sorts`: if it is true, the rows of all batches and classes are sorted by falling score
    - `sigma`: if it is above 0, an overlap with a selected box lowers the score of a box,
      instead of removing the box (see `softened`)
    - `rotation`: unless it is "none", a box is given as centre x, centre y, width, height, and
      an angle in radians. A "clockwise" angle turns from x to y, and a "counterclockwise" angle
      from y to x.
    """
    x = jnp.asarray(scores)
    if max_output_boxes_per_class == 0 or x.size == 0:
        return jnp.zeros((0, 3), jnp.int32), jnp.zeros((0, 3), x.dtype), jnp.zeros(1, jnp.int32)
    wide_scores = widened(x)
    most = _limited(x.shape[2], max_output_boxes_per_class)
    wide_boxes = widened(jnp.asarray(boxes))
    if rotation == "none":
        wide_boxes = _corners(wide_boxes, center_point_box)
    elif rotation == "counterclockwise":
        wide_boxes = wide_boxes.at[..., 4].multiply(-1)
    overlap_of = overlap if rotation == "none" else rotated_overlap
    least = jnp.asarray(score_threshold, wide_scores.dtype)

    def select(boxes: Array, scores: Array) -> tuple[Array, Array]:
        """Return the indices (most,) of selected boxes of one class, and their scores."""
        eligible = scores > least
        if sigma > 0:
            return softened(boxes, scores, eligible, most, least, sigma, overlap_of=overlap_of)
        chosen = suppressed(boxes, scores, eligible, most, iou_threshold, overlap_of=overlap_of)
        return chosen, jnp.where(chosen >= 0, scores[chosen], -jnp.inf)

    # All classes of an image share the boxes.
    select_by_class = jax.vmap(select, in_axes=(None, 0))
    # Both results have the shape (batches, classes, most).
    box_index, chosen_scores = jax.vmap(select_by_class)(wide_boxes, wide_scores)
    indices = _index_rows(box_index)
    flat_scores = chosen_scores.reshape(-1)
    is_filled = box_index.reshape(-1) >= 0  # False for padding
    # Padding has the score -inf. It goes last in both orders.
    key = -flat_scores if sorts else ~is_filled
    order = jnp.argsort(key, stable=True)
    ordered_indices = indices[order]
    batch_and_class = ordered_indices[:, :2].astype(x.dtype)
    score_column = flat_scores[order][:, None].astype(x.dtype)
    score_rows = jnp.concatenate([batch_and_class, score_column], axis=1)
    has_box = is_filled[order][:, None]
    count = jnp.sum(is_filled, dtype=jnp.int32)[None]
    return jnp.where(has_box, ordered_indices, -1), jnp.where(has_box, score_rows, -1), count


def _unique_type(input: TensorType, axis: int) -> tuple[TensorType, ...]:
    """Check the arguments of `unique`, and return the types of its results."""
    if input.dtype != "bool":
        require.ordered(input=input)
    require.indexable(input=input)
    axis = normal_axis(axis, len(input.shape))
    count = input.shape[axis]
    if count == MAX_EXTENT:
        # The index after the last one is computed too, and must fit int32.
        raise InvalidShape(f"'input' has {count} items, their indices have 32 bits")
    indices = TensorType((count,), "int32")
    return input, indices, indices, indices, TensorType((1,), "int32")


@rules.rule("unique", _unique_type)
def unique(ctx: Context, input: Array, axis: int, sorts: bool) -> tuple[Array, ...]:
    """Return the distinct sub-tensors along an axis, and four int32 tensors of indices and counts.

    A sub-tensor is a slice of the input at one index of the axis. If `sorts` is true, the distinct
    sub-tensors are sorted. If `sorts` is false, the sub-tensors are in the order of their first
    indices. The first result has the shape of the input. After the distinct sub-tensors this result
    repeats the last distinct sub-tensor. The int32 tensors are:

    1. the first index of each distinct sub-tensor in the input, then the last of these again
    2. for each index of the input, the index of its sub-tensor among the distinct ones
    3. the number of occurrences of each distinct sub-tensor, then 0
    4. the number of distinct sub-tensors, of shape (1,)
    """
    x = jnp.asarray(input)
    extent = x.shape[axis]
    rows = jnp.moveaxis(x, axis, 0)
    if is_static(extent) and extent == 0:
        empty = jnp.zeros((0,), jnp.int32)
        return x, empty, empty, empty, jnp.zeros((1,), jnp.int32)
    # `_distinct` sorts the rows by one column after another. This call may raise an error for too
    # many columns.
    ctx.unroll(volume(rows.shape[1:]))
    first, inverse, counts = _distinct(rows)
    is_filled = counts > 0  # False for padding
    if not sorts:
        # Padding gets the key `extent`, which is above all indices, so that it stays after the
        # distinct items.
        keys = jnp.where(is_filled, first, extent)
        order = jnp.argsort(keys)
        first, counts, is_filled = first[order], counts[order], is_filled[order]
        # `order` has the old index for each new index. The argsort of `order` has the new index for
        # each old index, which `inverse` needs.
        new_places = jnp.argsort(order)
        inverse = new_places[inverse]
    distinct_count = jnp.sum(is_filled, keepdims=True)
    last_first = first[distinct_count - 1]  # the first index of the last distinct item
    padded_first = jnp.where(is_filled, first, last_first)
    items = jnp.moveaxis(rows[padded_first], 0, axis)
    return (
        items,
        padded_first.astype(jnp.int32),
        inverse.astype(jnp.int32),
        counts.astype(jnp.int32),
        distinct_count.astype(jnp.int32),
    )


def _distinct(rows: Array) -> tuple[Array, Array, Array]:
    """Return three tensors about the distinct rows of an array, with an item for each row.

    The distinct rows are numbered in sorted order. The tensors are:

    1. the first index of each distinct row, then the number of all rows
    2. for each row, the number of the equal distinct row, from 0 on
    3. the number of occurrences of each distinct row, then 0

    For the rows a, c, a they are (0, 1, 3), (0, 1, 0) and (2, 1, 0). NaN equals NaN. The number of
    rows may be symbolic.
    """
    count = rows.shape[0]
    width = volume(rows.shape[1:])
    columns = rows.reshape(count, width)
    order = jnp.lexsort([columns[:, i] for i in reversed(range(width))])
    in_order = columns[order]  # the sorted rows
    indices = jnp.arange(count, dtype=order.dtype)
    previous = in_order[jnp.maximum(indices - 1, 0)]
    both_nan = (in_order != in_order) & (previous != previous)  # only NaN is not itself
    is_new = ((in_order != previous) & ~both_nan).any(axis=1) | (indices == 0)
    # For each of the sorted rows, `number` is the number of the equal distinct row.
    number = jnp.cumsum(is_new, dtype=order.dtype) - 1
    zeros = jnp.zeros_like(order)
    first = jnp.full_like(order, count).at[number].min(order)
    inverse = zeros.at[order].set(number)
    occurrences = zeros.at[number].add(1)
    return first, inverse, occurrences
