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


def _type(
    boxes: TensorType, scores: TensorType, counts: TensorType, top_k: int, keep_top_k: int,
    background: int, order: str,
) -> tuple[TensorType, TensorType, TensorType]:  # fmt: skip
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
    rows = batch * _rows(classes, count, top_k, keep_top_k)
    return (
        TensorType((rows, 6), scores.dtype),
        TensorType((rows, 1), "int32"),
        TensorType((batch,), "int32"),
    )


def _rows(classes: int, boxes: int, top_k: int, keep_top_k: int) -> int:
    """Return the largest number of boxes that can remain of an image.

    Of each class at most `top_k` boxes are compared, and of all classes at most `keep_top_k`
    remain. A negative limit is none.
    """
    return _most(classes * _most(boxes, top_k), keep_top_k)


def _most(count: int, limit: int) -> int:
    return count if limit < 0 or count is UNKNOWN else min(count, limit)


def _none(batch: int, dtype: np.dtype[np.generic]) -> tuple[Array, Array, Array]:
    empty = jnp.zeros((0, 1), jnp.int32)
    return jnp.zeros((0, 6), dtype), empty, jnp.zeros(batch, jnp.int32)


def _ranked(
    boxes: Array, box_index: Array, label: Array, values: Array, indices: Array, keep: int,
    order: str, across: bool, dtype: np.dtype[np.generic],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (class, score, x1, y1, x2, y2), `indices`, and the number of rows of each image.

    `box_index` has the shape (batch, classes, most), and contains indices of `boxes`, which has
    the shape (batch, classes or 1, n, 4). `label`, `values` and `indices` have the class, the
    score and the index in the result of each of these boxes. The score is -inf where there is
    no box.

    The `keep` best boxes of each image remain. They are sorted by `order`, which is "class",
    "score" or "none". Boxes of one image stand together, unless `across` is true: then images
    are mixed, and `order` comes before the image. Rows after the last box hold -1.
    """
    batch = len(box_index)
    label, values, indices = (x.reshape(batch, -1) for x in (label, values, indices))
    sides = jnp.take_along_axis(boxes, box_index[..., None], axis=2)
    sides = sides.reshape(batch, -1, 4)
    best = jnp.argsort(-values, axis=1, stable=True)[:, :keep]
    label, values, indices = (
        jnp.take_along_axis(x, best, axis=1) for x in (label, values, indices)
    )
    sides = jnp.take_along_axis(sides, best[..., None], axis=1)
    filled = values > -jnp.inf
    image = jnp.broadcast_to(jnp.arange(batch)[:, None], filled.shape)
    keys: list[Array] = [image]
    if order == "class":
        keys = [label, image] if across else [image, label]
    elif order == "score" and across:
        keys = [-values, image]
    flat = [key.reshape(-1) for key in [~filled, *keys, -values, label]]
    chosen = jnp.lexsort(tuple(reversed(flat)))
    rows = jnp.concatenate([label[..., None].astype(values.dtype), values[..., None], sides], -1)
    rows = rows.reshape(-1, 6)[chosen]
    indices = indices.reshape(-1, 1)[chosen]
    is_filled = filled.reshape(-1, 1)[chosen]
    count = jnp.sum(filled, axis=1, dtype=jnp.int32)
    return jnp.where(is_filled, rows, -1).astype(dtype), jnp.where(is_filled, indices, -1), count


def _matrix_type(
    boxes: TensorType, scores: TensorType, top_k: int, keep_top_k: int, background: int, order: str,
    decay: str,
) -> tuple[TensorType, TensorType, TensorType]:  # fmt: skip
    require.one_of("decay", decay, _DECAYS)
    return _type(boxes, scores, ABSENT, top_k, keep_top_k, background, order)


@rules.rule("matrix_suppression", _matrix_type, not_differentiable=_CHOICES)
def matrix_suppression(
    boxes: Array, scores: Array, score_threshold: float, top_k: int, keep_top_k: int,
    background: int, decay: str, sigma: float, post_threshold: float, pixel_offset: float,
    order: str, across: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (class, score, x1, y1, x2, y2), box indices, and each image's number of rows.

    `boxes` has the shape (batch, n, 4), and `scores` has the shape (batch, classes, n). The
    index of a box is image * n + box.

    A score is multiplied by the least factor of all better boxes of the same class. The factor
    is (1 - o) / (1 - m), or exp(sigma (m^2 - o^2)) if `decay` is "gaussian". Here o is the
    overlap of the two boxes, and m is the largest overlap of the better box with boxes of still
    higher scores. A box is left out if its multiplied score is not above `post_threshold`. The
    class `background` is left out.

    Of each class the `top_k` best boxes are compared, and of each image the `keep_top_k` best
    remain. Rows are sorted as `order` and `across` say (see `_ranked`). Rows after the last box
    hold -1.
    """
    dtype = jnp.asarray(boxes).dtype
    boxes, scores = widened(jnp.asarray(boxes)), widened(jnp.asarray(scores))
    batch, classes, count = scores.shape
    most = _most(count, top_k)
    if not classes * most:
        return _none(batch, dtype)
    is_better = jnp.arange(most)[:, None] < jnp.arange(most)[None, :]

    def decayed(image_and_scores: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return the indices of the `most` best boxes of a class, and their multiplied scores.

        The argument is the number of an image, and the scores (n,) of its boxes for the class.
        A box that is left out has the score -inf.
        """
        image, scores = image_and_scores
        sides = boxes[image]
        box_index = jnp.argsort(-scores, stable=True)[:most].astype(jnp.int32)
        box = sides[box_index]
        score = scores[box_index]
        eligible = score > score_threshold

        def overlaps(side: Array) -> Array:
            return overlap(side[:, None], box.T, pixel_offset, touches=False)

        shared = jax.vmap(overlaps)(box)
        shared = jnp.where(is_better, jnp.maximum(shared, 0), 0)  # (better boxes, worse boxes)
        largest = jnp.max(shared, axis=0, initial=0)[:, None]
        if decay == "gaussian":
            factors = jnp.exp(sigma * (largest**2 - shared**2))
        else:
            factors = (1 - shared) / (1 - largest + 1e-10)
        value = score * jnp.min(jnp.where(is_better, factors, 1), axis=0, initial=1)
        return box_index, jnp.where(eligible & (value > post_threshold), value, -jnp.inf)

    images = jnp.repeat(jnp.arange(batch), classes)
    box_index, values = lax.map(decayed, (images, scores.reshape(-1, count)))
    box_index, values = (x.reshape(batch, classes, most) for x in (box_index, values))
    label = lax.broadcasted_iota(jnp.int32, box_index.shape, 1)
    values = jnp.where(label == background, -jnp.inf, values)
    indices = box_index + count * lax.broadcasted_iota(jnp.int32, box_index.shape, 0)
    keep = _rows(classes, count, top_k, keep_top_k)
    return _ranked(boxes[:, None], box_index, label, values, indices, keep, order, across, dtype)


@rules.rule("multiclass_suppression", _type, not_differentiable=_CHOICES)
def multiclass_suppression(
    boxes: Array, scores: Array, counts: Array | Literal[False], score_threshold: float,
    iou_threshold: float, top_k: int, keep_top_k: int, background: int, eta: float,
    pixel_offset: float, order: str, across: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Return rows (class, score, x1, y1, x2, y2), box indices, and each image's number of rows.

    If `counts` is False, the boxes have the shape (batch, n, 4) and the scores have the shape
    (batch, classes, n). The index of a box is then image * n + box.

    Otherwise `counts` has the shape (batch,), the boxes have the shape (classes, n, 4), and the
    scores have the shape (classes, n). The first `counts[0]` boxes of each class belong to the
    first image, the next `counts[1]` boxes to the second, and so on. The index of a box is then
    box * classes + class.

    `eta` is the `decay` of `suppressed`. Of each class the `top_k` best boxes are compared, and
    of each image the `keep_top_k` best remain. Rows are sorted as `order` and `across` say (see
    `_ranked`). Rows after the last box hold -1.
    """
    dtype = jnp.asarray(boxes).dtype
    boxes, scores = widened(jnp.asarray(boxes)), widened(jnp.asarray(scores))
    classes, count = scores.shape[-2:]
    most = _most(count, top_k)
    if not classes * most:
        batch = len(boxes) if counts is False else len(counts)
        return _none(batch, dtype)
    eligible = scores >= score_threshold
    if counts is not False:
        ends = jnp.cumsum(jnp.asarray(counts))[:, None]
        number = jnp.arange(count)[None, :]
        is_of_image = (number < ends) & (number >= ends - jnp.asarray(counts)[:, None])
        eligible = eligible[None] & is_of_image[:, None]
        boxes, scores = (jnp.broadcast_to(x, (len(ends), *x.shape)) for x in (boxes, scores))
    else:
        boxes = boxes[:, None]
    shared = partial(overlap, offset=pixel_offset)

    def select(sides: Array, scores: Array, eligible: Array) -> Array:
        """Return the indices (most,) of the selected boxes of a class, followed by -1."""
        best = jnp.argsort(jnp.where(eligible, -scores, jnp.inf), stable=True)[:most]
        picked = suppressed(
            sides[best], scores[best], eligible[best], most, iou_threshold, shared, eta
        )
        return jnp.where(picked >= 0, best.astype(jnp.int32)[picked], -1)

    if counts is False:
        by_class = jax.vmap(select, (None, 0, 0))
        sides = boxes[:, 0]
    else:
        by_class = jax.vmap(select)
        sides = boxes
    box_index = jax.vmap(by_class)(sides, scores, eligible)  # (batch, classes, most)
    label = lax.broadcasted_iota(jnp.int32, box_index.shape, 1)
    is_filled = (box_index >= 0) & (label != background)
    box_index = jnp.maximum(box_index, 0)
    values = jnp.where(is_filled, jnp.take_along_axis(scores, box_index, axis=2), -jnp.inf)
    image = lax.broadcasted_iota(jnp.int32, box_index.shape, 0)
    indices = box_index + count * image if counts is False else box_index * classes + label
    keep = _rows(classes, count, top_k, keep_top_k)
    return _ranked(boxes, box_index, label, values, indices, keep, order, across, dtype)
