"""Deformable convolution: the network computes where each cell of the filter reads the input.

Sources: Dai et al. 2017, arXiv:1703.06211, and for masks Zhu et al. 2018, arXiv:1811.11168.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ
from lowering.graph import ABSENT, TensorType
from lowering.kernels.windows import Padding, basic_windows
from lowering.ops import require, rules
from lowering.ops.conv import conv_shape, conv_work
from lowering.tracing import Context


def _deformable_type(
    input: TensorType, offsets: TensorType, filter: TensorType, mask: TensorType, groups: int,
    offset_groups: int, padding: Padding, stride: Shape, dilation: Shape,
) -> TensorType:  # fmt: skip
    """Check the arguments of `deformable_conv`, and return the type of its result."""
    require.same_dtype(require.floating, input=input, offsets=offsets, filter=filter)
    require.layout("[B,C,H,W]", input=input, filter=filter)
    # The indices of the items of one channel are int32.
    require.indexable(input=TensorType(input.shape[2:], input.dtype))
    shape = conv_shape(
        input.shape, filter.shape, bias=(), groups=groups,
        border="constant", padding=padding, stride=stride, dilation=dilation,
    )  # fmt: skip
    if offset_groups < 1 or groups < 1:
        raise InvalidOperation(f"groups must be positive, they are {groups} and {offset_groups}")
    cells = filter.shape[2] * filter.shape[3]
    for name, operand, per_cell in (("offsets", offsets, 2), ("mask", mask, 1)):
        if operand != ABSENT:
            require.floating(**{name: operand})
            why = f"it has {per_cell} channels for each of {cells} cells and {offset_groups} groups"
            expected = (shape[0], per_cell * offset_groups * cells, *shape[2:])
            require.shape(name, operand, expected, why)
    if differ(input.shape[1] % offset_groups, 0):
        raise InvalidShape(f"{offset_groups} groups do not divide {input.shape[1]} channels")
    return TensorType(shape, input.dtype)


@rules.rule("deformable_conv", _deformable_type, work=conv_work)
def deformable_conv(
    ctx: Context, input: Array, offsets: Array, filter: Array, mask: Array | Literal[False],
    groups: int, offset_groups: int, padded_bilinear: bool, padding: Padding, stride: Shape,
    dilation: Shape,
) -> Array:  # fmt: skip
    """Correlate with a filter whose cells are moved by offsets (y, x).

    A cell reads the input at a position between items, by linear interpolation. `offsets` has
    the shape (batch, offset_groups * cells * 2, rows, columns), and `mask` has the shape
    (batch, offset_groups * cells, rows, columns). Here cells is the number of cells of the
    filter, and rows and columns are the spatial extents of the result. The values that the
    cells read are multiplied by the mask.

    If `padded_bilinear` is true, items outside of the input are 0 in the interpolation. If it
    is false, a position (y, x) outside of 0 <= y < height, 0 <= x < width has the value 0. Within
    these bounds, the last row and the last column of the input continue up to the bounds.
    """
    x = jnp.asarray(input)
    weights = jnp.asarray(filter)
    batch, channels, height, width = x.shape
    out_channels, group_channels, cell_rows, cell_columns = weights.shape
    cells = cell_rows * cell_columns
    windows = basic_windows(
        (height, width), (cell_rows, cell_columns),
        border="constant", padding=padding, stride=stride, dilation=dilation,
    )  # fmt: skip
    rows, columns = windows.downscaled
    moves = jnp.asarray(offsets).reshape(batch, offset_groups, cells, 2, rows, columns)

    def starts(axis: int) -> Array:
        """Return, along an axis of the input, the position of the first cell of each window."""
        count = windows.downscaled[axis]
        before, _ = windows.padding[axis]
        return jnp.arange(count) * windows.stride[axis] - before

    def moved(grid: Array, axis: int) -> Array:
        """Return the positions along an axis at which the filter's cells read the input.

        A position is the sum of an item of the grid and an offset. The grid broadcasts to (cells,
        rows, columns). The result has the shape (batch, offset_groups, cells, rows, columns).
        """
        return grid[None, None].astype(x.dtype) + moves[:, :, :, axis]

    # List the rows and columns of all cells within a window, in row-major order. For 2x2 cells the
    # rows are 0 0 1 1, and the columns are 0 1 0 1, times the dilation.
    row_dilation, column_dilation = windows.dilation
    row_steps = jnp.repeat(jnp.arange(cell_rows) * row_dilation, cell_columns)
    column_steps = jnp.tile(jnp.arange(cell_columns) * column_dilation, cell_rows)
    y_positions = moved(starts(0).reshape(1, -1, 1) + row_steps[:, None, None], axis=0)
    x_positions = moved(starts(1).reshape(1, 1, -1) + column_steps[:, None, None], axis=1)
    images = x.reshape(batch, offset_groups, channels // offset_groups, height * width)
    values = _interpolated(
        images, y=y_positions, x=x_positions, height=height, width=width, padded=padded_bilinear
    )
    if mask is not False:
        values = values * jnp.asarray(mask).reshape(batch, offset_groups, 1, cells, rows, columns)
    values = values.reshape(batch, groups, channels // groups, cells, rows, columns)
    kernel = weights.reshape(groups, out_channels // groups, group_channels, cells)
    # The letters stand for batch, group, channel, kernel cell, height, width and output channel.
    product = jnp.einsum("bgckhw,gock->bgohw", values, kernel, precision=ctx.precision)
    return product.reshape(batch, out_channels, rows, columns)


def _interpolated(
    images: Array, y: Array, x: Array, height: int, width: int, padded: bool
) -> Array:
    """Return the values of `images` at rows y and columns x, interpolated linearly.

    `images` has the shape (batch, groups, channels, height * width). y and x have the shape (batch,
    groups, cells, rows, columns), and the result has the shape (batch, groups, channels, cells,
    rows, columns). If `padded` is true, items outside of the images are 0. If `padded` is false,
    the last row and column extend to height and width, and values beyond are 0.
    """

    def is_inside(row: Array, column: Array) -> Array:
        return (row >= 0) & (row < height) & (column >= 0) & (column < width)

    def items_at(row: Array, column: Array) -> Array:
        """Clip rows and columns to the images, and return the items there."""
        row_index = jnp.clip(row, 0, height - 1).astype(jnp.int32)
        column_index = jnp.clip(column, 0, width - 1).astype(jnp.int32)
        index = row_index * width + column_index
        flat_index = index.reshape(*index.shape[:2], 1, -1)
        items = jnp.take_along_axis(images, flat_index, axis=3)
        return items.reshape(*images.shape[:3], *index.shape[2:])

    first_row = jnp.floor(y)
    first_column = jnp.floor(x)
    total = 0.0
    # Add up the four neighbours of each position, each times its weight.
    for down in (0, 1):
        for right in (0, 1):
            row = first_row + down
            column = first_column + right
            weight = (1 - jnp.abs(y - row)) * (1 - jnp.abs(x - column))
            if padded:
                weight = jnp.where(is_inside(row, column), weight, 0)
            total = total + items_at(row, column) * weight[:, :, None]
    if padded:
        return total
    return jnp.where(is_inside(y, x)[:, :, None], total, 0)
