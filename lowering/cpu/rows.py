"""Lay narrow channels of several positions side by side, as long rows for loops of vectors.

LLVM writes out a loop over few channels item by item, without vectors. It makes vectors of a loop
over all items of a row of positions: of 24 channels at 93x98 positions silu takes 88 us instead of
164, with a 3x3 window before it 230 instead of 580.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
from jax import Array, lax

from lowering.contexts import runs
from lowering.cpu.memory import apart
from lowering.cpu.sliding_filter import Window
from lowering.extents import is_symbolic
from lowering.kernels.windows import extend
from lowering.program import Program

# Channels whose loop is vectors alone, and not unrolled.
_WIDE, _VECTOR = 32, 16

# Items of a row: fewer are unrolled as well, of more the factors leave the first cache.
_FEWEST, _MOST = 128, 8 << 10

# Items of an array that are worth loops of their own before and after those of other kernels.
_MANY = 16 << 10

# Bytes of the factors of all cells of a window, an item for each of a row.
_FACTORS = 1 << 20


def row_of(shape: tuple[int, ...]) -> int:
    """Return how many positions of an array (N,X...,C) a row has; 0 where channels fill vectors."""
    if len(shape) < 3 or any(map(is_symbolic, shape)) or not runs("rows"):
        return 0
    *_, positions, channels = shape
    if not channels or (channels >= _WIDE and channels % _VECTOR == 0) or channels > _MOST:
        return 0
    if math.prod(shape) < _MANY:
        return 0
    counts = (n for n in range(1, positions + 1) if positions % n == 0 and n * channels <= _MOST)
    count = max(counts, default=0)
    return count if count > 1 and count * channels >= _FEWEST else 0


def may_be_in_rows(program: Program, shape: tuple[int, ...]) -> bool:
    """Tell whether loops over an array (N,X...,C) are best over rows, and may be."""
    return program.role == "value" and program.is_alone and row_of(shape) > 0


def in_rows(x: Array, count: int) -> Array:
    """Return an array (N,X...,C) with the channels of so many positions as its last axis."""
    *outer, positions, channels = x.shape
    return x.reshape(*outer, positions // count, count * channels)


def apart_in_rows(x: Array) -> Array:
    """Return an array that is made in rows, if its channels are narrow, whatever reads it."""
    count = row_of(x.shape)
    return apart(in_rows(x, count)).reshape(x.shape) if count else x


def repeated(x: Array, count: int) -> Array:
    """Repeat the last axis so many times; a value of parameters is worth preparing so."""
    return lax.concatenate([x] * count, x.ndim - 1)


def is_in_rows(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether windows with a group for each channel are best computed on rows."""
    *size, depth, count = filter.shape
    width = window.positions(x, size)[-1] if row_of(x.shape) else 0
    return (
        width * count >= _FEWEST
        and depth == 1
        and count == window.groups == x.shape[-1]
        and window.is_single(x)
        and window.stride[-1] == 1
        and not window.is_spread
        and filter.size * filter.dtype.itemsize * width <= _FACTORS
    )


def depthwise_rows(x: Array, filter: Array, window: Window) -> Array:
    """Compute a convolution (N,X...,C) by (f...,1,C) as a sum of rows that are shifted."""
    *size, _, channels = filter.shape
    counts = window.positions(x, size)
    *outer, width = counts
    *sides, (left, right) = window.padding
    edges = ((0, 0), *sides, (left * channels, right * channels))
    rows = apart(extend(x.reshape(*x.shape[:-2], -1), edges, "constant"))
    factors = repeated(filter.reshape(*size, channels), width)
    terms: list[Array] = []
    for cell in np.ndindex(*size):
        places = [j * d for j, d in zip(cell, window.dilation, strict=True)]
        steps = window.stride[:-1]
        start = (0, *places[:-1], places[-1] * channels)
        stop = [first + (n - 1) * s + 1 for first, n, s in zip(places, outer, steps, strict=False)]
        stop = (len(x), *stop, (places[-1] + width) * channels)
        part = lax.slice(rows, start, stop, (1, *steps, 1))
        terms.append(part * factors[cell].reshape(*(1,) * len(size), -1))
    total = reduce(lax.add, terms)
    return total.reshape(len(x), *counts, channels)
