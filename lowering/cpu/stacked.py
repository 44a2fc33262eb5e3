"""Convolutions by one product, of all positions with the filters of all cells."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.window import Window, padded
from lowering.kernels.precision import left_operand

# Bytes of the sums that one product may leave for all cells. Beyond the caches other kernels are
# faster. With AMX 64 channels of bfloat16 at 56x56 take, in ms, by one product, by one for each
# cell, and by XLA's own convolution: 0.56, 1.35 and 1.25; 8 of these 22.6, 22.4 and 7.5; 256 at
# 14x14 0.45, 0.61 and 1.44.
_BYTES = 8 << 20

# Channels in for each one out. Milliseconds of 3x3 windows in float32, by XLA's own convolution and
# by one product: 128 to 32 channels at 56x56 1.5 and 1.3, at 28x28 0.88 and 0.49, at 14x14 0.34 and
# 0.27, 256 to 24 at 14x14 0.52 and 0.38; 64 to 32 at 56x56 0.95 and 1.17, 24 to 24 0.56 and 0.63.
_RATIO = 3
_CELLS = 9  # 5x5 windows of 64 to 32 channels at 28x28 take 0.94 and 1.0


def is_stacked(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether one product takes less time than XLA's own convolution of float32."""
    *size, depth, count = filter.shape
    return (
        x.dtype == jnp.float32
        and window.accumulator in (None, jnp.float32)
        and depth >= _RATIO * count
        and math.prod(size) <= _CELLS
        and fits(x, filter, window)
    )


def fits(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether all positions are used, and products of all cells stay in the caches."""
    *size, _, count = filter.shape
    extents = [n + sum(p) for n, p in zip(x.shape[1:-1], window.padding, strict=True)]
    items = math.prod((len(x), *extents, *size, count))
    itemsize = np.dtype(window.accumulator or x.dtype).itemsize
    return all(s == 1 for s in window.stride) and items * itemsize <= _BYTES


def stacked(x: Array, filter: Array, window: Window) -> Array:
    """Compute the convolution (N,x...,O): sum what each cell has of a shifted position."""
    *size, depth, _ = filter.shape
    matrix = jnp.moveaxis(filter, -2, 0).reshape(depth, -1)
    products = product(padded(x, window), matrix, window)
    return functools.reduce(lax.add, _shifted(products, size, window))


def product(x: Array, matrix: Array, window: Window) -> Array:
    """Multiply the items of each position by the matrix: (N,X...,O)."""
    rows = left_operand(x.reshape(-1, x.shape[-1]), window.accumulator)
    sums = lax.dot_general(
        rows,
        matrix,
        (((1,), (0,)), ((), ())),
        precision=window.precision,
        preferred_element_type=window.accumulator,
    )
    return sums.reshape(*x.shape[:-1], -1)


def _shifted(products: Array, size: Sequence[int], window: Window) -> list[Array]:
    """Return for each cell its products at the positions that it covers."""
    products = products.reshape(*products.shape[:-1], *size, -1)
    spans = [(k - 1) * d for k, d in zip(size, window.dilation, strict=True)]
    counts = [n - span for n, span in zip(products.shape[1:], spans, strict=False)]
    found: list[Array] = []
    for cell in np.ndindex(*size):
        starts = [j * d for j, d in zip(cell, window.dilation, strict=True)]
        items = (slice(j, j + n) for j, n in zip(starts, counts, strict=True))
        found.append(products[(slice(None), *items, *cell)])
    return found
