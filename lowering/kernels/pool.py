"""Computes sums, maxima and samples of windows; `windows` covers every dimension."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.extents import Shape
from lowering.kernels.conv import spread
from lowering.kernels.precision import accumulator
from lowering.kernels.windows import Padding, Windows, extend, lowest, valid_counts


def window_sum(x: Array, windows: Windows, border: str, normalize: bool) -> Array:
    """Sum each window, or take its mean: with border 'ignore' over the valid cells only."""
    padding = windows.padding
    if border not in ("constant", "ignore"):
        x = extend(x, padding, border)
        padding = ((0, 0),) * x.ndim
    # The sum under a mean may overflow float16.
    wide = accumulator(x.dtype)
    total = _sums(x.astype(wide), windows, windows.stride, padding)
    if normalize and border == "ignore":
        # A window on padding alone has sum and mean 0.
        total = total / np.maximum(valid_counts(windows), 1).astype(wide)
    elif normalize:
        total = total / windows.volume
    return total.astype(x.dtype)


def reverse_window_sum(x: Array, windows: Windows, border: str) -> Array:
    """Add each item to all cells of its window in the up-scaled space."""
    x, padding = spread(x, windows, border)
    steps = [(p, q, s - 1) for (p, q), s in zip(padding, windows.stride, strict=True)]
    spread_out = lax.pad(x, np.array(0, x.dtype), steps)
    return _sums(spread_out, windows, (1,) * x.ndim, ((0, 0),) * x.ndim)


def _sums(x: Array, windows: Windows, stride: Shape, padding: Padding) -> Array:
    zero, size = np.array(0, x.dtype), windows.size
    return lax.reduce_window(
        x, zero, lax.add, size, stride, padding, window_dilation=windows.dilation
    )


def window_max(x: Array, windows: Windows, border: str) -> Array:
    """Return the maximum of each window; its gradient goes to the first of equal maxima."""
    if any(d > 1 for d in windows.dilation):  # reduce_window has no reverse derivative then
        return window_max_and_index(x, windows, border)[0]
    padding = windows.padding
    if border != "ignore":
        x = extend(x, padding, border)
        padding = ((0, 0),) * x.ndim
    return lax.reduce_window(x, lowest(x.dtype), lax.max, windows.size, windows.stride, padding)


def window_max_and_index(x: Array, windows: Windows, border: str) -> tuple[Array, Array]:
    """Return each window's maximum and its first row-major index; NaN counts as the greatest."""
    x = extend(x, windows.padding, border, fill=lowest(x.dtype) if border == "ignore" else 0.0)
    index = jnp.zeros(x.shape, jnp.int32)
    volume = 1
    # Each dimension, from the last, keeps the first of the rows with the greatest maximum.
    for axis in reversed(range(x.ndim)):
        best, best_index = windows.cell(x, axis, 0), windows.cell(index, axis, 0)
        for j in range(1, windows.size[axis]):
            candidate = windows.cell(x, axis, j)
            better = (candidate > best) | ((candidate != candidate) & (best == best))
            best = jnp.where(better, candidate, best)
            best_index = jnp.where(better, windows.cell(index, axis, j) + j * volume, best_index)
        x, index = best, best_index
        volume *= windows.size[axis]
    return x, index


def window_max_and_place(x: Array, windows: Windows, first_axis: int) -> tuple[Array, Array]:
    """Return each window's maximum, border 'ignore', and its place on axes from `first_axis` on."""
    maximum, index = window_max_and_index(x, windows, "ignore")
    places = jnp.zeros(index.shape, index.dtype)
    positions = _positions(index, windows)
    for axis in range(first_axis, x.ndim):
        place = positions[axis] - windows.padding[axis][0]
        # Padding comes first only where all the window is as low: take the next cell on the input.
        place = jnp.where(place < 0, place % windows.dilation[axis], place)
        places = places * x.shape[axis] + place
    return maximum, places


def sample(x: Array, index: Array, windows: Windows, border: str) -> Array:
    """Return the cell of each window that the index names, border included."""
    x = extend(x, windows.padding, border)
    return jnp.asarray(x).at[_positions(index, windows)].get(mode="clip")


def desample(x: Array, index: Array, windows: Windows) -> Array:
    """Add each item to the cell of its window that the index names; cut off padding."""
    spans = zip(windows.downscaled, windows.stride, windows.dilated, strict=True)
    covered: Shape = tuple((extent - 1) * s + span for extent, s, span in spans)
    named = (index >= 0) & (index < windows.volume)
    zero = np.array(0, x.dtype)
    cells = jnp.zeros(covered, x.dtype)
    cells = cells.at[_positions(index, windows)].add(jnp.where(named, x, zero))
    edges = [
        (-p, up + p - extent, 0)
        for up, extent, (p, _) in zip(windows.upscaled, covered, windows.padding, strict=True)
    ]
    return lax.pad(cells, zero, edges)


def _positions(index: Array, windows: Windows) -> tuple[Array, ...]:
    rest = jnp.clip(index, 0, windows.volume - 1)
    positions: list[Array] = []
    for axis in reversed(range(index.ndim)):
        size = windows.size[axis]
        start = lax.broadcasted_iota(index.dtype, index.shape, axis) * windows.stride[axis]
        positions.append(start + rest % size * windows.dilation[axis])
        rest = rest // size
    return tuple(reversed(positions))
