"""Reductions (spec 4.4), and cumulative sums and products.

Reduced axes remain, with extent 1. Results have the input's dtype, unless they are indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import Ints, show
from lowering.graph import TensorType, is_integer
from lowering.kernels.precision import widened
from lowering.ops import require, rules
from lowering.ops.elementwise import divide

_LOGICAL = "its results are logical values"


def _reduced(input: TensorType, axes: Ints) -> TensorType:
    """Return the input's type with extent 1 along the axes."""
    require.axes(axes, len(input.shape))
    shape = list(input.shape)
    for axis in axes:
        shape[axis] = 1
    return TensorType(tuple(shape), input.dtype)


def _reduced_if(check: Callable[..., None]) -> Callable[[TensorType, Ints], TensorType]:
    """Return an `infer` function that calls `check(input=input)` for a reduction."""

    def infer(input: TensorType, axes: Ints) -> TensorType:
        check(input=input)
        return _reduced(input, axes)

    return infer


_floating_type, _number_type, _logical_type = map(
    _reduced_if, (require.floating, require.number, require.logical)
)


def _extremum_type(input: TensorType, axes: Ints) -> TensorType:
    """Check the arguments of `max_reduce` or `min_reduce`, and return the type of the result."""
    if input.dtype != "bool":
        require.ordered(input=input)
    reduced = _reduced(input, axes)
    if any(input.shape[axis] == 0 for axis in axes):
        raise InvalidShape(
            f"'input' {show(input.shape)} has no greatest or least item along axes {list(axes)}: "
            "it is empty"
        )
    return reduced


def _register_reduction(
    kind: str, infer: Callable[..., TensorType], function: Callable[..., Array], why_not: str = ""
) -> None:
    """Register `kind` as an operation that applies a reduction of `jax.numpy`.

    `why_not` is the reason why the kind has no derivatives, or "".
    """

    def lower(input: Array, axes: Ints) -> Array:
        return function(jnp.asarray(input), axis=axes, keepdims=True)

    rules.rule(kind, infer, not_differentiable=why_not)(lower)


_register_reduction("mean_reduce", _floating_type, jnp.mean)
_register_reduction("max_reduce", _extremum_type, jnp.max)  # equal items share the derivative
_register_reduction("min_reduce", _extremum_type, jnp.min)
_register_reduction("any_reduce", _logical_type, jnp.any, _LOGICAL)
_register_reduction("all_reduce", _logical_type, jnp.all, _LOGICAL)


def _require_countable(input: TensorType, axes: Ints) -> None:
    """Refuse axes that together have more items than int32 can count."""
    extents = tuple(input.shape[axis] for axis in axes)
    require.indexable(input=TensorType(extents, input.dtype))


def _sum_type(input: TensorType, axes: Ints) -> TensorType:
    reduced = _number_type(input, axes)
    if is_integer(input.dtype):  # the number of integers must fit int32
        _require_countable(input, axes)
    return reduced


def _count(x: Array, axes: Ints, dtype: np.dtype[np.generic]) -> Array:
    """Return the product of the extents of the axes, as an array of the dtype `dtype`."""
    return jnp.asarray(math.prod(x.shape[axis] for axis in axes)).astype(dtype)


@rules.rule("sum_reduce", _sum_type)
def sum_reduce(input: Array, axes: Ints, normalize: bool) -> Array:
    """Return the sum over the axes, or the mean if `normalize` is true.

    A mean of integers is rounded towards 0. The reduced axes remain, with extent 1.
    """
    x = jnp.asarray(input)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        reduction = jnp.mean if normalize else jnp.sum
        return reduction(x, axis=axes, keepdims=True)
    total = jnp.sum(x, axis=axes, keepdims=True)
    if normalize:
        total = divide(total, _count(x, axes, total.dtype))
    return total.astype(x.dtype)


@rules.rule("product_reduce", _number_type)
def product_reduce(input: Array, axes: Ints) -> Array:
    """Return the product over the axes, which remain with extent 1.

    The derivative is correct even where an item is 0.
    """
    x = jnp.asarray(input)
    return jnp.prod(x, axis=axes, keepdims=True, dtype=x.dtype)


def _moments_type(input: TensorType, axes: Ints) -> tuple[TensorType, TensorType]:
    reduced = _floating_type(input, axes)
    return reduced, reduced


@rules.rule("moments", _moments_type)
def moments(input: Array, axes: Ints) -> tuple[Array, Array]:
    """Return the mean and the variance over the axes, which remain with extent 1 (spec 4.8.6)."""
    x = jnp.asarray(input)
    mean = jnp.mean(x, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)
    return mean, variance


def _index_type(input: TensorType, axes: Ints, last: bool = False) -> TensorType:
    reduced = _extremum_type(input, axes)
    _require_countable(input, axes)
    return TensorType(reduced.shape, "int32")


def _register_index_rule(kind: str, function: Callable[..., Array]) -> None:
    """Register `kind` as an operation that returns the index of the least or the greatest item.

    `function` is `lax.argmin` or `lax.argmax`. An index over several axes is row-major, in the
    tensor's order of axes. Of equal extrema the first wins, or the last if `last` is true.
    """

    def lower(input: Array, axes: Ints, last: bool = False) -> Array:
        x = jnp.asarray(input)
        if last:
            # The last extremum is the first one of the reversed tensor. The index i in the reversed
            # tensor is the index `last_index` - i in x.
            last_index = _count(x, axes, np.dtype(np.int32)) - 1
            return last_index - lower(lax.rev(x, axes), axes)
        if len(axes) == 1:
            index = function(x, axes[0], np.int32)
        else:
            # Move the reduced axes behind the remaining axes, and merge the reduced axes to one
            # axis.
            remaining = [axis for axis in range(x.ndim) if axis not in axes]
            merged = jnp.transpose(x, (*remaining, *sorted(axes)))
            merged = merged.reshape(*merged.shape[: len(remaining)], -1)
            index = function(merged, len(remaining), np.int32)
        return jnp.expand_dims(index, axes)

    rules.rule(kind, _index_type, not_differentiable="its results are indices")(lower)


_register_index_rule("argmax_reduce", lax.argmax)
_register_index_rule("argmin_reduce", lax.argmin)


def _running_type(x: TensorType, axis: int) -> TensorType:
    require.number(x=x)
    require.axis(axis, len(x.shape))
    return x


def _register_running(kind: str, function: Callable[..., Array], neutral: int) -> None:
    """Register `kind` as an operation that computes running sums or running products.

    `function` is `lax.cumsum` or `lax.cumprod`, and `neutral` is the result without items. The
    attribute `exclusive` leaves the item itself out, and `reverse` starts at the end.
    """

    def lower(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
        x = jnp.asarray(x)
        wide = widened(x) if jnp.issubdtype(x.dtype, jnp.inexact) else x
        running = function(wide, axis, reverse=reverse).astype(x.dtype)
        if not exclusive:
            return running
        # Move the results by one item: cut the last one off, and put the neutral item first. In
        # reverse, cut the first one off, and put the neutral item last. A pad is a triple (before,
        # after, between), and a negative number cuts items off.
        pads = [(0, 0, 0)] * x.ndim
        pads[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
        return lax.pad(running, jnp.asarray(neutral, x.dtype), pads)

    rules.rule(kind, _running_type)(lower)


_register_running("cumsum", lax.cumsum, neutral=0)
_register_running("cumprod", lax.cumprod, neutral=1)
