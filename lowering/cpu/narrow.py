"""Convolutions of bfloat16 with sums of 32 bits, by products of all positions with all cells."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.window import Window, cells, padded
from lowering.kernels.precision import left_operand

# Items that a product sums. Fewer do not pay for rounding its operands.
DEPTH = 16

# Bytes of the sums that one product may leave for all cells. Beyond the caches a product for each
# cell is faster. With AMX 64 channels at 56x56 take, in ms, by one product, by nine, and by XLA's
# own convolution: 0.56, 1.35 and 1.25; 8 of these 22.6, 22.4 and 7.5; 256 at 14x14 0.45, 0.61 and
# 1.44.
_BYTES = 8 << 20


def is_narrow(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether products of 16 bits can compute it."""
    return (
        x.dtype == jnp.bfloat16
        and window.accumulator == jnp.float32
        and window.groups == 1
        and not window.is_spread
        and filter.shape[-2] >= DEPTH
    )


def narrow(x: Array, filter: Array, window: Window) -> Array:
    """Compute the convolution (N,x...,O) by one product, or by one for each cell."""
    *size, depth, count = filter.shape
    whole = padded(x, window)
    volume = math.prod(whole.shape[:-1]) * math.prod(size) * count * window.accumulator.itemsize
    if all(s == 1 for s in window.stride) and volume <= _BYTES:
        matrix = jnp.moveaxis(filter, -2, 0).reshape(depth, -1)
        sums = _product(whole, matrix, window).reshape(*whole.shape[:-1], *size, count)
        return functools.reduce(lax.add, _shifted(sums, size, window))
    return functools.reduce(
        lax.add, (_product(part, filter[cell], window) for cell, part in cells(x, size, window))
    )


def _product(x: Array, matrix: Array, window: Window) -> Array:
    rows = left_operand(x.reshape(-1, x.shape[-1]), window.accumulator)
    sums = lax.dot_general(
        rows, matrix, (((1,), (0,)), ((), ())), preferred_element_type=window.accumulator
    )
    return sums.reshape(*x.shape[:-1], -1)


def _shifted(sums: Array, size: Sequence[int], window: Window) -> list[Array]:
    """Return for each cell its products at the positions that it covers."""
    spans = [(k - 1) * d for k, d in zip(size, window.dilation, strict=True)]
    counts = [n - span for n, span in zip(sums.shape[1:], spans, strict=False)]
    found: list[Array] = []
    for cell in np.ndindex(*size):
        starts = [j * d for j, d in zip(cell, window.dilation, strict=True)]
        items = (slice(j, j + n) for j, n in zip(starts, counts, strict=True))
        found.append(sums[(slice(None), *items, *cell)])
    return found
