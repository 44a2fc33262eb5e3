"""Let convolutions wait for the scale and offset that follow, to be computed as one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from lowering.cpu.convolution import (
    Window,
    convolution,
    is_pointwise,
    pointwise,
    with_bias,
    with_scale,
)
from lowering.cpu.pipeline import runs
from lowering.cpu.products import is_turned
from lowering.cpu.view import Order, View, whole
from lowering.jaxprs import primitive


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A convolution of an input (N,X...,C) with a filter (f...,C/G,O), and a bias (O).

    The result has the axes in `order` and the tensor's shape. `known`: filter and bias depend on
    parameters alone, so that scaling them costs nothing in a call.
    """

    input: Any
    filter: Any
    bias: Any
    window: Window
    order: Order
    shape: tuple[int, ...]
    known: bool
    input_known: bool

    def view(self) -> View:
        """Compute the result."""
        order, rank = self.order, len(self.order)
        if self._is_turned and runs("pointwise") and is_pointwise(self.filter, self.window):
            array = pointwise(self.input, self.filter, self.window, turned=True)
            order = (order[-1], *order[:-1])
        else:
            array = convolution(self.input, self.filter, self.window)
        if self.bias is not None and self.bias.ndim and order == self.order:
            array = with_bias(array, self.bias)
        elif self.bias is not None:
            array = array + _along(self.bias, rank, order.index(self.order[-1]))
        return View(array, order, self.shape, self.known and self.input_known)

    @property
    def _is_turned(self) -> bool:
        channels = self.filter.shape[-1]
        return is_turned(math.prod(self.shape) // max(channels, 1), channels)

    def _along_channels(self, operand: View) -> Any:
        """Return the operand as (O) or a scalar; None where it is no factor for each channel."""
        if not operand.known:
            return None
        channel = self.order[-1]
        items = {
            axis for axis, n in zip(operand.order, jnp.shape(operand.array), strict=True) if n > 1
        }
        if not items <= {channel}:
            return None
        return jnp.ravel(operand.array) if items else jnp.reshape(operand.array, ())

    def scaled(self, operand: View) -> Product | None:
        """Multiply by the operand; None where that has to wait for the result."""
        factor = self._along_channels(operand)
        if factor is None or not self.known:
            return None
        bias = None if self.bias is None else self.bias * factor
        filter = with_scale(self.filter, factor) if factor.ndim else self.filter * factor
        return replace(self, filter=filter, bias=bias)

    def shifted(self, operand: View) -> Product | None:
        """Add the operand; None where that has to wait for the result."""
        summand = self._along_channels(operand)
        if summand is None or not self.known:
            return None
        bias = summand if self.bias is None else self.bias + summand
        return replace(self, bias=bias)


def product(equation: Any, input: View, filter: View) -> Product | None:
    """Return the product that an equation of a convolution describes; None for rare kinds."""
    params = equation.params
    if params["batch_group_count"] != 1:
        return None
    numbers = params["dimension_numbers"]
    batch, feature, *spatial = numbers.lhs_spec
    outputs, inputs, *cells = numbers.rhs_spec
    out_batch, out_feature, *out_spatial = numbers.out_spec
    window = Window(
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["feature_group_count"],
        params["precision"],
        params["preferred_element_type"],
    )
    return Product(
        whole(input, (batch, *spatial, feature)),
        whole(filter, (*cells, inputs, outputs)),
        None,
        window,
        (out_batch, *out_spatial, out_feature),
        tuple(equation.outvars[0].aval.shape),
        filter.known,
        input.known,
    )


def merged(equation: Any, operands: list[View | Product]) -> Product | None:
    """Return the product with the equation's scale or offset in it; None where there is none."""
    left, right = operands
    if isinstance(right, Product):
        if isinstance(left, Product) or primitive(equation) not in ("add", "mul"):
            return None
        left, right = right, left
    if not isinstance(left, Product) or isinstance(right, Product):
        return None
    match primitive(equation):
        case "add":
            return left.shifted(right)
        case "sub":
            return left.shifted(replace(right, array=-right.array))
        case "mul":
            return left.scaled(right)
        case "div":
            return left.scaled(replace(right, array=1 / right.array)) if right.known else None
        case _:
            return None


def _along(items: Any, rank: int, axis: int) -> Any:
    return items.reshape(*(1,) * axis, -1, *(1,) * (rank - 1 - axis)) if items.ndim else items
