"""Choose kernels on views by rules: for products, sums, windows and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from lowering.contexts import runs
from lowering.cpu import products
from lowering.cpu.convolutions import convolution
from lowering.cpu.memory import apart
from lowering.cpu.pending_view import View, plain, tensor, whole
from lowering.cpu.pooling import maximum_gradient, window_reduction
from lowering.cpu.products import (
    is_narrow,
    is_real,
    is_turned,
    over_rows,
    row_product,
    sums_of_channels,
)
from lowering.cpu.reductions import is_by_lanes, sums_of_rows
from lowering.cpu.rows import may_be_in_rows
from lowering.cpu.view_rules import RULES, bind, in_any_loop, moved, places_in, ranks, view_of
from lowering.extents import at_least
from lowering.facts import renumbered
from lowering.jaxprs import CONVOLUTION, PRODUCT
from lowering.kernels.precision import left_operand
from lowering.passes.siblings import is_layer, kind_of
from lowering.program import Program


@RULES("reduce_sum")
def _sum(program: Program, equation: Any, view: View) -> View | list[View] | None:
    axes, view = equation.params["axes"], in_any_loop(view)
    x, positions = whole(view), tuple(sorted(map(view.position, axes)))
    if _is_by_channel(x, positions):
        array = sums_of_channels(x, kept=x.ndim - 1 - len(axes))
    elif positions == (x.ndim - 1,) and is_by_lanes(x):  # as in a layer norm
        array = sums_of_rows(x)
    else:
        return moved(program, equation, view)
    return view_of(equation, array, ranks(axis for axis in view.order if axis not in axes))


_MANY = 16 << 10  # items to sum that are worth a product

# Sums of one tensor that are. Microseconds by reduction and by products, for 128 sums over 16 rows
# of 64 items 87 and 43, over 49 rows 68 and 55; for 512 sums over 49 rows 212 and 323, for 1024
# over 16 rows 182 and 302, for 8192 over 8 rows 543 and 1128.
_FEW = 128


def _is_by_channel(x: Any, positions: Sequence[int]) -> bool:
    """Tell whether axes before the last are summed: in a mean of positions, a bias's derivative."""
    kept = x.ndim - 1 - len(positions)
    return (
        len(positions) > 0
        and tuple(positions) == tuple(range(kept, x.ndim - 1))
        and x.dtype == jnp.float32
        and at_least(math.prod(x.shape), _MANY)
        and at_least(_FEW, math.prod(x.shape[:kept]))
        and runs("gradients")
    )


@RULES(PRODUCT)
def _product(program: Program, equation: Any, left: View, right: View) -> View:
    """Multiply two tensors, in the layouts that they have."""
    if is_layer(equation, program.known):
        return _layer(program, equation, left, right)
    (left_sums, right_sums), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_axes = [axis for axis in left.order if axis not in (*left_sums, *left_batch)]
    right_axes = [axis for axis in right.order if axis not in (*right_sums, *right_batch)]
    sums = equation.params["preferred_element_type"]
    if sums is not None and sums != left.array.dtype:
        order = (*left_batch, *left_axes, *left_sums)
        left = View(left_operand(whole(left, order), sums), order, left.shape, left.known)
    row = _row(equation, left, right) or _rows(equation, left, right)
    # Operands of one device alone are sharded by no axis.
    found = row or (_matrix_gradient(equation, left, right) if program.is_alone else None)
    if found is not None:
        return found
    numbers = renumbered(equation, [places_in(left.order), places_in(right.order)]) or {}
    array = bind(equation, [whole(left), whole(right)], **numbers)
    # The result has the axes of the batch, free axes of the left operand, those of the right one.
    count, before = len(left_batch), len(left_batch) + len(left_axes)
    order = (
        *range(count),
        *(count + i for i in ranks(left_axes)),
        *(before + i for i in ranks(right_axes)),
    )
    return view_of(equation, array, order)


def _layer(program: Program, equation: Any, input: View, matrix: View) -> View:
    """Multiply by a matrix of parameters; some rows by many columns are transposed.

    A matrix that varies from call to call is taken as it lies. So is a large one that programs of
    other shapes read: each layout would be a copy of it, and for 32 to 48 rows of 1024 by 1024
    alone the other one takes 0.67 to 0.87 of the time.
    In a loop the result is transposed back at once. It is transposed there only where no more than
    slices read it: XLA undoes what these do not keep apart, and an LSTM of 32 rows takes 73 ms
    then, 47 as written.
    """
    ((left,), (right,)), _ = equation.params["dimension_numbers"]
    (result,), kind = equation.outvars, kind_of(equation)
    axis, x = input.position(left), whole(input)
    depth, width = x.shape[axis], matrix.shape[1 - right]
    rows = x.size // max(depth, 1)
    is_shared = matrix.known and program.is_open and not program.in_loop
    is_as_it_lies = is_shared and depth * width >= products.COPIED
    if program.in_loop and rows > 1:
        is_parted = program.readers(result) == {"slice"}
        turned = is_parted and is_turned(rows, depth, width)
    elif is_as_it_lies:
        turned = matrix.order[-1] == right and runs("turned")
    elif matrix.known:
        narrow = is_narrow(x, kind["preferred_element_type"])
        turned = is_real(x) and is_turned(rows, depth, width, narrow=narrow)
    else:  # it varies from call to call: it is taken as it lies
        is_few = at_least(min(depth, width), rows)
        turned = matrix.order[-1] == right and is_few and runs("turned")
    is_moved, order = matrix.known and not is_as_it_lies, matrix.order
    if is_moved:
        order = (1 - right, right) if turned else (right, 1 - right)
    y = whole(matrix, order)
    if is_moved and not turned and products.is_paired(x, axis, width):
        array = products.pairs(x, axis, y, kind)
    elif is_as_it_lies and not turned and products.is_shared_out(x, axis, width):
        array = products.shared_out(x, axis, y, kind)
    else:
        array = products.product(x, axis, y, order.index(right), kind, turned=turned)
    free = [a for a in input.order if a != left]
    order = list(ranks(free))
    order.insert(0 if turned else len(free), len(free))
    view = view_of(equation, array, tuple(order))
    return plain(tensor(view)) if program.in_loop else view


def _row(equation: Any, left: View, right: View) -> View | None:
    """Multiply a single row by a matrix that is no parameter's, where that takes a form of its own.

    Products with parameters are those of `siblings`.
    """
    ((_, right_sums), (batch, _)) = equation.params["dimension_numbers"]
    if len(right.shape) != 2 or len(right_sums) != 1 or batch or right.known:
        return None
    (axis,), params = right_sums, equation.params
    depth, columns = right.shape[axis], right.shape[1 - axis]
    sums = params["preferred_element_type"]
    is_row = math.prod(left.shape) == depth and is_real(left.array)
    if not is_row or not is_turned(1, depth, columns, narrow=is_narrow(left.array, sums)):
        return None
    kind = {name: params[name] for name in ("precision", "preferred_element_type")}
    row, order = whole(left).reshape(-1), right.order
    array = row_product(row, whole(right), order.index(axis), kind)
    return plain(array.reshape(equation.outvars[0].aval.shape))


def _rows(equation: Any, left: View, right: View) -> View | None:
    """Multiply a single row of each item of a batch of several axes, as a batch of one axis.

    XLA transposes the other operand of several: 12 heads of 1024 keys in 2.5 ms, read in 0.13.
    """
    ((sums, right_sums), (batch, right_batch)) = equation.params["dimension_numbers"]
    count, last = len(batch), len(left.shape) - 1
    if (
        count < 2
        or sums != (last,)
        or len(right.shape) != count + 2
        or right.order[:count] != batch
        or not batch == right_batch == tuple(range(count))
        or math.prod(left.shape[count:last]) != 1
    ):
        return None
    row, matrix, items = tensor(left), whole(right), math.prod(left.shape[:count])
    # Of bfloat16 a library computes two rows, XLA a loop over widened copies of one.
    rows = 1 + is_narrow(left.array, equation.params["preferred_element_type"])
    row = jnp.broadcast_to(row.reshape(items, 1, row.shape[-1]), (items, rows, row.shape[-1]))
    operands = row, matrix.reshape(items, *matrix.shape[count:])
    numbers = ((2,), (right.position(right_sums[0]) - count + 1,)), ((0,), (0,))
    array = bind(equation, operands, dimension_numbers=numbers)[:, :1]
    return plain(array.reshape(equation.outvars[0].aval.shape))


def _matrix_gradient(equation: Any, left: View, right: View) -> View | None:
    """Sum over all axes but the last of both, as in the gradient of a matrix.

    Where these are several, XLA transposes an operand in one loop with what computes it: 25088 rows
    of 384 items with the derivative of gelu take 130 ms, 20 in their own layout.
    """
    (sums, batch), precision = equation.params["dimension_numbers"], equation.params["precision"]
    places = [
        [view.position(axis) for axis in axes]
        for view, axes in zip((left, right), sums, strict=True)
    ]
    leading = list(range(len(left.shape) - 1))
    if (
        any(batch)
        or not leading
        or places != [leading, leading]
        or len(right.shape) != len(left.shape)
        or not equation.outvars[0].aval.size
        or not left.array.dtype == equation.outvars[0].aval.dtype == jnp.float32
        or not runs("gradients")
    ):
        return None
    x, y = (whole(view).reshape(-1, view.shape[view.order[-1]]) for view in (left, right))
    return plain(over_rows(x, y, precision, alone=True))


@RULES("reduce_window_max", "reduce_window_sum")
def _window(program: Program, equation: Any, *views: View) -> View | list[View] | None:
    first, *others = views
    operands = [in_any_loop(first), *others]
    found = window_reduction(equation, operands)
    if found is None:
        return moved(program, equation, *operands)
    if not may_be_in_rows(program, found.array.shape):
        return found
    return replace(found, array=apart(found.array))


@RULES("select_and_scatter_add")
def _maximum_gradient(program: Program, equation: Any, *views: View) -> View | None:
    return maximum_gradient(equation, views)


@RULES(CONVOLUTION)
def _convolution(program: Program, equation: Any, input: View, filter: View) -> View | None:
    is_early = input.known and filter.known
    return None if is_early else convolution(program, equation, input, filter)
