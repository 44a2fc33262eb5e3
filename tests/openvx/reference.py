"""The layers in Python's integers, one item after the other, as the extension's text has them."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np

Ints = np.ndarray[Any, Any]


def result(exact: Fraction, overflow_policy: str, rounding_policy: str, dtype: Any) -> int:
    """saturate(round(x)): Python rounds halves to even."""
    whole = round(exact) if rounding_policy == "nearest_even" else int(exact)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if overflow_policy == "saturate":
        return min(max(whole, low), high)
    return (whole - low) % (high - low + 1) + low


def convolution(
    x: Ints,
    weights: Ints,
    biases: Ints | None,
    *,
    padding: tuple[int, int],
    dilation: tuple[int, int],
    skip: tuple[int, int],
    shape: tuple[int, ...],
    overflow_policy: str,
    rounding_policy: str,
    shift: int,
    bias_shift: int,
) -> Ints:
    """Without batch: (I,H,W) and (O,I,h,w) to a shape (O,H,W)."""
    _, height, width = x.shape
    made = np.zeros(shape, x.dtype)
    for o, j, i in np.ndindex(*shape):
        total = 0
        for channel, m, n in np.ndindex(*weights.shape[1:]):
            row = j * skip[1] + m * (dilation[1] + 1) - padding[1]
            column = i * skip[0] + n * (dilation[0] + 1) - padding[0]
            if 0 <= row < height and 0 <= column < width:
                total += int(x[channel, row, column]) * int(weights[o, channel, m, n])
        if biases is not None:
            bias = biases[o] if biases.ndim == 1 else biases[o, j, i]
            total += int(bias) << bias_shift
        exact = Fraction(total) / Fraction(2) ** shift
        made[o, j, i] = result(exact, overflow_policy, rounding_policy, x.dtype)
    return made


def policies() -> list[tuple[str, str]]:
    return list(itertools.product(("saturate", "wrap"), ("to_zero", "nearest_even")))
