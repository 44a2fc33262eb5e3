"""Defines views. A view delays transpositions and broadcasts until a consumer needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.extents import at_least

Order = tuple[int, ...]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("array",),
    meta_fields=("order", "shape", "is_early", "in_rows"),
)
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor that is held as an array whose axes have another order. A view is a pytree.

    Axis j of the array is axis `order[j]` of the tensor: an array (rows, columns, channels) with
    the order (1, 2, 0) holds a tensor (channels, rows, columns). If the array has extent 1 along
    an axis and the tensor has more items, the tensor repeats the item.
    """

    array: Array
    order: Order
    shape: tuple[int, ...]  # of the tensor
    is_early: bool = False  # whether the tensor is computed before all calls or before a loop
    in_rows: bool = False  # whether loops over rows of narrow channels compute the array

    @property
    def is_plain(self) -> bool:
        """Tell whether the array's axes have the order of the tensor's axes."""
        return self.order == tuple(range(len(self.order)))

    def position(self, axis: int) -> int:
        """Return the number of the array's axis that is axis `axis` of the tensor."""
        return self.order.index(axis)


def plain(array: Array, is_early: bool = False) -> View:
    """Return the view of a tensor that is held as the array `array` itself."""
    shape = jnp.shape(array)
    return View(array, tuple(range(len(shape))), shape, is_early)


def stack_of(item: View, arrays: Array) -> View:
    """Return the view of a stack of tensors along a new axis 0.

    `item` is the view of one of the tensors, and `arrays` is the stack of the arrays of all
    tensors.
    """
    order = (0, *(axis + 1 for axis in item.order))
    return View(arrays, order, (jnp.shape(arrays)[0], *item.shape))


def item_of(stack: View) -> View:
    """Return the view of one tensor of a stack along axis 0.

    Instead of an array, the view has the type of the tensor's array. Axis 0 must be the first
    axis of the stack's array.
    """
    order = tuple(axis - 1 for axis in stack.order[1:])
    shape = stack.array.shape[1:]
    array: Any = jax.ShapeDtypeStruct(shape, stack.array.dtype)
    is_in_shard_map = bool(jax.sharding.get_abstract_mesh().manual_axes)
    if is_in_shard_map:  # jax checks along which axes of a mesh an array varies
        array = jax.typeof(stack.array).update(shape=shape)
    return View(array, order, stack.shape[1:])


def arranged(view: View, order: Order) -> Array:
    """Return the view's array with its axes transposed to `order`, an order of the tensor's axes.

    Axes along which the tensor repeats an item keep extent 1.
    """
    if view.order == order:
        return view.array
    positions = tuple(map(view.position, order))
    shape = jnp.shape(view.array)
    is_vector = sum(extent != 1 for extent in shape) < 2
    if is_vector:
        # The items stay in their order, so that a reshape is enough.
        return lax.reshape(view.array, [shape[position] for position in positions])
    return lax.transpose(view.array, positions)


def full_array(view: View, order: Order | None = None) -> Array:
    """Return the array of a view with repeated items written out.

    The axes of the array are put in `order`, an order of the tensor's axes. By default the array's
    axes stay in their order.
    """
    if order is None:
        order = view.order
    array = arranged(view, order)
    shape = tuple(view.shape[axis] for axis in order)
    if jnp.shape(array) == shape:
        return array
    return jnp.broadcast_to(array, shape)


def tensor(view: View) -> Array:
    """Return the tensor as an array of its own shape."""
    return full_array(view, tuple(range(len(view.order))))


def common_order(views: Sequence[View]) -> Order:
    """Return the order of axes in which an operation on tensors has to transpose the fewest items.

    This is the order of the largest array.
    """
    rank = max(len(view.order) for view in views)
    views_of_rank = [view for view in views if len(view.order) == rank]
    return reduce(_larger, views_of_rank).order


def _larger(first: View, second: View) -> View:
    """Return the view with more items in its array.

    If the arrays have equally many items, a view whose axes are not in order is preferred. If this
    does not decide, the first view is returned.
    """
    first_size = jnp.size(first.array)
    second_size = jnp.size(second.array)
    if first_size == second_size:
        return second if first.is_plain and not second.is_plain else first
    return second if at_least(second_size, first_size) else first
