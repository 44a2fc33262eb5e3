"""Reductions and running sums of tract (registries tract_nnef, tract_core).

Reductions keep the reduced axes with extent 1 and the type of their input, integers included. Axes
may count from the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import differ, show, volume
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.ops import rules
from lowering.ops.activation import softmax
from lowering.ops.reduce import reduced_type
from lowering.ops.tract.elementwise import divide
from lowering.ops.tract.typing import (
    normal_axes,
    normal_axis,
    require_number,
    require_one,
    require_ordered,
)
from lowering.ops.typing import require_real

Ints = tuple[int, ...]


def _sum_type(input: TensorType, axes: Ints, normalize: bool) -> TensorType:
    return _number_type(input, axes)


@rules.rule("tract.sum_reduce", _sum_type)
def sum_reduce(input: Any, axes: Ints, normalize: bool) -> Array:
    """The sum over the axes, the mean where it is normalised; that of integers is cut off."""
    x = jnp.asarray(input)
    axes = normal_axes(axes, x.ndim)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return rules["sum_reduce"].lower(x, axes, normalize)
    total = jnp.sum(x, axis=axes, keepdims=True)  # of small integers with 32 bits
    if normalize:
        total = divide(total, _count(x, axes, total.dtype))
    return total.astype(x.dtype)


def _count(x: Array, axes: Ints, dtype: Any) -> Array:
    return jnp.asarray(math.prod(x.shape[axis] for axis in axes)).astype(dtype)


def _number_type(input: TensorType, axes: Ints) -> TensorType:
    require_number(input=input)
    return reduced_type(input, normal_axes(axes, len(input.shape)), input.dtype)


@rules.rule("tract_core_product_reduce", _number_type)
def product_reduce(input: Any, axes: Ints) -> Array:
    """The product over the axes; its derivative is right where items are 0."""
    x = jnp.asarray(input)
    return jnp.prod(x, axis=normal_axes(axes, x.ndim), keepdims=True, dtype=x.dtype)


# Extrema


def _extremum_type(input: TensorType, axes: Ints) -> TensorType:
    if input.dtype != "bool":
        require_ordered(input=input)
    axes = normal_axes(axes, len(input.shape))
    if any(input.shape[axis] == 0 for axis in axes):
        raise InvalidShape(
            f"'input' {show(input.shape)} has no greatest or least item along axes {list(axes)}: "
            "it has none at all"
        )
    return reduced_type(input, axes, input.dtype)


def _index_type(input: TensorType, axes: Ints) -> TensorType:
    return TensorType(_extremum_type(input, axes).shape, "int32")


def _extremum(
    kind: str, standard: str, infer: Callable[..., TensorType], last: bool = False
) -> None:
    rule = rules[standard]

    def lower(input: Any, axes: Ints) -> Array:
        x = jnp.asarray(input)
        axes = normal_axes(axes, x.ndim)
        if not last:
            return rule.lower(x, axes)
        # The last one is the first one from the other end.
        return _count(x, axes, np.int32) - 1 - rule.lower(lax.rev(x, axes), axes)

    rules.rule(f"tract.{kind}", infer, not_differentiable=rule.not_differentiable)(lower)


for _kind in ("max_reduce", "min_reduce"):
    _extremum(_kind, _kind, _extremum_type)
for _kind in ("argmax_reduce", "argmin_reduce"):
    _extremum(_kind, _kind, _index_type)
    _extremum(f"tract_core_{_kind}_last", _kind, _index_type, last=True)


# Along an axis, which stays


def _cumsum_type(x: TensorType, axis: int, exclusive: bool, reverse: bool) -> TensorType:
    require_number(x=x)
    normal_axis(axis, len(x.shape))
    return x


@rules.rule("tract_core_cumsum", _cumsum_type)
def cumsum(x: Any, axis: int, exclusive: bool, reverse: bool) -> Array:
    """The sums of the items up to each one along the axis, without itself where `exclusive`.

    `reverse` sums from the end.
    """
    x = jnp.asarray(x)
    axis = normal_axis(axis, x.ndim)
    wide = widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x
    sums = lax.cumsum(wide, axis, reverse=reverse).astype(x.dtype)
    if not exclusive:
        return sums
    moved = [(0, 0, 0)] * x.ndim
    moved[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(sums, jnp.zeros((), x.dtype), moved)


def _softmax_type(x: TensorType, axes: Ints, exp: str) -> TensorType:
    return _log_softmax_type(x, axes)


@rules.rule("tract_core_softmax", _softmax_type)
def approximate_softmax(x: Any, axes: Ints, exp: str) -> Array:
    """`softmax`. `exp` names an approximation of the exponential function; this is exact."""
    return softmax(x, normal_axes(axes, np.ndim(x)))


def _log_softmax_type(x: TensorType, axes: Ints) -> TensorType:
    require_real(x=x)
    normal_axes(axes, len(x.shape))
    return x


@rules.rule("tract_core_log_softmax", _log_softmax_type)
def log_softmax(x: Any, axes: Ints) -> Array:
    """The logarithm of `softmax` over all the axes together, finite where that underflows."""
    x = jnp.asarray(x)
    return jax.nn.log_softmax(x, axis=normal_axes(axes, x.ndim))


def _rms_norm_type(input: TensorType, axis: int, eps: TensorType) -> TensorType:
    require_real(input=input, eps=eps)
    require_one(eps=eps)
    normal_axis(axis, len(input.shape))
    return input


def _over_root_mean_square(input: Any, axis: int, eps: Any) -> Array:
    x = widened(jnp.asarray(input))
    squares = jnp.mean(jnp.square(x), axis=axis, keepdims=True)
    return x * lax.rsqrt(squares + jnp.asarray(eps).astype(x.dtype).reshape(()))


@rules.rule("tract_core_rms_norm", _rms_norm_type)
def rms_norm(input: Any, axis: int, eps: Any) -> Array:
    """input / sqrt(mean(input^2) + eps) along the axis, computed with at least 32 bits.

    (Zhang and Sennrich 2019, without the gain.)
    """
    return _over_root_mean_square(input, axis, eps).astype(input.dtype)


def _scaled_rms_norm_type(
    input: TensorType,
    scale: TensorType,
    axis: int,
    eps: TensorType,
    out_dt: str,
    scale_dt: str,
) -> TensorType:
    require_real(input=input, scale=scale, eps=eps)
    require_one(eps=eps)
    axis = normal_axis(axis, len(input.shape))
    items = volume(scale.shape)
    if items != 1 and differ(items, input.shape[axis]):
        raise InvalidShape(
            f"'scale' {show(scale.shape)} must have an item for each of the {input.shape[axis]} "
            f"along axis {axis} of 'input' {show(input.shape)}"
        )
    return TensorType(input.shape, out_dt or input.dtype)


@rules.rule("tract_core_scaled_rms_norm", _scaled_rms_norm_type)
def scaled_rms_norm(
    input: Any, scale: Any, axis: int, eps: Any, out_dt: str, scale_dt: str
) -> Array:
    """`rms_norm` times a scale for each item along the axis, rounded once, to `out_dt`.

    Without `out_dt` that is the type of the input. `scale_dt` is the type that tract scales in;
    here that has at least 32 bits.
    """
    y = _over_root_mean_square(input, axis, eps)
    along = [1] * y.ndim
    along[axis] = -1
    y = y * jnp.asarray(scale).astype(y.dtype).reshape(along)
    return y.astype(out_dt or input.dtype)
