"""Element-wise operations of tract (registries tract_nnef, tract_core): arithmetic, bits, types.

What NNEF has for real numbers only, tract has for integers too: they wrap around, `div` cuts off,
and rounding leaves them alone. Activation functions are in `activation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.graph import TensorType
from lowering.kernels.broadcast import align, broadcast_shapes
from lowering.kernels.rounding import round_half_away, round_half_even
from lowering.ops import rules, shape
from lowering.ops.elementwise import power as real_power
from lowering.ops.tract.typing import is_complex, require_bits, require_number, require_ordered
from lowering.ops.typing import require_integer, require_real, require_same_dtype
from lowering.static import is_static


def _is_real(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


# One operand


def _number_type(x: TensorType) -> TensorType:
    require_number(x=x)
    return x


def _ordered_type(x: TensorType) -> TensorType:
    require_ordered(x=x)
    return x


for _kind, _name in {"neg": "neg", "sqr": "sqr", "square": "sqr"}.items():
    rules.rule(f"tract.{_kind}", _number_type)(rules[_name].lower)
for _kind in ("abs", "sign", "relu"):
    rules.rule(f"tract.{_kind}", _ordered_type)(rules[_kind].lower)
rules.rule("recip", rules["rcp"].infer)(rules["rcp"].lower)


def _rounding(kind: str, function: Callable[[Array], Array]) -> None:
    def lower(x: Any) -> Array:
        x = jnp.asarray(x)
        return function(x) if _is_real(x) else x

    rules.rule(f"tract.{kind}", _ordered_type)(lower)


_rounding("floor", jnp.floor)
_rounding("ceil", jnp.ceil)
_rounding("round", round_half_away)
_rounding("tract_core_round_even", round_half_even)


# Arithmetic


def _pair_type(x: TensorType, y: TensorType) -> TensorType:
    require_number(x=x, y=y)
    require_same_dtype(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), x.dtype)


def _sum_type(x: TensorType, y: TensorType) -> TensorType:
    require_same_dtype(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), x.dtype)


def _extremum_type(x: TensorType, y: TensorType) -> TensorType:
    if x.dtype != "bool":
        require_ordered(x=x, y=y)
    return _sum_type(x, y)


rules.rule("tract.sub", _pair_type)(rules["sub"].lower)
for _kind in ("add", "mul"):  # of logical values: `or` and `and`, as in torch
    rules.rule(f"tract.{_kind}", _sum_type)(rules[_kind].lower)
for _kind in ("min", "max"):
    rules.rule(f"tract.{_kind}", _extremum_type)(rules[_kind].lower)


@rules.rule("tract.div", _pair_type)
def divide(x: Any, y: Any) -> Array:
    """x / y; for integers cut off towards 0, and 0 where y is 0."""
    x, y = align(x, y)
    if _is_real(x):
        return jnp.divide(x, y)
    x, y = jnp.broadcast_arrays(x, y)
    zero = y == 0
    return jnp.where(zero, 0, lax.div(x, jnp.where(zero, 1, y)))


@rules.rule("tract.pow", _pair_type)
def power(x: Any, y: Any) -> Array:
    """x to the power y; for integers below 0 cut off towards 0, so 0 unless x is 1 or -1.

    A whole exponent that is known has a finite derivative at negative x.
    """
    if not _is_real(x):
        return _integer_power(*jnp.broadcast_arrays(*align(x, y)))
    known = is_static(y) and np.size(y) == 1 and np.ndim(y) <= np.ndim(x)
    if known and not np.iscomplexobj(y):
        return real_power(x, float(np.asarray(y).item()))
    return jnp.power(*align(x, y))


def _integer_power(x: Array, y: Array) -> Array:
    whole = jnp.power(x, jnp.maximum(y, 0))
    sign = jnp.where(y % 2 == 0, x * x, x)  # what is left of a negative power of 1 and -1
    return jnp.where(y >= 0, whole, jnp.where(jnp.abs(x) == 1, sign, 0))


def _pow_const_type(input: TensorType, exponent: float) -> TensorType:
    require_real(input=input)
    return input


@rules.rule("tract_core_pow_const", _pow_const_type)
def pow_const(input: Any, exponent: float) -> Array:
    """The input to a power that is known."""
    return real_power(jnp.asarray(input), exponent)


def _clamp_type(x: TensorType, a: TensorType, b: TensorType) -> TensorType:
    require_ordered(x=x, a=a, b=b)
    require_same_dtype(x=x, a=a, b=b)
    return TensorType(broadcast_shapes(x.shape, a.shape, b.shape), x.dtype)


@rules.rule("tract.clamp", _clamp_type)
def clamp(x: Any, a: Any, b: Any) -> Array:
    """x kept between a and b; a wins where it is above b. Derivative 1 at both bounds."""
    x, a, b = align(x, a, b)
    below = jnp.where(x > b, b, x)
    return jnp.where(below < a, a, below)


# NNEF compares any types.
for _kind in ("lt", "gt", "le", "ge", "eq", "ne"):
    _rule = rules[_kind]
    rules.rule(f"tract.{_kind}", _rule.infer, not_differentiable=_rule.not_differentiable)(
        _rule.lower
    )


# Bits and logic

_LOGICAL = "its results are logical values"
_BITS = "its results are integers or logical values"


def _bits_type(x: TensorType, y: TensorType) -> TensorType:
    require_bits(x=x, y=y)
    require_same_dtype(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), x.dtype)


def _bitwise(kind: str, function: Callable[[Any, Any], Array]) -> None:
    def lower(x: Any, y: Any) -> Array:
        return function(*align(x, y))

    rules.rule(kind, _bits_type, not_differentiable=_BITS)(lower)


_bitwise("tract_core_bitand", jnp.bitwise_and)
_bitwise("tract_core_bitor", jnp.bitwise_or)
_bitwise("tract_core_bitxor", jnp.bitwise_xor)
rules.rule("tract_core_xor", rules["and"].infer, not_differentiable=_LOGICAL)(
    rules["tract_core_bitxor"].lower
)


def _bitnot_type(x: TensorType) -> TensorType:
    require_bits(x=x)
    return x


@rules.rule("tract_core_bitnot", _bitnot_type, not_differentiable=_BITS)
def bitnot(x: Any) -> Array:
    """x with all its bits turned over; `not` of logical values."""
    return jnp.bitwise_not(jnp.asarray(x))


def _shift_type(x: TensorType, y: TensorType) -> TensorType:
    require_integer(x=x, y=y)
    return _bits_type(x, y)


def _shift_bounds(x: Any, y: Any) -> tuple[Array, Array, Array, int]:
    # Hardware differs in what it makes of a shift by less than 0 or by all the bits and more.
    x, y = jnp.broadcast_arrays(*align(x, y))
    width = jnp.iinfo(x.dtype).bits
    return x, y, (y >= 0) & (y < width), width


@rules.rule("tract_shl", _shift_type, not_differentiable=_BITS)
def shift_left(x: Any, y: Any) -> Array:
    """x with its bits moved up by y; 0 for a y below 0 or not below the number of bits."""
    x, y, inside, _ = _shift_bounds(x, y)
    return jnp.where(inside, jnp.left_shift(x, jnp.where(inside, y, 0)), 0)


@rules.rule("tract_shr", _shift_type, not_differentiable=_BITS)
def shift_right(x: Any, y: Any) -> Array:
    """x with its bits moved down by y, which keeps the sign.

    For a y below 0 or not below the number of bits it is -1 for negative x, otherwise 0.
    """
    x, y, inside, width = _shift_bounds(x, y)
    # All the bits in two steps: unsigned numbers keep none.
    most = jnp.right_shift(x, jnp.where(inside, y, width - 1))
    return jnp.where(inside, most, jnp.right_shift(most, jnp.ones_like(y)))


def _is_nan_type(x: TensorType) -> TensorType:
    require_real(x=x)
    return TensorType(x.shape, "bool")


@rules.rule("tract_core_is_nan", _is_nan_type, not_differentiable=_LOGICAL)
def is_nan(x: Any) -> Array:
    """Where x is not a number."""
    return jnp.isnan(jnp.asarray(x))


def _is_inf_type(input: TensorType, detect_positive: bool, detect_negative: bool) -> TensorType:
    return _is_nan_type(input)


@rules.rule("tract_core_is_inf", _is_inf_type, not_differentiable=_LOGICAL)
def is_inf(input: Any, detect_positive: bool, detect_negative: bool) -> Array:
    """Where the input is infinite, in the directions that are asked for."""
    x = jnp.asarray(input)
    above = (x == jnp.inf) & detect_positive
    return above | ((x == -jnp.inf) & detect_negative)


# Types


def _cast_type(input: TensorType, to: str) -> TensorType:
    to = to or input.dtype
    if is_complex(input.dtype) and not is_complex(to):
        raise InvalidOperation(
            f"{input.dtype} cannot be cast to {to}",
            hint="`tract_core_complex_to_inner_dim` takes complex numbers apart",
        )
    return TensorType(input.shape, to)


@rules.rule("tract_core_cast", _cast_type)
def cast(input: Any, to: str) -> Array:
    """The values as another type: non-zero is true, reals are cut off to the integer towards 0.

    Reals beyond the integers become the nearest one, NaN becomes 0; integers beyond another type
    lose their upper bits. Without a type they stay what they are: it is for `graph.quant` to
    quantise them.
    """
    x = jnp.asarray(input)
    return x if to in ("", x.dtype.name) else shape.cast(x, to)
