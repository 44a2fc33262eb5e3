"""Defines views of arrays, whose transposition and broadcast wait until a consumer needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

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
    """A tensor that is held as an array in another layout. A view is a pytree.

    Axis j of the array is axis `order[j]` of the tensor. If the array has extent 1 along an axis
    and the tensor has more items, the tensor repeats the item. `is_early` tells whether the tensor
    is computed before a call or before a loop. `in_rows` tells whether the array is computed by
    loops over rows of narrow channels.
    """

    array: Array
    order: Order
    shape: tuple[int, ...]
    is_early: bool = False
    in_rows: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether the array is in the tensor's own layout."""
        return self.order == tuple(range(len(self.order)))

    def position(self, axis: int) -> int:
        """Return the axis of the array that is this axis of the tensor."""
        return self.order.index(axis)


def plain(array: Array, is_early: bool = False) -> View:
    """Return the view of an array in the tensor's own layout."""
    shape = jnp.shape(array)
    return View(array, tuple(range(len(shape))), shape, is_early)


def stack_of(item: View, arrays: Array) -> View:
    """Return the view of stacked items, from the view of one item and the stack of all arrays."""
    order = (0, *(axis + 1 for axis in item.order))
    return View(arrays, order, (jnp.shape(arrays)[0], *item.shape))


def item_of(stack: View) -> View:
    """Return the view of one item of a stack, along axis 0.

    The view has the type of the item's array instead of an array. Axis 0 must be the first axis of
    the stack's array.
    """
    order = tuple(axis - 1 for axis in stack.order[1:])
    array = jax.ShapeDtypeStruct(stack.array.shape[1:], stack.array.dtype)
    return View(array, order, stack.shape[1:])  # pyright: ignore[reportArgumentType]


def arranged(view: View, order: Order) -> Array:
    """Return the array transposed to an order of axes. It keeps extent 1 along broadcast axes."""
    if view.order == order:
        return view.array
    positions = tuple(map(view.position, order))
    shape = jnp.shape(view.array)
    is_vector = sum(n != 1 for n in shape) < 2
    if is_vector:
        return lax.reshape(view.array, [shape[position] for position in positions])
    return lax.transpose(view.array, positions)


def full_array(view: View, order: Order | None = None) -> Array:
    """Return the array with all items, in an order of axes, by default its own order."""
    if order is None:
        order = view.order
    array = arranged(view, order)
    shape = tuple(view.shape[axis] for axis in order)
    if jnp.shape(array) == shape:
        return array
    return jnp.broadcast_to(array, shape)


def tensor(view: View) -> Array:
    """Return the tensor in its own layout."""
    return full_array(view, tuple(range(len(view.order))))


def common_order(views: Sequence[View]) -> Order:
    """Return the order of axes in which an operation on several tensors moves the fewest items."""
    rank = max(len(view.order) for view in views)
    full = [view for view in views if len(view.order) == rank]
    return reduce(_larger, full).order


def _larger(first: View, second: View) -> View:
    """Return the view with more items.

    Of views with equally many items, return the one that is not plain, or else the first.
    """
    first_size = jnp.size(first.array)
    second_size = jnp.size(second.array)
    if first_size == second_size:
        return second if first.is_plain and not second.is_plain else first
    return second if at_least(second_size, first_size) else first
