"""Reductions (spec 4.4), whose axes keep extent 1, and running sums; in the inputs' dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import show
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.ops import rules
from lowering.ops.elementwise import divide
from lowering.ops.typing import (
    require_axes,
    require_logical,
    require_number,
    require_ordered,
    require_real,
)

Ints = tuple[int, ...]


def _reduced(input: TensorType, axes: Ints, dtype: str) -> TensorType:
    require_axes(axes, len(input.shape))
    reduced = set(axes)
    return TensorType(
        tuple(1 if i in reduced else extent for i, extent in enumerate(input.shape)), dtype
    )


def _count(x: Array, axes: Ints, dtype: Any) -> Array:
    return jnp.asarray(math.prod(x.shape[axis] for axis in axes)).astype(dtype)


def _real_type(input: TensorType, axes: Ints) -> TensorType:
    require_real(input=input)
    return _reduced(input, axes, input.dtype)


def _number_type(input: TensorType, axes: Ints) -> TensorType:
    require_number(input=input)
    return _reduced(input, axes, input.dtype)


def _sum_type(input: TensorType, axes: Ints, normalize: bool) -> TensorType:
    return _number_type(input, axes)


@rules.rule("sum_reduce", _sum_type)
def sum_reduce(input: Any, axes: Ints, normalize: bool) -> Array:
    """Return the sum over the axes, or with `normalize` the mean, of integers cut off."""
    x = jnp.asarray(input)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return (jnp.mean if normalize else jnp.sum)(x, axis=axes, keepdims=True)
    total = jnp.sum(x, axis=axes, keepdims=True)
    if normalize:
        total = divide(total, _count(x, axes, total.dtype))
    return total.astype(x.dtype)


@rules.rule("mean_reduce", _real_type)
def mean_reduce(input: Any, axes: Ints) -> Array:
    """Return the mean over the axes."""
    return jnp.mean(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("product_reduce", _number_type)
def product_reduce(input: Any, axes: Ints) -> Array:
    """Return the product over the axes; its derivative is right at zeros too."""
    x = jnp.asarray(input)
    return jnp.prod(x, axis=axes, keepdims=True, dtype=x.dtype)


def _moments_type(input: TensorType, axes: Ints) -> tuple[TensorType, TensorType]:
    reduced = _real_type(input, axes)
    return reduced, reduced


@rules.rule("moments", _moments_type)
def moments(input: Any, axes: Ints) -> tuple[Array, Array]:
    """Return the mean and the variance over the axes (spec 4.8.6)."""
    x = jnp.asarray(input)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)


def _extremum_type(input: TensorType, axes: Ints) -> TensorType:
    if input.dtype != "bool":
        require_ordered(input=input)
    reduced = _reduced(input, axes, input.dtype)
    if any(input.shape[axis] == 0 for axis in axes):
        raise InvalidShape(
            f"'input' {show(input.shape)} has no greatest or least item along axes {list(axes)}: "
            "it has none at all"
        )
    return reduced


@rules.rule("max_reduce", _extremum_type)
def max_reduce(input: Any, axes: Ints) -> Array:
    """Return the largest item along the axes; equal ones share its derivative."""
    return jnp.max(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("min_reduce", _extremum_type)
def min_reduce(input: Any, axes: Ints) -> Array:
    """Return the smallest item along the axes; equal ones share its derivative."""
    return jnp.min(jnp.asarray(input), axis=axes, keepdims=True)


def _index_type(input: TensorType, axes: Ints, last: bool = False) -> TensorType:
    return TensorType(_extremum_type(input, axes).shape, "int32")


def _index_of(kind: str, function: Callable[..., Array]) -> None:
    # Over several axes: the row-major index in their sub-volume, in the tensor's order of axes. Of
    # equal extrema the first counts, or the last, which is the first from the other end.
    def lower(input: Any, axes: Ints, last: bool = False) -> Array:
        x = jnp.asarray(input)
        if last:
            return _count(x, axes, np.int32) - 1 - lower(lax.rev(x, axes), axes)
        if len(axes) == 1:
            index = function(x, axes[0], np.int32)
        else:
            kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
            spanned = jnp.transpose(x, (*kept, *sorted(axes)))
            index = function(
                spanned.reshape(*(x.shape[axis] for axis in kept), -1), len(kept), np.int32
            )
        return jnp.expand_dims(index, axes)

    rules.rule(kind, _index_type, not_differentiable="its results are indices")(lower)


_index_of("argmax_reduce", lax.argmax)
_index_of("argmin_reduce", lax.argmin)


_LOGICAL = "its results are logical values"


def _logical_type(input: TensorType, axes: Ints) -> TensorType:
    require_logical(input=input)
    return _reduced(input, axes, "bool")


@rules.rule("any_reduce", _logical_type, not_differentiable=_LOGICAL)
def any_reduce(input: Any, axes: Ints) -> Array:
    """Return whether an item along the axes is true."""
    return jnp.any(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("all_reduce", _logical_type, not_differentiable=_LOGICAL)
def all_reduce(input: Any, axes: Ints) -> Array:
    """Return whether all items along the axes are true."""
    return jnp.all(jnp.asarray(input), axis=axes, keepdims=True)


def _cumsum_type(x: TensorType, axis: int, exclusive: bool, reverse: bool) -> TensorType:
    require_number(x=x)
    require_axes((axis,), len(x.shape), "axis")
    return x


@rules.rule("cumsum", _cumsum_type)
def cumsum(x: Any, axis: int, exclusive: bool, reverse: bool) -> Array:
    """Sum up to each item, without it if `exclusive`, from the end if `reverse`."""
    x = jnp.asarray(x)
    wide = widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x
    sums = lax.cumsum(wide, axis, reverse=reverse).astype(x.dtype)
    if not exclusive:
        return sums
    moved = [(0, 0, 0)] * x.ndim
    moved[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(sums, jnp.zeros((), x.dtype), moved)
