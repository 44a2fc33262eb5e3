"""Multiply rows by matrices, by the fastest form of the product."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.contexts import is_enabled
from lowering.extents import along, at_least
from lowering.jaxpr_types import Params
from lowering.kernels.precision import left_operand
from lowering.machine import profile

# If a product has _FEWEST to _MOST rows and many columns, its transpose is computed, since Eigen
# divides the rows of the result among threads. The measured GFLOP/s:
#   rows  depth  columns  as written  transposed
#      4    256      256          82          31
#      4   1024     1024          46          28
#     17     96      392         160          82
#     17    256      256         145          88
#     17    512      512         129         153
#     32    256      256          93         191
#     32    512      512         104         270
#     49    320     1280          90         130
#    128    384     1536         100         150
#    128   1536      384         117         114
#    196    576       96         144          89
#    197    384      384         117          95
#
# In a loop the gates that read the result transpose it back in each iteration. The measured
# milliseconds of 128 iterations:
#   network      rows  as written  transposed
#   LSTM of 128    32        10          12
#   LSTM of 256     8         6.8        12.6
#   LSTM of 256    16        15          20
#   LSTM of 256    32        49          43
#   LSTM of 512    16        64          67
#   LSTM of 512    32       140         114
#   GRU of 256      8         5.1         7.9
#   GRU of 256     32        27          25.5
_FEWEST, _MOST = 32, 160

# A matrix with fewer items than this is not multiplied in parts of columns. A product of several
# rows with such a matrix is not computed as its transpose.
_FEWEST_ITEMS = 128 << 10

# A product of one row runs on one thread. A batch of this number of products, each with a part of
# the columns, runs on as many threads.
_COLUMN_PARTS = 2

# A matrix with at least this number of items is divided into _STREAMED_PARTS parts. It does not fit
# the caches, so that a product of one row takes as long as reading the matrix. The following times
# are of products in a loop. As one product with contiguous columns, 768x768 items take 0.032 ms and
# 512x2048 items take 0.050 ms. As two parts on two threads with contiguous rows, 768x768 items take
# 0.057 ms and 512x2048 items take 0.11 ms. Parts wake a thread for each product. A network with two
# products by 472x472 items takes 0.14 to 0.15 ms with parts, and 0.13 ms without parts. After a
# rest this network takes 0.23 to 0.34 ms with parts, and 0.15 to 0.23 ms without parts.
_STREAMED_ITEMS = 1 << 19

# A matrix of _STREAMED_ITEMS or more items is divided into this number of parts. XLA divides a
# batch of parts among threads better than Eigen divides one matrix: the 48 matrices of a GPT of 124
# million parameters take 19.4 ms in parts, and 22.6 ms undivided.
_STREAMED_PARTS = 8

# A matrix with at least this number of items is not copied to another layout if programs for other
# shapes read the matrix too, since the copy would cost too much memory. Smaller matrices are
# copied. Without these copies a GPT of 4 layers of 48 items would take 1.27 times as long as with
# them.
COPIED = 256 << 10

# A bfloat16 matrix with fewer items than this is not multiplied by `row_twice`, which would gain
# nothing.
_FEWEST_NARROW_ITEMS = 16 << 10


def is_transposed_faster(rows: int, depth: int, columns: int, *, narrow: bool = False) -> bool:
    """Tell whether a product (rows, depth) by (depth, columns) is faster as its transpose.

    `narrow` tells whether the operands are bfloat16 and their sums float32.
    """
    items = depth * columns
    if rows == 1:
        fewest_items = _FEWEST_NARROW_ITEMS if narrow else _STREAMED_ITEMS
        is_faster = items >= fewest_items
    else:
        has_some_rows = _FEWEST <= rows <= _MOST
        is_faster = has_some_rows and columns >= 2 * rows and items >= _FEWEST_ITEMS
    return is_faster and is_enabled("turned")


def streams_columns(depth: int, columns: int) -> bool:
    """Tell whether to store the columns of a matrix (depth, columns) one after the other.

    A product of one row with a large matrix takes as long as reading the matrix. The measured GB/s
    on one thread and on two, for eight parts of the columns and for eight parts of the depth:

        matrix     columns    depth
        768x768    13.4 19.6  13.5 20.8
        768x2304   12.1 20.8  14.4 22.2
        768x4096   15.7 22.5  17.7 24.1
        2048x768   16.7 24.0  13.6 21.4
    """
    return depth > columns


def row_product(row: Array, matrix: Array, axis: int, params: Params) -> Array:
    """Multiply a row by a matrix, and sum over the axis `axis` of the matrix.

    The row and the result are vectors. `params` has the precision and the dtype of sums.
    """
    if is_narrow(row, params["preferred_element_type"]):
        return row_twice(row, matrix, axis, params)
    has_equal_parts = matrix.shape[0] % _STREAMED_PARTS == 0
    if axis == 1 and has_equal_parts:
        # After the barrier the matrix depends on the row too, so that no copy of the matrix is
        # prepared before calls.
        row, matrix = lax.optimization_barrier((row, matrix))
        # Each part has some of the columns.
        matrices = matrix.reshape(_STREAMED_PARTS, -1, row.size)
        rows = jnp.broadcast_to(row, (_STREAMED_PARTS, row.size))
        numbers = ((2,), (1,)), ((0,), (0,))
        return lax.dot_general(matrices, rows, numbers, **params).reshape(-1)
    numbers = ((axis,), (0,)), ((), ())
    return lax.dot_general(matrix, row, numbers, **params)


def row_twice(row: Array, matrix: Array, axis: int, params: Params) -> Array:
    """Multiply a row of 8 or 16 bits by a matrix. The row is repeated to two equal rows.

    The product sums over the axis `axis` of the matrix. The result is a vector: one of the two
    equal results. XLA computes one row by a loop in 32 bits, but two rows by a library. For a
    matrix of 1280x1000 items of 8 bits, one row takes 0.54 ms and two rows take 0.05 ms. For a
    matrix of 768x2304 items of bfloat16, one row takes 1.8 ms and two rows take 0.18 ms.
    """
    sum_dtype = params["preferred_element_type"]
    two_rows = jnp.broadcast_to(row, (2, row.size))
    # The matrix keeps its layout: it is the right operand if its first axis is summed, and
    # otherwise the left operand.
    if axis == 0:
        numbers = ((1,), (0,)), ((), ())
        left = left_operand(two_rows, sum_dtype)
        results_as_rows = lax.dot_general(left, matrix, numbers, **params)
        return results_as_rows[0]
    numbers = ((1,), (1,)), ((), ())
    left = left_operand(matrix, sum_dtype)
    results_as_columns = lax.dot_general(left, two_rows, numbers, **params)
    return results_as_columns[:, 0]


def is_floating(x: Array) -> bool:
    """Tell whether x has floating-point numbers."""
    return jnp.issubdtype(x.dtype, jnp.floating)


def is_narrow(x: Array, sum_dtype: np.dtype[np.generic] | None) -> bool:
    """Tell whether x is bfloat16 and `sum_dtype`, the dtype of sums, is float32."""
    return x.dtype == jnp.bfloat16 and sum_dtype == jnp.float32


def product(
    x: Array,
    matrix: Array,
    params: Params,
    *,
    x_axis: int,
    matrix_axis: int,
    columns_first: bool = False,
) -> Array:
    """Multiply x by a matrix, and sum over the axis `x_axis` of x and `matrix_axis` of the matrix.

    `params` has the precision and the dtype of sums. The matrix's other axis has the columns. The
    columns are the first axis of the result if `columns_first` is true, and the last axis if it is
    false.
    """
    sum_dtype = params["preferred_element_type"]
    if columns_first:
        is_row = x.size == x.shape[x_axis]
        if is_row:
            columns = row_product(x.reshape(-1), matrix, matrix_axis, params)
            return columns.reshape(along(0, x.ndim))  # (columns, 1, ..., 1)
        numbers = ((matrix_axis,), (x_axis,)), ((), ())
        return lax.dot_general(left_operand(matrix, sum_dtype), x, numbers, **params)
    if sum_dtype is not None and sum_dtype != x.dtype:
        # x is transposed before the barrier, so that the product needs no transposition of x.
        x = left_operand(jnp.moveaxis(x, x_axis, -1), sum_dtype)
        x_axis = x.ndim - 1
    numbers = ((x_axis,), (matrix_axis,)), ((), ())
    return lax.dot_general(x, matrix, numbers, **params)


def is_by_depth_parts(x: Array, axis: int, columns: int) -> bool:
    """Tell whether to multiply a row by a matrix with `row_by_depth_parts`.

    The row lies along the axis `axis` of x. The matrix has the shape (depth, columns), and each
    part has a share of the depth. The measured milliseconds for matrices that are read from memory:

        matrix     one product  8 parts  transposed
        768x3072          0.29     0.23        0.21
        1024x4096         0.53     0.40        0.59
        4096x1024         0.69     0.43        0.41

    For 512x512 items the parts take as long as one product.
    """
    depth = x.shape[axis]
    is_row = x.size == depth and x.dtype == jnp.float32
    is_divisible = depth % _STREAMED_PARTS == 0
    is_streamed = depth * columns >= _STREAMED_ITEMS
    return is_row and is_divisible and is_streamed and is_enabled("turned")


def row_by_depth_parts(x: Array, axis: int, matrix: Array, params: Params) -> Array:
    """Multiply a row by a matrix, as a sum of products of parts.

    The row lies along the axis `axis` of x. The matrix has the shape (depth, columns), and each
    part has a share of the depth.
    """
    depth, columns = matrix.shape
    row_parts = x.reshape(_STREAMED_PARTS, 1, depth // _STREAMED_PARTS)
    matrix_parts = matrix.reshape(_STREAMED_PARTS, depth // _STREAMED_PARTS, columns)
    numbers = ((2,), (1,)), ((0,), (0,))
    products = lax.dot_general(row_parts, matrix_parts, numbers, **params)
    return _with_columns(products.sum(0), x, axis)


def _with_columns(row: Array, x: Array, axis: int) -> Array:
    """Reshape `row`, the product of x with a matrix, summed over the axis `axis` of x.

    The result has the other axes of x, and then the columns: for x of the shape (1, depth, 1) and
    the axis 1, the shape is (1, 1, columns).
    """
    remaining = [extent for i, extent in enumerate(x.shape) if i != axis]
    return row.reshape(*remaining, -1)


def is_paired(x: Array, axis: int, columns: int) -> bool:
    """Tell whether `row_by_column_parts` multiplies x faster than one product.

    x must be a single row along the axis `axis`, and the matrix must have the shape (depth,
    columns).
    """
    depth = x.shape[axis]
    is_row = x.size == depth and is_floating(x)
    is_large = depth * columns >= _FEWEST_ITEMS
    is_divisible = columns % _COLUMN_PARTS == 0
    is_faster = profile().pairs_rows and is_enabled("pairs")
    return is_row and is_large and is_divisible and is_faster


def row_by_column_parts(x: Array, axis: int, matrix: Array, params: Params) -> Array:
    """Multiply a row by the parts of a matrix, and join the parts of the result.

    The row lies along the axis `axis` of x. The matrix has the shape (depth, columns), and each
    part has some of the columns.
    """
    depth, columns = matrix.shape
    split_matrix = matrix.reshape(depth, _COLUMN_PARTS, columns // _COLUMN_PARTS)
    parts = jnp.swapaxes(split_matrix, 0, 1)  # (parts, depth, columns of a part)
    row = left_operand(x.reshape(1, 1, depth), params["preferred_element_type"])
    rows = jnp.broadcast_to(row, (_COLUMN_PARTS, 1, depth))
    numbers = ((2,), (1,)), ((0,), (0,))
    products = lax.dot_general(rows, parts, numbers, **params)
    return _with_columns(products, x, axis)


# The gradient of a matrix is a sum of outer products of rows. Eigen computes this sum faster as two
# products, each of half of the rows. The sum is fastest if the narrower operand also comes first.
# The columns `left` and `right` have the numbers of columns of the two operands. The measured
# milliseconds:
#    rows  left  right  one product  two products  operands exchanged  torch
#   25088   384     96         19.9          13.3                 8.6    8.0
#   25088    96    384         11.3           8.5                13.7    7.3
#   25088    96    288          9.4           6.7                 7.5    5.8
#    6272   768    192         11.5           9.2                 7.8    6.8
#    6272   192    768         10             8.2                 9.4    6.7
#    1568  1152    384          6.1           6.0                 6.1    4.8
#    1568  1536    384          7.9           7.8                 9.8    6.5
#     392  3072    768          6.6           7.3                        6.8
_FEWEST_ROWS = 256  # A sum over fewer rows is computed as one product.
_FEWEST_ROWS_TO_EXCHANGE = 1024  # With fewer rows the operands are not exchanged.
# If the result has more items than this, the operands are not exchanged, since transposing the
# result back would take too long.
_MOST_ITEMS_TO_TRANSPOSE = 256 << 10
# A sum over rows is divided into this number of products: the first number that divides the rows.
_DIVISORS = (2, 3, 4, 5, 7)


def over_rows(x: Array, y: Array, precision: lax.PrecisionLike = None, *, is_alone: bool) -> Array:
    """Return the sum of the outer products of the rows of two matrices.

    The matrices have the shapes (rows, left columns) and (rows, right columns), and the result has
    the shape (left columns, right columns). Rows may be sharded, unless the program runs on one
    device (`is_alone`).
    """
    rows, x_columns = x.shape
    _, y_columns = y.shape
    divisors = [divisor for divisor in _DIVISORS if rows % divisor == 0]
    is_divided = is_alone and bool(divisors) and at_least(rows, _FEWEST_ROWS)
    if not is_divided:
        numbers = ((0,), (0,)), ((), ())
        return lax.dot_general(x, y, numbers, precision=precision)
    part_count = divisors[0]
    y_is_narrower = at_least(x_columns, y_columns + 1)
    is_small = at_least(_MOST_ITEMS_TO_TRANSPOSE, x_columns * y_columns)
    has_many_rows = at_least(rows, _FEWEST_ROWS_TO_EXCHANGE)
    is_exchanged = y_is_narrower and is_small and has_many_rows
    left, right = (y, x) if is_exchanged else (x, y)
    left_parts = left.reshape(part_count, rows // part_count, -1)
    right_parts = right.reshape(part_count, rows // part_count, -1)
    numbers = ((1,), (1,)), ((0,), (0,))
    totals = lax.dot_general(left_parts, right_parts, numbers, precision=precision)
    total = jnp.sum(totals, axis=0)
    return total.T if is_exchanged else total


def sums_of_channels(x: Array, leading: int = 0) -> Array:
    """Sum over the axes between the first `leading` axes and the last axis, by products with ones.

    With XLA's reduction a training step of MobileNetV2 takes 561 ms instead of 300 ms, and a
    training step of ResNet-18 takes 523 ms instead of 481 ms.

    The ones are two rows, since with a single row XLA would compute the product and its operand
    in a loop for each channel. The ones are the left operand: as the right operand, 100352 rows
    of 64 items take 5.0 ms instead of 1.3 ms, and the two training steps take 330 and 493 ms.

    The measured microseconds of means over positions:

        channels  positions  batch  by reduction  by products
             240      28x28      1            75           28
            1152        7x7      1            18            7
             672      14x14      4           163           55
    """
    leading_shape = x.shape[:leading]
    channels = x.shape[-1]
    matrices = x.reshape(math.prod(leading_shape), -1, channels)
    matrix_count, row_count, _ = matrices.shape
    ones = jnp.ones((matrix_count, 2, row_count), x.dtype)
    numbers = ((2,), (1,)), ((0,), (0,))
    sums = lax.dot_general(ones, matrices, numbers, precision="highest")  # (matrices, 2, channels)
    return sums[:, 0].reshape(*leading_shape, channels)
