"""Quantisation to equidistant or logarithmic levels (spec 4.8.5).

The results are floating-point numbers. A number halfway between two levels is rounded as `ties`
says, as in the operation `round`. The derivative of rounding is 0. The standard library expands
`linear_quantize` to `min_max_linear_quantize`.

With `Context.straight_through` derivatives are those of a function that only clamps x to the range
of levels. For x within the range, ends included, the derivative by x is 1. For x beyond an end, the
derivative by x is 0, and the derivative by this end is 1. Source: Krishnamoorthi 2018,
arXiv:1806.08342, section 2.4. The derivative by an end is that of PACT, Choi et al. 2018,
arXiv:1805.06085.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
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
    x: TensorType, bits: int, least_bits: int = 1, ties: str = "up", **levels: TensorType
) -> TensorType:
    """Check the arguments of a quantisation, and return the type of x as the result's type.

    `levels` has the operands that decide the levels, such as the ends of the range.
    """
    require.one_of("ties", ties, TIES)
    require.same_dtype(require.floating, x=x, **levels)
    require.fits("'x'", x, **levels)
    if not least_bits <= bits <= 64:
        raise InvalidOperation(f"'bits' must be at least {least_bits} and at most 64, it is {bits}")
    return x


def _wide(x: Array) -> Array:
    """Convert an array of 16-bit floats to float32. Other x are returned unchanged.

    The mantissa of 16-bit floats is too short for the number of levels.
    """
    is_narrow = not isinstance(x, float) and x.dtype.itemsize < 4
    return jnp.asarray(x, jnp.float32) if is_narrow else x


def _min_max_type(
    x: TensorType, bits: int, signed: bool, symmetric: bool, ties: str = "up", **ends: TensorType
) -> TensorType:
    # Symmetric integers of 1 bit would have only one level.
    least_bits = 2 if signed and symmetric else 1
    return _quantized_type(x, bits, least_bits, ties, **ends)


def _with_derivative(ctx: Context, result: Array, x: Array, low: Array, high: Array) -> Array:
    """Return `result`, with derivatives if `ctx.straight_through` is true.

    The derivatives of the returned array are then the derivatives of x clamped to [low, high].
    """
    if not ctx.straight_through:
        return result
    nearest_end = jnp.where(x > high, high, low)
    clamped = jnp.where((low <= x) & (x <= high), x, nearest_end)
    return straight_through(result, clamped)


@rules.rule("min_max_linear_quantize", _min_max_type)
def min_max_linear_quantize(
    ctx: Context,
    x: Array,
    min: Array,
    max: Array,
    bits: int,
    signed: bool,
    symmetric: bool,
    ties: str = "up",
) -> Array:
    """Round x to the nearest of 2^bits equidistant levels from `min` to `max`.

    If `signed` and `symmetric` are true, there are 2^bits - 1 levels. If `min` equals `max`,
    the result is `min`. `ties` is "up", "away" or "even", the direction of numbers halfway
    between two levels.
    """
    x, low, high = align(jnp.asarray(x), min, max)
    dtype = x.dtype
    x, low, high = _wide(x), _wide(low), _wide(high)
    level_count = 2**bits - 1 if signed and symmetric else 2**bits
    steps = float(level_count - 1)
    span = high - low
    divisor = jnp.where(span == 0, 1.0, span)
    distance = jnp.maximum(jnp.minimum(x, high), low) - low
    level = rounded(distance / divisor * steps, ties)
    rounded_x = level / steps * span + low
    result = _with_derivative(ctx, rounded_x, x, low, high).astype(dtype)
    return noted(result, level, span / steps, low, lowest=0, highest=int(steps))


def _zero_point_type(
    x: TensorType, zero_point: TensorType, scale: TensorType, bits: int, ties: str = "up"
) -> TensorType:
    require.integer(zero_point=zero_point)
    require.fits("'x'", x, zero_point=zero_point)
    return _quantized_type(x, bits, ties=ties, scale=scale)


@rules.rule("zero_point_linear_quantize", _zero_point_type)
def zero_point_linear_quantize(
    ctx: Context,
    x: Array,
    zero_point: Array,
    scale: Array,
    bits: int,
    signed: bool,
    symmetric: bool,
    ties: str = "up",
) -> Array:
    """Round x to the nearest number (q - zero_point) * scale, where q is an integer of `bits` bits.

    q is signed if `signed` is true. If `symmetric` is true too, q is not the least signed
    integer. `ties` is "up", "away" or "even", the direction of numbers halfway between two
    integers q.
    """
    if signed:
        top = 2 ** (bits - 1) - 1
        bottom = -top if symmetric else -top - 1
    else:
        bottom, top = 0, 2**bits - 1
    x, zero, scale = align(jnp.asarray(x), zero_point, scale)
    dtype = x.dtype
    x, scale = _wide(x), _wide(scale)
    # `start` is the number for q = 0. If the zero point and the scale are constants, `start` is
    # computed without a trace, so that `noted` can read its value.
    static_zero = zero if isinstance(zero, int) else zero.astype(x.dtype)
    start = -static_zero * scale
    zero = jnp.asarray(zero).astype(x.dtype)
    q = rounded(x / scale, ties) + zero
    q = jnp.maximum(jnp.minimum(q, float(top)), float(bottom))
    low = (float(bottom) - zero) * scale
    high = (float(top) - zero) * scale
    rounded_x = (q - zero) * scale
    result = _with_derivative(ctx, rounded_x, x, low, high).astype(dtype)
    return noted(result, q, scale, start, lowest=bottom, highest=top)


def _logarithmic_type(x: TensorType, max: TensorType, bits: int) -> TensorType:
    return _quantized_type(x, bits, max=max)


@rules.rule("logarithmic_quantize", _logarithmic_type)
def logarithmic_quantize(ctx: Context, x: Array, max: Array, bits: int) -> Array:
    """Round x to 2^e with the sign of x, where e is the exponent nearest to log2(|x|).

    0 stays 0. The exponents are 2^bits successive integers. The largest exponent is log2(max),
    rounded up.
    """
    x, max = align(jnp.asarray(x), max)
    # frexp is exact. log2 is not exact at powers of two, where rounding up could give the next
    # integer. |x| is mantissa * 2^exponent, and the mantissa is at least 0.5 and below 1.
    mantissa, exponent = jnp.frexp(lax.stop_gradient(jnp.abs(x)))
    # log2(|x|) is exponent + log2(mantissa). It is nearer to exponent - 1 if log2(mantissa) < -0.5.
    exponent = jnp.where(mantissa < math.sqrt(0.5), exponent - 1, exponent)
    max_mantissa, top = jnp.frexp(lax.stop_gradient(jnp.asarray(max)))
    top = jnp.where(max_mantissa == 0.5, top - 1, top)  # a power of two is not rounded up
    steps = 2 ** min(bits, 12) - 1  # the exponents of two floats differ by less than 2^12
    exponent = jnp.maximum(jnp.minimum(exponent, top), top - steps)
    result = jnp.ldexp(jnp.sign(x), exponent)
    largest = jnp.ldexp(jnp.ones_like(x), top)
    return _with_derivative(ctx, result, x, -largest, largest)


def _fake_quantize_type(x: TensorType, levels: int, **ends: TensorType) -> TensorType:
    """Check the arguments of `fake_quantize`, and return the type of its result."""
    require.same_dtype(require.floating, x=x, **ends)
    require.fits("'x'", x, **ends)
    if levels < 2:
        raise InvalidOperation(f"'levels' must be 2 or more, it is {levels}")
    return x


@rules.rule("fake_quantize", _fake_quantize_type)
def fake_quantize(
    ctx: Context,
    x: Array,
    input_low: Array,
    input_high: Array,
    output_low: Array,
    output_high: Array,
    levels: int,
) -> Array:
    """Return the nearest level of [input_low, input_high], mapped to [output_low, output_high].

    Each range has `levels` equidistant levels, which include the ends. If x is at most the
    smaller end of the input range, it has level 0. If x is above the larger end, it has the
    last level. A number halfway between two levels has the even level. Source: FakeQuantize-1
    of OpenVINO's operation sets.
    """
    dtype = jnp.asarray(x).dtype
    aligned = align(jnp.asarray(x), input_low, input_high, output_low, output_high)
    x, low, high, first_output, last_output = map(_wide, aligned)
    smaller = jnp.minimum(low, high)
    larger = jnp.maximum(low, high)
    span = high - low
    divisor = jnp.where(span == 0, 1.0, span)
    last_level = float(levels - 1)
    level = rounded((x - low) / divisor * last_level, ties="even")
    level = jnp.where(x > larger, last_level, level)
    level = jnp.where(x <= smaller, 0.0, level)
    output_span = last_output - first_output
    between = level / last_level * output_span + first_output
    # For the last level the formula could give a number next to `last_output`.
    result = jnp.where(level == last_level, last_output, between)
    result = _with_derivative(ctx, result, x, smaller, larger).astype(dtype)
    step = output_span / last_level
    return noted(result, level, step, first_output, lowest=0, highest=levels - 1)
