"""Reductions (spec 4.4): the reduced axes stay, with extent 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.graph import TensorType
from lowering.ops import rules
from lowering.ops.typing import require_axes, require_logical, require_real


def reduced_type(input: TensorType, axes: tuple[int, ...], dtype: str) -> TensorType:
    """The type of what is left of the input along the axes: one item of a dtype."""
    require_axes(axes, len(input.shape))
    reduced = set(axes)
    return TensorType(
        tuple(1 if i in reduced else extent for i, extent in enumerate(input.shape)), dtype
    )


def _real_type(input: TensorType, axes: tuple[int, ...]) -> TensorType:
    require_real(input=input)
    return reduced_type(input, axes, input.dtype)


def _index_type(input: TensorType, axes: tuple[int, ...]) -> TensorType:
    require_real(input=input)
    return reduced_type(input, axes, "int32")


def _logical_type(input: TensorType, axes: tuple[int, ...]) -> TensorType:
    require_logical(input=input)
    return reduced_type(input, axes, "bool")


def _sum_type(input: TensorType, axes: tuple[int, ...], normalize: bool) -> TensorType:
    return _real_type(input, axes)


@rules.rule("sum_reduce", _sum_type)
def sum_reduce(input: Any, axes: tuple[int, ...], normalize: bool) -> Array:
    """The sum over the axes, the mean where it is normalised."""
    return (jnp.mean if normalize else jnp.sum)(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("mean_reduce", _real_type)
def mean_reduce(input: Any, axes: tuple[int, ...]) -> Array:
    """The mean over the axes."""
    return jnp.mean(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("max_reduce", _real_type)
def max_reduce(input: Any, axes: tuple[int, ...]) -> Array:
    """The largest item along the axes; equal ones share its derivative."""
    return jnp.max(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("min_reduce", _real_type)
def min_reduce(input: Any, axes: tuple[int, ...]) -> Array:
    """The smallest item along the axes; equal ones share its derivative."""
    return jnp.min(jnp.asarray(input), axis=axes, keepdims=True)


_LOGICAL = "its results are logical values"


@rules.rule("any_reduce", _logical_type, not_differentiable=_LOGICAL)
def any_reduce(input: Any, axes: tuple[int, ...]) -> Array:
    """Whether one of the items along the axes is true."""
    return jnp.any(jnp.asarray(input), axis=axes, keepdims=True)


@rules.rule("all_reduce", _logical_type, not_differentiable=_LOGICAL)
def all_reduce(input: Any, axes: tuple[int, ...]) -> Array:
    """Whether all the items along the axes are true."""
    return jnp.all(jnp.asarray(input), axis=axes, keepdims=True)


def _index_of(kind: str, function: Callable[..., Array]) -> None:
    # Over several axes: the row-major index within the sub-volume that they span, in the order of
    # the tensor whatever the order in `axes`. The first of several extrema counts.
    def lower(input: Any, axes: tuple[int, ...]) -> Array:
        x = jnp.asarray(input)
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


def _moments_type(input: TensorType, axes: tuple[int, ...]) -> tuple[TensorType, TensorType]:
    reduced = _real_type(input, axes)
    return reduced, reduced


@rules.rule("moments", _moments_type)
def moments(input: Any, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """The mean and the mean squared distance from it (spec 4.8.6)."""
    x = jnp.asarray(input)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)
