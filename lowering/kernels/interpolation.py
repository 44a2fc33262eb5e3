"""Interpolation along one axis, and between the four neighbours of a point."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.extents import along, with_extent
from lowering.kernels.windows import extend

_WORK = 8  # arrays of 64 bits, of places and weights
_UNROLLED = 32  # phases of an output that are computed one by one
_OFFSETS = {False: (0, 0, 1), True: (-1, 0, 1)}  # of neighbours, with a shift or without


def merged(x: Array, axis: int) -> Array:
    """Merge an axis with the next."""
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def repeat(x: Array, axis: int, factor: int) -> Array:
    """Repeat each item `factor` times in a row."""
    shape = with_extent(x.shape, axis, x.shape[axis], factor)
    return merged(jnp.broadcast_to(jnp.expand_dims(x, axis + 1), shape), axis)


def mean_of_blocks(x: Array, axis: int, factor: int) -> Array:
    """Return the mean of each run of `factor` items, a divisor of the extent."""
    blocks = with_extent(x.shape, axis, x.shape[axis] // factor, factor)
    return jnp.mean(x.reshape(blocks), axis + 1)


def upsample_linear(x: Array, axis: int, factor: int, shift: bool, border: str) -> Array:
    """Interpolate output i at i / factor, with `shift` at (i - (factor - 1) / 2) / factor."""
    extent = x.shape[axis]
    edges = [(0, 0)] * x.ndim
    edges[axis] = (1 if shift else 0, 1)
    extended = extend(x, tuple(edges), border)

    def neighbour(offset: int) -> Array:
        start = offset + edges[axis][0]
        return lax.slice_in_dim(extended, start, start + extent, 1, axis)

    if factor > _UNROLLED:
        r = lax.iota(np.float32, factor)
        place = (r - (factor - 1) / 2 if shift else r) / factor
        place = place.astype(x.dtype).reshape(along(axis + 1, x.ndim + 1))
        before, here, after = (jnp.expand_dims(neighbour(i), axis + 1) for i in _OFFSETS[shift])
        left, right = (jnp.where(place < 0, *pair) for pair in ((before, here), (here, after)))
        weight = jnp.where(place < 0, place + 1, place)
        return merged(left * (1 - weight) + right * weight, axis)
    # Output k * factor + r has the same weights for every k: each r is a sum of two slices.
    phases: list[Array] = []
    for r in range(factor):
        # The place is k + doubled / (2 * factor).
        doubled = 2 * r - (factor - 1) if shift else 2 * r
        left, rest = divmod(doubled, 2 * factor)
        phases.append(_between(neighbour(left), neighbour(left + 1), rest / (2 * factor)))
    return merged(jnp.stack(phases, axis + 1), axis)


def upsample_aligned(x: Array, axis: int, factor: int, fold: Callable[[int], None]) -> Array:
    """Interpolate where the first and the last items of output and input coincide.

    `fold` is told how many items are computed on the host.
    """
    extent = x.shape[axis]
    fold(_WORK * extent * factor)
    place = np.arange(extent * factor) * (extent - 1)
    left, rest = np.divmod(place, max(extent * factor - 1, 1))
    right = np.minimum(left + 1, extent - 1)
    weight = (rest / max(extent * factor - 1, 1)).reshape(along(axis, x.ndim))
    a, b = (jnp.take(x, places, axis, mode="clip") for places in (left, right))
    return a * (1 - weight).astype(x.dtype) + b * weight.astype(x.dtype)


def bilinear(x: Array, batch: Array, row: Array, column: Array) -> Array:
    """Sample images (B,C,H,W) bilinearly on N grids; return (N,C,h,w).

    Grid n has rows `row[n]` (h) and columns `column[n]` (w) in image `batch[n]`. Places outside of
    the image take its nearest value.
    """
    top, bottom, down = neighbours(row, x.shape[2], x.dtype)
    left, right, across = neighbours(column, x.shape[3], x.dtype)
    down, across = down[:, :, None, None], across[:, None, :, None]

    def corner(row: Array, column: Array) -> Array:
        places = (batch[:, None, None], slice(None), row[:, :, None], column[:, None, :])
        return jnp.asarray(x).at[places].get(mode="clip")  # (N,h,w,C)

    upper = corner(top, left) * (1 - across) + corner(top, right) * across
    lower = corner(bottom, left) * (1 - across) + corner(bottom, right) * across
    return jnp.moveaxis(upper * (1 - down) + lower * down, -1, 1)


def neighbours(place: Array, extent: int, dtype: np.dtype) -> tuple[Array, Array, Array]:
    """Return the items on both sides of places, and the weight of the second."""
    place = jnp.clip(place, 0, extent - 1)
    first = jnp.floor(place)
    index = first.astype(jnp.int32)
    return index, jnp.minimum(index + 1, extent - 1), (place - first).astype(dtype)


def _between(a: Array, b: Array, weight: float) -> Array:
    return a if weight == 0 else a * (1 - weight) + b * weight
