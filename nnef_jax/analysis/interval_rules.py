"""Computes intervals that contain the results of jax's primitives. Each primitive has a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import jaxpr_evaluation
from lowering.facts import facts
from lowering.jaxprs import Equation, primitive
from nnef_jax.analysis.affine_equations import (
    PRODUCTS,
    SUMS,
    has_varying_index,
    magnitude,
    term_counts,
    varying_operands,
)
from nnef_jax.analysis.intervals import (
    Bounded,
    Interval,
    NoBounds,
    apply,
    ends,
    epsilon,
    interval,
    largest_magnitude,
    value_of,
    varies,
    widened,
)

# The keys of these three tables are monotone primitives. The values have a sign for each operand: 1
# if the primitive rises with the operand, and -1 if it falls. The primitives of _SIGNS do not
# round. The primitives of _ROUNDED round once. The primitives of _FUNCTIONS have the rounding
# errors of library functions.
_SIGNS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("max", "min", "clamp", "sign", "floor", "ceil", "round", "sort"), (1, 1, 1)),
    **dict.fromkeys(("cummax", "cummin", "reduce_max", "reduce_min"), (1,)),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_precision"), (1,)),
    **dict.fromkeys(("reduce_and", "reduce_or"), (1,)),
    **dict.fromkeys(("gt", "ge"), (1, -1)),
    **dict.fromkeys(("lt", "le"), (-1, 1)),
    "neg": (-1,),
    "scatter": (1, 1, 1),
}
_ROUNDED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("add", "add_any"), (1, 1)),
    "sub": (1, -1),
}
_FUNCTIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log1p", "log2", "logistic", "tanh"), (1,)),
    **dict.fromkeys(
        ("sqrt", "sinh", "asinh", "asin", "atan", "atanh", "acosh", "cbrt", "erf"), (1,)
    ),
    **dict.fromkeys(("erf_inv", "cumlogsumexp"), (1,)),
    **dict.fromkeys(("acos", "rsqrt", "erfc"), (-1,)),
}
_POSITIVE = {"exp", "exp2", "logistic", "sqrt", "rsqrt"}
_FUNCTION_ULPS = 16  # A library function has a relative error of at most 16 epsilons.


def bounded(equation: Equation, operands: Sequence[Bounded]) -> list[Interval]:
    """Return an interval for each result of an equation. Raises NoBounds if there is no rule."""
    name = primitive(equation)
    if name in _RULES:
        return [_RULES[name](equation, *operands)]
    if has_varying_index(equation, varying_operands(operands)):
        raise NoBounds
    if name == "top_k":
        return _top_k(equation, operands[0])
    if name in SUMS:
        # A sum rises with each operand. There are 3 signs, because a scatter has 3 operands.
        (result,) = _between(equation, operands, (1, 1, 1))
        count, _ = term_counts(equation)
        # The sum rounds once for each term. At most 4 further roundings occur.
        relative_error = (count + 4) * epsilon(result.low)
        # For sums of integers, the relative error is 0, and `magnitude` need not be computed.
        error = relative_error * magnitude(equation, operands) if relative_error else 0
        return [widened(result, error)]
    if name in _ROUNDED:
        (result,) = _between(equation, operands, _ROUNDED[name])
        return [_with_rounding(result, ulps=2)]
    if name in _FUNCTIONS:
        (result,) = _between(equation, operands, _FUNCTIONS[name])
        result = _with_rounding(result, ulps=_FUNCTION_ULPS)
        if name in _POSITIVE:
            return [Interval(jnp.maximum(result.low, 0), result.high)]
        return [result]
    is_bool = all(variable.aval.dtype == bool for variable in equation.invars)
    if name == "not" and is_bool:
        return _between(equation, operands, (-1,))
    # A sort of several operands uses one of them as keys. The results of the other operands do not
    # rise with the keys, so the sort is not monotone.
    sorts_by_keys = name == "sort" and len(operands) > 1
    if name in _SIGNS and not sorts_by_keys:
        return _between(equation, operands, _SIGNS[name])
    is_logical = name in ("and", "or") and is_bool
    if name == "levels" or is_logical or facts(equation).moves:
        return _between(equation, operands, (1,) * len(operands))
    raise NoBounds


def _between(
    equation: Equation, operands: Sequence[Bounded], signs: Sequence[int]
) -> list[Interval]:
    """Return intervals of the results of an equation that is monotone in each operand.

    `signs` has a number for each operand: 1 if the results rise with the operand, and -1 if the
    results fall.
    """
    # The results are lowest for the operands `for_lows`, and highest for the operands `for_highs`.
    for_lows: list[Array] = []
    for_highs: list[Array] = []
    for x, sign in zip(operands, signs, strict=False):  # There may be more signs than operands.
        low, high = ends(x)
        if sign == -1:
            low, high = high, low
        for_lows.append(low)
        for_highs.append(high)
    lows = apply(equation, for_lows)
    highs = apply(equation, for_highs)
    return [Interval(low, high) for low, high in zip(lows, highs, strict=True)]


def _top_k(equation: Equation, x: Bounded) -> list[Interval]:
    """Return an interval of the largest items, and an interval of their indices.

    The bounds of each index are 0 and the last index of the axis.
    """
    values, _ = _between(equation, [x], (1,))
    low, _ = ends(x)
    _, indices = jaxpr_evaluation.bind(equation, [low])
    first_index = jnp.zeros_like(indices)
    last_index = max(0, low.shape[equation.params["axis"]] - 1)
    return [values, Interval(first_index, first_index + last_index)]


def _with_rounding(x: Interval, ulps: float) -> Interval:
    """Move the ends of an interval outwards by a rounding error.

    The error of an item is `ulps` * epsilon * (largest magnitude that the item can have).
    """
    return widened(x, ulps * epsilon(x.low) * x.magnitude)


def _hull(values: Sequence[Array]) -> Interval:
    """Return the smallest interval that contains all given arrays, item by item.

    If an item is NaN in one of the arrays, both ends of this item are NaN.
    """
    return Interval(reduce(jnp.minimum, values), reduce(jnp.maximum, values))


def _corners(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Return bounds of a function of x and y: its extremes over the four pairs of ends of x and y.

    The extremes of the function must be at such pairs.
    """
    ends_x = ends(x) if varies(x) else [x]
    ends_y = ends(y) if varies(y) else [y]
    values: list[Array] = []
    for end_x in ends_x:
        for end_y in ends_y:
            values.append(value_of(equation, end_x, end_y))
    result = _hull(values)
    return _with_rounding(result, ulps=2)


def _mul(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Return bounds of a product, or of a square if both operands are the same variable."""
    is_square = equation.invars[0] is equation.invars[1]
    if is_square and varies(x):
        return _valley(jnp.square, x)
    return _corners(equation, x, y)


def _div(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Return bounds of a quotient. They are infinite if the denominator's interval contains 0."""
    low_y, high_y = ends(y)
    excludes_zero = low_y * high_y > 0
    return _bounded_where(excludes_zero, _corners(equation, x, y))


def _bounded_where(condition: Array, x: Interval) -> Interval:
    """Return the interval `x`, with infinite ends where the condition is False."""
    return Interval(jnp.where(condition, x.low, -jnp.inf), jnp.where(condition, x.high, jnp.inf))


def _product(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Return bounds of a matrix product or convolution, as in Gowal et al. (2018).

    The product of the intervals a +- p and b +- q is a b +- (|a| q + p (|b| + q)). The radius is
    enlarged by the rounding error, which is proportional to the product (|a| + p) (|b| + q).
    """
    result = equation.outvars[0].aval
    is_float = epsilon(result) > 0
    if not is_float:
        raise NoBounds

    def centre_and_radius(operand: Bounded) -> tuple[Array, Array | None]:
        """Return the middle and half the width of an interval; for an array, the array and None."""
        if not isinstance(operand, Interval):
            return operand, None
        centre = (operand.low + operand.high) / 2
        radius = (operand.high - operand.low) / 2
        return centre, radius

    def times(left: Array, right: Array) -> Array:
        return value_of(equation, left, right)

    centre_x, radius_x = centre_and_radius(x)
    centre_y, radius_y = centre_and_radius(y)
    magnitude_x = jnp.abs(centre_x)
    magnitude_y = jnp.abs(centre_y)
    count, _transpose_count = term_counts(equation)
    relative_error = (count + 4) * epsilon(result)
    centre = times(centre_x, centre_y)
    if radius_x is not None and radius_y is not None:
        radius = times(magnitude_x, radius_y) + times(radius_x, magnitude_y + radius_y)
        error = relative_error * times(magnitude_x + radius_x, magnitude_y + radius_y)
        radius = radius + error
    elif radius_x is not None:
        # If y is an array, q is 0. The sum of radius and error is then a single product:
        # (p + share (|a| + p)) |b|, where `share` is the relative error.
        radius = times(radius_x + relative_error * (magnitude_x + radius_x), magnitude_y)
    else:
        radius_y = jnp.zeros_like(centre_y) if radius_y is None else radius_y
        radius = times(magnitude_x, radius_y + relative_error * (magnitude_y + radius_y))
    return widened(Interval(centre - radius, centre + radius), error=0)


def _valley(curve: Callable[[Array], Array], x: Interval) -> Interval:
    """Bound a function that falls for negative arguments and rises for positive arguments."""
    at_ends = _hull([curve(x.low), curve(x.high)])
    contains_zero = (x.low < 0) & (x.high > 0)
    lowest = curve(jnp.zeros_like(x.low))
    low = jnp.where(contains_zero, lowest, at_ends.low)
    result = Interval(low, at_ends.high)
    return _with_rounding(result, ulps=_FUNCTION_ULPS)


def _valley_rule(equation: Equation, x: Interval) -> Interval:
    """Bound a primitive such as "abs", which falls until 0 and then rises."""
    return _valley(lambda end: value_of(equation, end), x)


def _integer_pow(equation: Equation, x: Interval) -> Interval:
    """Bound a power with an integer exponent.

    A power with a negative exponent is unbounded if the interval of x contains 0.
    """
    exponent = equation.params["y"]
    is_positive = exponent > 0
    is_even = exponent % 2 == 0
    if is_positive and is_even:
        return _valley_rule(equation, x)
    result = _hull([value_of(equation, x.low), value_of(equation, x.high)])
    result = _with_rounding(result, ulps=_FUNCTION_ULPS)
    if is_positive:
        return result
    excludes_zero = x.low * x.high > 0
    return _bounded_where(excludes_zero, result)


def _pow(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Bound the power x^y of two tensors. The base x must not be negative."""
    result = _corners(equation, x, y)
    result = _with_rounding(result, ulps=_FUNCTION_ULPS)
    low_x, _ = ends(x)
    low_y, _ = ends(y)
    has_value_at_zero = (low_x >= 0) & (low_y > 0)
    return _bounded_where((low_x > 0) | has_value_at_zero, result)


def _waves(shift: float) -> Callable[[Equation, Interval], Interval]:
    """Return a rule that bounds cos(x - shift) for an interval x.

    The upper bound is 1 if x - shift contains 2 pi n for some integer n. The lower bound is -1 if
    x - shift contains pi + 2 pi n for some integer n.
    """

    def rule(equation: Equation, x: Interval) -> Interval:
        margin = _FUNCTION_ULPS * epsilon(x.low) * (1 + x.magnitude)

        def contains(angle: float) -> Array:
            """Tell whether the interval x contains shift + angle + 2 pi n, for an integer n."""
            # `first_angle` is the smallest such number that is not below the lower end of x.
            rounds = jnp.ceil((x.low - margin - shift - angle) / (2 * np.pi))
            first_angle = rounds * (2 * np.pi) + shift + angle
            return first_angle <= x.high + margin

        at_ends = _hull([value_of(equation, x.low), value_of(equation, x.high)])
        low = jnp.where(contains(np.pi), -1, at_ends.low)
        high = jnp.where(contains(0), 1, at_ends.high)
        return widened(Interval(low, high), _FUNCTION_ULPS * epsilon(low))

    return rule


def _tan(equation: Equation, x: Interval) -> Interval:
    """Return bounds of a tangent. They are infinite if the interval contains a pole."""
    margin = _FUNCTION_ULPS * epsilon(x.low) * (1 + x.magnitude)
    outer = Interval(x.low - margin, x.high + margin)
    first_branch = jnp.floor((outer.low + np.pi / 2) / np.pi)
    last_branch = jnp.floor((outer.high + np.pi / 2) / np.pi)
    (result,) = _between(equation, [x], (1,))
    # The derivative of the tangent is tan(x)^2 + 1.
    slopes = jnp.square(result.magnitude) + 1
    return _bounded_where(first_branch == last_branch, widened(result, margin * slopes))


def _rem(_: Equation, x: Bounded, y: Bounded) -> Interval:
    """Bound the remainder of x divided by y.

    A remainder has the sign of x. Its magnitude is at most |x|, and at most |y|.
    """
    low_x, high_x = ends(x)
    limit = largest_magnitude(y)
    zero = jnp.zeros_like(low_x)
    low = jnp.where(low_x < 0, -jnp.minimum(limit, -low_x), zero)
    high = jnp.where(high_x > 0, jnp.minimum(limit, high_x), zero)
    return Interval(low, high)


def _equal(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Return bounds of x == y, or of x != y. In these intervals False is less than True."""
    low_x, high_x = ends(x)
    low_y, high_y = ends(y)
    is_same_variable = equation.invars[0] is equation.invars[1]
    if is_same_variable:
        possibly_equal = jnp.ones(equation.outvars[0].aval.shape, bool)
        certainly_equal = possibly_equal
    else:
        possibly_equal = (low_x <= high_y) & (low_y <= high_x)
        are_single_values = (low_x == high_x) & (low_y == high_y)
        certainly_equal = are_single_values & (low_x == low_y)
    if primitive(equation) == "ne":
        return Interval(~possibly_equal, ~certainly_equal)
    return Interval(certainly_equal, possibly_equal)


def _position(equation: Equation, x: Interval) -> Interval:
    """Return bounds of the index of a maximum or minimum: 0 and the last index of the axis."""
    result = equation.outvars[0].aval
    count = math.prod(x.low.shape[axis] for axis in equation.params["axes"])
    last_index = max(0, count - 1)
    zero = jnp.zeros(result.shape, result.dtype)
    return Interval(zero, zero + last_index)


def _finite(equation: Equation, _: Bounded) -> Interval:
    return interval(jnp.ones(equation.outvars[0].aval.shape, bool))


def _running_product(x: Interval, axis: int, reverse: bool = False) -> Interval:
    """Bound the running products of the items along an axis.

    Product i multiplies the items from the start to index i. If `reverse`, product i multiplies the
    items from index i to the end.
    """

    def times(x: Interval, y: Interval) -> Interval:
        corners = [x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high]
        result = _hull(corners)
        return _with_rounding(result, ulps=2)

    return lax.associative_scan(times, x, axis=axis, reverse=reverse)


def _cumprod(equation: Equation, x: Interval) -> Interval:
    return _running_product(x, equation.params["axis"], equation.params["reverse"])


def _reduce_prod(equation: Equation, x: Interval) -> Interval:
    """Bound the product of all items along some axes.

    The axes are merged into one axis. The bounds are the last of the running products along it.
    """
    axes = equation.params["axes"]
    shape = equation.outvars[0].aval.shape
    if not axes:
        return x
    factor_count = math.prod(x.low.shape[axis] for axis in axes)
    if factor_count == 0:
        # The product of no factors is exactly 1.
        return interval(value_of(equation, x.low))

    def flattened(array: Array) -> Array:
        """Move the reduced axes to the end, and merge them into one axis."""
        moved = jnp.moveaxis(array, axes, range(-len(axes), 0))
        return moved.reshape(*shape, factor_count)

    flat = Interval(flattened(x.low), flattened(x.high))
    running = _running_product(flat, len(shape))
    return Interval(running.low[..., -1], running.high[..., -1])


_RULES: dict[str, Callable[..., Interval]] = {
    "mul": _mul,
    "div": _div,
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(("abs", "square", "cosh"), _valley_rule),
    "integer_pow": _integer_pow,
    "pow": _pow,
    "cos": _waves(0),
    "sin": _waves(np.pi / 2),
    "tan": _tan,
    "rem": _rem,
    **dict.fromkeys(("eq", "ne"), _equal),
    **dict.fromkeys(("argmax", "argmin"), _position),
    "is_finite": _finite,
    "cumprod": _cumprod,
    "reduce_prod": _reduce_prod,
}
