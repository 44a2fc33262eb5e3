"""Elementwise operations (spec 4.2).

Integers wrap around. Quotients of integers are rounded towards 0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.extents import is_static
from lowering.graph import TensorType
from lowering.kernels.broadcast import align, broadcast_shapes, clamped, maximum, minimum
from lowering.kernels.rounding import straight_through
from lowering.ops import require, rules
from lowering.tracing import Context

Infer = Callable[..., TensorType]

TIES = ("up", "away", "even")
_LOGICAL = "its results are logical values"
_BITS = "its results are integers or logical values"


def _is_inexact(x: Array) -> bool:
    """Tell whether an array has floating-point or complex numbers."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def like(check: Callable[..., None]) -> Callable[[TensorType], TensorType]:
    """Return an `infer` function that checks its one operand, and returns the operand's type."""

    def infer(x: TensorType) -> TensorType:
        check(x=x)
        return x

    return infer


real_type, ordered_type, _number_type = map(
    like, (require.floating, require.ordered, require.number)
)


def _register_unary(
    kind: str, function: Callable[[Array], Array], infer: Infer = real_type, why_not: str = ""
) -> None:
    """Register `kind` as an operation that applies an elementwise function to one operand.

    `infer` returns the type of the result. `why_not` is the reason why the kind has no derivatives,
    or "".
    """

    def lower(x: Array) -> Array:
        return function(jnp.asarray(x))

    rules.rule(kind, infer, not_differentiable=why_not)(lower)


def _non_finite_type(x: TensorType) -> TensorType:
    return TensorType(real_type(x).shape, "bool")


def _register_rounding(kind: str, function: Callable[[Array], Array]) -> None:
    """Register `kind` as an operation that applies `function` to floating-point numbers.

    The rule leaves integers unchanged.
    """

    def rounding(x: Array) -> Array:
        return function(x) if _is_inexact(x) else x

    _register_unary(kind, rounding, ordered_type)


_register_unary("neg", jnp.negative, _number_type)
_register_unary("rcp", lambda x: 1 / x)
_register_unary("exp", jnp.exp)
_register_unary("log", jnp.log)
_register_unary("sin", jnp.sin)
_register_unary("cos", jnp.cos)
_register_unary("tan", jnp.tan)
_register_unary("sinh", jnp.sinh)
_register_unary("cosh", jnp.cosh)
_register_unary("tanh", jnp.tanh)
_register_unary("asin", jnp.arcsin)
_register_unary("acos", jnp.arccos)
_register_unary("atan", jnp.arctan)
_register_unary("asinh", jnp.arcsinh)
_register_unary("acosh", jnp.arccosh)
_register_unary("atanh", jnp.arctanh)
_register_unary("abs", jnp.abs, ordered_type)
_register_unary("sign", jnp.sign, ordered_type)
_register_unary("sqr", jnp.square, _number_type)
_register_unary("sqrt", jnp.sqrt)
_register_unary("rsqr", lambda x: 1 / jnp.square(x))
_register_unary("rsqrt", lax.rsqrt)
_register_unary("log2", jnp.log2)
_register_rounding("floor", jnp.floor)
_register_rounding("ceil", jnp.ceil)
_register_unary("copy", jnp.asarray, lambda x: x)
_register_unary("not", jnp.logical_not, like(require.logical), _LOGICAL)
_register_unary("bitwise_not", jnp.bitwise_not, like(require.bits), _BITS)
_register_unary("is_nan", jnp.isnan, _non_finite_type, _LOGICAL)


def rounded(x: Array, ties: str) -> Array:
    """Return numbers rounded to integers.

    A number halfway between two integers goes up if `ties` is "up", away from zero if it is
    "away", and to the even integer if it is "even".
    """
    if ties == "up":
        # This is floor(x + 0.5) without the rounding error of the sum. In float32 the sum has an
        # error for x just below 0.5, and for x from 2**23 on.
        floor = jnp.floor(x)
        return jnp.where(x - floor >= 0.5, floor + 1, floor)
    if ties == "away":
        return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)


def _round_type(x: TensorType, ties: str = "up") -> TensorType:
    require.one_of("ties", ties, TIES)
    return ordered_type(x)


@rules.rule("round", _round_type)
def round_(ctx: Context, x: Array, ties: str = "up") -> Array:
    """Return the nearest whole number, in the dtype of x.

    A number halfway between two integers goes up if `ties` is "up", away from zero if it is
    "away", and to the even integer if it is "even".
    """
    x = jnp.asarray(x)
    if not _is_inexact(x):
        return x
    integers = rounded(x, ties)
    if ctx.straight_through:
        return straight_through(integers, x)  # has the derivative 1
    return integers


def _same_type(x: TensorType, y: TensorType) -> TensorType:
    require.same_dtype(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), x.dtype)


def _pair_type(check: Callable[..., None]) -> Callable[[TensorType, TensorType], TensorType]:
    """Return an `infer` function that calls `check(x=x, y=y)` for two operands of one dtype."""

    def infer(x: TensorType, y: TensorType) -> TensorType:
        check(x=x, y=y)
        return _same_type(x, y)

    return infer


_numbers_type, _bits_type, _shift_type = map(
    _pair_type, (require.number, require.bits, require.integer)
)


def _extremum_type(x: TensorType, y: TensorType) -> TensorType:
    if x.dtype != "bool":
        require.ordered(x=x, y=y)
    return _same_type(x, y)


def _comparison_type(x: TensorType, y: TensorType) -> TensorType:
    return TensorType(_same_type(x, y).shape, "bool")


def _register_binary(
    kind: str, infer: Infer, function: Callable[[Array, Array], Array], why_not: str = ""
) -> None:
    """Register `kind` as an operation that applies an elementwise function to two operands.

    `infer` returns the type of the result. `why_not` is the reason why the kind has no derivatives,
    or "".
    """

    def lower(x: Array, y: Array) -> Array:
        return function(*align(x, y))

    rules.rule(kind, infer, not_differentiable=why_not)(lower)


_register_binary("add", _same_type, jnp.add)  # for logical values this is `or`, as in numpy
_register_binary("sub", _numbers_type, jnp.subtract)
_register_binary("mul", _same_type, jnp.multiply)  # for logical values this is `and`
_register_binary("min", _extremum_type, minimum)
_register_binary("max", _extremum_type, maximum)

_register_binary("lt", _comparison_type, jnp.less, _LOGICAL)
_register_binary("gt", _comparison_type, jnp.greater, _LOGICAL)
_register_binary("le", _comparison_type, jnp.less_equal, _LOGICAL)
_register_binary("ge", _comparison_type, jnp.greater_equal, _LOGICAL)
_register_binary("eq", _comparison_type, jnp.equal, _LOGICAL)
_register_binary("ne", _comparison_type, jnp.not_equal, _LOGICAL)
_register_binary("and", _pair_type(require.logical), jnp.logical_and, _LOGICAL)
_register_binary("or", _pair_type(require.logical), jnp.logical_or, _LOGICAL)

_register_binary("bitwise_and", _bits_type, jnp.bitwise_and, _BITS)
_register_binary("bitwise_or", _bits_type, jnp.bitwise_or, _BITS)
_register_binary("bitwise_xor", _bits_type, jnp.bitwise_xor, _BITS)


@rules.rule("div", _numbers_type)
def divide(x: Array, y: Array) -> Array:
    """Return x / y. An integer quotient is rounded towards 0, and is 0 where y is 0."""
    x, y = align(x, y)
    # One of the operands may be a Python number, whose type may differ from the other operand's
    # dtype.
    if _is_inexact(jnp.asarray(x)) or _is_inexact(jnp.asarray(y)):
        return jnp.divide(x, y)
    # `lax.div` rounds integer quotients towards 0, and needs operands of one shape.
    dividend, divisor = jnp.broadcast_arrays(x, y)
    is_zero = divisor == 0
    nonzero_divisor = jnp.where(is_zero, 1, divisor)
    return jnp.where(is_zero, 0, lax.div(dividend, nonzero_divisor))


@rules.rule("rem", _pair_type(require.ordered))
def remainder(x: Array, y: Array) -> Array:
    """Return x - y * trunc(x / y) without rounding errors.

    The result has the sign of x. For integers the result is 0 where y is 0.
    """
    x, y = jnp.broadcast_arrays(*align(x, y))
    if _is_inexact(x):
        return lax.rem(x, y)
    is_zero = y == 0
    divisor = jnp.where(is_zero, 1, y)
    return jnp.where(is_zero, 0, lax.rem(x, divisor))


@rules.rule("pow", _numbers_type)
def power(x: Array, y: Array) -> Array:
    """Return x to the power y. For integers a power with y < 0 is rounded towards 0.

    If y is one constant whole number from -16 to 16, the derivative by floating-point x is
    finite at negative x.
    """
    x = jnp.asarray(x)
    if not _is_inexact(x):
        return _integer_power(*jnp.broadcast_arrays(*align(x, y)))
    is_one_constant = is_static(y) and np.size(y) == 1 and np.ndim(y) <= x.ndim
    if is_one_constant and not np.iscomplexobj(y):
        # The derivative of `lax.integer_pow` is finite at negative x, unlike the derivative of
        # `jnp.power`.
        exponent = float(np.asarray(y).item())
        if exponent.is_integer() and abs(exponent) <= 16:
            return lax.integer_pow(x, int(exponent))
    return jnp.power(*align(x, y))


def _integer_power(x: Array, y: Array) -> Array:
    """Return x to the power y for integers. A power with y < 0 is rounded towards 0."""
    positive_power = jnp.power(x, jnp.maximum(y, 0))
    # If y is negative, all powers are truncated to 0 except the powers of 1 and -1. The powers of 1
    # and -1 are 1 for even y, and x for odd y.
    power_of_unit = jnp.where(y % 2 == 0, x * x, x)
    negative_power = jnp.where(jnp.abs(x) == 1, power_of_unit, 0)
    return jnp.where(y >= 0, positive_power, negative_power)


def _shift_operands(x: Array, y: Array) -> tuple[Array, Array, Array, int]:
    """Return x and y in one shape, whether a shift by y is in range, and the number of bits of x.

    A shift is in range if 0 <= y < the number of bits. Platforms differ in other shifts.
    """
    x, y = jnp.broadcast_arrays(*align(x, y))
    bit_count = jnp.iinfo(x.dtype).bits
    is_inside = (y >= 0) & (y < bit_count)
    return x, y, is_inside, bit_count


@rules.rule("shift_left", _shift_type, not_differentiable=_BITS)
def shift_left(x: Array, y: Array) -> Array:
    """Return x shifted left by y bits.

    The result is 0 where y is negative or not below the number of bits of the dtype.
    """
    x, y, is_inside, _ = _shift_operands(x, y)
    shifted = jnp.left_shift(x, jnp.where(is_inside, y, 0))
    return jnp.where(is_inside, shifted, 0)


@rules.rule("shift_right", _shift_type, not_differentiable=_BITS)
def shift_right(x: Array, y: Array) -> Array:
    """Return x shifted right by y bits. The sign of x is kept.

    Where y is negative or not below the number of bits of the dtype, the result is -1 for
    negative x and 0 for other x.
    """
    x, y, is_inside, bit_count = _shift_operands(x, y)
    # If y is out of range, all bits are shifted out in two steps: by `bit_count` - 1, and by 1.
    shifted = jnp.right_shift(x, jnp.where(is_inside, y, bit_count - 1))
    return jnp.where(is_inside, shifted, jnp.right_shift(shifted, jnp.ones_like(y)))


@rules.rule("is_inf", _non_finite_type, not_differentiable=_LOGICAL)
def is_inf(x: Array, positive: bool, negative: bool) -> Array:
    """Tell where x is +inf (if `positive` is true), or -inf (if `negative` is true)."""
    x = jnp.asarray(x)
    is_positive_infinity = (x == jnp.inf) & positive
    is_negative_infinity = (x == -jnp.inf) & negative
    return is_positive_infinity | is_negative_infinity


def _select_type(
    condition: TensorType, true_value: TensorType, false_value: TensorType
) -> TensorType:
    require.logical(condition=condition)
    require.same_dtype(true_value=true_value, false_value=false_value)
    shape = broadcast_shapes(condition.shape, true_value.shape, false_value.shape)
    return TensorType(shape, true_value.dtype)


@rules.rule("select", _select_type)
def select(condition: Array, true_value: Array, false_value: Array) -> Array:
    """Return `true_value` where the condition holds, and `false_value` elsewhere (spec 4.2.3)."""
    return jnp.where(*align(condition, true_value, false_value))


def _clamp_type(x: TensorType, a: TensorType, b: TensorType, inclusive: bool = False) -> TensorType:
    require.same_dtype(require.ordered, x=x, a=a, b=b)
    return TensorType(broadcast_shapes(x.shape, a.shape, b.shape), x.dtype)


@rules.rule("clamp", _clamp_type)
def clamp(x: Array, a: Array | float, b: Array | float, inclusive: bool = False) -> Array:
    """Return max(min(x, b), a).

    At a bound the derivative by x is 1/2, or 1 if `inclusive` is true.
    """
    if not inclusive:
        return clamped(x, a, b)
    x, lower, upper = align(x, a, b)
    capped = jnp.where(x > upper, upper, x)
    return jnp.where(capped < lower, lower, capped)
