"""Convolutions of (N,X...,C) by (f...,1,O), a group for each channel: sums of shifted inputs."""

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

from lowering.cpu.derivatives import sums_of_channels, transposition, with_tangents
from lowering.cpu.phases import covered, spread
from lowering.cpu.window import Window, cells
from lowering.kernels.precision import accumulator
from lowering.kernels.windows import Windows


def depthwise(x: Array, filter: Array, window: Window) -> Array:
    """Compute the convolution: (N,x...,O)."""

    def value(x: Array, filter: Array) -> Array:
        return _convolution(x, filter, window)

    # As written, the gradient in the input would sum padded arrays, with nine comparisons for each
    # item: 25 ms instead of 8 (8 x 56x56, 144 channels and their scales).
    def by_input(x: Array, filter: Array, change: Array) -> Array:
        result = jax.eval_shape(value, x, filter)
        return transposition(lambda g: _input_gradient(g, x, filter, window), result)(change)

    def by_filter(x: Array, filter: Array, change: Array) -> Array:
        result = jax.eval_shape(value, x, filter)
        return transposition(lambda g: _filter_gradient(g, x, filter, window), result)(change)

    return with_tangents(value, by_input, by_filter, store=True)(x, filter)


def _convolution(x: Array, filter: Array, window: Window) -> Array:
    *size, _, count = filter.shape
    wide = _accumulator(x, window)
    total: Any = None
    for cell, part in cells(x, size, window):
        product = _repeated(part, count).astype(wide) * _factors(filter, cell, wide)
        total = product if total is None else total + product
    return total.astype(window.accumulator or x.dtype)


def _factors(filter: Array, cell: tuple[int, ...], dtype: Any) -> Array:
    """Return the factors of one filter cell, shaped to multiply an array (N,X...,O)."""
    return filter[cell].reshape(*(1,) * (filter.ndim - 1), -1).astype(dtype)


def _accumulator(x: Array, window: Window) -> Any:
    return accumulator(window.accumulator or x.dtype)


def _repeated(part: Array, count: int) -> Array:
    multiplier = count // part.shape[-1]
    return jnp.repeat(part, multiplier, axis=-1) if multiplier > 1 else part


def _filter_gradient(gradient: Array, x: Array, filter: Array, window: Window) -> Array:
    """Return the filter's gradient: a loop sums parts of batch and rows, a product the rest."""
    count = filter.shape[-1]
    wide = _accumulator(x, window)
    gradient = gradient.astype(wide)
    boxes = _boxes(gradient.shape[:2])
    parts = [gradient[box] for box in boxes]
    sums: list[Array] = []
    for items in covered(x, _windows(gradient.shape, x.shape, filter, window)):
        terms = [
            _repeated(items[box], count).astype(wide) * part
            for box, part in zip(boxes, parts, strict=True)
        ]
        sums.append(sums_of_channels(reduce(lax.add, terms)))
    return jnp.stack(sums).reshape(filter.shape).astype(filter.dtype)


# XLA computes again what a loop reads of another loop's results, unless it reads more than 15
# parts of them: nine times, for nine cells.
_PARTS = 16


def _boxes(extents: Sequence[int]) -> list[tuple[slice, ...]]:
    """Cover the extents by equal boxes, 16 to 32 if there is a way, or as many as go."""
    counts = itertools.product(*([k for k in range(1, n + 1) if n % k == 0] for n in extents))
    possible = [c for c in counts if math.prod(c) <= 2 * _PARTS]
    best = min(possible, key=lambda c: (max(_PARTS - math.prod(c), 0), math.prod(c)))
    steps = [n // k for n, k in zip(extents, best, strict=True)]
    return [
        tuple(slice(i * step, (i + 1) * step) for i, step in zip(place, steps, strict=True))
        for place in np.ndindex(*best)
    ]


def _input_gradient(gradient: Array, x: Array, filter: Array, window: Window) -> Array:
    wide = _accumulator(x, window)
    channels, count = x.shape[-1], filter.shape[-1]
    windows = _windows(gradient.shape, (*x.shape[:-1], count), filter, window)

    def term(cell: tuple[int, ...], part: Array) -> Array:
        return part * _factors(filter, cell[1:-1], wide)

    whole = spread([(gradient.astype(wide), 0)], windows, term)
    return whole.reshape(*whole.shape[:-1], channels, -1).sum(-1).astype(x.dtype)


def _windows(
    result: tuple[int, ...], input: tuple[int, ...], filter: Array, window: Window
) -> Windows:
    return Windows(
        size=(1, *filter.shape[:-2], 1),
        padding=((0, 0), *window.padding, (0, 0)),
        stride=(1, *window.stride, 1),
        dilation=(1, *window.dilation, 1),
        upscaled=input,
        downscaled=(*result[:-1], input[-1]),
    )
