"""Choose kernels for products, sums, windows and convolutions, by rules that take views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from jax import Array

from lowering.contexts import is_enabled
from lowering.cpu import products
from lowering.cpu.convolutions import convolution
from lowering.cpu.memory import unfused
from lowering.cpu.pending_view import View, full_array, plain, tensor
from lowering.cpu.pooling import maximum_gradient, window_reduction
from lowering.cpu.products import (
    is_floating,
    is_narrow,
    is_transposed_faster,
    over_rows,
    row_product,
    sums_of_channels,
)
from lowering.cpu.reductions import is_by_lanes, sums_of_rows
from lowering.cpu.rows import may_be_in_rows
from lowering.cpu.view_rules import RULES, bind, in_any_loop, moved, new_axes_in, ranks, view_of
from lowering.extents import at_least
from lowering.facts import renumbered
from lowering.jaxpr_types import Atom, Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive
from lowering.kernels.precision import left_operand
from lowering.passes.siblings import is_layer, kind_of
from lowering.program import Program


@RULES("reduce_sum")
def _sum(program: Program, equation: Equation, view: View) -> View | list[View] | None:
    """Sum by products with ones, or by parts of rows, where this is faster than a reduction."""
    axes = equation.params["axes"]
    view = in_any_loop(view)
    x = full_array(view)
    positions = tuple(sorted(map(view.position, axes)))
    sums_last_axis = positions == (x.ndim - 1,)  # as in a layer norm
    if _is_by_channel(x, positions):
        array = sums_of_channels(x, leading=x.ndim - 1 - len(axes))
    elif sums_last_axis and is_by_lanes(x):
        array = sums_of_rows(x)
    else:
        return moved(program, equation, view)
    remaining_axes = [axis for axis in view.order if axis not in axes]
    return view_of(equation, array, ranks(remaining_axes))


_FEWEST_ITEMS = 16 << 10  # A tensor with fewer items than this is not summed by products.

# A tensor (sums, rows, 64) is summed over its rows, once for each index of the first axis. If there
# are more sums than this, they are not computed by products. The measured microseconds:
#    sums  rows  by reduction  by products
#     128    16            87           43
#     128    49            68           55
#     512    49           212          323
#    1024    16           182          302
#    8192     8           543         1128
_MOST_SUMS = 128


def _is_by_channel(x: Array, positions: Sequence[int]) -> bool:
    """Tell whether a sum over the axes `positions` of x is faster by products with ones.

    These axes must come just before the last axis, which is not summed. For example, a mean over
    the positions of an image and the gradient of a bias are sums of this form.
    """
    leading = x.ndim - 1 - len(positions)  # the number of axes before the summed axes
    are_before_last = tuple(positions) == tuple(range(leading, x.ndim - 1))
    if not positions or not are_before_last or x.dtype != jnp.float32:
        return False
    has_many_items = at_least(math.prod(x.shape), _FEWEST_ITEMS)
    has_few_sums = at_least(_MOST_SUMS, math.prod(x.shape[:leading]))
    return has_many_items and has_few_sums and is_enabled("gradients")


@RULES(PRODUCT)
def _product(program: Program, equation: Equation, left: View, right: View) -> View:
    """Multiply two tensors, by the form of the product that suits their layouts and extents."""
    if is_layer(equation, program.known):
        return _layer(program, equation, left, right)
    (left_sums, right_sums), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_free = [axis for axis in left.order if axis not in (*left_sums, *left_batch)]
    right_free = [axis for axis in right.order if axis not in (*right_sums, *right_batch)]
    sum_dtype = equation.params["preferred_element_type"]
    if sum_dtype is not None and sum_dtype != left.array.dtype:
        # The operand is transposed before the barrier of `left_operand`, so that the product needs
        # no transposition of the operand.
        order = (*left_batch, *left_free, *left_sums)
        array = left_operand(full_array(left, order), sum_dtype)
        left = View(array, order, left.shape, left.is_early)
    view = _row(equation, left, right)
    if view is None:
        view = _rows(equation, left, right)
    # On several devices the rows may be sharded, which `_matrix_gradient` does not allow.
    if view is None and program.is_alone:
        view = _matrix_gradient(equation, left, right)
    if view is not None:
        return view
    # These are the parameters for operands with their axes in the order of the views. They are
    # never None for a product.
    params = renumbered(equation, [new_axes_in(left.order), new_axes_in(right.order)])
    array = bind(equation, [full_array(left), full_array(right)], **(params or {}))
    # The result has the axes of the batch first, then the free axes of the left operand, and then
    # the free axes of the right operand. The free axes of the array are in the order of the views:
    # if the left view has the free axes (3, 1), their order in the result is (1, 0).
    left_start = len(left_batch)
    right_start = left_start + len(left_free)
    order = list(range(left_start))
    order += [left_start + rank for rank in ranks(left_free)]
    order += [right_start + rank for rank in ranks(right_free)]
    return view_of(equation, array, tuple(order))


def _layer(program: Program, equation: Equation, input: View, matrix: View) -> View:
    """Multiply an input by a matrix that depends only on parameters.

    The product may be computed as its transpose. In a loop the transposed result is transposed back
    at once.
    """
    ((input_sum,), (matrix_sum,)), _ = equation.params["dimension_numbers"]
    matrix_free = 1 - matrix_sum  # the axis of the columns
    kind = kind_of(equation)
    axis = input.position(input_sum)
    x = full_array(input)
    width = matrix.shape[matrix_free]
    is_copied = _is_copied(program, equation, matrix)
    columns_first = _puts_columns_first(program, equation, x, axis, matrix, is_copied=is_copied)
    order = matrix.order
    if is_copied:
        order = (matrix_free, matrix_sum) if columns_first else (matrix_sum, matrix_free)
    y = full_array(matrix, order)
    is_streamed = matrix.is_early and _is_shared(program, matrix)
    if is_streamed and not columns_first and products.is_by_depth_parts(x, axis, width):
        array = products.row_by_depth_parts(x, axis, y, kind)
    elif is_copied and not columns_first and products.is_paired(x, axis, width):
        array = products.row_by_column_parts(x, axis, y, kind)
    else:
        matrix_axis = order.index(matrix_sum)
        array = products.product(
            x, y, kind, x_axis=axis, matrix_axis=matrix_axis, columns_first=columns_first
        )
    # The columns are the last axis of the result, and the first axis of a transposed array.
    input_free = [axis for axis in input.order if axis != input_sum]
    free_ranks = ranks(input_free)
    column_axis = len(input_free)
    result_order = (column_axis, *free_ranks) if columns_first else (*free_ranks, column_axis)
    view = view_of(equation, array, result_order)
    return plain(tensor(view)) if program.in_loop else view


def _is_shared(program: Program, matrix: View) -> bool:
    """Tell whether a matrix is large and may also be read by programs for other shapes."""
    is_large = math.prod(matrix.shape) >= products.COPIED
    return is_large and program.is_open and not program.in_loop


def _is_copied(program: Program, equation: Equation, matrix: View) -> bool:
    """Tell whether a layer may copy its matrix to another layout.

    A matrix that varies from call to call keeps its layout. A large parameter also keeps its layout
    if programs for other shapes read the parameter, since a second layout would need a second copy
    in memory. Only products of 32 to 48 rows by 1024x1024 items would gain from the copy: they
    would take 0.67 to 0.87 of the time. A matrix that is computed from parameters, such as the
    joined matrices of several layers, is a copy in any layout.
    """
    return matrix.is_early and not (
        _is_shared(program, matrix) and _is_parameter(program, equation.invars[1])
    )


def _is_parameter(program: Program, operand: Atom) -> bool:
    """Tell whether an operand is an argument of the program, or such an argument transposed."""
    while operand in program.makers:
        maker = program.makers[operand]
        if primitive(maker) not in ("reshape", "squeeze", "transpose"):
            return False
        operand = maker.invars[0]
    return True


def _puts_columns_first(
    program: Program, equation: Equation, x: Array, axis: int, matrix: View, *, is_copied: bool
) -> bool:
    """Tell whether a layer computes the transposed product, whose first axis has the columns.

    The layer multiplies the axis `axis` of x by the matrix. `is_copied` tells whether the matrix
    may be copied to another layout. If the matrix may not be copied, the layout of the matrix
    decides. If such a matrix differs from call to call, the number of rows counts too.

    A loop computes the transposed product only if nothing but slices reads the result. Otherwise
    XLA would undo the transposition, and an LSTM of 32 rows would take 73 ms instead of 47 ms.
    """
    (_, (matrix_sum,)), _ = equation.params["dimension_numbers"]
    depth = x.shape[axis]
    width = matrix.shape[1 - matrix_sum]
    rows = x.size // max(depth, 1)
    narrow = is_narrow(x, equation.params["preferred_element_type"])
    if is_copied and _is_shared(program, matrix):
        # All programs must choose the same layout, so the number of rows does not count.
        return narrow or products.streams_columns(depth, width)
    if program.in_loop and rows > 1:
        (result,) = equation.outvars
        is_only_sliced = program.readers(result) == {"slice"}
        return is_only_sliced and is_transposed_faster(rows, depth, width)
    if is_copied:
        return is_floating(x) and is_transposed_faster(rows, depth, width, narrow=narrow)
    has_few_rows = matrix.is_early or at_least(min(depth, width), rows)
    sums_last_axis = matrix.order[-1] == matrix_sum
    return sums_last_axis and has_few_rows and is_enabled("turned")


def _row(equation: Equation, left: View, right: View) -> View | None:
    """Multiply a single row by a matrix with `row_product`, or return None if this is not faster.

    A matrix that depends only on parameters is left to `_layer`.
    """
    (_, right_sums), (left_batch, _) = equation.params["dimension_numbers"]
    is_matrix = len(right.shape) == 2 and len(right_sums) == 1 and not left_batch
    if not is_matrix or right.is_early:
        return None
    (axis,) = right_sums
    depth = right.shape[axis]
    columns = right.shape[1 - axis]
    is_row = math.prod(left.shape) == depth and is_floating(left.array)
    narrow = is_narrow(left.array, equation.params["preferred_element_type"])
    if not is_row or not is_transposed_faster(rows=1, depth=depth, columns=columns, narrow=narrow):
        return None
    row = full_array(left).reshape(-1)
    array = row_product(row, full_array(right), right.position(axis), kind_of(equation))
    (result,) = equation.outvars
    return plain(array.reshape(result.aval.shape))


def _rows(equation: Equation, left: View, right: View) -> View | None:
    """Multiply, for each batch item, one row by a matrix, or return None for other products.

    Several batch axes become one axis. With several batch axes XLA would transpose the matrices:
    for 12 heads of 1024 keys this would take 2.5 ms instead of 0.13 ms.
    """
    (left_sums, right_sums), (left_batch, right_batch) = equation.params["dimension_numbers"]
    batch_rank = len(left_batch)
    last = len(left.shape) - 1
    batch_axes = tuple(range(batch_rank))
    is_batch_first = left_batch == right_batch == batch_axes
    is_batch_first_in_memory = right.order[:batch_rank] == batch_axes
    if batch_rank < 2 or not is_batch_first or not is_batch_first_in_memory:
        return None
    has_one_row = left_sums == (last,) and math.prod(left.shape[batch_rank:last]) == 1
    has_matrices = len(right.shape) == batch_rank + 2
    if not has_one_row or not has_matrices:
        return None
    row = tensor(left)
    matrix = full_array(right)
    item_count = math.prod(left.shape[:batch_rank])
    depth = row.shape[-1]
    # For two equal rows of bfloat16, XLA calls a library. For one row, it would compute a loop over
    # widened copies.
    narrow = is_narrow(left.array, equation.params["preferred_element_type"])
    row_count = 2 if narrow else 1
    rows = jnp.broadcast_to(row.reshape(item_count, 1, depth), (item_count, row_count, depth))
    matrices = matrix.reshape(item_count, *matrix.shape[batch_rank:])
    (right_sum,) = right_sums
    # The batch axes of the matrices have become one axis.
    summed_axis = right.position(right_sum) - batch_rank + 1
    numbers = ((2,), (summed_axis,)), ((0,), (0,))
    products_of_rows = bind(equation, [rows, matrices], dimension_numbers=numbers)
    first_rows = products_of_rows[:, :1]
    return plain(first_rows.reshape(equation.outvars[0].aval.shape))


def _matrix_gradient(equation: Equation, left: View, right: View) -> View | None:
    """Compute a product that keeps one axis of each operand and sums the others, or return None.

    The gradient of a matrix is such a product. The axis that is kept must be the operand's last
    axis in memory. None is returned for other products. If several axes are summed, XLA transposes
    an operand in the loop that computes the operand. For 25088 rows of 384 items, with the
    derivative of gelu, this takes 130 ms. With the operands in their own layout it takes 20 ms.
    """
    (left_sums, right_sums), batch = equation.params["dimension_numbers"]
    precision = equation.params["precision"]
    (result,) = equation.outvars
    leading = list(range(len(left.shape) - 1))  # all positions but the last
    if any(batch) or not leading or len(right.shape) != len(left.shape):
        return None
    left_positions = list(map(left.position, left_sums))
    right_positions = list(map(right.position, right_sums))
    sums_leading_axes = left_positions == right_positions == leading
    is_float32 = left.array.dtype == result.aval.dtype == jnp.float32
    if not sums_leading_axes or not is_float32 or not result.aval.size:
        return None
    if not is_enabled("gradients"):
        return None
    left_columns = left.shape[left.order[-1]]
    right_columns = right.shape[right.order[-1]]
    x = full_array(left).reshape(-1, left_columns)
    y = full_array(right).reshape(-1, right_columns)
    return plain(over_rows(x, y, precision, is_alone=True))  # `_product` has checked `is_alone`


@RULES("reduce_window_max", "reduce_window_sum")
def _window(program: Program, equation: Equation, input: View) -> View | list[View] | None:
    """Compute maxima or sums over windows, by shifted tensors if the windows are small."""
    input = in_any_loop(input)
    view = window_reduction(equation, input)
    if view is None:
        return moved(program, equation, input)
    if not may_be_in_rows(program, view.array.shape):
        return view
    # Loops over rows may read the result. XLA must not fuse these loops with the loops over
    # windows.
    return replace(view, array=unfused(view.array))


@RULES("select_and_scatter_add")
def _maximum_gradient(
    program: Program, equation: Equation, source: View, operand: View
) -> View | None:
    """Compute the derivative of maxima over windows, unless the windows are large."""
    return maximum_gradient(equation, source, operand)


@RULES(CONVOLUTION)
def _convolution(program: Program, equation: Equation, input: View, filter: View) -> View | None:
    """Compute a convolution by a kernel, unless its result is computed once before all calls."""
    if input.is_early and filter.is_early:
        return None
    return convolution(program, equation, input, filter)
