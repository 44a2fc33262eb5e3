"""The layers in Python's integers, one item after the other, as in the extension's text.

Arrays are without batch: (C,H,W), weights (O,C,h,w). The semantics of the C routines are written
like these: products and sums after a channel are brought into the type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

Ints = np.ndarray[Any, Any]
Pair = tuple[int, int]

POLICIES = [(o, r) for o in ("saturate", "wrap") for r in ("to_zero", "nearest_even")]


def fitted(whole: int, overflow_policy: str, dtype: Any) -> int:
    """saturate(x) of vx_convert_policy_e."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if overflow_policy == "saturate":
        return min(max(whole, low), high)
    return (whole - low) % (high - low + 1) + low


def rounded(exact: Fraction, rounding_policy: str) -> int:
    """round(x) of vx_round_policy_e: Python's `round` takes halves to even numbers."""
    return round(exact) if rounding_policy == "nearest_even" else int(exact)


def quotient(a: int, b: int) -> int:
    """Divide as C does."""
    return abs(a) // b * (1 if a >= 0 else -1)


def summed(
    channels: Iterator[list[int]], bias: int, shift: int, policies: Pair, khronos: bool, dtype: Any
) -> int:
    """Return one output from the products of each channel and a bias at the output's position."""
    overflow_policy, rounding_policy = policies
    if not khronos:
        total = sum(map(sum, channels)) + bias * 2**shift
        return fitted(rounded(Fraction(total, 2**shift), rounding_policy), overflow_policy, dtype)
    total, half = bias, 2 ** (shift - 1) if shift and rounding_policy == "nearest_even" else 0
    for products in channels:
        for product in products:
            total += fitted(quotient(product + half, 2**shift), overflow_policy, dtype)
        total = fitted(total, overflow_policy, dtype)
    return total


def bias_at(biases: Ints | None, o: int, j: int, i: int) -> int:
    if biases is None:
        return 0
    return int(biases[o] if biases.ndim == 1 else biases[o, j, i])


def convolution(
    x: Ints,
    weights: Ints,
    biases: Ints | None,
    shape: tuple[int, ...],
    policies: Any,
    khronos: bool = False,
    padding: Pair = (0, 0),
    dilation: Pair = (0, 0),
    skip: Pair = (1, 1),
) -> Ints:
    """vxConvolutionLayer; `shape` is (O,H,W). The C routines begin `dilation` late."""
    _, height, width = x.shape
    late = dilation if khronos else (0, 0)
    made = np.zeros(shape, x.dtype)
    for o, j, i in np.ndindex(*shape):

        def products(channel: int, o: int = o, j: int = j, i: int = i) -> list[int]:
            found = []
            for m, n in np.ndindex(*weights.shape[2:]):
                row = j * skip[1] + m * (dilation[1] + 1) - padding[1] + late[1]
                column = i * skip[0] + n * (dilation[0] + 1) - padding[0] + late[0]
                if 0 <= row < height and 0 <= column < width:
                    found.append(int(x[channel, row, column]) * int(weights[o, channel, m, n]))
            return found

        channels = map(products, range(len(x)))
        bias, shift = bias_at(biases, o, j, i), 8 if x.dtype == np.int16 else 0
        made[o, j, i] = summed(channels, bias, shift, policies, khronos, x.dtype)
    return made


def deconvolution(
    x: Ints,
    weights: Ints,
    biases: Ints | None,
    shape: tuple[int, ...],
    policies: Any,
    khronos: bool = False,
    padding: Pair = (0, 0),
    upscale: Pair = (1, 1),
) -> Ints:
    """vxDeconvolutionLayer: a convolution of zeros with the inputs among them.

    The C routines leave out what lies beyond the extents of the inputs themselves.
    """
    channels, height, width = x.shape
    *_, m, n = weights.shape
    wide = np.zeros((channels, shape[1] + m - 1, shape[2] + n - 1), x.dtype)
    top, left = m - 1 - padding[1], n - 1 - padding[0]
    for channel, j, i in np.ndindex(*x.shape):
        row, column = j * upscale[1], i * upscale[0]
        inside = not khronos or (row < height and column < width)
        if inside and row + top < wide.shape[1] and column + left < wide.shape[2]:
            wide[channel, row + top, column + left] = x[channel, j, i]
    return convolution(wide, weights, biases, shape, policies, khronos)


def fully_connected(
    x: Ints, weights: Ints, biases: Ints | None, policies: Any, khronos: bool = False
) -> Ints:
    """vxFullyConnectedLayer of (I,) and (O,I): in the C routines all inputs are one channel."""
    shift = 8 if x.dtype == np.int16 else 0
    rows: list[int] = []
    for o, row in enumerate(weights):
        products = [int(a) * int(b) for a, b in zip(x, row, strict=True)]
        bias = 0 if biases is None else int(biases[o])
        rows.append(summed(iter([products]), bias, shift, policies, khronos, x.dtype))
    return np.array(rows, x.dtype)


def pooling(
    x: Ints,
    shape: tuple[int, ...],
    pooling_type: str,
    pooling_size: Pair,
    pooling_padding: Pair,
    skip: Pair,
    khronos: bool = False,
) -> Ints:
    """vxPoolingLayer; `shape` is (C,H,W)."""
    _, height, width = x.shape
    made = np.zeros(shape, x.dtype)
    for c, j, i in np.ndindex(*shape):
        items: list[int] = []
        for m, n in np.ndindex(pooling_size[1], pooling_size[0]):
            row = j * skip[1] + m - pooling_padding[1]
            column = i * skip[0] + n - pooling_padding[0]
            inside = 0 <= row < height and 0 <= column < width
            padded = row < height + pooling_padding[1] and column < width + pooling_padding[0]
            if inside:
                items.append(int(x[c, row, column]))
            elif pooling_type == "avg" or (padded and not khronos):
                items.append(0)
        least = int(np.iinfo(x.dtype).min)
        mean = quotient(sum(items), pooling_size[0] * pooling_size[1])
        made[c, j, i] = max(items, default=least) if pooling_type == "max" else mean
    return made


def roi_pooling(x: Ints, rois: Ints, shape: tuple[int, ...], khronos: bool = False) -> Ints:
    """vxROIPoolingLayer; `shape` is (R,C,h,w)."""
    made = np.zeros(shape, x.dtype)

    def part(first: int, last: int, index: int, count: int, extent: int) -> range:
        length = max(last - first, 0) + 1
        start = first + index * length // count
        end = first - (-(index + 1) * length // count)
        if khronos and start < 0:  # which is the largest of unsigned numbers there
            return range(0)
        return range(max(start, 0), min(end, extent))

    for r, c, j, i in np.ndindex(*shape):
        x0, y0, x1, y1 = map(int, rois[r])
        items = [
            int(x[c, row, column])
            for row in part(y0, y1, j, shape[2], x.shape[1])
            for column in part(x0, x1, i, shape[3], x.shape[2])
        ]
        made[r, c, j, i] = max(items, default=0)
    return made


def activation(x: Ints, function: Callable[[float], float], position: int) -> Ints:
    """vxActivationLayer: truncated, then saturated."""
    made = [
        fitted(int(function(int(item) / 2**position) * 2**position), "saturate", x.dtype)
        for item in x.ravel()
    ]
    return np.array(made, x.dtype).reshape(x.shape)
