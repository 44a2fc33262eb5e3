"""Pools whose windows divide each spatial axis as evenly as they can (as torch's adaptive ones).

Window i of n over an extent e covers [floor(i e / n), ceil((i + 1) e / n)).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.errors import InvalidShape
from lowering.extents import Shape, show
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.kernels.windows import lowest, require_positive
from lowering.ops import require, rules
from lowering.trace import Context

_WORK = 8  # bytes that say whether a place is in a window, and what its share is


def _adaptive_type(input: TensorType, output_size: Shape) -> TensorType:
    require.real(input=input)
    if len(output_size) != len(input.shape) - 2:
        raise InvalidShape(
            f"'output_size' {list(output_size)} must have an item for each spatial axis of "
            f"'input' {show(input.shape)}"
        )
    require_positive("output_size", output_size)
    for extent, count in zip(input.shape[2:], output_size, strict=True):
        require.indexable(windows=TensorType((count, extent), "bool"))
    return TensorType((*input.shape[:2], *output_size), input.dtype)


def _windows(ctx: Context, extent: int, count: int) -> np.ndarray[Any, Any]:
    """Return which places each window has: [count,extent]."""
    ctx.fold(_WORK * count * extent)
    i, place = np.arange(count)[:, None], np.arange(extent)[None, :]
    return (place >= i * extent // count) & (place < -((-(i + 1) * extent) // count))


@rules.rule("adaptive_avg_pool", _adaptive_type)
def adaptive_avg_pool(ctx: Context, input: Any, output_size: Shape) -> Array:
    """Return the mean of each window."""
    x = widened(jnp.asarray(input))
    for axis, count in enumerate(output_size, 2):
        windows = _windows(ctx, x.shape[axis], count).astype(x.dtype)
        means = windows / windows.sum(axis=1, keepdims=True)
        x = jnp.moveaxis(jnp.tensordot(x, means, ((axis,), (1,)), precision="highest"), -1, axis)
    return x.astype(jnp.asarray(input).dtype)


def _with_places_type(input: TensorType, output_size: Shape) -> tuple[TensorType, TensorType]:
    output = _adaptive_type(input, output_size)
    require.indexable(input=TensorType(input.shape[2:], input.dtype))
    return output, TensorType(output.shape, "int32")


@rules.rule("adaptive_max_pool", _with_places_type)
def adaptive_max_pool(ctx: Context, input: Any, output_size: Shape) -> tuple[Array, Array]:
    """Return the maximum of each window, and its place among all the items of its channel."""
    x = jnp.asarray(input)
    extents = x.shape[2:]
    whole = jnp.arange(int(np.prod(extents)), dtype=jnp.int32).reshape(extents)
    places = jnp.broadcast_to(whole, x.shape)
    for axis, count in enumerate(output_size, 2):
        windows = jnp.asarray(_windows(ctx, x.shape[axis], count))
        shape = [1] * (x.ndim + 1)
        shape[axis], shape[axis + 1] = windows.shape
        within = windows.reshape(shape)
        candidates = jnp.where(within, jnp.expand_dims(x, axis), lowest(x.dtype))
        best = jnp.argmax(candidates, axis=axis + 1, keepdims=True)
        spread = jnp.broadcast_to(jnp.expand_dims(places, axis), candidates.shape)
        x = jnp.take_along_axis(candidates, best, axis + 1).squeeze(axis + 1)
        places = jnp.take_along_axis(spread, best, axis + 1).squeeze(axis + 1)
    return x, places
