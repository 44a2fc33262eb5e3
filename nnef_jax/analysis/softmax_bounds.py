"""Computes tight bounds of the two steps of a softmax: x - max(x) and x / sum(x)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import Atom, Equation, is_literal, primitive
from lowering.recipe import by_numpy
from nnef_jax.analysis.affine_equations import term_counts
from nnef_jax.analysis.intervals import Interval, epsilon, widened


def reduction_steps(name: str, x: Atom, y: Atom, makers: Mapping[Atom, Equation]) -> list[Equation]:
    """Return the equations that compute y from x, in order.

    The first equation is the reduction `name`. All further equations only move results: each result
    goes to the items of x from which it is computed. If y is computed in another way, the list is
    empty. `makers` has the equation that computes each variable.
    """
    steps: list[Equation] = []
    while y != x:
        equation = None if is_literal(y) else makers.get(y)
        operands = [] if equation is None else jaxprs.variables(equation.invars)
        if equation is None or len(operands) != 1:
            return []
        steps.insert(0, equation)
        (y,) = operands
    if not steps or primitive(steps[0]) != name:
        return []
    reduction, *moves = steps
    # The results of the reduction are numbered. The same moves are applied to the numbers, which
    # must then arrive at the items of x from which each result is computed.
    shape = reduction.outvars[0].aval.shape
    numbers = np.arange(math.prod(shape)).reshape(shape)
    moved: Any = numbers
    for equation in moves:
        first = equation.invars[0]
        is_minus_infinity = is_literal(first) and first.val == -jnp.inf
        if primitive(equation) == "max" and is_minus_infinity:
            continue  # jax takes the maximum of -inf and the tensor, which is the tensor itself
        moved = by_numpy(equation, [moved]) if facts(equation).moves else None
        if moved is None:
            return []
    expected = np.expand_dims(numbers, reduction.params["axes"])
    shape = np.broadcast_shapes(moved.shape, x.aval.shape)
    is_aligned = np.array_equal(np.broadcast_to(moved, shape), np.broadcast_to(expected, shape))
    return steps if is_aligned else []


def related_bounds(reduction: Equation, x: Interval, y: Interval, result: Interval) -> Interval:
    """Return tighter bounds of x - max(x) or of x / sum(x), the two steps of a softmax.

    The difference x - max(x) is at most 0. The quotient is

        x / (x + z)

    where z is the sum of the other items. For positive x, the quotient rises with x, and falls with
    z.

    Args:
        reduction: the equation that computes the maximum or the sum.
        x: the interval of x.
        y: the interval of the maximum or the sum. Its ends are the maxima or sums of the ends of x,
            up to rounding.
        result: the interval of the difference or quotient, computed as if x and y were independent.
    """
    if primitive(reduction) == "reduce_max":
        return Interval(result.low, jnp.minimum(result.high, 0))
    # The sum y rounds once for each of its `count` terms. At most 8 further roundings occur.
    count, _ = term_counts(reduction)
    error = (count + 8) * epsilon(y.low) * y.magnitude
    # The low end of y is the sum of the low ends of all items. Without the low end of x, the low
    # end of z remains. The same holds for the high ends.
    z_low = jnp.maximum(y.low - x.low - error, 0)
    z_high = jnp.maximum(y.high - x.high + error, 0)
    quotient = Interval(x.low / (x.low + z_high), x.high / (x.high + z_low))
    zero_to_one = Interval(jnp.asarray(0.0), jnp.asarray(1.0))
    quotient = widened(quotient, 4 * epsilon(y.low)).within(zero_to_one)
    tighter = result.within(quotient)
    # These bounds hold only if no summed item is negative. x / (x + z) is then at most 1.
    least = jnp.min(x.low, axis=reduction.params["axes"], keepdims=True)
    is_positive = (least >= 0) & jnp.isfinite(y.high)
    low = jnp.where(is_positive, tighter.low, result.low)
    high = jnp.where(is_positive, tighter.high, result.high)
    return Interval(low, high)
