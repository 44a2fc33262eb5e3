"""Compute the derivatives of convolutions by their filters.

Such a derivative is a convolution too: it slides the gradient of the result over the input. The
gradient is a large window with few positions: one position for each cell of the filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.contexts import is_enabled
from lowering.cpu import depthwise
from lowering.cpu.convolution import direct
from lowering.cpu.groups import WIDEST, fewest_wide, items_at_a_time
from lowering.cpu.pending_view import View, full_array, plain, tensor
from lowering.cpu.products import over_rows
from lowering.cpu.sliding_filter import Window, cells
from lowering.jaxpr_evaluation import bind
from lowering.jaxpr_types import Equation


def filter_gradient(
    equation: Equation, input: View, gradient: View, window: Window, *, is_alone: bool
) -> View | None:
    """Compute the gradient of a convolution by its filter, or return None.

    The equation is a convolution too: it slides `gradient`, the gradient of the original
    convolution's result, over the original `input`. Batch and channels are exchanged, so that the
    batch axis in the equation's layout is the channel axis in the original layout. `is_alone`
    tells whether the program runs on one device. None is returned if the equation is not a
    gradient by a filter, or if XLA should compute this gradient.
    """
    params = equation.params
    numbers = params["dimension_numbers"]
    # These names follow the layout of the equation: `input_batch` is the channel axis of the
    # original convolution's input.
    input_batch, input_channel, *input_spatial = numbers.lhs_spec
    gradient_outputs, gradient_inputs, *gradient_spatial = numbers.rhs_spec
    result_batch, result_channel, *result_spatial = numbers.out_spec
    shape = tuple(equation.outvars[0].aval.shape)
    size = [shape[axis] for axis in result_spatial]  # the cells of the filter
    groups = params["batch_group_count"]
    is_early = input.is_early and gradient.is_early
    if groups == 1:
        # A gradient by a filter is recognised by its large window: the window has more cells than
        # the equation's result has positions.
        window_cells = math.prod(gradient.shape[axis] for axis in gradient_spatial)
        is_gradient = window_cells > math.prod(size) and window.groups == 1
        if not is_gradient or not is_enabled("gradients"):
            return None
    elif window.is_spread or 0 in input.shape or not is_enabled("gradients"):
        # No kernel computes this equation, which has groups of the batch. XLA computes it.
        (result,) = bind(equation, [tensor(input), tensor(gradient)])
        return plain(result, is_early)
    x = full_array(input, (input_channel, *input_spatial, input_batch))
    gradient_order = (gradient_inputs, *gradient_spatial, gradient_outputs)
    gradient_array = full_array(gradient, gradient_order)
    # The strides of this equation are the dilations of the original convolution, and the dilations
    # of this equation are the strides of the original convolution.
    original = replace(window, stride=window.dilation, dilation=window.stride, groups=groups)
    has_one_cell = math.prod(size) == 1 and not window.is_spread
    if groups > 1 and groups == x.shape[-1]:
        result = depthwise.filter_gradient(gradient_array, x, size, original)
    elif groups > 1 or has_one_cell:
        result = _by_cells(gradient_array, x, size, original, is_alone=is_alone)
    else:
        # The gradient by a filter of 64 channels, for 32x32 positions, takes 64 ms in a loop if XLA
        # gets the axes in the order of the arrays, and 6 ms with these transpositions.
        images = direct(jnp.swapaxes(x, 0, -1), jnp.moveaxis(gradient_array, 0, -2), window)
        result = jnp.moveaxis(images, 0, -2)
    order = (*result_spatial, result_batch, result_channel)
    return View(result, order, shape, is_early)


def _by_cells(
    gradient: Array, x: Array, size: Sequence[int], window: Window, *, is_alone: bool
) -> Array:
    """Compute the gradient by a filter, with one product for each cell of the filter.

    The product sums over batch and positions. Its operands are the items of x that the cell
    covers, and the gradient of the convolution's result. x is the convolution's input. The result
    has the shape (*window, channels / groups, outputs).
    """
    groups = window.groups
    count = gradient.shape[-1]
    depth = x.shape[-1] // groups
    positions = gradient.shape[1:-1]
    if window.accumulator is not None:
        x = x.astype(window.accumulator)
        gradient = gradient.astype(window.accumulator)
    if groups == 1:
        # `filter_gradient` calls this function with one group only if the filter has one cell.
        ((_, part),) = cells(x, size, window, positions)
        left = part.reshape(-1, depth)
        right = gradient.reshape(-1, count)
        total = over_rows(left, right, window.precision, is_alone=is_alone)
        return total.reshape(*size, depth, count)
    if is_alone and depth < WIDEST:
        return _of_narrow_groups(gradient, x, size, window)
    right = gradient.reshape(-1, groups, count // groups)
    sums: list[Array] = []
    for _, part in cells(x, size, window, positions):
        left = part.reshape(-1, groups, depth)
        # p counts positions, k input channels, g groups and o output channels of a group.
        sums.append(jnp.einsum("pgk,pgo->kgo", left, right, precision=window.precision))
    return jnp.stack(sums).reshape(*size, depth, count)


def _of_narrow_groups(gradient: Array, x: Array, size: Sequence[int], window: Window) -> Array:
    """Return the gradient by the filter, for a convolution with many narrow groups.

    The result has the shape (*window, channels / groups, outputs). `gradient` is the derivative
    by the convolution's result, and x is the convolution's input. Several groups form a block that
    is multiplied at once. Only the products within a group, which lie on the diagonal of the
    block, are part of the result. A few items of the batch are multiplied at a time, so that
    the items that cells cover stay in the caches.
    """
    groups = window.groups
    count = gradient.shape[-1]
    depth = x.shape[-1] // groups
    joined = fewest_wide(depth, groups)  # the number of groups in a block
    blocks = groups // joined
    batch = x.shape[0]
    bytes_of_item = (x.size + gradient.size) * x.dtype.itemsize // batch
    items_per_step = items_at_a_time(batch, bytes_of_item)

    def block_gradient(x: Array, gradient: Array) -> list[Array]:
        """Return the products of one block of groups, for each cell."""
        positions = gradient.shape[1:-1]
        right = gradient.reshape(-1, count // blocks)
        numbers = ((0,), (0,)), ((), ())
        products: list[Array] = []
        for _, part in cells(x, size, window, positions):
            left = part.reshape(-1, depth * joined)
            products.append(lax.dot_general(left, right, numbers, window.precision))
        return products

    def split_blocks(array: Array) -> Array:
        """Split the channels into blocks of groups, and move the axis of blocks to the front."""
        return jnp.moveaxis(array.reshape(*array.shape[:-1], blocks, -1), -2, 0)

    def add_items(total: Array, items: Sequence[Array]) -> tuple[Array, None]:
        """Add the products of a few items of the batch to the total."""
        products = jax.vmap(block_gradient)(*map(split_blocks, items))
        return total + jnp.stack(products), None

    cell_count = math.prod(size)
    start = jnp.zeros((cell_count, blocks, depth * joined, count // blocks), x.dtype)
    steps = [array.reshape(-1, items_per_step, *array.shape[1:]) for array in (x, gradient)]
    total, _ = lax.scan(add_items, start, tuple(steps))
    pairs = total.reshape(cell_count, blocks, joined, depth, joined, count // groups)
    # The order (cells, blocks, input groups, input channels, output channels) becomes (cells, input
    # channels, blocks, input groups, output channels).
    return jnp.moveaxis(_within_groups(pairs), 3, 1).reshape(*size, depth, count)


def _within_groups(pairs: Array) -> Array:
    """Return the products within groups, from the products of all pairs of groups of a block.

    `pairs` has the axes (cells, blocks, input groups, input channels, output groups, output
    channels), and the result has no axis of output groups.
    """
    joined = pairs.shape[2]
    diagonal = np.eye(joined, dtype=bool).reshape(1, 1, joined, 1, joined, 1)
    # Products of two different groups are replaced by 0, so that the sum over the output groups is
    # the product within a group.
    return jnp.sum(jnp.where(diagonal, pairs, np.array(0, pairs.dtype)), axis=-2)
