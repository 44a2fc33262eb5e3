"""Quantisation as the dialect rounds: of two equally near levels the one with the even code."""

from __future__ import annotations

from typing import Any

from jax import Array

from lowering.kernels.rounding import round_half_even
from lowering.ops import rules
from lowering.ops.quantize import around, between


@rules.rule("tract.min_max_linear_quantize", rules["min_max_linear_quantize"].infer)
def min_max_linear_quantize(
    x: Any, min: Any, max: Any, bits: int, signed: bool, symmetric: bool
) -> Array:
    """The nearest of the levels that divide the range from min to max evenly."""
    return between(round_half_even, x, min, max, bits, signed and symmetric)


@rules.rule("tract.zero_point_linear_quantize", rules["zero_point_linear_quantize"].infer)
def zero_point_linear_quantize(
    x: Any, zero_point: Any, scale: Any, bits: int, signed: bool, symmetric: bool
) -> Array:
    """The nearest multiple of scale whose number, counted from the zero point, fits the bits."""
    top = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    bottom = 0 if not signed else -top if symmetric else -top - 1
    return around(round_half_even, x, zero_point, scale, bottom, top)
