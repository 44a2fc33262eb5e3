"""Activation functions (spec 4.8.1 and more).

Values and gradients are finite for finite inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.graph import TensorType
from lowering.kernels.broadcast import align, broadcast_shapes
from lowering.kernels.precision import wide_dtype, widened
from lowering.ops import require, rules
from lowering.ops.elementwise import clamp, ordered_type, real_type


def _register_unary(kind: str, function: Callable[[Array], Array]) -> None:
    """Register `kind` as an operation that applies an elementwise function to real numbers."""

    def lower(x: Array) -> Array:
        return function(jnp.asarray(x))

    rules.rule(kind, real_type)(lower)


_register_unary("sigmoid", lax.logistic)
_register_unary("softplus", lambda x: jnp.logaddexp(x, 0.0))
_register_unary("silu", lambda x: x * lax.logistic(x))
_register_unary("erf", lax.erf)


@rules.rule("hard_swish", real_type)
def hard_swish(x: Array) -> Array:
    """Return x * min(max(x + 3, 0), 6) / 6.

    At -3 and 3 the derivative is that of x * (x + 3) / 6, as in PyTorch.
    """
    x = jnp.asarray(x)
    capped = jnp.where(x > 3, 1.0, (x + 3) / 6)
    return x * jnp.where(x < -3, 0.0, capped)


@rules.rule("relu", ordered_type)
def relu(x: Array) -> Array:
    """Return max(x, 0). The derivative at 0 is 0, while `jnp.maximum(x, 0)` has 0.5 there."""
    x = jnp.asarray(x)
    return jnp.where(x <= 0, 0, x)  # NaN stays NaN


_GELU = ("sigmoid", "tanh", "tanh_square")


def _gelu_type(x: TensorType, approximation: str = "sigmoid") -> TensorType:
    require.one_of("approximation", approximation, _GELU)
    return real_type(x)


@rules.rule("gelu", _gelu_type)
def gelu(x: Array, approximation: str = "sigmoid") -> Array:
    """Return x times an approximation of the cumulative normal distribution.

    The choices of `approximation` are (Hendrycks and Gimpel 2016):

    - "sigmoid", as in the standard: sigmoid(1.702 x)
    - "tanh": (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
    - "tanh_square": the formula of "tanh" with x^2 instead of x^3, which is a different function
    """
    x = jnp.asarray(x)
    if approximation == "sigmoid":
        return x * lax.logistic(1.702 * x)
    wide = widened(x)
    exponent = 3 if approximation == "tanh" else 2
    inner = wide + 0.044715 * lax.integer_pow(wide, exponent)
    # For u = sqrt(2 / pi) * inner, the distribution (1 + tanh(u)) / 2 equals logistic(2 * u).
    # `logistic` keeps its digits where the distribution is small. Here 2 * u is sqrt(8 / pi) *
    # inner.
    distribution = lax.logistic(math.sqrt(8 / math.pi) * inner)
    return (wide * distribution).astype(x.dtype)


def _softabs_type(x: TensorType, epsilon: float) -> TensorType:
    require.floating(x=x)
    require.not_negative(epsilon=epsilon)
    return x


@rules.rule("softabs", _softabs_type)
def softabs(x: Array, epsilon: float) -> Array:
    """Return sqrt(x^2 + epsilon), without overflow or underflow of the square."""
    x = jnp.asarray(x)
    if epsilon == 0:
        return jnp.abs(x)  # otherwise the unit below would be 0 at x = 0
    root = math.sqrt(epsilon)
    # Divided by the unit, x and the root are at most 1, and so are their squares. The result does
    # not depend on the unit, so that no derivative has to go through the unit.
    unit = lax.stop_gradient(jnp.maximum(jnp.abs(x), root))
    return unit * jnp.sqrt(jnp.square(x / unit) + jnp.square(root / unit))


def _exponential(x: Array, alpha: float) -> Array:
    """Return alpha * (exp(x) - 1) where x < 0, and x elsewhere."""
    is_negative = x < 0
    # For large x, exp(x) and its derivative overflow. Where x is not negative, the exponent 0
    # keeps the infinite values out of the derivative.
    exponent = jnp.where(is_negative, x, 0.0)
    return jnp.where(is_negative, alpha * jnp.expm1(exponent), x)


@rules.rule("elu", real_type)
def elu(x: Array, alpha: float) -> Array:
    """Return alpha * (exp(x) - 1) where x < 0, and x elsewhere. The derivative at 0 is 1."""
    return _exponential(jnp.asarray(x), alpha)


@rules.rule("selu", real_type)
def selu(x: Array, alpha: float, lambda_: float) -> Array:
    """Return lambda_ * alpha * (exp(x) - 1) where x < 0, and lambda_ * x elsewhere."""
    return lambda_ * _exponential(jnp.asarray(x), alpha)


def _prelu_type(x: TensorType, alpha: TensorType) -> TensorType:
    require.same_dtype(require.floating, x=x, alpha=alpha)
    require.fits("'x'", x, alpha=alpha)
    return x


@rules.rule("prelu", _prelu_type)
def prelu(x: Array, alpha: Array | float) -> Array:
    """Return alpha * x where x < 0, and x elsewhere. The derivative at 0 is 1."""
    x, alpha = align(x, alpha)
    return jnp.where(x < 0, alpha * x, x)


@rules.rule("leaky_relu", real_type)
def leaky_relu(x: Array, alpha: float) -> Array:
    """Return alpha * x where x < 0, and x elsewhere, with one number alpha for all items of x."""
    return prelu(jnp.asarray(x), alpha)


def _swiglu_type(gate: TensorType, up: TensorType, alpha: float, limit: float) -> TensorType:
    require.same_dtype(require.floating, gate=gate, up=up)
    if limit <= 0:
        raise InvalidOperation(f"'limit' must be positive, it is {limit}")
    return TensorType(broadcast_shapes(gate.shape, up.shape), wide_dtype(gate, up).name)


@rules.rule("clamped_swiglu", _swiglu_type)
def clamped_swiglu(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    """Return gate * sigmoid(alpha * gate) * (up + 1), as in gpt-oss.

    In the formula `gate` is clamped to at most `limit`, and `up` to [-limit, limit]. The result
    is computed in float32 or a wider dtype, and is not cast back.
    """
    gate, up = (widened(jnp.asarray(x)) for x in align(gate, up))
    clamped_gate = clamp(gate, -jnp.inf, limit, inclusive=True)
    clamped_up = clamp(up, -limit, limit, inclusive=True)
    return clamped_gate * lax.logistic(alpha * clamped_gate) * (clamped_up + 1)
