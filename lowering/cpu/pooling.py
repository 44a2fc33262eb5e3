"""Compute maxima and sums of small windows axis by axis, in vectorised loops on shifted tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.contexts import is_enabled
from lowering.cpu.pending_view import Order, View, full_array
from lowering.cpu.phases import scattered_sums
from lowering.jaxpr_types import Equation
from lowering.jaxprs import primitive
from lowering.kernels.windows import Windows, extend, lowest, window_max_and_index

T = TypeVar("T")

# This module computes windows of at most this number of cells along each axis. For wider windows
# XLA's running maxima and sums are faster.
_MOST_CELLS = 8


def window_reduction(equation: Equation, view: View) -> View | None:
    """Return the maxima or sums over windows as a view, or None if the windows are too large.

    None is also returned if the input is dilated. Operations on shifted tensors compute the maxima
    or sums axis by axis.
    """
    params = equation.params
    is_wide = max(params["window_dimensions"]) > _MOST_CELLS
    is_dilated = any(dilation != 1 for dilation in params["base_dilation"])
    if is_wide or is_dilated or not is_enabled("pooling"):
        return None
    x = jnp.asarray(full_array(view))
    shape = tuple(equation.outvars[0].aval.shape)
    result_shape = _in_order(shape, view.order)
    windows = Windows(
        size=_in_order(params["window_dimensions"], view.order),
        padding=_in_order(params["padding"], view.order),
        stride=_in_order(params["window_strides"], view.order),
        dilation=_in_order(params["window_dilation"], view.order),
        upscaled=x.shape,
        downscaled=result_shape,
    )
    if primitive(equation) == "reduce_window_sum":
        result = _shifted(x, windows, lax.add, np.array(0, x.dtype))
    else:
        result = _shifted(x, windows, lax.max, lowest(x.dtype))
    return View(result, view.order, shape, view.is_early)


def _in_order(items: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return the items in the order of the axes `order`. Item i of `items` belongs to axis i."""
    return tuple(items[axis] for axis in order)


def maximum_gradient(equation: Equation, source: View, operand: View) -> View | None:
    """Compute the derivative of maxima over windows. It is the equation `select_and_scatter_add`.

    `source` is the gradient of the maxima, and `operand` is the input of the windows. None is
    returned if the windows are large, or if the equation is the derivative of minima. XLA's own
    operation searches for the maxima again, position by position, which takes 190 of the 850 ms of
    ResNet-18.
    """
    params = equation.params
    order = operand.order
    is_wide = max(params["window_dimensions"]) > _MOST_CELLS
    is_of_maxima = params["select_prim"].name == "ge"
    if is_wide or not is_of_maxima or not is_enabled("gradients"):
        return None
    x = jnp.asarray(full_array(operand))
    gradient = full_array(source, order)
    windows = Windows(
        size=_in_order(params["window_dimensions"], order),
        padding=_in_order(params["padding"], order),
        stride=_in_order(params["window_strides"], order),
        dilation=(1,) * x.ndim,
        upscaled=x.shape,
        downscaled=gradient.shape,
    )
    # The index has, for each position, the number of the window's cell that has the maximum.
    _, index = window_max_and_index(x, windows, "ignore")

    def term(cell: tuple[int, ...], gradient: Array, index: Array) -> Array:
        """Return the gradient at positions whose maximum is in `cell`, and 0 elsewhere."""
        cell_number = np.ravel_multi_index(cell, windows.size)
        return jnp.where(index == cell_number, gradient, np.array(0, gradient.dtype))

    # Padding has the gradient 0 and the index -1, which no cell has as its number.
    result = scattered_sums([(gradient, 0), (index, -1)], windows, term)
    return View(result, order, operand.shape, source.is_early and operand.is_early)


def _shifted(
    x: Array, windows: Windows, combine: Callable[[Array, Array], Array], fill: Any
) -> Array:
    """Combine the items of each window axis by axis. `fill` is the number in the padding."""
    x = extend(x, windows.padding, "constant", fill)
    for axis, cell_count in enumerate(windows.size):
        has_windows = cell_count > 1 or windows.stride[axis] > 1
        if has_windows:
            shifted = [windows.cell(x, axis, index) for index in range(cell_count)]
            x = reduce(combine, shifted)
    return x
