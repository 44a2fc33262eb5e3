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

# The most cells along an axis. For wider windows XLA's running maxima and sums are better.
_LARGEST = 8


def window_reduction(equation: Equation, views: Sequence[View]) -> View | None:
    """Return the maxima or sums over windows as a view, or None if the windows are too large.

    They are computed axis by axis, by operations on shifted tensors.
    """
    (view,) = views
    params = equation.params
    size = params["window_dimensions"]
    is_dilated = any(d != 1 for d in params["base_dilation"])
    if max(size) > _LARGEST or is_dilated or not is_enabled("pooling"):
        return None
    x = jnp.asarray(full_array(view))
    shape = tuple(equation.outvars[0].aval.shape)
    windows = Windows(
        *(_in_order(params[name], view.order) for name in _ATTRIBUTES),
        upscaled=x.shape,
        downscaled=_in_order(shape, view.order),
    )
    if primitive(equation) == "reduce_window_sum":
        result = _shifted(x, windows, lax.add, np.array(0, x.dtype))
    else:
        result = _shifted(x, windows, lax.max, lowest(x.dtype))
    return View(result, view.order, shape, view.is_early)


# The first fields of `Windows`.
_ATTRIBUTES = ("window_dimensions", "padding", "window_strides", "window_dilation")


def _in_order(items: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return the items, of which each belongs to an axis, in the order `order` of axes."""
    return tuple(items[axis] for axis in order)


def maximum_gradient(equation: Equation, views: Sequence[View]) -> View | None:
    """Compute the derivative of maxima over windows, the equation `select_and_scatter_add`.

    None is returned if the windows are large. XLA's own operation searches for the maxima
    again, position by position, which takes 190 of 850 ms for ResNet-18.
    """
    source, operand = views
    params = equation.params
    order = operand.order
    size = params["window_dimensions"]
    is_of_maxima = params["select_prim"].name == "ge"
    if max(size) > _LARGEST or not is_of_maxima or not is_enabled("gradients"):
        return None
    x = jnp.asarray(full_array(operand))
    gradient = full_array(source, order)
    size, padding, stride = (_in_order(params[name], order) for name in _ATTRIBUTES[:3])
    windows = Windows(size, padding, stride, (1,) * x.ndim, x.shape, gradient.shape)
    _, index = window_max_and_index(x, windows, "ignore")

    def chosen(cell: tuple[int, ...], gradient: Array, index: Array) -> Array:
        number = np.ravel_multi_index(cell, windows.size)
        return jnp.where(index == number, gradient, np.array(0, gradient.dtype))

    result = scattered_sums([(gradient, 0), (index, -1)], windows, chosen)
    return View(result, order, operand.shape, source.is_early and operand.is_early)


def _shifted(
    x: Array, windows: Windows, combine: Callable[[Array, Array], Array], fill: Any
) -> Array:
    x = extend(x, windows.padding, "constant", fill)
    for axis, size in enumerate(windows.size):
        if size > 1 or windows.stride[axis] > 1:
            x = reduce(combine, (windows.cell(x, axis, j) for j in range(size)))
    return x
