"""Normalisation (spec 4.8.4).

The other `local_*` operations have no rule: their bodies in the standard library are as good.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation
from lowering.graph import TensorType
from lowering.kernels.broadcast import align
from lowering.kernels.precision import widened
from lowering.ops import rules
from lowering.ops.typing import require_axes, require_fits, require_real, require_same_dtype
from lowering.ops.window import box


def _axes_type(input: TensorType, axes: tuple[int, ...], bias: float, epsilon: float) -> TensorType:
    require_real(input=input)
    require_axes(axes, len(input.shape))
    _require_not_negative(epsilon)
    return input


def _require_not_negative(epsilon: float) -> None:
    if epsilon < 0:
        raise InvalidOperation(f"'epsilon' must not be negative, it is {epsilon}")


def _over(x: Array, norm: Array, bias: Any, epsilon: Any) -> Array:
    # 0/0 is 0: without bias and epsilon a part of zeros stays as it is.
    divisor = jnp.maximum(norm + bias, epsilon)
    return x / jnp.where(divisor == 0, 1.0, divisor)


def _root(squares: Array) -> Array:
    # sqrt has no finite derivative at 0, not even where its result is not selected.
    zero = squares == 0
    return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, squares)))


def _unit(x: Array, axes: tuple[int, ...], bias: float, epsilon: float) -> Array:
    # The result does not depend on the unit in which input, bias and epsilon are measured, so no
    # derivative goes through it. With the largest as the unit nothing overflows nor vanishes.
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
    unit = lax.stop_gradient(jnp.maximum(largest, max(abs(bias), epsilon)))
    return jnp.where(unit == 0, 1.0, unit)


@rules.rule("l1_normalization", _axes_type)
def l1_normalization(input: Any, axes: tuple[int, ...], bias: float, epsilon: float) -> Array:
    """The input over the sum of its absolute values along the axes."""
    input = jnp.asarray(input)
    x = widened(input)
    unit = _unit(x, axes, bias, epsilon)
    x = x / unit
    norm = jnp.sum(jnp.abs(x), axis=axes, keepdims=True)
    return _over(x, norm, bias / unit, epsilon / unit).astype(input.dtype)


@rules.rule("l2_normalization", _axes_type)
def l2_normalization(input: Any, axes: tuple[int, ...], bias: float, epsilon: float) -> Array:
    """The input over its Euclidean length along the axes; finite, with its gradient, at 0 too."""
    input = jnp.asarray(input)
    x = widened(input)
    unit = _unit(x, axes, bias, epsilon)
    x = x / unit
    norm = _root(jnp.sum(jnp.square(x), axis=axes, keepdims=True))
    return _over(x, norm, bias / unit, epsilon / unit).astype(input.dtype)


def _require_windows(input: TensorType, size: tuple[int, ...]) -> None:
    """Refuse a size that is not one of windows around each item."""
    rules["box"].infer(
        input, size, border="constant", padding=(), stride=(), dilation=(), normalize=True
    )


def _response_type(
    input: TensorType, size: tuple[int, ...], alpha: float, beta: float, bias: float
) -> TensorType:
    _require_windows(input, size)
    return input


@rules.rule("local_response_normalization", _response_type)
def local_response_normalization(
    input: Any, size: tuple[int, ...], alpha: float, beta: float, bias: float
) -> Array:
    """input / (bias + alpha * the mean of the squares around each item) ** beta."""
    x = widened(jnp.asarray(input))
    squares = box(jnp.square(x), size, "constant", (), (), (), True)
    return (x / (bias + alpha * squares) ** beta).astype(input.dtype)


def _local_type(
    input: TensorType, size: tuple[int, ...], bias: float, epsilon: float
) -> TensorType:
    _require_windows(input, size)
    _require_not_negative(epsilon)
    return input


@rules.rule("local_variance_normalization", _local_type)
def local_variance_normalization(
    input: Any, size: tuple[int, ...], bias: float, epsilon: float
) -> Array:
    """The input over its root mean square in a window around each item, zeros beyond the border."""
    input = jnp.asarray(input)
    x = widened(input)
    squares = box(jnp.square(x), size, "constant", (), (), (), True)
    # A window of zeros, as after a relu, has a finite gradient too.
    norm = _root(squares)
    return _over(x, norm, bias, epsilon).astype(input.dtype)


def _batch_type(
    input: TensorType,
    mean: TensorType,
    variance: TensorType,
    offset: TensorType,
    scale: TensorType,
    epsilon: float,
) -> TensorType:
    parameters = {"mean": mean, "variance": variance, "offset": offset, "scale": scale}
    require_real(input=input, **parameters)
    require_same_dtype(input=input, **parameters)
    require_fits("'input'", input, **parameters)
    _require_not_negative(epsilon)
    return input


@rules.rule("batch_normalization", _batch_type)
def batch_normalization(
    input: Any, mean: Any, variance: Any, offset: Any, scale: Any, epsilon: float
) -> Array:
    """offset + scale * (input - mean) / sqrt(variance + epsilon), as one factor and one summand.

    Both depend on the parameters alone, so that they need not be computed in every call. Their
    difference takes 32 bits at least.
    """
    x, *rest = align(jnp.asarray(input), mean, variance, offset, scale)
    mean, variance, offset, scale = (widened(jnp.asarray(y, x.dtype)) for y in rest)
    factor = scale * lax.rsqrt(variance + epsilon)
    return (widened(x) * factor + (offset - mean * factor)).astype(x.dtype)
