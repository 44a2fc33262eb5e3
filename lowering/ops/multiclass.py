"""Suppression of boxes class by class, and the best boxes of each image.

The results have fixed sizes. Sources: Matrix NMS, Wang et al. 2020, arXiv:2003.10152; MatrixNms and
MulticlassNms of OpenVINO's operation sets.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import UNKNOWN, differ, show
from lowering.graph import ABSENT, TensorType
from lowering.kernels.precision import widened
from lowering.kernels.suppression import overlap, suppressed
from lowering.ops import require, rules

_CHOICES = "it chooses boxes"
_ORDERS = ("score", "class", "none")
_DECAYS = ("linear", "gaussian")


def _suppression_type(
    boxes: TensorType, scores: TensorType, counts: TensorType, top_k: int, keep_top_k: int,
    background: int, order: str,
) -> tuple[TensorType, TensorType, TensorType]:  # fmt: skip
    """Check the arguments of `multiclass_suppression`, and return the types of its results."""
    require.same_dtype(require.floating, boxes=boxes, scores=scores)
    require.int32(background=background)
    require.indexable(boxes=boxes, scores=scores)
    require.layout("[B,N,4]", boxes=boxes)
    require.one_of("order", order, _ORDERS)
    if counts == ABSENT:
        require.layout("[B,C,N]", scores=scores)
        batch, classes, count = scores.shape
        expected = (batch, count)
    else:
        require.integer(counts=counts)
        require.layout("[B]", counts=counts)
        require.layout("[C,N]", "boxes of all images have 'counts'", scores=scores)
        batch = counts.shape[0]
        classes, count = scores.shape
        expected = (classes, count)
    if any(map(differ, boxes.shape[:2], expected)):
        raise InvalidShape(
            f"'boxes' {show(boxes.shape)} must have the boxes of 'scores' {show(scores.shape)}"
        )
    rows = batch * _most_rows(classes, count, top_k, keep_top_k)
    return (
        TensorType((rows, 6), scores.dtype),
        TensorType((rows, 1), "int32"),
        TensorType((batch,), "int32"),
    )


def _most_rows(classes: int, boxes: int, top_k: int, keep_top_k: int) -> int:
    """Return the largest number of boxes of an image that can remain.

    Of each class at most `top_k` boxes are compared, and of all classes at most `keep_top_k`
    remain. A negative number means no limit.
    """
    return _limited(classes * _limited(boxes, top_k), keep_top_k)


def _limited(count: int, limit: int) -> int:
    """Return the smaller one of a count and a limit. A negative limit means no limit."""
    return count if limit < 0 or count is UNKNOWN else min(count, limit)


def _without_rows(batch: int, dtype: np.dtype[np.generic]) -> tuple[Array, Array, Array]:
    """Return the results for `batch` images without boxes: no rows, no indices, and counts of 0."""
    no_indices = jnp.zeros((0, 1), jnp.int32)
    return jnp.zeros((0, 6), dtype), no_indices, jnp.zeros(batch, jnp.int32)


def _ranked(
    boxes: Array, box_index: Array, labels: Array, scores: Array, indices: Array, keep: int,
    order: str, across: bool, dtype: np.dtype[np.generic],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (class, score, x1, y1, x2, y2), `indices`, and each image's number of rows.

    `boxes` has the shape (batch, classes or 1, n, 4), and `box_index` (batch, classes, most) has
    the indices of the remaining boxes along axis 2 of `boxes`. For each remaining box, `labels`,
    `scores` and `indices` have the class, the score and the index that is returned. The score is
    -inf where there is no box.

    The `keep` best boxes of each image remain. Rows are sorted by `order`, which is "class",
    "score" or "none". If `across` is false, rows are first sorted by image, so that boxes of one
    image stand together. If `across` is true, rows are sorted by `order` before the image, so that
    images are mixed. Rows after the last box hold -1.
    """
    batch = len(box_index)
    chosen_boxes = jnp.take_along_axis(boxes, box_index[..., None], axis=2)
    chosen_boxes = chosen_boxes.reshape(batch, -1, 4)
    best = jnp.argsort(-scores.reshape(batch, -1), axis=1, stable=True)[:, :keep]

    def best_of(array: Array) -> Array:
        """Return the items (batch, keep) of the best boxes."""
        return jnp.take_along_axis(array.reshape(batch, -1), best, axis=1)

    labels, scores, indices = best_of(labels), best_of(scores), best_of(indices)
    best_boxes = jnp.take_along_axis(chosen_boxes, best[..., None], axis=1)
    has_box = scores > -jnp.inf
    images = jnp.broadcast_to(jnp.arange(batch)[:, None], has_box.shape)
    # Rows with equal keys are sorted by score anyway. Therefore only an order across images needs
    # scores among the keys.
    keys: list[Array] = [images]
    if order == "class":
        keys = [labels, images] if across else [images, labels]
    elif order == "score" and across:
        keys = [-scores, images]
    # Filled rows come first. Then rows are sorted by the keys in the order of this list.
    # `jnp.lexsort` takes the keys in reverse order.
    flat_keys = [key.reshape(-1) for key in [~has_box, *keys, -scores, labels]]
    row_order = jnp.lexsort(tuple(reversed(flat_keys)))
    columns = [labels[..., None].astype(scores.dtype), scores[..., None], best_boxes]
    rows = jnp.concatenate(columns, axis=-1).reshape(-1, 6)[row_order]
    index_rows = indices.reshape(-1, 1)[row_order]
    is_filled = has_box.reshape(-1, 1)[row_order]
    counts = jnp.sum(has_box, axis=1, dtype=jnp.int32)
    filled_rows = jnp.where(is_filled, rows, -1).astype(dtype)
    return filled_rows, jnp.where(is_filled, index_rows, -1), counts


def _matrix_type(
    boxes: TensorType, scores: TensorType, top_k: int, keep_top_k: int, background: int, order: str,
    decay: str,
) -> tuple[TensorType, TensorType, TensorType]:  # fmt: skip
    require.one_of("decay", decay, _DECAYS)
    return _suppression_type(boxes, scores, ABSENT, top_k, keep_top_k, background, order)


@rules.rule("matrix_suppression", _matrix_type, not_differentiable=_CHOICES)
def matrix_suppression(
    boxes: Array, scores: Array, score_threshold: float, top_k: int, keep_top_k: int,
    background: int, decay: str, sigma: float, post_threshold: float, pixel_offset: float,
    order: str, across: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (class, score, x1, y1, x2, y2), box indices, and each image's number of rows.

    `boxes` has the shape (batch, n, 4), and `scores` has the shape (batch, classes, n). The
    index of a box is image * n + box.

    Each better box of the same class, that is each box with a higher score, gives a factor.
    The score of a box is multiplied by the least of these factors. The factor is (1 - o) / (1 -
    m), or exp(sigma (m^2 - o^2)) if `decay` is "gaussian". Here o is the overlap of the two
    boxes, and m is the largest overlap of the better box with boxes of still higher scores. A
    box is left out if its score is not above `score_threshold`, or if its multiplied score is
    not above `post_threshold`. The class `background` is left out.

    Of each class the `top_k` best boxes are compared, and of each image the `keep_top_k` best
    remain. Rows are sorted as `order` and `across` say (see `_ranked`). Rows after the last box
    hold -1.
    """
    dtype = jnp.asarray(boxes).dtype
    boxes = widened(jnp.asarray(boxes))
    scores = widened(jnp.asarray(scores))
    batch, classes, count = scores.shape
    most = _limited(count, top_k)
    if not classes * most:
        return _without_rows(batch, dtype)
    # Boxes are sorted by falling score. This mask (most, most) tells whether box i is better than
    # box j.
    is_better = jnp.arange(most)[:, None] < jnp.arange(most)[None, :]

    def decayed(image_and_scores: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return the indices of the `most` best boxes of a class, and their multiplied scores.

        The argument is the number of an image, and the scores (n,) of its boxes for the class.
        A box that is left out has the score -inf.
        """
        image, class_scores = image_and_scores
        box_index = jnp.argsort(-class_scores, stable=True)[:most].astype(jnp.int32)
        best_boxes = boxes[image][box_index]
        best_scores = class_scores[box_index]

        def overlaps_of(box: Array) -> Array:
            """Return the overlaps (most,) of a box with all best boxes."""
            return overlap(box[:, None], best_boxes.T, pixel_offset, touches=False)

        overlaps = jax.vmap(overlaps_of)(best_boxes)
        overlaps = jnp.where(is_better, jnp.maximum(overlaps, 0), 0)  # (better box, worse box)
        # `largest` (better box, 1) has for each better box its largest overlap with a box that is
        # better than itself.
        largest = jnp.max(overlaps, axis=0, initial=0)[:, None]
        if decay == "gaussian":
            factors = jnp.exp(sigma * (largest**2 - overlaps**2))
        else:
            factors = (1 - overlaps) / (1 - largest + 1e-10)  # the divisor is not 0
        least_factor = jnp.min(jnp.where(is_better, factors, 1), axis=0, initial=1)
        new_scores = best_scores * least_factor
        remains = (best_scores > score_threshold) & (new_scores > post_threshold)
        return box_index, jnp.where(remains, new_scores, -jnp.inf)

    # `lax.map` holds the overlaps of only one image and class at a time.
    images = jnp.repeat(jnp.arange(batch), classes)
    box_index, new_scores = lax.map(decayed, (images, scores.reshape(-1, count)))
    box_index = box_index.reshape(batch, classes, most)
    new_scores = new_scores.reshape(batch, classes, most)
    labels = lax.broadcasted_iota(jnp.int32, box_index.shape, 1)
    new_scores = jnp.where(labels == background, -jnp.inf, new_scores)
    indices = box_index + count * lax.broadcasted_iota(jnp.int32, box_index.shape, 0)
    keep = _most_rows(classes, count, top_k, keep_top_k)
    boxes = boxes[:, None]  # all classes have the same boxes
    return _ranked(boxes, box_index, labels, new_scores, indices, keep, order, across, dtype)


@rules.rule("multiclass_suppression", _suppression_type, not_differentiable=_CHOICES)
def multiclass_suppression(
    boxes: Array, scores: Array, counts: Array | Literal[False], score_threshold: float,
    iou_threshold: float, top_k: int, keep_top_k: int, background: int, eta: float,
    pixel_offset: float, order: str, across: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (class, score, x1, y1, x2, y2), box indices, and each image's number of rows.

    If `counts` is False, the boxes have the shape (batch, n, 4) and the scores have the shape
    (batch, classes, n). The index of a box is then image * n + box.

    If `counts` is an array (batch,), the boxes have the shape (classes, n, 4), and the scores have
    the shape (classes, n). The first `counts[0]` boxes of each class belong to the first image, the
    next `counts[1]` boxes to the second, and so on. The index of a box is then box * classes +
    class.

    If `iou_threshold` is above 0.5, it is multiplied by `eta` after each selected box. Of each
    class the `top_k` best boxes are compared, and of each image the `keep_top_k` best remain.
    Rows are sorted as `order` and `across` say (see `_ranked`). Rows after the last box hold -1.
    """
    dtype = jnp.asarray(boxes).dtype
    boxes = widened(jnp.asarray(boxes))
    scores = widened(jnp.asarray(scores))
    classes, count = scores.shape[-2:]
    most = _limited(count, top_k)
    if not classes * most:
        batch = len(boxes) if counts is False else len(counts)
        return _without_rows(batch, dtype)
    overlap_of = partial(overlap, offset=pixel_offset)

    def select(boxes: Array, scores: Array, eligible: Array) -> Array:
        """Return the indices (most,) of the selected boxes of a class, followed by -1."""
        best = jnp.argsort(jnp.where(eligible, -scores, jnp.inf), stable=True)[:most]
        selected = suppressed(
            boxes[best],
            scores[best],
            eligible[best],
            most,
            iou_threshold,
            overlap_of=overlap_of,
            decay=eta,
        )
        return jnp.where(selected >= 0, best.astype(jnp.int32)[selected], -1)

    eligible = scores >= score_threshold
    if counts is False:
        select_by_class = jax.vmap(select, in_axes=(None, 0, 0))
        box_index = jax.vmap(select_by_class)(boxes, scores, eligible)
        boxes = boxes[:, None]  # all classes of an image have the same boxes
    else:
        # Each image gets the boxes of all images, but only its own boxes are eligible.
        is_of_image = _image_mask(jnp.asarray(counts), count)
        batch = len(is_of_image)
        eligible = eligible[None] & is_of_image[:, None]
        boxes = jnp.broadcast_to(boxes, (batch, *boxes.shape))
        scores = jnp.broadcast_to(scores, (batch, *scores.shape))
        box_index = jax.vmap(jax.vmap(select))(boxes, scores, eligible)
    # `box_index` has the shape (batch, classes, most). The label is the number of the class.
    labels = lax.broadcasted_iota(jnp.int32, box_index.shape, 1)
    is_filled = (box_index >= 0) & (labels != background)
    box_index = jnp.maximum(box_index, 0)
    chosen_scores = jnp.take_along_axis(scores, box_index, axis=2)
    chosen_scores = jnp.where(is_filled, chosen_scores, -jnp.inf)
    if counts is False:
        images = lax.broadcasted_iota(jnp.int32, box_index.shape, 0)
        indices = box_index + count * images
    else:
        indices = box_index * classes + labels
    keep = _most_rows(classes, count, top_k, keep_top_k)
    return _ranked(boxes, box_index, labels, chosen_scores, indices, keep, order, across, dtype)


def _image_mask(counts: Array, box_count: int) -> Array:
    """Return the mask (batch, boxes) of the boxes that belong to each image.

    The first `counts[0]` boxes belong to image 0, the next `counts[1]` boxes to image 1, and so on.
    For the counts (2, 3), image 0 has the boxes 0 and 1, and image 1 has the boxes 2, 3 and 4.
    """
    ends = jnp.cumsum(counts)[:, None]
    starts = ends - counts[:, None]
    box_numbers = jnp.arange(box_count)[None, :]
    return (box_numbers < ends) & (box_numbers >= starts)
