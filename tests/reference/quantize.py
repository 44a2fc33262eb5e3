"""Quantisation (spec 4.8.5, formulas of 1.0 final): reals rounded to levels of an integer type."""

from __future__ import annotations

import numpy as np

from .elementwise import align, clamp, round_
from .table import operation


@operation
def min_max_linear_quantize(x, min, max, bits, signed, symmetric):
    x, min, max = align(x, min, max)
    steps = 2**bits - 1 - int(signed and symmetric)
    level = round_((clamp(x, min, max) - min) / (max - min) * steps)
    return level / steps * (max - min) + min


@operation
def zero_point_linear_quantize(x, zero_point, scale, bits, signed, symmetric):
    x, zero_point, scale = align(x, zero_point, scale)
    top = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    bottom = (-top if symmetric else -top - 1) if signed else 0
    level = clamp(round_(x / scale) + zero_point, bottom, top)
    return (level - zero_point) * scale


@operation
def linear_quantize(x, min, max, bits):
    return min_max_linear_quantize(x, min, max, bits, signed=False, symmetric=False)


@operation
def logarithmic_quantize(x, max, bits):
    x, max = align(x, max)
    top = np.ceil(np.log2(max))
    with np.errstate(divide="ignore"):
        exponent = clamp(np.log2(np.abs(x)), top - (2**bits - 1), top)
    return np.sign(x) * 2.0 ** round_(exponent)
