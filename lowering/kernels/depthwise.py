"""Convolutions with a group for each channel: an input (N,X...,C), a filter (f...,1,O), O = m*C.

Each is a sum of shifted inputs times one cell of the filter, in one loop; XLA's own kernel takes 10
to 30 times as long, and its gradient in the filter still longer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.kernels.accumulation import accumulator
from lowering.kernels.conv_window import Window, cells
from lowering.kernels.derivatives import sums_of_channels, transposition, with_tangents


def depthwise(x: Array, filter: Array, window: Window) -> Array:
    """The convolution: (N,x...,O)."""

    def value(x: Array, filter: Array) -> Array:
        return _convolution(x, filter, window)

    def by_input(x: Array, filter: Array, change: Array) -> Array:
        if all(s == 1 for s in window.stride):
            return value(change, filter)
        result = jax.eval_shape(value, x, filter)
        return transposition(lambda g: _input_gradient(g, x, filter, window), result)(change)

    def by_filter(x: Array, filter: Array, change: Array) -> Array:
        result = jax.eval_shape(value, x, filter)
        return transposition(lambda g: _filter_gradient(g, x, filter, window), result)(change)

    return with_tangents(value, by_input, by_filter)(x, filter)


def _convolution(x: Array, filter: Array, window: Window) -> Array:
    *size, _, count = filter.shape
    wide = _accumulator(x, window)
    total: Any = None
    for cell, part in cells(x, size, window):
        product = _repeated(part, count).astype(wide) * _factors(filter, cell, wide)
        total = product if total is None else total + product
    return total.astype(window.accumulator or x.dtype)


def _factors(filter: Array, cell: tuple[int, ...], dtype: Any) -> Array:
    """A cell of the filter, to multiply an array (N,X...,O)."""
    return filter[cell].reshape(*(1,) * (filter.ndim - 1), -1).astype(dtype)


def _accumulator(x: Array, window: Window) -> Any:
    return accumulator(jnp.promote_types(x.dtype, window.accumulator or x.dtype))


def _repeated(part: Array, count: int) -> Array:
    """Each channel as often as it has filters."""
    multiplier = count // part.shape[-1]
    return jnp.repeat(part, multiplier, axis=-1) if multiplier > 1 else part


def _filter_gradient(gradient: Array, x: Array, filter: Array, window: Window) -> Array:
    """The gradient in the filter, from that in the result.

    For each cell, parts of the batch and of the rows are summed in one loop before a product sums
    the rest.
    """
    *size, _, count = filter.shape
    wide = _accumulator(x, window)
    gradient = gradient.astype(wide)
    boxes = _boxes(gradient.shape[:2])
    parts = [gradient[box] for box in boxes]
    sums: list[Array] = []
    for _, covered in cells(x, size, window):
        terms = [
            _repeated(covered[box], count).astype(wide) * part
            for box, part in zip(boxes, parts, strict=True)
        ]
        sums.append(sums_of_channels(reduce(lax.add, terms)))
    return jnp.stack(sums).reshape(filter.shape).astype(filter.dtype)


# XLA computes again what a loop reads of another loop's results, unless it reads more than 15 parts
# of them: for nine cells all that the gradient is computed of would be computed nine times.
_PARTS = 16


def _boxes(extents: Sequence[int]) -> list[tuple[slice, ...]]:
    """Equal boxes that cover the extents: 16 to 32 of them if there is a way, or as many as go."""
    counts = itertools.product(*([k for k in range(1, n + 1) if n % k == 0] for n in extents))
    possible = [c for c in counts if math.prod(c) <= 2 * _PARTS]
    best = min(possible, key=lambda c: (max(_PARTS - math.prod(c), 0), math.prod(c)))
    steps = [n // k for n, k in zip(extents, best, strict=True)]
    return [
        tuple(slice(i * step, (i + 1) * step) for i, step in zip(place, steps, strict=True))
        for place in np.ndindex(*best)
    ]


def _input_gradient(gradient: Array, x: Array, filter: Array, window: Window) -> Array:
    """The gradient in the input, from that in the result.

    Items of the input that are a stride apart are covered by the same cells of the filter, and lie
    side by side in the gradient: each such phase is a convolution of stride 1. The sum of the
    cells' gradients spread over the input, as jax has it, writes all nine of a window of 3x3 to
    memory.
    """
    *size, _, count = filter.shape
    batch, *extents, channels = x.shape
    wide = _accumulator(x, window)
    stride, dilation = window.stride, window.dilation
    # Items of a phase on the padded input, as far as the input's last.
    lengths = [
        -(-(n + p) // s) for n, (p, _), s in zip(extents, window.padding, stride, strict=True)
    ]
    before = [(k - 1) * d // s for k, d, s in zip(size, dilation, stride, strict=True)]
    after = [max(m - n, 0) for m, n in zip(lengths, gradient.shape[1:-1], strict=True)]
    edges = [(0, 0, 0), *((b, a, 0) for b, a in zip(before, after, strict=True)), (0, 0, 0)]
    gradient = lax.pad(gradient.astype(wide), np.array(0, wide), edges)

    def phase(offsets: tuple[int, ...]) -> Array:
        total: Any = None
        for cell in np.ndindex(*size):
            steps = [j * d - r for j, d, r in zip(cell, dilation, offsets, strict=True)]
            if any(step % s for step, s in zip(steps, stride, strict=True)):
                continue
            start = [b - t // s for b, t, s in zip(before, steps, stride, strict=True)]
            stop = [b + m for b, m in zip(start, lengths, strict=True)]
            part = lax.slice(gradient, (0, *start, 0), (batch, *stop, count))
            product = part * _factors(filter, cell, wide)
            total = product if total is None else total + product
        return jnp.zeros((batch, *lengths, count), wide) if total is None else total

    whole = _interleaved([phase(offsets) for offsets in np.ndindex(*stride)], stride)
    whole = whole.reshape(*whole.shape[:-1], channels, -1).sum(-1)
    edges = [
        (-p, p + n - length, 0)
        for (p, _), n, length in zip(window.padding, extents, whole.shape[1:-1], strict=True)
    ]
    return lax.pad(whole, np.array(0, wide), [(0, 0, 0), *edges, (0, 0, 0)]).astype(x.dtype)


def _interleaved(phases: list[Array], stride: Sequence[int]) -> Array:
    """The array that has every phase, given in row-major order, at its items a stride apart."""
    for axis in reversed(range(len(stride))):
        step = stride[axis]
        rows = [phases[i : i + step] for i in range(0, len(phases), step)]
        phases = []
        for row in rows:
            shape = list(row[0].shape)
            shape[1 + axis] *= step
            phases.append(jnp.stack(row, axis=2 + axis).reshape(shape))
    (whole,) = phases
    return whole
