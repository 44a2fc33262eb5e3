"""Quantisation to even or logarithmic levels, as real values (spec 4.8.5).

`ties` chooses between equally near codes, as in `round`, whose derivative is 0. The standard
library expands `linear_quantize` to `min_max_linear_quantize`.

With `Context.straight_through` the derivative is that of x cut to the range of the levels: 1
inside, its ends included, and 0 outside, where the end has it. Sources: Krishnamoorthi 2018,
arXiv:1806.08342, section 2.4; for the ends PACT, Choi et al. 2018, arXiv:1805.06085.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.graph import TensorType
from lowering.kernels.broadcast import align
from lowering.kernels.levels import noted
from lowering.kernels.rounding import straight_through
from lowering.ops import require, rules
from lowering.ops.elementwise import TIES, rounded
from lowering.tracing import Context


def _quantized_type(
    x: TensorType, bits: int, least: int = 1, ties: str = "up", **levels: TensorType
) -> TensorType:
    require.one_of("ties", ties, TIES)
    require.same_dtype(require.real, x=x, **levels)
    require.fits("'x'", x, **levels)
    if not least <= bits <= 64:
        raise InvalidOperation(f"'bits' must be at least {least} and at most 64, it is {bits}")
    return x


def _wide(x: Any) -> Any:
    # Level numbers do not fit the mantissa of smaller floats. Literals fit any.
    small = not isinstance(x, float) and x.dtype.itemsize < 4
    return jnp.asarray(x, jnp.float32) if small else x


def _min_max_type(
    x: TensorType, bits: int, signed: bool, symmetric: bool, ties: str = "up", **ends: TensorType
) -> TensorType:
    return _quantized_type(x, bits, 2 if signed and symmetric else 1, ties, **ends)


def _as_cut(ctx: Context, result: Array, x: Array, low: Any, high: Any) -> Array:
    """Return the result, with the derivative of x within a range if the context asks for it."""
    if not ctx.straight_through:
        return result
    within = jnp.where((low <= x) & (x <= high), x, jnp.where(x > high, high, low))
    return straight_through(result, within)


@rules.rule("min_max_linear_quantize", _min_max_type)
def min_max_linear_quantize(
    ctx: Context,
    x: Any,
    min: Any,
    max: Any,
    bits: int,
    signed: bool,
    symmetric: bool,
    ties: str = "up",
) -> Array:
    """Return the nearest of the levels that divide min ... max evenly; min if that is empty."""
    x, low, high = align(jnp.asarray(x), min, max)
    dtype = x.dtype
    x, low, high = _wide(x), _wide(low), _wide(high)
    steps = float(2**bits - 1 - (signed and symmetric))
    span = high - low
    inside = jnp.maximum(jnp.minimum(x, high), low) - low
    level = rounded(inside / jnp.where(span == 0, 1.0, span) * steps, ties)
    result = _as_cut(ctx, level / steps * span + low, x, low, high).astype(dtype)
    return noted(result, level, span / steps, low, 0, int(steps))


def _zero_point_type(
    x: TensorType, zero_point: TensorType, scale: TensorType, bits: int, ties: str = "up"
) -> TensorType:
    require.integer(zero_point=zero_point)
    require.fits("'x'", x, zero_point=zero_point)
    return _quantized_type(x, bits, ties=ties, scale=scale)


@rules.rule("zero_point_linear_quantize", _zero_point_type)
def zero_point_linear_quantize(
    ctx: Context,
    x: Any,
    zero_point: Any,
    scale: Any,
    bits: int,
    signed: bool,
    symmetric: bool,
    ties: str = "up",
) -> Array:
    """Return the nearest multiple of scale whose number from the zero point fits the bits."""
    top = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    bottom = 0 if not signed else -top if symmetric else -top - 1
    x, zero, scale = align(jnp.asarray(x), zero_point, scale)
    dtype = x.dtype
    x, scale = _wide(x), _wide(scale)
    start = -(zero if isinstance(zero, int) else zero.astype(np.float32)) * scale
    zero = jnp.asarray(zero).astype(x.dtype)
    level = jnp.maximum(jnp.minimum(rounded(x / scale, ties) + zero, float(top)), float(bottom))
    low, high = ((float(end) - zero) * scale for end in (bottom, top))
    result = _as_cut(ctx, (level - zero) * scale, x, low, high).astype(dtype)
    return noted(result, level, scale, start, bottom, top)


def _logarithmic_type(x: TensorType, max: TensorType, bits: int) -> TensorType:
    return _quantized_type(x, bits, max=max)


@rules.rule("logarithmic_quantize", _logarithmic_type)
def logarithmic_quantize(ctx: Context, x: Any, max: Any, bits: int) -> Array:
    """Return the power of two of the nearest exponent, with the sign of x; 0 stays 0.

    The exponents are the 2^bits highest up to that of max, rounded up.
    """
    x, max = align(jnp.asarray(x), max)
    # frexp is exact; log2 is not at powers of two, where ceil would jump.
    part, exponent = jnp.frexp(lax.stop_gradient(jnp.abs(x)))
    exponent = jnp.where(part < math.sqrt(0.5), exponent - 1, exponent)
    part, top = jnp.frexp(lax.stop_gradient(jnp.asarray(max)))
    top = jnp.where(part == 0.5, top - 1, top)
    steps = 2 ** min(bits, 12) - 1  # no two exponents are further apart
    exponent = jnp.maximum(jnp.minimum(exponent, top), top - steps)
    largest = jnp.ldexp(jnp.ones_like(x), top)
    return _as_cut(ctx, jnp.ldexp(jnp.sign(x), exponent), x, -largest, largest)


def _fake_quantize_type(x: TensorType, levels: int, **ends: TensorType) -> TensorType:
    require.same_dtype(require.real, x=x, **ends)
    require.fits("'x'", x, **ends)
    if levels < 2:
        raise InvalidOperation(f"'levels' must be 2 or more, it is {levels}")
    return x


@rules.rule("fake_quantize", _fake_quantize_type)
def fake_quantize(
    ctx: Context,
    x: Any,
    input_low: Any,
    input_high: Any,
    output_low: Any,
    output_high: Any,
    levels: int,
) -> Array:
    """Return the nearest of levels between input ends, as one of those between output ends.

    Up to the lower end it is the lowest level, above the higher end the highest; halves go to even
    levels. Source: FakeQuantize-1 of OpenVINO's operation sets.
    """
    x, low, high, first, last = align(
        jnp.asarray(x), input_low, input_high, output_low, output_high
    )
    dtype = x.dtype
    x, low, high, first, last = (_wide(v) for v in (x, low, high, first, last))
    below, beyond = jnp.minimum(low, high), jnp.maximum(low, high)
    span, steps = high - low, float(levels - 1)
    level = rounded((x - low) / jnp.where(span == 0, 1.0, span) * steps, "even")
    level = jnp.where(x <= below, 0.0, jnp.where(x > beyond, steps, level))
    result = jnp.where(level == steps, last, level / steps * (last - first) + first)
    result = _as_cut(ctx, result, x, below, beyond).astype(dtype)
    return noted(result, level, (last - first) / steps, first, 0, levels - 1)
