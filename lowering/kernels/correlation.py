"""Correlates inputs (B,C,X...) with filters (c,C/G,f...): convolutions, and their reverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.kernels.precision import narrowed
from lowering.kernels.windows import Padding, Windows, extend, spans


@dataclass(frozen=True, slots=True)
class Slide:
    """How a filter slides over an input (B,C,X...), whose items are spread first.

    Each tuple has an entry for each X. Negative padding cuts.
    """

    stride: tuple[int, ...] = ()
    padding: Padding = ()
    spread: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    def spread_out(self, x: Array) -> Array:
        """Return an input with zeros around it and between its items."""
        steps = [(p, q, s - 1) for (p, q), s in zip(self.padding, self.spread, strict=True)]
        none = np.array(0, x.dtype)
        return lax.pad(x, none, [(0, 0, 0)] * 2 + steps) if any(map(any, steps)) else x

    def places(self, extents: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
        """Return how many places windows of a size have along each axis of such an input."""
        axes = zip(extents, spans(size, self.dilation), self.stride, strict=True)
        return tuple((extent - span) // s + 1 for extent, span, s in axes)

    def items(self, cell: Sequence[int], places: Sequence[int]) -> tuple[slice, ...]:
        """Return the items of such an input that a cell of the window covers at so many places."""
        axes = zip(cell, self.dilation, places, self.stride, strict=True)
        return tuple(slice(j * d, j * d + (n - 1) * s + 1, s) for j, d, n, s in axes)


def correlate(x: Array, filter: Array, slide: Slide, precision: Any, wide: Any = None) -> Array:
    """Return (B,c,x...), summed in the type `wide`."""
    x, filter, precision = narrowed(x, filter, precision)
    return lax.conv_general_dilated(
        x,
        filter,
        slide.stride,
        slide.padding,
        lhs_dilation=slide.spread,
        rhs_dilation=slide.dilation,
        feature_group_count=slide.groups,
        precision=precision,
        preferred_element_type=wide,
    )


def by_cells(x: Array, filter: Array, slide: Slide, wide: Any) -> Array:
    """Compute `correlate` of integers by a product for each cell of the window.

    XLA's own does not run on every GPU. On CPUs, 3x3 windows of int32 take 1.5 times (3 to 16
    channels) to 50 times (32 plane-wise planes) as long.
    """
    x, groups, (count, depth, *size) = slide.spread_out(x), slide.groups, filter.shape
    batch, _, *extents = x.shape
    places = slide.places(extents, size)
    x = x.reshape(batch, groups, depth, *extents)
    filter = filter.reshape(groups, count // groups, depth, *size)
    total = jnp.zeros((batch, groups, count // groups, *places), wide)
    for cell in np.ndindex(*size):
        cells, weights = x[:, :, :, *slide.items(cell, places)], filter[:, :, :, *cell]
        total += jnp.einsum("bgc...,gnc->bgn...", cells, weights, preferred_element_type=wide)
    return total.reshape(batch, count, *places)


def conv(
    x: Array, filter: Array, windows: Windows, groups: int, precision: Any, wide: Any
) -> Array:
    """Correlate (B,C,X...) with a filter (c,C/G,f...) to (B,c,x...), summed in the type `wide`."""
    x, padding = bordered(x, windows)
    slide = Slide(windows.stride, padding, (1,) * len(padding), windows.dilation, groups)
    if jnp.issubdtype(wide, jnp.integer):
        return by_cells(x, filter, slide, wide)
    return correlate(x, filter, slide, precision, wide)


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
    x, padding = spread(x, windows)
    slide = Slide((1,) * len(padding), padding, windows.stride, windows.dilation, groups)
    return correlate(x, filter, slide, precision, wide)


def bordered(x: Array, windows: Windows) -> tuple[Array, Padding]:
    """Return an input with a border of anything but zeros, and the padding that is left for zeros.

    Windows are on its last axes.
    """
    if windows.border in ("constant", "ignore"):
        return x, windows.padding
    before = ((0, 0),) * (x.ndim - len(windows.size))
    return extend(x, before + windows.padding, windows.border), ((0, 0),) * len(windows.size)


def spread(x: Array, windows: Windows) -> tuple[Array, Padding]:
    """Return the input of a reverse operation, extended as far as windows reach, and its padding.

    That applies once items are spread `stride` apart; where the output is cut it is negative.
    """
    first, padding, reach = x.ndim - len(windows.size), list[tuple[int, int]](), windows.reach
    if windows.border in ("constant", "ignore"):
        reach = ((0, 0),) * len(reach)
    x = extend(x, ((0, 0),) * first + reach, windows.border)
    axes = (x.shape[first:], reach, windows.upscaled, windows.dilated, windows.stride)
    for n, (b, _), up, span, s, (p, _) in zip(*axes, windows.padding, strict=True):
        cut = p + b * s
        padding.append((span - 1 - cut, up + cut - ((n - 1) * s + 1)))
    return x, tuple(padding)
