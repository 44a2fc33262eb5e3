"""Activation functions (spec 4.8.1): finite value and gradient for every finite input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.graph import TensorType
from lowering.kernels.broadcast import align
from lowering.kernels.precision import widened
from lowering.ops import rules
from lowering.ops.typing import require_axes, require_fits, require_real, require_same_dtype


def _unary_type(x: TensorType) -> TensorType:
    require_real(x=x)
    return x


def _unary(kind: str, function: Callable[[Array], Array]) -> None:
    def lower(x: Any) -> Array:
        return function(jnp.asarray(x))

    rules.rule(kind, _unary_type)(lower)


def _softplus(x: Array) -> Array:
    return jnp.logaddexp(x, 0.0)


def _relu(x: Array) -> Array:
    # Derivative 0 at 0, where jnp.maximum has 0.5; NaN stays NaN.
    return jnp.where(x <= 0, 0, x)


def _gelu(x: Array) -> Array:
    # The standard's own approximation, not the one by the error function.
    return x * lax.logistic(1.702 * x)


def _silu(x: Array) -> Array:
    return x * lax.logistic(x)


_unary("sigmoid", lax.logistic)
_unary("relu", _relu)
_unary("softplus", _softplus)
_unary("gelu", _gelu)
_unary("silu", _silu)


def _softabs_type(x: TensorType, epsilon: float) -> TensorType:
    require_real(x=x)
    if epsilon < 0:
        raise InvalidOperation(f"'epsilon' must not be negative, it is {epsilon}")
    return x


@rules.rule("softabs", _softabs_type)
def softabs(x: Any, epsilon: float) -> Array:
    """sqrt(x^2 + epsilon), without the overflow and underflow of the square."""
    x = jnp.asarray(x)
    if epsilon == 0:
        return jnp.abs(x)
    root = math.sqrt(epsilon)
    # The result does not depend on this factor, so no derivative goes through it.
    unit = lax.stop_gradient(jnp.maximum(jnp.abs(x), root))
    return unit * jnp.sqrt(jnp.square(x / unit) + jnp.square(root / unit))


def _softmax_type(x: TensorType, axes: tuple[int, ...]) -> TensorType:
    require_real(x=x)
    require_axes(axes, len(x.shape))
    return x


@rules.rule("softmax", _softmax_type)
def softmax(x: Any, axes: tuple[int, ...]) -> Array:
    """exp(x), normalised to a sum of 1 over all the axes together; computed in 32 bits at least."""
    x = jnp.asarray(x)
    return jax.nn.softmax(widened(x), axis=axes).astype(x.dtype)


def _exponential(x: Array, alpha: float) -> Array:
    # The inner selection keeps the overflow of exp and its derivative out of the other branch.
    negative = x < 0
    return jnp.where(negative, alpha * jnp.expm1(jnp.where(negative, x, 0.0)), x)


def _elu_type(x: TensorType, alpha: float) -> TensorType:
    return _unary_type(x)


@rules.rule("elu", _elu_type)
def elu(x: Any, alpha: float) -> Array:
    """alpha * (exp(x) - 1) below 0, x from there on; derivative 1 at 0."""
    return _exponential(jnp.asarray(x), alpha)


def _selu_type(x: TensorType, alpha: float, lambda_: float) -> TensorType:
    return _unary_type(x)


@rules.rule("selu", _selu_type)
def selu(x: Any, alpha: float, lambda_: float) -> Array:
    """`elu` times lambda."""
    return lambda_ * _exponential(jnp.asarray(x), alpha)


def _prelu_type(x: TensorType, alpha: TensorType) -> TensorType:
    require_real(x=x, alpha=alpha)
    require_same_dtype(x=x, alpha=alpha)
    require_fits("'x'", x, alpha=alpha)
    return x


@rules.rule("prelu", _prelu_type)
def prelu(x: Any, alpha: Any) -> Array:
    """alpha * x below 0, x from there on; derivative 1 at 0."""
    x, alpha = align(x, alpha)
    return jnp.where(x < 0, alpha * x, x)


def _leaky_relu_type(x: TensorType, alpha: float) -> TensorType:
    return _unary_type(x)


@rules.rule("leaky_relu", _leaky_relu_type)
def leaky_relu(x: Any, alpha: float) -> Array:
    """`prelu` with one alpha for all."""
    return prelu(jnp.asarray(x), alpha)
