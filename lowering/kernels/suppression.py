"""Greedy suppression of boxes that overlap better ones, of a fixed size."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def overlap(box: Array, boxes: Array, offset: float = 0.0) -> Array:
    """Return intersection over union of a box (1,4) and each box, -inf for none.

    Rows are two corners, the lower first; `offset` is what an extent has more than the difference
    of its ends: 1 where these are pixels that belong to the box.
    """
    low = jnp.maximum(box[:, :2], boxes[:, :2])
    high = jnp.minimum(box[:, 2:], boxes[:, 2:])
    shared = jnp.prod(jnp.maximum(high - low + offset, 0), axis=1)
    covered = _area(box, offset) + _area(boxes, offset) - shared
    return jnp.where(shared > 0, shared / jnp.where(shared > 0, covered, 1.0), -jnp.inf)


def _area(boxes: Array, offset: float) -> Array:
    return jnp.prod(boxes[:, 2:] - boxes[:, :2] + offset, axis=1)


def suppressed(
    boxes: Array,
    scores: Array,
    eligible: Array,
    most: int,
    threshold: Any,
    offset: float = 0.0,
    classes: Array | None = None,
) -> Array:
    """Return the indices of at most `most` boxes [n,4] by falling score, then -1.

    The best eligible box is taken, and those whose overlap with it is above the threshold are left
    out, again and again; of equal scores the first index wins. With `classes` [n] a box is left out
    for one of its class alone.
    """
    order = jnp.argsort(-scores, stable=True).astype(jnp.int32)
    sides, left = boxes[order], eligible[order]
    kinds = None if classes is None else classes[order]

    def more(state: tuple[Array, Array, Array]) -> Array:
        return (state[0] < most) & jnp.any(state[1])

    def take(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        count, left, chosen = state
        best = jnp.argmax(left)
        out = overlap(sides[best][None, :], sides, offset) > threshold
        if kinds is not None:
            out = out & (kinds == kinds[best])
        left = left & ~out & (jnp.arange(len(order)) != best)
        return count + 1, left, chosen.at[count].set(order[best])

    start = (jnp.int32(0), left, jnp.full(most, -1, jnp.int32))
    return lax.while_loop(more, take, start)[2]


def first(rows: Array, filled: Array) -> tuple[Array, Array]:
    """Return the rows that are filled before the others, and which are."""
    order = jnp.argsort(~filled, stable=True)
    return rows[order], filled[order]
