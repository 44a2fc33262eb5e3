"""Compute a program's convolutions with channels last, by kernels that suit the extents."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array

from lowering.contexts import is_enabled
from lowering.cpu import convolution as kernels
from lowering.cpu.derivatives import filter_gradient
from lowering.cpu.memory import materialised, unfused
from lowering.cpu.pending_view import View, full_array
from lowering.cpu.products import is_floating, is_transposed_faster
from lowering.cpu.rows import depthwise_rows, is_faster_in_rows, may_be_in_rows, unfused_in_rows
from lowering.cpu.sliding_filter import WINDOW, Window
from lowering.jaxpr_types import Equation
from lowering.program import Program


def convolution(program: Program, equation: Equation, input: View, filter: View) -> View:
    """Compute a convolution's equation, and return the view of its result.

    The equation may be part of the network or of its derivatives.
    """
    params = equation.params
    numbers = params["dimension_numbers"]
    shape = tuple(equation.outvars[0].aval.shape)
    window = Window(*map(params.__getitem__, WINDOW))
    may_be_gradient = program.role == "backward" or params["batch_group_count"] > 1
    if may_be_gradient:
        # The gradient by a filter reads the gradient of the result as second operand, in place of
        # the filter.
        gradient = filter_gradient(equation, input, filter, window, is_alone=program.is_alone)
        if gradient is not None:
            return gradient
    input_batch, input_channel, *input_spatial = numbers.lhs_spec
    filter_outputs, filter_inputs, *filter_cells = numbers.rhs_spec
    batch, channel, *spatial = numbers.out_spec
    result_order = (batch, *spatial, channel)
    x = full_array(input, (input_batch, *input_spatial, input_channel))
    weights = full_array(filter, (*filter_cells, filter_inputs, filter_outputs))
    is_early = filter.is_early
    if is_early and may_be_in_rows(program, x.shape) and is_faster_in_rows(x, weights, window):
        array = depthwise_rows(x, weights, window)
        return View(array, result_order, shape, in_rows=True)
    if input.in_rows:
        x = unfused_in_rows(x)
    is_read_by_loops = window.groups > 1 or kernels.is_summed(x, weights, window)
    if is_read_by_loops and not is_early and weights.dtype == jnp.float32:
        # Without this call, loops would compute the filter again for each item. For example, they
        # would scale the filter again.
        weights = materialised(weights)
    has_floating_groups = window.groups > 1 and is_floating(x)
    if has_floating_groups and program.role == "backward":
        # The gradient by the filter reads x too. This call computes x once for both readers.
        x = materialised(x)
    may_be_by_matrix = window.groups == 1 and not window.is_spread and is_floating(x)
    if may_be_by_matrix and x.size:
        view = _by_matrix(equation, filter, x, weights, window)
        if view is not None:
            return view
    array = kernels.convolution(x, weights, window, varies=not is_early)
    if has_floating_groups and program.role == "forward":
        # The backward pass may read the result too. This call computes the result once.
        array = materialised(array)
    if may_be_in_rows(program, array.shape):
        # Loops over rows may read the array next. Decoders take 0.91 of the time if XLA does not
        # fuse these loops with the convolution.
        array = unfused(array)
    return View(array, result_order, shape)


def _by_matrix(
    equation: Equation, filter: View, x: Array, weights: Array, window: Window
) -> View | None:
    """Compute a convolution as a product with the filter's matrix, or return None.

    None is returned if a product is not faster. `x` and `weights` are the arrays of the input and
    of the filter, with channels last.
    """
    numbers = equation.params["dimension_numbers"]
    filter_outputs, filter_inputs, *filter_cells = numbers.rhs_spec
    batch, channel, *spatial = numbers.out_spec
    shape = tuple(equation.outvars[0].aval.shape)
    channel_count = shape[channel]
    position_count = math.prod(shape) // max(channel_count, 1)
    is_pointwise = kernels.is_pointwise(weights, window) and is_enabled("pointwise")
    matrix_order = filter_outputs, filter_inputs, *filter_cells
    # Decide whether the matrix is the left operand, so that the channels are the result's first
    # axis in memory.
    channels_first = False
    if filter.is_early and is_pointwise:
        channels_first = is_transposed_faster(position_count, x.shape[-1], channel_count)
    elif not filter.is_early and filter.order == matrix_order:
        channels_first = kernels.has_few_positions(x, weights, window) and is_enabled("patches")
    if channels_first:
        matrix = full_array(filter, matrix_order).reshape(channel_count, -1)
        array = kernels.patches(x, matrix, weights.shape[:-2], window)
        return View(array, (channel, batch, *spatial), shape)
    if is_pointwise and not filter.is_early:
        # The filter differs from call to call. Its input and output axes keep their order.
        matrix_axes = [axis for axis in filter.order if axis not in filter_cells]
        matrix = full_array(filter).reshape([filter.shape[axis] for axis in matrix_axes])
        matrix_axis = matrix_axes.index(filter_inputs)
        array = kernels.pointwise(x, matrix, window, matrix_axis=matrix_axis)
        return View(array, (batch, *spatial, channel), shape)
    return None
