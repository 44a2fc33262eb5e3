"""Arrays with a transposition and broadcast pending until a consumer needs them."""

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
    meta_fields=("order", "shape", "known", "in_rows"),
)
@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor of some shape, held as an array of another layout; a pytree.

    Axis j of the array is axis `order[j]` of the tensor. Where the array has extent 1 and the
    tensor another, all items are equal. `known`: the tensor depends on parameters alone. `in_rows`:
    loops over rows of narrow channels make it.
    """

    array: Any
    order: Order
    shape: tuple[int, ...]
    known: bool = False
    in_rows: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether the array is in the tensor's own layout."""
        return self.order == tuple(range(len(self.order)))

    def position(self, axis: int) -> int:
        """Return the axis of the array that is this axis of the tensor."""
        return self.order.index(axis)


def plain(array: Any, known: bool = False) -> View:
    """Return the view of an array as it is."""
    shape = jnp.shape(array)
    return View(array, tuple(range(len(shape))), shape, known)


def stack_of(item: View, arrays: Any) -> View:
    """Return the tensor of items along a new axis 0, given their arrays along a new axis 0."""
    order = (0, *(axis + 1 for axis in item.order))
    return View(arrays, order, (jnp.shape(arrays)[0], *item.shape))


def item_of(stack: View) -> View:
    """Return the view of an item along axis 0, which is the array's first one; it has no array."""
    order = tuple(axis - 1 for axis in stack.order[1:])
    array = jax.ShapeDtypeStruct(stack.array.shape[1:], stack.array.dtype)
    return View(array, order, stack.shape[1:])


def arranged(view: View, order: Order) -> Any:
    """Transpose the array; where it is broadcast it keeps the extent 1."""
    if view.order == order:
        return view.array
    places = tuple(view.order.index(axis) for axis in order)
    shape = jnp.shape(view.array)
    if sum(n != 1 for n in shape) < 2:
        return lax.reshape(view.array, [shape[place] for place in places])
    return lax.transpose(view.array, places)


def whole(view: View, order: Order | None = None) -> Any:
    """Return the array in an order of axes (its own by default), with all items."""
    order = view.order if order is None else order
    array = arranged(view, order)
    shape = tuple(view.shape[axis] for axis in order)
    return array if jnp.shape(array) == shape else jnp.broadcast_to(array, shape)


def tensor(view: View) -> Array:
    """Return the tensor itself, in its own layout."""
    return whole(view, tuple(range(len(view.order))))


def common_order(views: Sequence[View]) -> Order:
    """Return the order in which an operation on several tensors moves the fewest items."""
    rank = max(len(view.order) for view in views)
    full = [view for view in views if len(view.order) == rank]
    return reduce(_larger, full).order


def _larger(first: View, second: View) -> View:
    """Return the one with more items, of as many the one that is not plain, else the first."""
    sizes = jnp.size(second.array), jnp.size(first.array)
    if sizes[0] == sizes[1]:
        return second if first.is_plain and not second.is_plain else first
    return second if at_least(*sizes) else first
