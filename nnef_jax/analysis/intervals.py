"""Bounds the results of jax's primitives by interval arithmetic.

The ends of an interval are moved outwards by a bound of the rounding error. The interval therefore
contains the exact result, and the result in 32 bits for any order of summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import Aval, Equation, primitive


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Interval:
    """A tensor whose items are known only to be between two ends, the arrays `low` and `high`.

    A tensor whose items are known exactly is an array instead of an `Interval`.
    """

    low: Array
    high: Array

    @property
    def size(self) -> Array:
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
    """Return the ends of an interval. Both ends of an array are the array."""
    return (x.low, x.high) if isinstance(x, Interval) else (x, x)


def interval(x: Bounded) -> Interval:
    """Return an interval unchanged, and convert an array to an interval whose ends are equal."""
    return Interval(*map(jnp.asarray, ends(x)))


def size(x: Bounded) -> Array:
    """Return the largest magnitude that each item of an array or interval can have."""
    return interval(x).size


def varies(x: Bounded) -> TypeGuard[Interval]:
    """Tell whether a value is an interval, instead of an array whose items are known."""
    return isinstance(x, Interval)


def apply(equation: Equation, operands: Sequence[Any]) -> list[Array]:
    """Compute an equation for arrays, with products in 32 bits, and return its results.

    Primitives that stop gradients or mark values return their operands, so that bounds have
    derivatives.
    """
    name = primitive(equation)
    if name in ("stop_gradient", "levels", "optimization_barrier"):
        return list(operands[: len(equation.outvars)])
    if name in (jaxprs.PRODUCT, jaxprs.CONVOLUTION):
        highest = lax.Precision.HIGHEST
        return jaxprs.bind(equation, operands, precision=(highest, highest))
    return jaxprs.bind(equation, operands)


def epsilon(x: Array | Aval) -> float:
    """Return the step from 1 to the next number in a dtype, or 0 for integers.

    The dtype is that of `x`. The rounding error of one operation is at most epsilon / 2 times the
    result.
    """
    return float(jnp.finfo(x.dtype).eps) if jnp.issubdtype(x.dtype, jnp.floating) else 0.0


def widened(x: Interval, error: Array | float) -> Interval:
    """Move the ends of an interval outwards by an error. An end that is NaN becomes infinite.

    An interval of integers is returned unchanged.
    """
    if not epsilon(x.low):
        return x
    margin = error + jnp.finfo(x.low.dtype).tiny  # Smaller numbers may be flushed to 0.
    low = x.low - margin
    high = x.high + margin
    return Interval(
        jnp.where(jnp.isnan(low), -jnp.inf, low), jnp.where(jnp.isnan(high), jnp.inf, high)
    )


# Monotone primitives, with 1 for each operand in which they rise, and -1 for each operand in which
# they fall. The primitives of _SIGNS do not round, those of _ROUNDED round once, and those of
# _FUNCTIONS have the errors of library functions.
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
_ALL = 99  # more operands than an equation has
_ULPS = 16  # the largest error of a library function, in epsilons
_SUMS = {"reduce_sum", "cumsum", "reduce_window_sum", "scatter-add"}
_PRODUCTS = {jaxprs.PRODUCT, jaxprs.CONVOLUTION}


def is_affine(equation: Equation, operands: Sequence[Bounded]) -> bool:
    """Tell whether an equation is affine in the operands that are intervals.

    Operands and result must be floating-point.
    """
    name = primitive(equation)
    varying = _varying_operands(operands)
    avals = [equation.outvars[0].aval, *(x.low for x in varying.values())]
    if not all(map(epsilon, avals)):
        return False
    if name == "mul" or name in _PRODUCTS:
        return len(varying) == 1
    if name == "div":
        return list(varying) == [0]
    is_sum = name in ("add", "add_any", "sub", "neg", "levels") or name in _SUMS
    return (is_sum or facts(equation).moves) and not _has_indices(equation, varying)


def _varying_operands(operands: Sequence[Bounded]) -> dict[int, Interval]:
    """Return the operands that are intervals, as a dict from their positions."""
    return {i: x for i, x in enumerate(operands) if varies(x)}


def _indices(name: str) -> range:
    """Return the positions of the operands of a primitive that select or index.

    For "gather" the only such position is 1. The rules for bounds require that operands at these
    positions are arrays.
    """
    first, last = {
        "gather": (1, 2), "scatter": (1, 2), "scatter-add": (1, 2), "select_n": (0, 1),
        "dynamic_slice": (1, _ALL), "dynamic_update_slice": (2, _ALL),
    }.get(name, (0, 0))  # fmt: skip
    return range(first, last)


def _has_indices(equation: Equation, varying: Iterable[int]) -> bool:
    """Tell whether one of the operands at the positions `varying` selects or indexes."""
    positions = _indices(primitive(equation))
    return any(position in positions for position in varying)


def term_counts(equation: Equation) -> tuple[int, int]:
    """Return the numbers of terms in the sums of an affine equation and of its transpose.

    The first number is the terms of an item of the result, and the second number is the terms of an
    item of the transpose. For a product of [2, 3] and [3, 5] they are 3 and 5. The rounding error
    of a sum is proportional to its number of terms.
    """
    name = primitive(equation)
    params = equation.params
    sizes = [math.prod(variable.aval.shape) for variable in equation.invars]
    first_size = max(1, sizes[0])
    if name == jaxprs.PRODUCT:
        (axes, _), (batch_axes, _) = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        count = math.prod(shape[i] for i in axes)
        shared = math.prod(shape[i] for i in batch_axes) * count
        return count, max(sizes[0], sizes[1]) // max(1, shared)
    if name == jaxprs.CONVOLUTION:
        out_axis, in_axis, *_ = params["dimension_numbers"].rhs_spec
        filters = equation.invars[1].aval.shape
        filter_size = sizes[1]
        return filter_size // max(1, filters[out_axis]), filter_size // max(1, filters[in_axis])
    if name in ("reduce_window_sum", "reduce_sum", "cumsum", "scatter-add"):
        window = params.get("window_dimensions")
        count = math.prod(window) if window else max(first_size, sizes[-1])
        return count, count
    result_size = max(1, math.prod(equation.outvars[0].aval.shape))
    if name in ("gather", "tile"):
        return 1, result_size
    return 1, max(1, result_size // first_size)


def magnitude(equation: Equation, operands: Sequence[Bounded]) -> Array:
    """Return, for each item of an affine result, the sum of the magnitudes of its terms."""
    name = primitive(equation)
    sizes: list[Any] = list(operands)
    for position, x in enumerate(operands):
        if position not in _indices(name):
            sizes[position] = size(x)
    if name in ("add", "add_any", "sub"):
        return sizes[0] + sizes[1]
    if name == "neg":
        return sizes[0]
    return apply(equation, sizes)[0]


def bounded(equation: Equation, operands: Sequence[Bounded]) -> list[Interval]:
    """Return an interval for each result of an equation. Raises NoBounds if there is no rule."""
    name = primitive(equation)
    if name in _RULES:
        return [_RULES[name](equation, *operands)]
    if _has_indices(equation, _varying_operands(operands)):
        raise NoBounds
    if name == "top_k":
        values, _ = _between(equation, operands, (1,))
        low = interval(operands[0]).low
        indices = jnp.zeros_like(jaxprs.bind(equation, [low])[1])
        last = low.shape[equation.params["axis"]] - 1
        return [values, Interval(indices, indices + max(0, last))]
    if name in _SUMS:
        (result,) = _between(equation, operands, (1, 1, 1))
        share = (term_counts(equation)[0] + 4) * epsilon(result.low)
        error = share * magnitude(equation, operands) if share else 0
        return [widened(result, error)]
    if name in _ROUNDED or name in _FUNCTIONS:
        (result,) = _between(equation, operands, {**_ROUNDED, **_FUNCTIONS}[name])
        ulps = 2 if name in _ROUNDED else _ULPS
        result = widened(result, ulps * epsilon(result.low) * result.size)
        if name in _POSITIVE:
            return [Interval(jnp.maximum(result.low, 0), result.high)]
        return [result]
    is_bool = all(variable.aval.dtype == bool for variable in equation.invars)
    if name == "not" and is_bool:
        return _between(equation, operands, (-1,))
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
    """Bound a function that is monotone in each operand.

    `signs` has 1 for an operand in which the function rises, and -1 for an operand in which it
    falls.
    """
    lows: list[Array] = []
    highs: list[Array] = []
    for x, sign in zip(operands, signs, strict=False):  # There may be more signs than operands.
        low, high = ends(x)
        lows.append(low if sign == 1 else high)
        highs.append(high if sign == 1 else low)
    results = zip(apply(equation, lows), apply(equation, highs), strict=True)
    return [Interval(low, high) for low, high in results]


def _hull(values: Sequence[Array]) -> Interval:
    """Return the smallest interval that contains all values.

    If one of the values of an item is NaN, the ends of the item are NaN.
    """
    return Interval(reduce(jnp.minimum, values), reduce(jnp.maximum, values))


def _corners(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Bound a function of two operands that takes its extremes at ends of x and of y."""
    ends_x = ends(x) if varies(x) else [x]
    ends_y = ends(y) if varies(y) else [y]
    result = _hull([apply(equation, [a, b])[0] for a in ends_x for b in ends_y])
    return widened(result, 2 * epsilon(result.low) * result.size)


def _mul(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    if varies(x) and equation.invars[0] is equation.invars[1]:
        return _valley(lambda x: x * x, x)
    return _corners(equation, x, y)


def _div(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    return _bounded_where(ends(y)[0] * ends(y)[1] > 0, _corners(equation, x, y))


def related_bounds(equation: Equation, x: Interval, y: Interval, result: Interval) -> Interval:
    """Return tighter bounds of x minus its maximum y, or of x divided by its sum y (a softmax).

    `result` is the interval that ignores the relation of x and y. The quotient x / y is x / (x +
    z), where z is the sum of the other items. If x is positive, the quotient is monotone in x and
    in z.
    """
    if primitive(equation) == "sub":
        return Interval(result.low, jnp.minimum(result.high, 0))
    # Besides the terms of the sum, a few more operations are rounded.
    error = (term_counts(equation)[0] + 8) * epsilon(y.low) * y.size
    z_low = jnp.maximum(y.low - x.low - error, 0)
    z_high = jnp.maximum(y.high - x.high + error, 0)
    quotient = Interval(x.low / (x.low + z_high), x.high / (x.high + z_low))
    zero_to_one = Interval(jnp.asarray(0.0), jnp.asarray(1.0))
    quotient = widened(quotient, 4 * epsilon(y.low)).within(zero_to_one)
    positive = x.low >= 0
    return Interval(
        jnp.where(positive, jnp.maximum(result.low, quotient.low), result.low),
        jnp.where(positive, jnp.minimum(result.high, quotient.high), result.high),
    )


def _bounded_where(condition: Array, x: Interval) -> Interval:
    """Return the interval `x`, with infinite ends where the condition is False."""
    return Interval(jnp.where(condition, x.low, -jnp.inf), jnp.where(condition, x.high, jnp.inf))


def _product(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    """Bound a matrix product or convolution by centres and radii, as in Gowal et al. (2018)."""

    def centre_and_radius(x: Bounded) -> tuple[Array, Array | None]:
        if isinstance(x, Interval):
            return (x.low + x.high) / 2, (x.high - x.low) / 2
        return x, None

    def times(x: Array, y: Array) -> Array:
        return apply(equation, [x, y])[0]

    centre_x, radius_x = centre_and_radius(x)
    centre_y, radius_y = centre_and_radius(y)
    size_x = jnp.abs(centre_x)
    size_y = jnp.abs(centre_y)
    result = equation.outvars[0].aval
    if not epsilon(result):
        raise NoBounds
    rounding = (term_counts(equation)[0] + 4) * epsilon(result)
    centre = times(centre_x, centre_y)
    if radius_x is not None and radius_y is not None:
        # With centres a, b and radii p, q, the radius of the product is |a| q + p |b| + p q.
        radius = times(size_x, radius_y) + times(radius_x, size_y + radius_y)
        radius = radius + rounding * times(size_x + radius_x, size_y + radius_y)
    elif radius_x is not None:
        radius = times(radius_x + rounding * (size_x + radius_x), size_y)
    else:
        radius_y = jnp.zeros_like(centre_y) if radius_y is None else radius_y
        radius = times(size_x, radius_y + rounding * (size_y + radius_y))
    return widened(Interval(centre - radius, centre + radius), 0)


def _valley(function: Callable[[Array], Array], x: Interval) -> Interval:
    """Bound a function that falls for negative arguments and rises for positive arguments."""
    result = _hull([function(x.low), function(x.high)])
    contains_zero = (x.low < 0) & (x.high > 0)
    low = jnp.where(contains_zero, function(jnp.zeros_like(x.low)), result.low)
    result = Interval(low, result.high)
    return widened(result, _ULPS * epsilon(low) * result.size)


def _valley_rule(equation: Equation, x: Interval) -> Interval:
    return _valley(lambda x: apply(equation, [x])[0], x)


def _integer_pow(equation: Equation, x: Interval) -> Interval:
    exponent = equation.params["y"]
    if exponent > 0 and exponent % 2 == 0:
        return _valley_rule(equation, x)
    result = _hull([apply(equation, [end])[0] for end in ends(x)])
    result = widened(result, _ULPS * epsilon(result.low) * result.size)
    return result if exponent > 0 else _bounded_where(x.low * x.high > 0, result)


def _pow(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    result = _corners(equation, x, y)
    result = widened(result, _ULPS * epsilon(result.low) * result.size)
    low_x, _ = ends(x)
    low_y, _ = ends(y)
    return _bounded_where((low_x > 0) | ((low_x >= 0) & (low_y > 0)), result)


def _waves(shift: float) -> Callable[[Equation, Interval], Interval]:
    """Return a function that bounds cos(x - shift) for an interval x."""

    def rule(equation: Equation, x: Interval) -> Interval:
        def contains(angle: float) -> Array:
            """Tell whether the interval x contains shift + angle plus a multiple of 2 pi."""
            margin = _ULPS * epsilon(x.low) * (1 + x.size)
            turns = jnp.ceil((x.low - margin - shift - angle) / (2 * np.pi))
            first_angle = turns * (2 * np.pi) + shift + angle
            return first_angle <= x.high + margin

        result = _hull([apply(equation, [end])[0] for end in ends(x)])
        low = jnp.where(contains(np.pi), -1, result.low)
        result = Interval(low, jnp.where(contains(0), 1, result.high))
        return widened(result, _ULPS * epsilon(low))

    return rule


def _tan(equation: Equation, x: Interval) -> Interval:
    """Bound a tangent, which is unbounded if the interval contains a pole."""
    margin = _ULPS * epsilon(x.low) * (1 + x.size)
    outer = Interval(x.low - margin, x.high + margin)
    first_branch = jnp.floor((outer.low + np.pi / 2) / np.pi)
    last_branch = jnp.floor((outer.high + np.pi / 2) / np.pi)
    (result,) = _between(equation, [x], (1,))
    slopes = jnp.square(result.size) + 1
    return _bounded_where(first_branch == last_branch, widened(result, margin * slopes))


def _rem(_: Equation, x: Bounded, y: Bounded) -> Interval:
    """Bound the remainder of x by y.

    A remainder has the sign of x, and its magnitude is at most the magnitude of x, and of y.
    """
    low, high = ends(x)
    limit = size(y)
    zero = jnp.zeros_like(low)
    low = jnp.where(low < 0, -jnp.minimum(limit, -low), zero)
    return Interval(low, jnp.where(high > 0, jnp.minimum(limit, high), zero))


def _equal(equation: Equation, x: Bounded, y: Bounded) -> Interval:
    low_x, high_x = ends(x)
    low_y, high_y = ends(y)
    if equation.invars[0] is equation.invars[1]:
        possibly_equal = jnp.ones(equation.outvars[0].aval.shape, bool)
        certainly_equal = possibly_equal
    else:
        possibly_equal = (low_x <= high_y) & (low_y <= high_x)
        are_known = (low_x == high_x) & (low_y == high_y)
        certainly_equal = are_known & (low_x == low_y)
    if primitive(equation) == "ne":
        return Interval(~possibly_equal, ~certainly_equal)
    return Interval(certainly_equal, possibly_equal)


def _position(equation: Equation, x: Interval) -> Interval:
    """Bound the index of a maximum or minimum, which lies in the range of the reduced axes."""
    result = equation.outvars[0].aval
    count = math.prod(x.low.shape[axis] for axis in equation.params["axes"])
    zero = jnp.zeros(result.shape, result.dtype)
    return Interval(zero, zero + max(0, count - 1))


def _finite(equation: Equation, _: Bounded) -> Interval:
    return interval(jnp.ones(equation.outvars[0].aval.shape, bool))


def _running_product(x: Interval, axis: int, reverse: bool = False) -> Interval:
    def times(x: Interval, y: Interval) -> Interval:
        result = _hull([a * b for a in ends(x) for b in ends(y)])
        return widened(result, 2 * epsilon(result.low) * result.size)

    return lax.associative_scan(times, x, axis=axis, reverse=reverse)


def _cumprod(equation: Equation, x: Interval) -> Interval:
    return _running_product(x, equation.params["axis"], equation.params["reverse"])


def _reduce_prod(equation: Equation, x: Interval) -> Interval:
    axes = equation.params["axes"]
    shape = equation.outvars[0].aval.shape
    if not axes:
        return x

    def flattened(end: Array) -> Array:
        """Move the reduced axes to the end, and merge them into one axis."""
        moved = jnp.moveaxis(end, axes, range(-len(axes), 0))
        return moved.reshape(*shape, math.prod(end.shape[axis] for axis in axes))

    flat = Interval(flattened(x.low), flattened(x.high))
    if flat.low.shape[-1] == 0:
        return interval(apply(equation, [x.low])[0])
    running = _running_product(flat, len(shape))
    return Interval(running.low[..., -1], running.high[..., -1])


_RULES: dict[str, Callable[..., Interval]] = {
    "mul": _mul,
    "div": _div,
    **dict.fromkeys(_PRODUCTS, _product),
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
