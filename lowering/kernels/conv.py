"""Computes convolutions of arrays (B,C,X...); `windows` covers the spatial dimensions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.kernels.precision import narrowed
from lowering.kernels.windows import Padding, Windows, extend


def conv(
    x: Array, filter: Array, windows: Windows, groups: int, precision: Any, wide: Any
) -> Array:
    """Correlate (B,C,X...) with a filter (c,C/G,f...) to (B,c,x...), summed in the type `wide`."""
    padding = windows.padding
    if windows.border != "constant":
        x = extend(x, ((0, 0), (0, 0), *padding), windows.border)
        padding = ((0, 0),) * len(padding)
    x, filter, precision = narrowed(x, filter, precision)
    return lax.conv_general_dilated(
        x,
        filter,
        window_strides=windows.stride,
        padding=padding,
        rhs_dilation=windows.dilation,
        feature_group_count=groups,
        precision=precision,
        preferred_element_type=wide,
    )


def integer_conv(x: Array, filter: Array, windows: Windows, groups: int, wide: Any) -> Array:
    """Compute `conv` of integers by a product for each cell of the window.

    XLA's own does not run on every GPU. On CPUs, 3x3 windows of int32 take 1.5 times (3 to 16
    channels) to 50 times (32 plane-wise planes) as long.
    """
    x = extend(x, ((0, 0), (0, 0), *windows.padding), windows.border)
    batch, channels, *extents = x.shape
    count, depth, *size = filter.shape
    x = x.reshape(batch, groups, channels // groups, *extents)
    filter = filter.reshape(groups, count // groups, depth, *size)
    total = jnp.zeros((batch, groups, count // groups, *windows.downscaled), wide)
    for cell in np.ndindex(*size):
        start = [j * d for j, d in zip(cell, windows.dilation, strict=True)]
        stop = [
            first + (down - 1) * s + 1
            for first, down, s in zip(start, windows.downscaled, windows.stride, strict=True)
        ]
        items = tuple(map(slice, start, stop, windows.stride))
        cells, weights = x[:, :, :, *items], filter[:, :, :, *cell]
        total += jnp.einsum("bgc...,gnc->bgn...", cells, weights, preferred_element_type=wide)
    return total.reshape(batch, count, *windows.downscaled)


def transposed_filter(filter: Array, groups: int) -> Array:
    """Turn a deconvolution's filter (c,C/G,f...) into one that correlates: (C,c/G,f...)."""
    c, per_group, *size = filter.shape
    grouped = filter.reshape(groups, c // groups, per_group, *size)
    swapped = jnp.swapaxes(grouped, 1, 2).reshape(groups * per_group, c // groups, *size)
    return lax.rev(swapped, tuple(range(2, filter.ndim)))


def deconv(
    x: Array, filter: Array, windows: Windows, groups: int, precision: Any, wide: Any
) -> Array:
    """Reverse `conv`: (B,c,x...) with a transposed filter (C,c/G,f...) gives (B,C,X...)."""
    x, padding = spread(x, windows, 2)
    x, filter, precision = narrowed(x, filter, precision)
    return lax.conv_general_dilated(
        x,
        filter,
        window_strides=(1,) * len(padding),
        padding=padding,
        lhs_dilation=windows.stride,
        rhs_dilation=windows.dilation,
        feature_group_count=groups,
        precision=precision,
        preferred_element_type=wide,
    )


def spread(x: Array, windows: Windows, first_axis: int = 0) -> tuple[Array, Padding]:
    """Return the input of a reverse operation, extended as far as windows reach, and its padding.

    That applies once items are spread `stride` apart; where the output is cut it is negative.
    """
    before = (0,) * len(windows.size)
    if windows.border not in ("constant", "ignore"):
        x = extend(x, ((0, 0),) * first_axis + windows.reach, windows.border)
        before = tuple(p for p, _ in windows.reach)
    padding: list[tuple[int, int]] = []
    for axis, (up, span, s, (p, _)) in enumerate(
        zip(windows.upscaled, windows.dilated, windows.stride, windows.padding, strict=True)
    ):
        cut = p + before[axis] * s
        covered = (x.shape[first_axis + axis] - 1) * s + 1
        padding.append((span - 1 - cut, up + cut - covered))
    return x, tuple(padding)
