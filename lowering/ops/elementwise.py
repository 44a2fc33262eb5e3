"""Element-wise operations (spec 4.2): unary, binary, comparison, logic, selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.graph import TensorType
from lowering.kernels.broadcast import align, broadcast_shapes
from lowering.kernels.rounding import round_half_up
from lowering.ops import rules
from lowering.ops.typing import require_logical, require_real, require_same_dtype


def _unary_type(x: TensorType) -> TensorType:
    require_real(x=x)
    return x


def _unary(kind: str, function: Callable[[Any], Array]) -> None:
    def lower(x: Any) -> Array:
        return function(jnp.asarray(x))

    rules.rule(kind, _unary_type)(lower)


def _binary_type(x: TensorType, y: TensorType) -> TensorType:
    require_real(x=x, y=y)
    require_same_dtype(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), x.dtype)


def _comparison_type(x: TensorType, y: TensorType) -> TensorType:
    require_same_dtype(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), "bool")


def _logic_type(x: TensorType, y: TensorType) -> TensorType:
    require_logical(x=x, y=y)
    return TensorType(broadcast_shapes(x.shape, y.shape), "bool")


def _binary(
    kind: str,
    infer: Callable[..., TensorType],
    function: Callable[[Any, Any], Array],
    why_not: str = "",
) -> None:
    def lower(x: Any, y: Any) -> Array:
        return function(*align(x, y))

    rules.rule(kind, infer, not_differentiable=why_not)(lower)


def _reciprocal(x: Array) -> Array:
    return 1 / x


_unary("neg", jnp.negative)
_unary("rcp", _reciprocal)
_unary("exp", jnp.exp)
_unary("log", jnp.log)
_unary("sin", jnp.sin)
_unary("cos", jnp.cos)
_unary("tan", jnp.tan)
_unary("sinh", jnp.sinh)
_unary("cosh", jnp.cosh)
_unary("tanh", jnp.tanh)
_unary("asin", jnp.arcsin)
_unary("acos", jnp.arccos)
_unary("atan", jnp.arctan)
_unary("asinh", jnp.arcsinh)
_unary("acosh", jnp.arccosh)
_unary("atanh", jnp.arctanh)
_unary("abs", jnp.abs)
_unary("sign", jnp.sign)
_unary("floor", jnp.floor)
_unary("ceil", jnp.ceil)
_unary("round", round_half_up)
_unary("sqr", jnp.square)
_unary("sqrt", jnp.sqrt)
_unary("rsqr", lambda x: 1 / jnp.square(x))
_unary("rsqrt", lax.rsqrt)
_unary("log2", jnp.log2)

_binary("add", _binary_type, jnp.add)
_binary("sub", _binary_type, jnp.subtract)
_binary("mul", _binary_type, jnp.multiply)
_binary("div", _binary_type, jnp.divide)
_binary("min", _binary_type, jnp.minimum)
_binary("max", _binary_type, jnp.maximum)

_LOGICAL = "its results are logical values"
_binary("lt", _comparison_type, jnp.less, _LOGICAL)
_binary("gt", _comparison_type, jnp.greater, _LOGICAL)
_binary("le", _comparison_type, jnp.less_equal, _LOGICAL)
_binary("ge", _comparison_type, jnp.greater_equal, _LOGICAL)
_binary("eq", _comparison_type, jnp.equal, _LOGICAL)
_binary("ne", _comparison_type, jnp.not_equal, _LOGICAL)
_binary("and", _logic_type, jnp.logical_and, _LOGICAL)
_binary("or", _logic_type, jnp.logical_or, _LOGICAL)


@rules.rule("pow", _binary_type)
def power(x: Any, y: Any) -> Array:
    """x to the power y. A literal whole exponent has a finite derivative at negative x."""
    if isinstance(y, float) and y.is_integer() and abs(y) <= 16:
        return lax.integer_pow(jnp.asarray(x), int(y))
    return jnp.power(*align(x, y))


def _copy_type(x: TensorType) -> TensorType:
    return x


@rules.rule("copy", _copy_type)
def copy(x: Any) -> Array:
    """The same values under another name."""
    return jnp.asarray(x)


def _not_type(x: TensorType) -> TensorType:
    require_logical(x=x)
    return x


@rules.rule("not", _not_type, not_differentiable=_LOGICAL)
def logical_not(x: Any) -> Array:
    """True where x is false."""
    return jnp.logical_not(x)


def _select_type(
    condition: TensorType, true_value: TensorType, false_value: TensorType
) -> TensorType:
    require_logical(condition=condition)
    require_same_dtype(true_value=true_value, false_value=false_value)
    shape = broadcast_shapes(condition.shape, true_value.shape, false_value.shape)
    return TensorType(shape, true_value.dtype)


@rules.rule("select", _select_type)
def select(condition: Any, true_value: Any, false_value: Any) -> Array:
    """true_value where the condition holds, false_value elsewhere (spec 4.2.3)."""
    return jnp.where(*align(condition, true_value, false_value))


def _clamp_type(x: TensorType, a: TensorType, b: TensorType) -> TensorType:
    require_real(x=x, a=a, b=b)
    require_same_dtype(x=x, a=a, b=b)
    return TensorType(broadcast_shapes(x.shape, a.shape, b.shape), x.dtype)


@rules.rule("clamp", _clamp_type)
def clamp(x: Any, a: Any, b: Any) -> Array:
    """x kept between a and b; a wins where it is above b."""
    x, a, b = align(x, a, b)
    return jnp.maximum(jnp.minimum(x, b), a)
