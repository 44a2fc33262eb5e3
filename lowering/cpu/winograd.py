"""Computes 3x3 convolutions of stride 1 by Winograd's minimal filtering F(2x2, 3x3).

A tile of 4x4 inputs gives 2x2 outputs by 16 multiplications instead of 36. All tiles together need
16 matrix products. The transforms multiply only by 1 and 1/2, so that the error is that of the
direct sum. If the products were one batch, XLA would copy the operands first: ResNet-18 would take
40 ms instead of 35 ms, and ResNet-50 would take 94 ms instead of 85 ms. F(4x4, 3x3) is slower
within networks, and less exact.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.lax import add, mul, sub  # tracing the operators of arrays takes three times as long

from lowering.cpu.memory import materialised
from lowering.cpu.sliding_filter import Window, padded
from lowering.extents import ceil_div
from lowering.kernels.windows import extend

# A block is a few rows of tiles. The inputs (after the transform) and the products of a block have
# at most this number of bytes together, so that they fit the caches. A 3x3 convolution with 64
# input channels, 64 output channels and 128x128 positions takes 24 ms in one block, 6.0 ms in four
# blocks, and 8.0 ms by the kernel `direct`.
_MOST_BYTES_OF_BLOCK = 8 << 20

# If a sum of rows has more bytes than this, it is stored in memory. The sums of columns then share
# kernels: XLA compiles 8 kernels instead of 16, and each kernel reads less. With this rule,
# ResNet-18 with a batch of 8 takes 2.1 s to compile and 105 ms to run. If no sum is stored, it
# takes 2.85 s to compile and 107 ms to run. U-Net with a batch of 8 takes 1.8 s to compile and 148
# ms to run with this rule, and 2.8 s and 151 ms if no sum is stored. ResNet-50 with a batch of 1
# takes 1.25 s to compile and 43.2 ms to run with this rule, and 1.0 s and 44.5 ms if all sums are
# stored.
_MOST_BYTES_UNSTORED = 180_000


def is_winograd(filter: Array, window: Window) -> bool:
    """Tell whether the kernel `winograd` may compute a convolution.

    The window must have 3x3 cells and stride 1, and there must be neither dilation nor groups.
    """
    has_unit_steps = all(n == 1 for n in (*window.stride, *window.dilation))
    return filter.shape[:-2] == (3, 3) and window.groups == 1 and has_unit_steps


def winograd(x: Array, filter: Array, window: Window) -> Array:
    """Convolve an input with a 3x3 filter by Winograd's minimal filtering.

    The input has the shape (batch, rows, columns, channels), the filter has the shape (3, 3,
    channels, outputs), and the result has the shape (batch, row positions, column positions,
    outputs).
    """
    x = padded(x, window)
    batch, rows, columns, depth = x.shape
    # `height` and `width` are numbers of tiles. The last tile may reach beyond the input: 5 tiles
    # cover 2 * 5 + 2 rows, and are needed for 11 or 12 rows.
    height, width = (rows - 1) // 2, (columns - 1) // 2
    rows_beyond = 2 * height + 2 - rows
    columns_beyond = 2 * width + 2 - columns
    x = extend(x, ((0, 0), (0, rows_beyond), (0, columns_beyond), (0, 0)), "constant")
    transformed_filter = _filter_transform(filter)
    outputs = filter.shape[3]
    # The number of float32 items of all transformed tiles and all products together.
    items = 16 * batch * height * width * (depth + outputs)
    nbytes = 4 * items
    block_count = min(height, ceil_div(nbytes, _MOST_BYTES_OF_BLOCK))
    # A block has the rows of tiles from one bound to the next: 7 rows in 3 blocks have the bounds
    # 0, 2, 4 and 7.
    bounds = [height * i // block_count for i in range(block_count + 1)]
    blocks: list[Array] = []
    for start, end in itertools.pairwise(bounds):
        # Tiles are two rows apart and have four rows, so that neighbours share two rows.
        block_rows = x[:, 2 * start : 2 * end + 2]
        blocks.append(_block(block_rows, transformed_filter, window.precision))
    result = jnp.concatenate(blocks, axis=1) if block_count > 1 else blocks[0]
    # Cut off the positions of tiles that reach beyond the input.
    return result[:, : rows - 2, : columns - 2]


def _block(x: Array, transformed_filter: Sequence[Array], precision: lax.PrecisionLike) -> Array:
    """Return the convolution for some rows of tiles. A tile has 4x4 inputs and gives 2x2 outputs.

    `transformed_filter` is the result of `_filter_transform`. x has the rows of the input that the
    tiles cover.
    """
    batch, rows, columns, _ = x.shape
    height = rows // 2 - 1  # the numbers of tiles along both axes
    width = columns // 2 - 1
    numbers = ((1,), (0,)), ((), ())
    transformed_input = _input_transform(x, height, width)
    products: list[Array] = []
    for tiles, matrix in zip(transformed_input, transformed_filter, strict=True):
        product = lax.dot_general(tiles, matrix, numbers, precision=precision)
        products.append(product.reshape(batch, height, width, -1))
    return _output_transform(products)


def _filter_transform(filter: Array) -> list[Array]:
    """Return 16 matrices (channels, outputs), one for each item of the 4x4 matrix G g G^T.

    `g` is the 3x3 filter from an input channel to an output channel, and G is the 4x3 matrix of the
    filter transform.
    """
    half = np.array(0.5, filter.dtype)

    def transform(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
        """Return G (a, b, c) = (a, (a + b + c) / 2, (a - b + c) / 2, c)."""
        outer = add(a, c)
        return a, mul(add(outer, b), half), mul(sub(outer, b), half), c

    matrices: list[Array] = []
    for row in transform(*filter):
        matrices += transform(*row)
    return matrices


def _input_transform(x: Array, height: int, width: int) -> list[Array]:
    """Return 16 matrices (tiles, channels), one for each item of the 4x4 matrix B^T d B.

    `d` is a tile, which has 4x4 items of a channel, and B is the 4x4 matrix of the input transform.
    `height` and `width` are the numbers of tiles along the axes of rows and columns.
    """
    batch, _, _, depth = x.shape

    def row_of_tiles(i: int) -> Array:
        """Return row i of each tile. Each tile begins two rows below the tile above it."""
        return lax.slice_in_dim(x, i, i + 2 * height - 1, stride=2, axis=1)

    def column_of_tiles(rows: Array, j: int) -> Array:
        """Return column j of each tile. Each tile begins two columns after the tile to its left.

        `rows` has one row of each tile.
        """
        return lax.slice_in_dim(rows, j, j + 2 * width - 1, stride=2, axis=2)

    def transform(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, ...]:
        """Return B^T (a, b, c, d)."""
        return sub(a, c), add(b, c), sub(c, b), sub(b, d)

    transformed_rows = transform(*(row_of_tiles(i) for i in range(4)))
    if transformed_rows[0].nbytes > _MOST_BYTES_UNSTORED:
        transformed_rows = map(materialised, transformed_rows)
    matrices: list[Array] = []
    for rows in transformed_rows:
        for items in transform(*(column_of_tiles(rows, j) for j in range(4))):
            matrices.append(items.reshape(batch * height * width, depth))
    return matrices


def _output_transform(products: Sequence[Array]) -> Array:
    """Return the 2x2 results A^T m A of all tiles, as one array.

    `m` is the 4x4 matrix of a tile's items in the 16 products, and A is the 4x2 matrix of the
    output transform. The array has the shape (batch, 2 * height, 2 * width, outputs), where height
    and width count tiles.
    """

    def transform(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array]:
        """Return A^T (a, b, c, d)."""
        return add(add(a, b), c), sub(sub(b, c), d)

    # Each column of m becomes two items. The products are in row-major order, so that every fourth
    # product belongs to one column.
    transformed_columns = [transform(*products[column::4]) for column in range(4)]
    batch, height, width, count = products[0].shape
    rows: list[Array] = []  # two arrays (batch, height, width, 2, outputs)
    for row in zip(*transformed_columns, strict=True):
        rows.append(jnp.stack(transform(*row), axis=3))
    result = jnp.stack(rows, axis=2)  # (batch, height, 2, width, 2, outputs)
    return result.reshape(batch, 2 * height, 2 * width, count)
