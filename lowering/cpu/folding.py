"""Let convolutions wait for the scale and offset that follow, to be computed as one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from lowering.cpu.convolution import convolution, is_pointwise, pointwise
from lowering.cpu.derivatives import filter_gradient
from lowering.cpu.memory import stored
from lowering.cpu.pipeline import runs
from lowering.cpu.products import is_real, is_turned
from lowering.cpu.view import View, tensor, whole
from lowering.cpu.window import Window
from lowering.extents import at_least
from lowering.jaxprs import bind, primitive, scope


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A convolution that waits for a factor and a summand of each output channel: (O) or scalars.

    `as_written` computes it, with these, by XLA's own convolution in the layout of the document.
    """

    equation: Any
    input: View
    filter: View
    factor: Any = None
    bias: Any = None
    as_written: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return tuple(self.equation.outvars[0].aval.shape)

    @property
    def _numbers(self) -> Any:
        return self.equation.params["dimension_numbers"]

    def view(self, role: str, *, alone: bool) -> View:
        """Compute the result in a value, a forward or a backward pass, on one device if `alone`."""
        with scope(self.equation):
            return self._view(role, alone)

    def _view(self, role: str, alone: bool) -> View:
        numbers, known = self._numbers, self.input.known and self.filter.known
        outputs, inputs, *cells = numbers.rhs_spec
        batch, channel, *spatial = numbers.out_spec
        if self.as_written:
            filter = tensor(self.filter)
            if self.factor is not None:
                filter = _scaled(filter, self.factor, outputs)
            array = bind(self.equation, [tensor(self.input), filter])[0]
            order = tuple(range(array.ndim))
        else:
            window = _window(self.equation)
            if role == "backward" or self.equation.params["batch_group_count"] > 1:
                gradient = filter_gradient(
                    self.equation, self.input, self.filter, window, alone=alone
                )
                if gradient is not None:
                    return gradient
            first, feature, *places = numbers.lhs_spec
            x = whole(self.input, (first, *places, feature))
            filter = whole(self.filter, (*cells, inputs, outputs))
            if self.factor is not None:
                filter = _scaled(filter, self.factor, filter.ndim - 1)
            if window.groups > 1 and not self.filter.known and filter.dtype == jnp.float32:
                filter = stored(filter)  # small; loops would scale it again for each item
            is_stored = window.groups > 1 and jnp.issubdtype(x.dtype, jnp.floating)
            if is_stored and role == "backward":  # the gradient in the filter reads it too
                x = stored(x)
            order = (batch, *spatial, channel)
            if self._is_turned and runs("pointwise") and is_pointwise(filter, window):
                array = pointwise(x, filter, window, turned=True)
                order = (channel, batch, *spatial)
            else:
                array = convolution(x, filter, window, varies=not self.filter.known)
            if is_stored and role == "forward":
                array = stored(array)
        if self.bias is not None:
            array = array + _along(self.bias, array.ndim, order.index(channel))
        return View(array, order, self.shape, known)

    @property
    def _is_turned(self) -> bool:
        channels = self.shape[self._numbers.out_spec[1]]
        rows = math.prod(self.shape) // max(channels, 1)
        return is_real(self.input.array) and is_turned(rows, channels)

    def _along_channels(self, operand: View) -> Any:
        """Return the operand as (O) or a scalar; None where it is no factor for each channel."""
        if not (operand.known and self.filter.known):
            return None
        if self.equation.params["batch_group_count"] > 1:
            return None
        channel = self._numbers.out_spec[1]
        items = {
            axis for axis, n in zip(operand.order, jnp.shape(operand.array), strict=True) if n != 1
        }
        if not items <= {channel}:
            return None
        return jnp.ravel(operand.array) if items else jnp.reshape(operand.array, ())

    def scaled(self, operand: View) -> Product | None:
        """Multiply by the operand; None where that has to wait for the result.

        Where parameters vary the filter is scaled in each call, which costs less than to scale the
        result if it has fewer items, and spares derivatives a pass over what is not scaled yet.
        """
        factor = self._along_channels(operand)
        if factor is None or (
            self.as_written and not at_least(math.prod(self.shape), math.prod(self.filter.shape))
        ):
            return None
        bias = None if self.bias is None else self.bias * factor
        factor = factor if self.factor is None else self.factor * factor
        return replace(self, factor=factor, bias=bias)

    def shifted(self, operand: View) -> Product | None:
        """Add the operand; None where that has to wait for the result."""
        summand = self._along_channels(operand)
        if summand is None:
            return None
        return replace(self, bias=summand if self.bias is None else self.bias + summand)


def _scaled(filter: Any, factor: Any, axis: int) -> Any:
    """Multiply by a factor for each output channel, which may have more digits than the filter."""
    factor = jnp.asarray(factor)
    product = filter.astype(factor.dtype) * _along(factor, filter.ndim, axis)
    return product.astype(filter.dtype)


def _window(equation: Any) -> Window:
    params = equation.params
    return Window(
        params["window_strides"],
        params["padding"],
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["feature_group_count"],
        params["precision"],
        params["preferred_element_type"],
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
