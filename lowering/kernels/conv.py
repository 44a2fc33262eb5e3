"""How convolutions are computed, on arrays (B,C,X...); `windows` covers the spatial dimensions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.kernels.windows import Padding, Windows, extend, reach


def conv(
    x: Array, filter: Array, windows: Windows, border: str, groups: int, precision: Any
) -> Array:
    """Correlation of (B,C,X...) with a filter (c,C/G,f...): (B,c,x...)."""
    padding = windows.padding
    if border != "constant":
        x = extend(x, ((0, 0), (0, 0), *padding), border)
        padding = ((0, 0),) * len(padding)
    return lax.conv_general_dilated(
        x,
        filter,
        window_strides=windows.stride,
        padding=padding,
        rhs_dilation=windows.dilation,
        feature_group_count=groups,
        precision=precision,
    )


def transposed_filter(filter: Array, groups: int) -> Array:
    """The filter (c,C/G,f...) of a deconvolution turned into one that correlates: (C,c/G,f...).

    It depends on the filter alone, so that it can be computed once for many calls.
    """
    c, per_group, *size = filter.shape
    grouped = filter.reshape(groups, c // groups, per_group, *size)
    swapped = jnp.swapaxes(grouped, 1, 2).reshape(groups * per_group, c // groups, *size)
    return lax.rev(swapped, tuple(range(2, filter.ndim)))


def deconv(
    x: Array, filter: Array, windows: Windows, border: str, groups: int, precision: Any
) -> Array:
    """The reverse of `conv`: (B,c,x...) with a transposed filter (C,c/G,f...) gives (B,C,X...)."""
    x, padding = spread(x, windows, border, 2)
    return lax.conv_general_dilated(
        x,
        filter,
        window_strides=(1,) * len(padding),
        padding=padding,
        lhs_dilation=windows.stride,
        rhs_dilation=windows.dilation,
        feature_group_count=groups,
        precision=precision,
    )


def spread(x: Array, windows: Windows, border: str, first_axis: int = 0) -> tuple[Array, Padding]:
    """The input of a reverse operation as far as its windows reach, and the padding that it needs.

    The padding goes around the input once its items are spread `stride` apart; it is negative where
    the output is cut. A window of stride 1 then has as many positions as the output has items.
    """
    before = (0,) * len(windows.size)
    if border not in ("constant", "ignore"):
        reached = reach(windows)
        x = extend(x, ((0, 0),) * first_axis + reached, border)
        before = tuple(p for p, _ in reached)
    padding: list[tuple[int, int]] = []
    for axis, (up, span, s, (p, _)) in enumerate(
        zip(windows.upscaled, windows.dilated, windows.stride, windows.padding, strict=True)
    ):
        cut = p + before[axis] * s
        covered = (x.shape[first_axis + axis] - 1) * s + 1
        padding.append((span - 1 - cut, up + cut - covered))
    return x, tuple(padding)
