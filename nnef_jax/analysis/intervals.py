"""Tensors whose items are known only to be in intervals.

The ends of an interval are moved outwards by a bound of the rounding error. The interval therefore
contains the exact result, and the result in 32 bits for any order of summation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.jaxprs import Aval, Equation, primitive


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Interval:
    """A tensor of which only bounds are known. Item i is between `low[i]` and `high[i]`.

    A tensor whose items are known exactly is an array instead of an `Interval`.
    """

    low: Array
    high: Array

    @property
    def magnitude(self) -> Array:
        """Return the largest magnitude that each item can have."""
        return jnp.maximum(jnp.abs(self.low), jnp.abs(self.high))

    def within(self, other: Interval) -> Interval:
        """Return the intersection with another interval."""
        return Interval(jnp.maximum(self.low, other.low), jnp.minimum(self.high, other.high))


Bounded = Array | Interval


class NoBounds(Exception):
    """An equation has no rule for its bounds."""

    def __init__(self, equation: Equation | None = None) -> None:
        super().__init__("an equation has no rule for its bounds")
        self.equation = equation


def ends(x: Bounded) -> tuple[Array, Array]:
    """Return the two ends of an interval. For an array, return the array twice."""
    if isinstance(x, Interval):
        return x.low, x.high
    return x, x


def interval(x: Bounded) -> Interval:
    """Return an interval unchanged. Convert an array to an interval whose ends are equal."""
    low, high = ends(x)
    return Interval(jnp.asarray(low), jnp.asarray(high))


def largest_magnitude(x: Bounded) -> Array:
    """Return the largest magnitude that each item of an array or interval can have."""
    return interval(x).magnitude


def varies(x: Bounded) -> TypeGuard[Interval]:
    """Tell whether a value is an interval, and not an array."""
    return isinstance(x, Interval)


def apply(equation: Equation, operands: Sequence[Any]) -> list[Array]:
    """Compute an equation for arrays, with products in 32 bits, and return its results.

    Some primitives only stop gradients or mark values. They return their operands here, and
    gradients pass through them.
    """
    name = primitive(equation)
    if name in ("stop_gradient", "levels", "optimization_barrier"):
        return list(operands[: len(equation.outvars)])
    if name in (jaxprs.PRODUCT, jaxprs.CONVOLUTION):
        highest = lax.Precision.HIGHEST
        return jaxpr_evaluation.bind(equation, operands, precision=(highest, highest))
    return jaxpr_evaluation.bind(equation, operands)


def value_of(equation: Equation, *operands: Any) -> Array:
    """Compute an equation for arrays, as `apply` does, and return its only result."""
    (result,) = apply(equation, operands)
    return result


def epsilon(x: Array | Aval) -> float:
    """Return the step from 1 to the next number in the dtype of `x`, or 0 for integers.

    The rounding error of one operation is at most epsilon / 2 times the result.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        return float(jnp.finfo(x.dtype).eps)
    return 0.0


def widened(x: Interval, error: Array | float) -> Interval:
    """Move the ends of an interval outwards by an error. An end that is NaN becomes infinite.

    An interval of integers is returned unchanged.
    """
    if not epsilon(x.low):
        return x
    # Processors may replace numbers by 0 if their magnitude is below `tiny`. The margin covers this
    # error too.
    margin = error + jnp.finfo(x.low.dtype).tiny
    low = x.low - margin
    high = x.high + margin
    low = jnp.where(jnp.isnan(low), -jnp.inf, low)
    high = jnp.where(jnp.isnan(high), jnp.inf, high)
    return Interval(low, high)
