"""Sums products in the way of the C routines of OpenVX 1.3, which saturate after each step.

Each product is divided, rounded and brought into the range of the type. After each channel the sum
is brought into the same range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering import Slide

_MOST_UNROLLED = 32  # the largest number of products that are added one by one in the trace
_CHUNK = 16  # the number of products that an iteration adds if more than `_MOST_UNROLLED` are added

# Returns the item of an array at an index along axis 0. The item does not have this axis.
_item: Callable[..., Array] = partial(lax.dynamic_index_in_dim, keepdims=False)
# A function that takes the index of a channel, and returns the operands of this channel.
_Fetch: TypeAlias = Callable[[Array | int], Array]

# Sums, and the mask that tells which of them overflowed. The mask is None if overflow is not
# reported.
Sums: TypeAlias = tuple[Array, Array | None]
# The state of a loop: the sums so far, and the operands of the next iteration.
_State: TypeAlias = tuple[Sums, tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class Steps:
    """The rules by which each product, and the sum after each channel, is rounded and limited.

    Args:
        dtype: the dtype of the numbers.
        shift: the number of bits by which products are shifted down.
        policies: the overflow policy and the rounding policy.
        report: whether a mask of overflow is computed too.
    """

    dtype: np.dtype[Any]
    shift: int
    policies: tuple[str, str]
    report: bool = False

    @property
    def saturates(self) -> bool:
        """Tell whether numbers beyond the range of the type saturate; otherwise they wrap.

        If numbers saturate, products are computed in float32, since products of int32 take 1.3
        times as long in XLA. In float32 every product within the range is exact.
        """
        overflow_policy, _ = self.policies
        return overflow_policy == "saturate"

    def factors(self, x: Array, filter: Array) -> tuple[Array, Array]:
        """Return an input and a filter, converted to the dtype in which they are multiplied.

        If products saturate, the dtype is float32, and `x` is also divided by 2^shift, so that the
        products need no division. Otherwise the dtype is int32.
        """
        if self.saturates:
            divided = x.astype(np.float32) * np.float32(2.0**-self.shift)
            return divided, filter.astype(np.float32)
        return x.astype(np.int32), filter.astype(np.int32)

    def add(self, sums: Sums, product: Array) -> Sums:
        """Add a product to sums, after dividing it by 2^shift, rounding it, and limiting its range.

        To round to the nearest, 0.5 is added to the quotient, and the result is truncated.
        """
        totals, overflowed = sums
        _, rounding_policy = self.policies
        # If numbers saturate, the method `factors` has divided the product by 2^shift already.
        # Otherwise the product is divided below. To add 0.5 to the quotient, 2^(shift - 1) is added
        # before the division.
        half = 0.5 if self.saturates else (1 << self.shift) >> 1
        if self.shift and rounding_policy == "nearest_even":
            product = product + np.asarray(half, product.dtype)
        if self.shift and not self.saturates:
            # A shift rounds down. To truncate, 2^shift - 1 is added to a negative product before
            # the shift.
            sign_bits = product >> 31  # all bits are 1 if the product is negative, and 0 otherwise
            product = product + (sign_bits & ((1 << self.shift) - 1))
            product = product >> self.shift
        in_range, overflowed = self._brought_into_range(product, overflowed)
        return totals + in_range.astype(np.int32), overflowed

    def end(self, sums: Sums) -> Sums:
        """Return the sums at the end of a channel, saturated or wrapped."""
        in_range, overflowed = self._brought_into_range(*sums)
        if not self.saturates:
            in_range = in_range.astype(self.dtype).astype(np.int32)
        return in_range, overflowed

    def _brought_into_range(self, x: Array, overflowed: Array | None) -> Sums:
        """Record the numbers outside the range of the type, and clip them if numbers saturate.

        `overflowed` is the mask so far, or None if overflow is not reported.
        """
        limits = jnp.iinfo(self.dtype)
        if overflowed is not None:
            # The numbers may have fractions, which are truncated later: 127.9 does not overflow.
            below = np.asarray(limits.min - 1, x.dtype)
            above = np.asarray(limits.max + 1, x.dtype)
            overflowed = overflowed | (x <= below) | (x >= above)
        if self.saturates:
            x = jnp.clip(x, np.asarray(limits.min, x.dtype), np.asarray(limits.max, x.dtype))
        return x, overflowed


@partial(jax.jit, static_argnames=("slide", "steps"))
def stepwise(x: Array, filter: Array, biases: Array | None, *, slide: Slide, steps: Steps) -> Sums:
    """Return the correlation of an input with a filter, with biases, and a mask of overflow.

    The input is (batch, channels, *positions), and the filter is (outputs, channels of a group,
    *window). The correlation is (batch, outputs, *output positions), and biases broadcast to it.
    The mask has the shape of the correlation, and is True where a product, or the sum after a
    channel, overflowed. The mask is None unless `steps.report`.
    """
    batch = len(x)
    count = len(filter)
    groups = slide.groups
    count_in_group = count // groups
    left, right = steps.factors(x, filter)
    operands = _operands(left, right, slide)
    extents = operands.extents
    start = _first_sums(biases, (batch, count, *extents), groups)
    # Vector instructions work along the last axis. In the loops the longer one of the last two axes
    # is therefore the last axis.
    _, row_count, column_count = start.shape
    swaps = row_count > column_count

    def swapped(x: Array) -> Array:
        """Exchange the last two axes if `swaps`."""
        return x.swapaxes(1, 2) if swaps else x

    def fetch(channel: Array | int) -> tuple[Array, Array]:
        """Return the rows and the columns of one channel.

        The rows are the weights, and the columns are the inputs, or the reverse if `swaps`.
        """
        cells = operands.cells(channel)
        weights = operands.weights(channel)
        return (cells, weights) if swaps else (weights, cells)

    def add_channel(sums: Sums, rows_and_columns: tuple[Array, Array]) -> Sums:
        """Add the products of one channel, and bring the sums into range."""
        return steps.end(_with_products(sums, rows_and_columns, steps))

    # The first sums of the loop must have the sharding of the products. Zeros that are computed
    # from a product have this sharding. Here the product is that of the first cell of the first
    # channel.
    rows, columns = fetch(0)
    product = rows[0][:, :, None] * columns[0][:, None]
    zeros = product.astype(np.int32) * 0
    first_sums = swapped(start) + zeros
    first_mask = zeros != 0 if steps.report else None
    sums, overflowed = _pipelined(operands.channels, fetch, add_channel, (first_sums, first_mask))

    def unfolded(x: Array) -> Array:
        """Return sums in the shape (batch, outputs, *output positions).

        The sums are (groups, outputs of a group, batch * output positions); the last two axes are
        swapped if `swaps`.
        """
        grouped = swapped(x).reshape(groups, count_in_group, batch, *extents)
        return jnp.moveaxis(grouped, 2, 0).reshape(batch, count, *extents)

    return jax.tree.map(unfolded, (sums.astype(steps.dtype), overflowed))


def _first_sums(biases: Array | None, shape: tuple[int, ...], groups: int) -> Array:
    """Return the sums before the first product is added: the biases, or 0 without biases.

    `shape` is the shape of the result, (batch, outputs, *output positions). The sums have the shape
    (groups, outputs of a group, batch * output positions).
    """
    batch, count, *_ = shape
    count_in_group = count // groups
    bias: Any = np.int32(0) if biases is None else biases.astype(np.int32)
    # (batch, groups, outputs of a group, output positions)
    grouped = jnp.broadcast_to(bias, shape).reshape(batch, groups, count_in_group, -1)
    return jnp.moveaxis(grouped, 0, 2).reshape(groups, count_in_group, -1)


class _Operands(NamedTuple):
    """The operands of the products of a convolution, by channel. A matrix product has one channel.

    Args:
        cells: a function that takes the index of a channel and returns the channel's inputs in all
            windows, of shape (cells of the window, groups, batch * output positions).
        weights: a function that takes the index of a channel and returns the channel's weights, of
            shape (cells of the window, groups, outputs of a group).
        channels: the number of channels.
        extents: the extents of the output's positions.
    """

    cells: _Fetch
    weights: _Fetch
    channels: int
    extents: tuple[int, ...]


def _operands(x: Array, filter: Array, slide: Slide) -> _Operands:
    """Return the operands of the products of an input and a filter, by channel.

    A filter of shape (outputs, inputs) has a single channel with a cell for each input.
    """
    is_matrix = filter.ndim == 2
    if is_matrix:
        inputs = x.T[:, None]  # (inputs, 1 group, batch)
        weights = filter.T[:, None]  # (inputs, 1 group, outputs)
        return _Operands(lambda _: inputs, lambda _: weights, channels=1, extents=())
    groups = slide.groups
    count, depth, *size = filter.shape
    x = slide.spread_out(x)  # (batch, channels, *positions)
    # (channels of a group, groups, batch, *positions)
    planes = jnp.moveaxis(x.reshape(len(x), groups, depth, *x.shape[2:]), (2, 1), (0, 1))
    extents = slide.places(x.shape[2:], size)
    # (channels of a group, cells of the window, groups, outputs of a group)
    grouped = jnp.moveaxis(filter.reshape(groups, count // groups, depth, -1), (2, 3), (0, 1))

    def cells(channel: Array | int) -> Array:
        """Return the inputs of a channel: (cells, groups, batch * output positions)."""
        plane = _item(planes, channel)  # (groups, batch, *positions)
        if math.prod(size) <= _MOST_UNROLLED:
            parts = [plane[:, :, *slide.items(cell, extents)] for cell in np.ndindex(*size)]
            return jnp.stack([part.reshape(groups, -1) for part in parts])
        # A large window is gathered by indices, since a slice for each cell would take minutes to
        # compile. For each axis, `indices` has the index of each cell (rows) of each window
        # (columns).
        indices: list[NDArray[Any]] = []
        for axis in range(2):
            cell_offsets = np.arange(size[axis])[:, None] * slide.dilation[axis]
            window_offsets = np.arange(extents[axis]) * slide.stride[axis]
            indices.append(cell_offsets + window_offsets)
        rows, columns = indices
        # (groups, batch, rows of the window, columns of the window, *output positions)
        part = plane[:, :, rows[:, None, :, None], columns[None, :, None, :]]
        return jnp.moveaxis(part, (2, 3), (0, 1)).reshape(math.prod(size), groups, -1)

    return _Operands(cells, weights=partial(_item, grouped), channels=depth, extents=extents)


def _with_products(sums: Sums, operands: tuple[Array, Array], steps: Steps) -> Sums:
    """Add the products of all rows and columns to sums, cell by cell.

    The rows are (cells, groups, rows), the columns (cells, groups, columns), and the sums (groups,
    rows, columns).
    """
    all_rows, _ = operands
    cell_count = len(all_rows)
    if cell_count <= _MOST_UNROLLED:
        for rows, columns in zip(*operands, strict=True):
            sums = steps.add(sums, rows[:, :, None] * columns[:, None, :])
        return sums
    # Zeros fill up the last chunk: 49 cells need 15 zeros for chunks of 16. The products of zeros
    # are 0, however they are rounded.
    padding = -cell_count % _CHUNK
    padded = [jnp.pad(x, ((0, padding), (0, 0), (0, 0))) for x in operands]
    chunked = [x.reshape(-1, _CHUNK, *x.shape[1:]) for x in padded]
    chunked_rows, chunked_columns = chunked

    def fetch(chunk: Array | int) -> tuple[Array, Array]:
        """Return the rows and the columns of one chunk."""
        return _item(chunked_rows, chunk), _item(chunked_columns, chunk)

    add_chunk = partial(_with_products, steps=steps)
    return _pipelined(len(chunked_rows), fetch, add_chunk, sums)


def _pipelined(
    count: int,
    fetch: Callable[[Array | int], tuple[Array, Array]],
    body: Callable[[Sums, tuple[Array, Array]], Sums],
    sums: Sums,
) -> Sums:
    """Compute `sums = body(sums, fetch(index))` for each index below `count`.

    Each iteration fetches the operands of the next iteration. XLA's loop over products then reads
    arrays in memory and is vectorised. The computation takes a third of the time that it takes if
    each iteration fetches its own operands.
    """
    if count == 1:
        return body(sums, fetch(0))

    def step(index: Array, state: _State) -> _State:
        """Run one iteration, and fetch the operands of the next one."""
        sums, operands = state
        next_index = jnp.minimum(index + 1, count - 1)  # the last step fetches unused operands
        return body(sums, operands), fetch(next_index)

    first_state = (sums, fetch(0))
    last_sums, _ = lax.fori_loop(0, count, step, first_state)
    return last_sums
