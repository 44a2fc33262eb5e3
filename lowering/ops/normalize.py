"""Normalisation (spec 4.8.4). The standard library expands the other `local_*` operations."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import Ints, along, differ, is_static, show, volume
from lowering.graph import TensorType
from lowering.kernels.broadcast import align
from lowering.kernels.precision import widened
from lowering.kernels.windows import Sliding
from lowering.ops import require, rules
from lowering.ops.window import box, pool_type
from lowering.tracing import Context


def _axes_type(input: TensorType, axes: Ints, epsilon: float) -> TensorType:
    require.floating(input=input)
    require.axes(axes, len(input.shape))
    require.not_negative(epsilon=epsilon)
    return input


def _divided(x: Array, norm: Array, bias: Array | float, epsilon: Array | float) -> Array:
    """Return x / max(norm + bias, epsilon).

    0 / 0 gives 0 here, so that zeros stay zeros if bias and epsilon are 0.
    """
    divisor = jnp.maximum(norm + bias, epsilon)
    return x / jnp.where(divisor == 0, 1.0, divisor)


def _root(squares: Array) -> Array:
    """Return the square root. The derivative at 0 is 0 here, instead of infinite."""
    # If only the result of sqrt was selected, the derivative would be 0 * infinity, which is NaN.
    # Therefore the operand of sqrt is selected too.
    is_zero = squares == 0
    positive = jnp.where(is_zero, 1.0, squares)
    return jnp.where(is_zero, 0.0, jnp.sqrt(positive))


def _unit(x: Array, axes: Ints, bias: float, epsilon: float) -> Array:
    """Return the unit for a normalisation: the largest of |x|, the bias and epsilon.

    The largest |x| is taken along the axes, which remain with extent 1. Divided by the unit, x
    has norms that neither overflow nor underflow. If x, the bias and epsilon are all divided by the
    unit, the normalised result does not change, so that no derivative has to go through the unit.
    """
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
    unit = lax.stop_gradient(jnp.maximum(largest, max(abs(bias), epsilon)))
    return jnp.where(unit == 0, 1.0, unit)


def _register_normalization(kind: str, norm_of: Callable[[Array, Ints], Array]) -> None:
    """Register `kind` as an operation that divides the input by a norm.

    The norm is `norm_of(input, axes)`, in which the axes remain with extent 1. The divisor is the
    norm plus a bias, but at least epsilon.
    """

    def lower(input: Array, axes: Ints, bias: float, epsilon: float) -> Array:
        input = jnp.asarray(input)
        x = widened(input)
        unit = _unit(x, axes, bias, epsilon)
        x = x / unit
        normalized = _divided(x, norm_of(x, axes), bias / unit, epsilon / unit)
        return normalized.astype(input.dtype)

    rules.rule(kind, _axes_type)(lower)


def _l1_norm(x: Array, axes: Ints) -> Array:
    return jnp.sum(jnp.abs(x), axis=axes, keepdims=True)


def _l2_norm(x: Array, axes: Ints) -> Array:
    return _root(jnp.sum(jnp.square(x), axis=axes, keepdims=True))


_register_normalization("l1_normalization", _l1_norm)
_register_normalization("l2_normalization", _l2_norm)


# With these attributes a window is centred on each item. The input is padded with zeros.
_CENTRED = Sliding(border="constant", padding=(), stride=(), dilation=())


def _response_type(input: TensorType, size: Ints) -> TensorType:
    return pool_type(input, size=size, **_CENTRED)


@rules.rule("local_response_normalization", _response_type)
def local_response_normalization(
    ctx: Context, input: Array, size: Ints, alpha: float, beta: float, bias: float
) -> Array:
    """Return input / (bias + alpha * m) ** beta.

    m is the mean of the squares in the window of extents `size` that is centred on each item.
    Beyond the ends of the input the squares are 0.
    """
    x = widened(jnp.asarray(input))
    mean_squares = box(ctx, jnp.square(x), normalize=True, size=size, **_CENTRED)
    divisor = (bias + alpha * mean_squares) ** beta
    return (x / divisor).astype(input.dtype)


def _local_type(input: TensorType, size: Ints, epsilon: float) -> TensorType:
    output = _response_type(input, size)
    require.not_negative(epsilon=epsilon)
    return output


@rules.rule("local_variance_normalization", _local_type)
def local_variance_normalization(
    ctx: Context, input: Array, size: Ints, bias: float, epsilon: float
) -> Array:
    """Return the input divided by the root mean square of the window around each item.

    The window has the extents `size`, and is filled with zeros beyond the ends of the input.
    The divisor is the root mean square plus `bias`, but at least `epsilon`.
    """
    input = jnp.asarray(input)
    x = widened(input)
    mean_squares = box(ctx, jnp.square(x), normalize=True, size=size, **_CENTRED)
    # Windows of zeros occur after a relu. The gradient of `_root` is finite there.
    norm = _root(mean_squares)
    return _divided(x, norm, bias, epsilon).astype(input.dtype)


def _batch_type(input: TensorType, epsilon: float, **parameters: TensorType) -> TensorType:
    require.same_dtype(require.floating, input=input, **parameters)
    require.fits("'input'", input, **parameters)
    require.not_negative(epsilon=epsilon)
    return input


@rules.rule("batch_normalization", _batch_type)
def batch_normalization(
    input: Array, mean: Array, variance: Array, offset: Array, scale: Array, epsilon: float
) -> Array:
    """Return offset + scale * (input - mean) / sqrt(variance + epsilon)."""
    x, *parameters = align(jnp.asarray(input), mean, variance, offset, scale)
    wide_parameters = [widened(jnp.asarray(parameter, x.dtype)) for parameter in parameters]
    mean, variance, offset, scale = wide_parameters
    # The factor and the term do not depend on the input, so that they can be prepared before calls.
    # All sums are in float32 or a wider dtype.
    factor = scale * lax.rsqrt(variance + epsilon)
    term = offset - mean * factor
    return (widened(x) * factor + term).astype(x.dtype)


def _rms_norm_type(
    input: TensorType, scale: TensorType, epsilon: TensorType, axis: int, dtype: str
) -> TensorType:
    """Check the arguments of `rms_norm`, and return the type of its result."""
    require.floating(input=input, scale=scale, epsilon=epsilon)
    require.one(epsilon=epsilon)
    require.axis(axis, len(input.shape))
    items = volume(scale.shape)
    if items != 1 and differ(items, input.shape[axis]):
        raise InvalidShape(
            f"'scale' {show(scale.shape)} must have an item for each of the {input.shape[axis]} "
            f"along axis {axis} of 'input' {show(input.shape)}"
        )
    return TensorType(input.shape, dtype or input.dtype)


@rules.rule("rms_norm", _rms_norm_type)
def rms_norm(input: Array, scale: Array, epsilon: Array, axis: int, dtype: str) -> Array:
    """Return scale * input / sqrt(mean(input^2) + epsilon) along the axis (Zhang, Sennrich 2019).

    The mean is over `axis`. The result is computed in float32 or a wider dtype. It is rounded
    once, to `dtype`, or to the input's dtype if `dtype` is empty.
    """
    x = widened(jnp.asarray(input))
    mean_squares = jnp.mean(jnp.square(x), axis=axis, keepdims=True)
    normalized = x * lax.rsqrt(mean_squares + jnp.asarray(epsilon).astype(x.dtype).reshape(()))
    is_one = is_static(scale) and np.all(np.asarray(scale) == 1)
    if not is_one:
        factors = jnp.asarray(scale).astype(x.dtype)
        normalized = normalized * factors.reshape(along(axis, x.ndim))
    return normalized.astype(dtype or input.dtype)
