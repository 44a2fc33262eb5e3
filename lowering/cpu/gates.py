"""Let logistic functions wait for what they are multiplied with, to be one quotient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from lowering.cpu.folding import Product
from lowering.cpu.layout import RULES
from lowering.cpu.view import View, arranged, common_order
from lowering.jaxprs import primitive, scope


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """A logistic function of an argument that waits for the other factor."""

    equation: Any
    argument: View

    def view(self) -> View:
        """Compute the function itself."""
        with scope(self.equation):
            view = RULES[primitive(self.equation)](self.equation, [self.argument])
        assert isinstance(view, View)
        return view


def may_wait(equation: Any) -> bool:
    """Tell whether a result may wait for its reader: that of a logistic function in float32."""
    return primitive(equation) == "logistic" and equation.outvars[0].aval.dtype == jnp.float32


def gated(equation: Any, operands: Sequence[View | Product | Gate]) -> View | None:
    """Return y * logistic(x) as y / (1 + exp(-x)); None where the equation is no such product.

    One loop computes the quotient, where XLA has two for the function and the product: without it
    EfficientNet-B0 takes 1.03 times as long (batch 1 and 8), an LSTM of 8 items 1.05.
    """
    match primitive(equation), operands:
        case "mul", [View() as other, Gate(argument=x)] | [Gate(argument=x), View() as other]:
            pass
        case _:
            return None
    shape = tuple(equation.outvars[0].aval.shape)
    if jnp.size(x.array) != math.prod(shape):  # few items, each a factor of many others
        return None
    order = common_order([x, other])
    divisor = 1 + jnp.exp(-arranged(x, order))
    dividend = arranged(other, order) if other.order else other.array
    return View(dividend / divisor, order, shape, other.known and x.known)
