"""Convolves tensors with channels last, by XLA's kernel or by faster kernels.

The input has the shape (batch, *input positions, channels), the filter has the shape (*window,
channels / groups, outputs), and the result has the shape (batch, *positions, outputs).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.contexts import is_enabled
from lowering.cpu import kernel_costs as costs
from lowering.cpu.depthwise import depthwise
from lowering.cpu.groups import UNROLLED_GROUPS, is_by_depthwise, joined, joined_at_a_time
from lowering.cpu.memory import materialised
from lowering.cpu.products import product
from lowering.cpu.sliding_filter import Window, cells, padded
from lowering.cpu.stacked_filters import fits, is_narrow, narrow, stacked
from lowering.cpu.winograd import is_winograd, winograd
from lowering.extents import at_least
from lowering.kernels.precision import left_operand
from lowering.machine import profile


def convolution(x: Array, filter: Array, window: Window, *, varies: bool = False) -> Array:
    """Convolve by the kernel that is fastest for the extents of input and filter.

    The input has the shape (batch, *input positions, channels), the filter has the shape
    (*window, channels / groups, outputs), and the result has the shape (batch, *positions,
    outputs). `varies` tells whether the filter differs from call to call, so that each call
    must lay it out.
    """
    name = kernel_for(x, filter, window, varies=varies)
    multiplies_bfloat16 = name in _NARROW and profile().multiplies_bfloat16
    if x.dtype == jnp.bfloat16 and not multiplies_bfloat16:
        # XLA's convolution is no faster in bfloat16 than in float32, and some of the other kernels
        # do not support bfloat16.
        wide_input = x.astype(jnp.float32)
        wide_filter = filter.astype(jnp.float32)
        result = convolution(wide_input, wide_filter, window, varies=varies)
        return result.astype(window.accumulator or jnp.bfloat16)
    kernel = _KERNELS[name] if name and is_enabled(name) else direct
    return kernel(x, filter, window)


def kernel_for(x: Array, filter: Array, window: Window, *, varies: bool = False) -> str | None:
    """Return the name of the cheapest kernel for a convolution, or None for XLA's convolution.

    `varies` tells whether the filter differs from call to call.
    """
    if not x.size:
        return None  # no kernel computes an empty result faster
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return "pointwise" if is_pointwise(filter, window) else None
    cell_count = math.prod(filter.shape[:-2])
    input_positions = math.prod(x.shape[1:-1])
    is_bordered = cell_count > input_positions and window.groups == 1
    xla = "bordered" if is_bordered else None  # the kernel that calls XLA's convolution
    is_strided = any(stride != 1 for stride in window.stride)
    if window.is_spread and is_strided:
        return xla  # only XLA's convolution combines input dilation with a stride
    if window.is_spread and window.groups == 1:
        if is_tiled(filter, window):
            return "tiled"
        return "pointwise" if cell_count == 1 else xla
    if is_pointwise(filter, window):
        return "pointwise"
    if window.groups > 1:
        return "depthwise" if filter.shape[-2] == 1 else "grouped"
    if x.ndim > 4 and not is_summed(x, filter, window):
        return "sliced"
    if is_narrow(x, filter, window):
        return "narrow"
    cost_of = {xla: costs.direct}
    if is_summed(x, filter, window):
        cost_of["summed"] = costs.summed
    # The following kernels transform the filter. For few positions this costs more than it gains.
    keeps_filter = varies and has_few_positions(x, filter, window)
    if window.is_single(x) and not keeps_filter:
        if is_winograd(filter, window):
            cost_of["winograd"] = costs.winograd
        # The kernel `stacked` is only for filters that are equal in all calls. For filters that
        # vary, as in training, `stacked` would take 1.1 times as long as XLA's convolution.
        if not varies and fits(x, filter, window):
            cost_of["stacked"] = costs.stacked
    candidates = [name for name in cost_of if name is None or is_enabled(name)]
    extents = costs.extents(x, filter, window)

    def estimated_seconds(name: str | None) -> float:
        return cost_of[name](extents)

    return min(candidates, key=estimated_seconds, default=None)


def direct(x: Array, filter: Array, window: Window) -> Array:
    """Convolve by XLA's own convolution.

    Input, filter and result have the channels last. XLA would bring other layouts to this one, but
    not in loops and branches, where it would compute them by plain loops.
    """
    spatial = "XYZUVW"[: x.ndim - 2]  # one letter for each spatial axis
    numbers: Any = f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"
    return lax.conv_general_dilated(
        left_operand(x, window.accumulator),
        filter,
        window_strides=window.stride,
        padding=window.padding,
        lhs_dilation=window.input_dilation,
        rhs_dilation=window.dilation,
        dimension_numbers=numbers,
        feature_group_count=window.groups,
        **window.kind,
    )


def padded_first(x: Array, filter: Array, window: Window) -> Array:
    """Pad the input with the zeros that the window covers, and convolve by XLA's convolution.

    If a window has more cells than the input has positions, XLA exchanges input and filter, and
    computes plain loops. For a batch of 32 with 512 channels at 2x2 positions, and windows of
    3x3 cells, such loops take 1608 ms. If the input is padded first, the convolution takes 39
    ms.
    """
    extended = lax.pad(x, np.array(0, x.dtype), window.edges)
    # Without the barrier XLA would merge the padding into the convolution.
    return direct(lax.optimization_barrier(extended), filter, window.bare)


def is_pointwise(filter: Array, window: Window) -> bool:
    """Tell whether a convolution has one cell, one group, no padding and no input dilation."""
    has_one_cell = math.prod(filter.shape[:-2]) == 1
    has_one_group = window.groups == 1
    is_padded = any(map(any, window.padding))
    return has_one_cell and has_one_group and not window.is_spread and not is_padded


def pointwise(x: Array, matrix: Array, window: Window, *, matrix_axis: int) -> Array:
    """Multiply the channels of each position by a matrix, whose axis `matrix_axis` is summed.

    The input has the shape (batch, *input positions, channels). The result has the matrix's
    other axis in the place of the channels.
    """
    one_cell = (1,) * (x.ndim - 2)
    ((_, covered),) = cells(x, one_cell, window)  # (batch, *positions, channels)
    *positions, depth = covered.shape
    rows = covered.reshape(-1, depth)
    result = product(rows, matrix, window.kind, x_axis=1, matrix_axis=matrix_axis)
    return result.reshape(*positions, -1)


def patches(x: Array, matrix: Array, size: Sequence[int], window: Window) -> Array:
    """Multiply a filter's matrix by the items that the window covers at each position.

    The matrix has the shape (outputs, channels * cells of the window). `size` has the number of
    cells along each axis. The result has the shape (outputs, batch, *positions).
    """
    parts = [part for _, part in cells(x, size, window)]
    *batch_and_positions, depth = parts[0].shape
    # The items have the shape (channels, cells, batch * positions).
    items = jnp.stack([part.reshape(-1, depth).T for part in parts], axis=1)
    columns = items.reshape(depth * len(parts), -1)
    result = product(columns, matrix, window.kind, x_axis=0, matrix_axis=1, columns_first=True)
    # Without the barrier XLA transposes an operand instead of the result, which may take four times
    # as long. A product of 98 rows and 1024x2048 items takes 12.9 ms without the barrier, and 3.3
    # ms with it.
    return lax.optimization_barrier(result).reshape(len(matrix), *batch_and_positions)


def by_product(x: Array, filter: Array, window: Window) -> Array:
    """Convolve with a window of one cell, by a product."""
    matrix = filter.reshape(filter.shape[-2:])
    result = pointwise(x, matrix, window.bare, matrix_axis=0)
    if not window.is_spread:
        return result
    # If the input is dilated, the result has zeros at the positions between the input's items.
    return lax.pad(result, np.array(0, result.dtype), window.edges)


_MOST_TERMS = 32  # the most terms of the sum that `summed` computes in one loop


def is_summed(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether the kernel `summed` may compute a convolution.

    A window must cover at most 32 items of the input, and the items must be float32. The first
    layer of a network is often such a convolution.
    """
    covered_items = math.prod(filter.shape[:-1])  # the sum has a term for each of them
    return covered_items <= _MOST_TERMS and window.is_single(x)


def summed(x: Array, filter: Array, window: Window) -> Array:
    """Convolve by a sum with a term for each input channel of each cell of the window.

    A term is the shifted channel, multiplied by the filter's items for the channel and the
    cell.
    """
    *size, depth, count = filter.shape
    ones = (1,) * (x.ndim - 1)  # the extents of batch and positions, to broadcast the weights
    terms: list[Array] = []
    for cell, part in cells(x, size, window):
        for channel in range(depth):
            items = part[..., channel : channel + 1]  # (batch, *positions, 1)
            weights = filter[(*cell, channel)]  # (outputs,)
            terms.append(items * weights.reshape(*ones, count))
    return materialised(functools.reduce(lax.add, terms))


def grouped(x: Array, filter: Array, window: Window) -> Array:
    """Compute the convolutions of all groups one after another. Narrow groups are joined first."""
    if is_by_depthwise(filter, window.groups):
        return by_depthwise(x, filter, window)
    # Groups that `summed` computes are not joined, since `summed` would also add the zeros between
    # the groups.
    covers_few = is_summed(x, filter, window)
    joined_count = 1 if covers_few else joined_at_a_time(filter.shape[-2], window.groups)
    filter = joined(filter, window.groups, joined_count)
    groups = window.groups // joined_count
    window_of_group = replace(window, groups=1)
    # Give the groups an axis of their own: (batch, *input positions, groups, channels of a group)
    # and (*window, channels of a group, groups, outputs of a group).
    inputs = x.reshape(*x.shape[:-1], groups, -1)
    filters = filter.reshape(*filter.shape[:-1], groups, -1)

    def convolve_group(input_and_filter: tuple[Array, Array]) -> Array:
        return convolution(*input_and_filter, window_of_group)

    if groups <= UNROLLED_GROUPS:
        results_of_groups: list[Array] = []
        for i in range(groups):
            results_of_groups.append(convolve_group((inputs[..., i, :], filters[..., i, :])))
        return jnp.concatenate(results_of_groups, axis=-1)
    stacks = jnp.moveaxis(inputs, -2, 0), jnp.moveaxis(filters, -2, 0)
    results = lax.map(convolve_group, stacks)  # (groups, batch, *positions, outputs of a group)
    return jnp.moveaxis(results, 0, -2).reshape(*results.shape[1:-1], filter.shape[-1])


def by_depthwise(x: Array, filter: Array, window: Window) -> Array:
    """Convolve groups of k channels by a sum of k depthwise convolutions.

    Convolution i takes channel i of each group.
    """
    *_, depth, count = filter.shape
    depthwise_window = replace(window, groups=count)
    results_per_group = count // window.groups
    terms: list[Array] = []
    for i in range(depth):
        # Take channel i of each group, and repeat it for each result of the group.
        channels = jnp.repeat(x[..., i::depth], results_per_group, axis=-1)
        channels = lax.optimization_barrier(channels)
        terms.append(depthwise(channels, filter[..., i : i + 1, :], depthwise_window))
    return functools.reduce(lax.add, terms)


def sliced(x: Array, filter: Array, window: Window) -> Array:
    """Convolve along three axes by a convolution along the last two axes.

    The window's cells along the first axis become channels. XLA's convolution along three axes
    takes two to thirteen times as long as this kernel. The measured milliseconds:

        channels    positions   XLA  this kernel
        16 to 32     32x32x32    39          7
        3 to 16      35x35x35    22          1.3
        64 to 64     16x16x16    21          6
        128 to 128      8x8x8     6          3
    """
    first_size, *size, depth, count = filter.shape
    first_padding, *_ = window.padding
    no_padding = [(0, 0)] * len(size)
    padded_along_first = replace(window, padding=[first_padding, *no_padding])
    position_count, *_ = window.positions(x, filter.shape[:-2])
    x = padded(x, padded_along_first)
    # These are the dilation and the stride along the first axis.
    dilation, *_ = window.dilation
    stride, *_ = window.stride
    length = (position_count - 1) * stride + 1
    slices: list[Array] = []
    for cell in range(first_size):
        start = cell * dilation
        slices.append(lax.slice_in_dim(x, start, start + length, stride, axis=1))
    all_channels = first_size * depth
    # The positions along the first axis become items of the batch: (batch * first positions, *other
    # input positions, channels).
    planes = jnp.concatenate(slices, axis=-1).reshape(-1, *x.shape[2:-1], all_channels)
    flat_filter = jnp.moveaxis(filter, 0, -3).reshape(*size, all_channels, count)
    result = convolution(planes, flat_filter, window.inner)
    return result.reshape(len(x), position_count, *result.shape[1:])


def is_tiled(filter: Array, window: Window) -> bool:
    """Tell whether a transposed convolution has windows that lie side by side, without overlap."""
    *size, _, _ = filter.shape
    for (before, after), cell_count in zip(window.padding, size, strict=True):
        # A transposed convolution pads its input by 0 to k - 1 items, for windows of k cells.
        if not 0 <= before < cell_count or not 0 <= after < cell_count:
            return False
    are_side_by_side = tuple(size) == tuple(window.input_dilation)
    has_unit_steps = all(step == 1 for step in (*window.dilation, *window.stride))
    return window.groups == 1 and are_side_by_side and has_unit_steps


def tiled(x: Array, filter: Array, window: Window) -> Array:
    """Compute by one product a transposed convolution whose windows lie side by side."""
    *size, depth, count = filter.shape
    batch, *extents, _ = x.shape
    rank = len(size)
    reversed_filter = lax.rev(filter, tuple(range(rank)))
    matrix = jnp.moveaxis(reversed_filter, -2, 0).reshape(depth, -1)  # (channels, cells * outputs)
    result = product(x.reshape(-1, depth), matrix, window.kind, x_axis=1, matrix_axis=0)
    result = result.reshape(batch, *extents, *size, count)
    # Put each axis of cells behind the matching axis of positions, and join the two. For images the
    # order (batch, rows, columns, cell rows, cell columns, outputs) becomes (batch, rows, cell
    # rows, columns, cell columns, outputs). Here `order` is (0, 1, 3, 2, 4, 5).
    order = [0]
    joined_extents: list[int] = []
    for i in range(rank):
        order += [1 + i, 1 + rank + i]
        joined_extents.append(extents[i] * size[i])
    order.append(1 + 2 * rank)
    result = result.transpose(*order)
    result = result.reshape(batch, *joined_extents, count)
    # So far, the result is that of a padding of k - 1 before and after, for a window of k cells. If
    # the window has less padding, the result is cut by a negative padding.
    edges = [(0, 0, 0)]
    for (before, after), cell_count in zip(window.padding, size, strict=True):
        edges.append((before + 1 - cell_count, after + 1 - cell_count, 0))
    edges.append((0, 0, 0))
    return lax.pad(result, np.array(0, result.dtype), edges)


def has_few_positions(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether a convolution has few positions.

    The positions are few if there are at most as many positions as output channels, and at most as
    many positions as items in a window.

    If there are few positions, a filter that differs from call to call is neither laid out nor
    transformed, since this would cost more than it gains. ResNet-50 with a batch of 1 takes 2.9
    times as long as with prepared filters if each call lays out all filters, and 1.2 times as long
    if filters with few positions are not laid out. The measured milliseconds:

        channels  positions  batch  laid out  `patches`
             512        7x7      1       3.7        2.1
             512        7x7      8      11.2        9.2
             256      14x14      1       1.7        1.6
             256      14x14      8       8.0       15
             128      28x28      1       1.0        1.6
    """
    *size, depth, outputs = filter.shape
    items_of_window = depth * math.prod(size)
    position_count = len(x) * math.prod(window.positions(x, size))
    return at_least(min(outputs, items_of_window), position_count)


_KERNELS: dict[str, Callable[[Array, Array, Window], Array]] = {
    "tiled": tiled,
    "pointwise": by_product,
    "narrow": narrow,
    "depthwise": depthwise,
    "grouped": grouped,
    "winograd": winograd,
    "summed": summed,
    "stacked": stacked,
    "bordered": padded_first,
    "sliced": sliced,
}

# These kernels multiply in 16 bits if the operands are bfloat16.
_NARROW = ("tiled", "pointwise", "grouped", "narrow", "sliced")
