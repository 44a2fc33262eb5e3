"""Lists: tensors with an axis whose number of items the network computes.

In a trace the extent of this axis is symbolic. `counted` turns a padded tensor into a list, and
`filled` turns a list into a padded tensor. In between, rules treat the extent of a list like any
other symbolic extent of `jax.export`, and know nothing of padding. `lowering.padding` evaluates the
traced rules on padded arrays.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, show, with_extent
from lowering.graph import TensorType
from lowering.ops import require, rules
from lowering.ops.require import normal_axis


def _counted_type(input: TensorType, count: TensorType, axis: int) -> TensorType:
    require.one_integer(count=count)
    axis = normal_axis(axis, len(input.shape))
    return TensorType(with_extent(input.shape, axis, UNKNOWN), input.dtype)


@rules.rule("counted", _counted_type)
def counted(input: Array, count: Array, axis: int, extent: int, most: int) -> Array:
    """Return the first `count` items of the input along an axis. The items after them are padding.

    `extent` is the symbol for the number of items, which is at most `most`.
    """
    x = jnp.asarray(input)
    item_count = jnp.asarray(count).reshape(())
    return _counted().bind(x, item_count, axis=axis % x.ndim, extent=extent, most=most)


def _filled_type(input: TensorType, shape: Shape) -> TensorType:
    has_same_rank = len(shape) == len(input.shape)
    extents = zip(shape, input.shape, strict=True)
    if not has_same_rank or any(new_extent < extent for new_extent, extent in extents):
        raise InvalidShape(f"{show(input.shape)} cannot be padded to {show(shape)}")
    return TensorType(shape, input.dtype)


@rules.rule("filled", _filled_type)
def filled(input: Array, shape: Shape, value: float | str) -> Array:
    """Extend a tensor or a list to the shape `shape`. Along each axis, `value` follows the items.

    `value` is a number, or "nan", "inf" or "-inf". Documents have no literals for these three
    numbers.
    """
    x = jnp.asarray(input)
    number = float(value) if isinstance(value, str) else value
    filling = jnp.asarray(number, x.dtype)
    for axis, (extent, new_extent) in enumerate(zip(x.shape, shape, strict=True)):
        if not is_symbolic(extent) and not is_symbolic(new_extent):
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, new_extent - extent)
            x = jnp.pad(x, widths, constant_values=filling)
    # A tensor with a symbolic extent is a list. Only the primitive can extend a list.
    has_lists = any(map(is_symbolic, x.shape))
    return _filled().bind(x, shape=shape, value=number) if has_lists else x


@cache
def _counted() -> Any:
    """Return the primitive of `counted`, for which `lowering.padding_rules` has a rule."""
    from lowering.primitives import shape_primitive  # only networks with lists need this import

    def shape(x: Any, count: Any, axis: int, extent: Any, most: int) -> Shape:
        return with_extent(tuple(x.shape), axis, extent)

    return shape_primitive("counted", shape)


@cache
def _filled() -> Any:
    """Return the primitive of `filled`, for which `lowering.padding_rules` has a rule."""
    from lowering.primitives import shape_primitive  # only networks with lists need this import

    return shape_primitive("filled", lambda x, shape, value: shape)
