"""Distinct items, with room for all of them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidShape
from lowering.extents import MAX_EXTENT, with_extent
from lowering.graph import TensorType
from lowering.ops import require, rules
from lowering.ops.require import normal_axis
from lowering.trace import Context


def _unique_type(input: TensorType, axis: int) -> tuple[TensorType, ...]:
    if input.dtype != "bool":
        require.ordered(input=input)
    require.indexable(input=input)
    count = input.shape[normal_axis(axis, len(input.shape))]
    if count == MAX_EXTENT:  # the place behind the last is numbered too
        raise InvalidShape(f"'input' has {count} items, places in it have 32 bits")
    of_each, one = TensorType((count,), "int32"), TensorType((1,), "int32")
    items = TensorType(
        with_extent(input.shape, normal_axis(axis, len(input.shape)), count), input.dtype
    )
    return items, of_each, of_each, of_each, one


@rules.rule("unique", _unique_type)
def unique(ctx: Context, input: Any, axis: int, sorts: bool) -> tuple[Array, ...]:
    """Return the distinct items along an axis, then the last again; and four tensors of int32.

    These are the first place of each; which one each item of the input is; how often each is
    there, then 0; and how many there are, [1]. In order of first places unless it `sorts`.
    """
    x = jnp.asarray(input)
    count = x.shape[axis]
    rows = jnp.moveaxis(x, axis, 0)
    if not count:
        none, zero = jnp.zeros((0,), jnp.int32), jnp.zeros((1,), jnp.int32)
        return x, none, none, none, zero
    ctx.unroll(rows.size // count)  # `jnp.unique` sorts by each item of a row in turn
    _, first, inverse, often = jnp.unique(
        rows, axis=0, size=count, return_index=True, return_inverse=True, return_counts=True
    )
    inverse, filled = inverse.reshape(-1), often > 0
    if not sorts:
        order = jnp.argsort(jnp.where(filled, first, count))
        first, often, filled = first[order], often[order], filled[order]
        inverse = jnp.argsort(order)[inverse]
    number = jnp.sum(filled, keepdims=True)
    first = jnp.where(filled, first, first[number - 1])
    items = jnp.moveaxis(rows[first], 0, axis)
    return items, *(found.astype(jnp.int32) for found in (first, inverse, often, number))
