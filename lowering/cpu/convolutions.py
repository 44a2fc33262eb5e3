"""Compute the convolutions of a program with channels last, by kernels that suit their extents."""

from __future__ import annotations

import math

import jax.numpy as jnp

from lowering.contexts import runs
from lowering.cpu import convolution as kernels
from lowering.cpu.derivatives import filter_gradient
from lowering.cpu.memory import apart, in_memory
from lowering.cpu.pending_view import View, full_array
from lowering.cpu.products import is_real, is_turned
from lowering.cpu.rows import apart_in_rows, depthwise_rows, is_in_rows, may_be_in_rows
from lowering.cpu.sliding_filter import WINDOW, Window
from lowering.jaxpr_types import Equation
from lowering.program import Program


def convolution(program: Program, equation: Equation, input: View, filter: View) -> View:
    """Return the view of a convolution's result, for values and derivatives."""
    params = equation.params
    numbers = params["dimension_numbers"]
    shape = tuple(equation.outvars[0].aval.shape)
    window = Window(*map(params.__getitem__, WINDOW))
    if program.role == "backward" or params["batch_group_count"] > 1:
        gradient = filter_gradient(equation, input, filter, window, is_alone=program.is_alone)
        if gradient is not None:
            return gradient
    outputs, inputs, *cells = numbers.rhs_spec
    batch, channel, *spatial = numbers.out_spec
    first, feature, *places = numbers.lhs_spec
    x = full_array(input, (first, *places, feature))
    w = full_array(filter, (*cells, inputs, outputs))
    if filter.is_early and may_be_in_rows(program, x.shape) and is_in_rows(x, w, window):
        array = depthwise_rows(x, w, window)
        return View(array, (batch, *spatial, channel), shape, in_rows=True)
    if input.in_rows:
        x = apart_in_rows(x)
    is_read_by_loops = window.groups > 1 or kernels.is_summed(x, w, window)
    if is_read_by_loops and not filter.is_early and w.dtype == jnp.float32:
        # The filter is small, but loops would scale it again for each item.
        w = in_memory(w)
    is_grouped = window.groups > 1 and jnp.issubdtype(x.dtype, jnp.floating)
    # The gradient with respect to the filter reads x too.
    if is_grouped and program.role == "backward":
        x = in_memory(x)
    if window.groups == 1 and not window.is_spread and is_real(x) and x.size:
        is_pointwise = kernels.is_pointwise(w, window) and runs("pointwise")
        positions = math.prod(shape) // max(shape[channel], 1)
        matrix_order = outputs, inputs, *cells
        if filter.is_early:
            channels_first = is_pointwise and is_turned(positions, x.shape[-1], shape[channel])
        elif filter.order == matrix_order:
            channels_first = kernels.has_few_positions(x, w, window) and runs("patches")
        else:
            channels_first = False
        if channels_first:
            matrix = full_array(filter, matrix_order).reshape(shape[channel], -1)
            array = kernels.patches(x, matrix, w.shape[:-2], window)
            return View(array, (channel, batch, *spatial), shape)
        if is_pointwise and not filter.is_early:
            matrix_axes = [axis for axis in filter.order if axis not in cells]
            matrix = full_array(filter).reshape([filter.shape[axis] for axis in matrix_axes])
            array = kernels.pointwise(x, matrix, matrix_axes.index(inputs), window)
            return View(array, (batch, *spatial, channel), shape)
    array = kernels.convolution(x, w, window, varies=not filter.is_early)
    if is_grouped and program.role == "forward":
        array = in_memory(array)
    if may_be_in_rows(program, array.shape):
        # Loops over rows read the array next. Decoders take 0.91 of the time with this call.
        array = apart(array)
    return View(array, (batch, *spatial, channel), shape)
