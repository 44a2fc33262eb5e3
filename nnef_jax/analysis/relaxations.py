"""Bounds nonlinear functions by affine functions, between the ends of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.jaxprs import Atom, Equation, primitive
from nnef_jax.analysis.intervals import Bounded, Interval, apply, ends, epsilon, interval, varies

# A line that bounds a library function has a rounding error of at most 32 epsilons.
_FUNCTION_ULPS = 32
_FEW_ULPS = 4  # A line that bounds any other function has a rounding error of at most 4 epsilons.
_HALVINGS = 24  # A bisection halves its interval this many times.

Pull = Callable[[Sequence[Array]], Sequence[Array]]


class Values(Protocol):
    """The values of the variables of a traced function, as `linear_bounds.Walk` computes them."""

    def read(self, variable: Atom) -> Bounded:
        """Return the array or interval of a variable or a literal."""
        ...

    def at(self, variable: Atom, values: Mapping[Atom, Bounded]) -> Bounded:
        """Return the value of a variable if other variables have the values in `values`."""
        ...

    def compared(self, equation: Equation) -> ThresholdSelection | None:
        """Return the variable x and the threshold of a selection by `x < threshold`.

        Return None if the equation is another selection.
        """
        ...

    def is_affine_in(self, variable: Atom, x: Atom) -> bool:
        """Tell whether a variable is an affine function of variable `x`."""
        ...


class ThresholdSelection(NamedTuple):
    """A selection between two cases by the comparison of a variable with a threshold.

    Args:
        x: the variable.
        threshold: the threshold.
        case_below: the index of the case that is selected where x is below the threshold.
    """

    x: Atom
    threshold: Array
    case_below: int


class BackwardStep(NamedTuple):
    """Affine functions that bound the results of an equation, for one step of the backward pass.

    The affine functions take the operands of the equation.

    Args:
        variables: the operands that are intervals.
        pulls: the transposes of the linear parts of the lower and the upper function. If both
            linear parts are equal, there is a single transpose.
        low: the constant of the lower function, for each result.
        high: the constant of the upper function, for each result.
    """

    variables: Sequence[Atom]
    pulls: Sequence[Pull]
    low: Sequence[Array]
    high: Sequence[Array]


class Line(NamedTuple):
    """An elementwise function `slopes[0] * x + slopes[1] * y + ... + constant` of operands."""

    slopes: Sequence[Array]
    constant: Array


def lines_of(
    walk: Values, equation: Equation, operands: Sequence[Bounded], out: Interval
) -> BackwardStep | None:
    """Return lines that bound a nonlinear equation, or None if there is no rule.

    Args:
        walk: the values of the function's variables.
        equation: the equation, which has a single result.
        operands: the operands of the equation.
        out: the interval of its result.
    """
    name = primitive(equation)
    varying = {position: x for position, x in enumerate(operands) if varies(x)}
    if not epsilon(out.low):
        return None
    if name in ("reduce_max", "reduce_window_max"):
        return _maximum(equation, varying[0], out)
    kink = _kink(walk, equation, operands)
    if kink is not None:
        x = interval(walk.read(kink.variable))
        below, above = _kink_step(x, kink)
        return _step([kink.variable], [x], below, above, out)
    variables = [equation.invars[position] for position in varying]
    intervals = list(varying.values())
    if any(x.low.shape != out.low.shape for x in intervals):
        return None
    if name == "mul":
        below, above = _planes(*intervals)
        return _step(variables, intervals, below, above, out)
    if name not in _CURVES:
        return None
    varies_only_in_denominator = list(varying) == [1]
    if name == "div" and not varies_only_in_denominator:
        return None

    def curve(array: Array) -> Array:
        """Return the result of the equation if its varying operand is an array."""
        values = list(operands)
        for position in varying:
            values[position] = array
        (result,) = apply(equation, values)
        return result

    below, above = _CURVES[name](curve, *intervals)
    return _step(variables, intervals, below, above, out, ulps=_FUNCTION_ULPS)


def _step(
    variables: Sequence[Atom],
    operands: Sequence[Interval],
    below: Line,
    above: Line,
    out: Interval,
    ulps: int = _FEW_ULPS,
) -> BackwardStep:
    """Return a step of the backward pass that bounds a result by two lines.

    Args:
        variables: the operands that vary.
        operands: the intervals of these operands.
        below: the line below the result.
        above: the line above the result.
        out: the interval of the result. One of its ends replaces a line that is not finite.
        ulps: the rounding error by which each line is moved outwards, in epsilons.
    """

    def finite(line: Line, end: Array) -> tuple[Line, Array]:
        """Return a line after replacing items that are not finite by `end`, and its rounding error.

        The rounding error is 0 for the replaced items.
        """
        terms = [jnp.abs(slope) * x.size for slope, x in zip(line.slopes, operands, strict=True)]
        error = ulps * epsilon(end) * (sum(terms) + jnp.abs(line.constant))
        is_finite = jnp.isfinite(error)
        slopes = [jnp.where(is_finite, slope, 0) for slope in line.slopes]
        constant = jnp.where(is_finite, line.constant, end)
        return Line(slopes, constant), jnp.where(is_finite, error, 0)

    def transpose(line: Line) -> Pull:
        """Return the function from coefficients of the result to coefficients of the operands."""

        def pull(coefficients: Sequence[Array]) -> Sequence[Array]:
            (of_result,) = coefficients
            return [slope * of_result for slope in line.slopes]

        return pull

    finite_below, error_below = finite(below, out.low)
    finite_above, error_above = finite(above, out.high)
    low = finite_below.constant - error_below
    high = finite_above.constant + error_above
    pulls = transpose(finite_below), transpose(finite_above)
    return BackwardStep(variables, pulls, low=[low], high=[high])


class _Kink(NamedTuple):
    """An elementwise function of two straight parts.

    Args:
        variable: the operand.
        place: the value of the operand where the parts meet.
        value: the value of the function at this place.
        before: the slope below the place.
        after: the slope above the place.
        is_continuous: whether both parts have the same value at the place.
    """

    variable: Atom
    place: Array
    value: Array
    before: Array
    after: Array
    is_continuous: Array | bool


def _kink(walk: Values, equation: Equation, operands: Sequence[Bounded]) -> _Kink | None:
    """Return the two straight parts of an equation's function, or None for another function."""
    name = primitive(equation)
    out = equation.outvars[0].aval
    if name == "select_n":
        return _selection_kink(walk, equation) if varies(operands[0]) else None
    # For each primitive, these are the slopes before and after the kink.
    slopes_by_name = {"max": (0, 1), "min": (1, 0), "abs": (-1, 1)}
    varying = [position for position, x in enumerate(operands) if varies(x)]
    if name not in slopes_by_name or len(varying) != 1:
        return None
    (position,) = varying
    if interval(operands[position]).low.shape != out.shape:
        return None
    place = jnp.zeros((), out.dtype)
    if name != "abs":
        # The parts of a maximum or minimum meet at the other operand, which is an array. Both ends
        # of an array are the array.
        place, _ = ends(operands[1 - position])
    slope_before, slope_after = slopes_by_name[name]
    before = jnp.full(out.shape, slope_before, out.dtype)
    after = jnp.full(out.shape, slope_after, out.dtype)
    # At its kink, a maximum or minimum with a limit is equal to the limit, and |x| is 0 at 0. The
    # value is therefore the same number as the place.
    return _Kink(
        variable=equation.invars[position],
        place=place,
        value=place,
        before=before,
        after=after,
        is_continuous=True,
    )


def _selection_kink(walk: Values, equation: Equation) -> _Kink | None:
    """Return the two straight parts of a selection by `x < threshold`.

    The two cases must be affine functions of x. Return None for any other selection.
    """
    comparison = walk.compared(equation)
    if comparison is None:
        return None
    x, threshold, case_below = comparison
    _, *cases = equation.invars
    below = cases[case_below]
    above = cases[1 - case_below]
    are_affine = walk.is_affine_in(below, x) and walk.is_affine_in(above, x)
    if not are_affine:
        return None
    place = jnp.broadcast_to(threshold, equation.outvars[0].aval.shape)
    distance = 1 + jnp.abs(place)
    values = [
        walk.at(below, {x: place}),
        walk.at(above, {x: place}),
        walk.at(below, {x: place - distance}),
        walk.at(above, {x: place + distance}),
    ]
    arrays: list[Array] = []
    for value in values:
        if isinstance(value, Interval):
            # There are too many equations between x and the case, so `walk.at` did not evaluate
            # them again.
            return None
        arrays.append(value)
    below_at_place, above_at_place, left, right = arrays
    slope_before = (below_at_place - left) / distance
    slope_after = (right - above_at_place) / distance
    is_continuous = below_at_place == above_at_place
    return _Kink(
        variable=x,
        place=place,
        value=below_at_place,
        before=slope_before,
        after=slope_after,
        is_continuous=is_continuous,
    )


def _kink_step(x: Interval, kink: _Kink) -> tuple[Line, Line]:
    """Return a line below and a line above a function of two straight parts.

    A convex function is below its chord and above its two parts. A concave function is above its
    chord and below its two parts. The lines are NaN where the function is not continuous.
    """
    _, place, value, before, after, is_continuous = kink
    is_after = x.low >= place
    is_before = x.high <= place
    is_straight = is_after | is_before
    # `low` and `high` are the values of the function at the ends of the interval. The terms with
    # `before` are 0 at or above the place, and the terms with `after` are 0 at or below it.
    low_before = before * (jnp.minimum(x.low, place) - place)
    low_after = after * jnp.maximum(x.low - place, 0)
    low = value + low_before + low_after
    high_before = before * jnp.minimum(x.high - place, 0)
    high_after = after * (jnp.maximum(x.high, place) - place)
    high = value + high_before + high_after
    width = x.high - x.low
    chord_slope = (high - low) / jnp.where(width > 0, width, 1)
    chord_slope = jnp.where(is_before, before, chord_slope)
    chord_slope = jnp.where(is_after, after, chord_slope)
    through_place = value - chord_slope * place
    through_low_end = low - chord_slope * x.low
    chord = chord_slope, jnp.where(is_straight, through_place, through_low_end)
    is_longer_after = x.high - place >= place - x.low
    longer_part = jnp.where(is_longer_after, after, before)
    part_slope = jnp.where(is_straight, chord_slope, longer_part)
    part = part_slope, value - part_slope * place
    is_convex = after >= before
    invalid = jnp.where(is_continuous, 0, jnp.nan)

    def select(if_convex: tuple[Array, Array], if_concave: tuple[Array, Array]) -> Line:
        """Return one of two lines, which are pairs of slope and constant."""
        convex_slope, convex_constant = if_convex
        concave_slope, concave_constant = if_concave
        slope = jnp.where(is_convex, convex_slope, concave_slope)
        constant = jnp.where(is_convex, convex_constant, concave_constant)
        return Line([slope + invalid], constant + invalid)

    below = select(part, chord)
    above = select(chord, part)
    return below, above


def _planes(x: Interval, y: Interval) -> tuple[Line, Line]:
    """Return a plane below and a plane above the product of two operands (McCormick 1976)."""
    below = Line((y.low, x.low), -x.low * y.low)
    above = Line((y.high, x.low), -x.low * y.high)
    return below, above


def _maximum(equation: Equation, x: Interval, out: Interval) -> BackwardStep:
    """Bound a maximum of several items, such as a reduction or a pooling.

    The lower bound is the operand's item whose lower end is highest. The upper bound is the upper
    end of `out`, the interval of the result.
    """
    # The gradient goes to the items that are equal to the maximum. The barrier keeps the compiler
    # from computing `low` twice with different rounding, after which no item might be equal to it.
    low = lax.optimization_barrier(lax.stop_gradient(x.low))
    _, pull_to_highest = jax.vjp(lambda operand: apply(equation, [operand])[0], low)
    # Windows may overlap, and then the gradients of several windows are added up. The factor 2
    # covers the rounding of these sums.
    slack = 2 * _FUNCTION_ULPS * epsilon(out.low) * out.size

    def pull_below(coefficients: Sequence[Array]) -> Sequence[Array]:
        (of_result,) = coefficients
        return pull_to_highest(of_result)

    def pull_above(coefficients: Sequence[Array]) -> Sequence[Array]:
        # The upper bound is a constant, so its coefficients for the operand are 0.
        return [jnp.zeros_like(low)]

    return BackwardStep(
        variables=equation.invars[:1],
        pulls=(pull_below, pull_above),
        low=[-slack],
        high=[out.high],
    )


Curve = Callable[[Array], Array]


def _tangent(curve: Curve, x: Array) -> tuple[Array, Array]:
    """Return slope and constant of the tangent of a curve at the point `x`."""
    value, slope = jax.jvp(curve, (x,), (jnp.ones_like(x),))
    return slope, value - slope * x


def _chord(curve: Curve, x: Interval) -> tuple[Array, Array]:
    """Return slope and constant of the line through the points of a curve at the ends of `x`."""
    width = x.high - x.low
    low = curve(x.low)
    slope = (curve(x.high) - low) / jnp.where(width > 0, width, 1)
    return slope, low - slope * x.low


def _convex(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below a convex curve and a line above it.

    The line below is the tangent in the middle of the interval, and the line above is the chord.
    """
    tangent_slope, tangent_constant = _tangent(curve, (x.low + x.high) / 2)
    chord_slope, chord_constant = _chord(curve, x)
    return Line([tangent_slope], tangent_constant), Line([chord_slope], chord_constant)


def _concave(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below a concave curve, the chord, and a line above the curve, a tangent."""
    tangent, chord = _convex(curve, x)
    return chord, tangent


def _reciprocal(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below and a line above a multiple of 1 / x, which is convex or concave.

    The lines are NaN where the interval contains 0.
    """
    tangent, chord = _convex(curve, x)
    is_convex = curve(x.low) >= 0
    contains_no_zero = x.low * x.high > 0
    invalid = jnp.where(contains_no_zero, 0, jnp.nan)

    def select(if_convex: Line, if_concave: Line) -> Line:
        slope = jnp.where(is_convex, if_convex.slopes[0], if_concave.slopes[0])
        constant = jnp.where(is_convex, if_convex.constant, if_concave.constant)
        return Line([slope], constant + invalid)

    return select(tangent, chord), select(chord, tangent)


def _sigmoidal(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below and a line above a sigmoid, in the interval `x`.

    A sigmoid is convex below 0 and concave above 0, and it is an odd function plus a constant.
    """
    slope_above, constant_above = _line_above(curve, x)
    above = Line([slope_above], constant_above)

    # If the curve is rotated by 180 degrees around the origin, a line below the curve becomes a
    # line above the rotated curve.
    def rotated_curve(t: Array) -> Array:
        return -curve(-t)

    rotated_x = Interval(-x.high, -x.low)
    slope_below, rotated_constant = _line_above(rotated_curve, rotated_x)
    below = Line([slope_below], -rotated_constant)
    return below, above


def _line_above(curve: Curve, x: Interval) -> tuple[Array, Array]:
    """Return slope and constant of a line above a sigmoid. The line is a chord or a tangent.

    If the interval is in the concave half, the tangent touches the curve in the middle of the
    interval. Otherwise the tangent passes through the curve's point at the lower end of the
    interval.
    """
    chord_slope, chord_constant = _chord(curve, x)
    point = _point_of_tangent(curve, x)
    is_concave = x.low >= 0
    middle = (x.low + x.high) / 2
    point = jnp.where(is_concave, middle, jnp.clip(point, 0, jnp.maximum(x.high, 0)))
    tangent_slope, _ = _tangent(curve, point)
    # `curve(place) - tangent_slope * place` is the constant of the line through the point of the
    # curve at `place`. With the largest of the three constants, the line is not below the curve at
    # any of the three points, even after rounding.
    constants = [curve(place) - tangent_slope * place for place in (x.low, point, x.high)]
    tangent_constant = reduce(jnp.maximum, constants)
    is_convex = x.high <= 0
    starts_convex = x.low < 0
    slope_at_end, _ = _tangent(curve, x.high)
    is_chord = is_convex | (starts_convex & (chord_slope <= slope_at_end))
    slope = jnp.where(is_chord, chord_slope, tangent_slope)
    constant = jnp.where(is_chord, chord_constant, tangent_constant)
    return slope, constant


def _point_of_tangent(curve: Curve, x: Interval) -> Array:
    """Return the point whose tangent to a sigmoid meets the curve at the interval's lower end."""

    def gap(point: Array, low: Array) -> Array:
        """Return the height of the curve above its tangent at `point`, measured at `low`."""
        tangent_slope, tangent_constant = _tangent(curve, point)
        return curve(low) - (tangent_slope * low + tangent_constant)

    def gap_at_lower_end(point: Array) -> Array:
        return gap(point, x.low)

    fixed = lax.stop_gradient(x)

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bracket
        middle = (left + right) / 2
        is_tangent_above = gap(middle, fixed.low) <= 0
        new_left = jnp.where(is_tangent_above, left, middle)
        new_right = jnp.where(is_tangent_above, middle, right)
        return new_left, new_right

    start = jnp.zeros_like(fixed.low), jnp.maximum(fixed.high, 0)
    _, point = lax.fori_loop(0, _HALVINGS, halve, start)
    # The bisection has no derivative. A Newton step that starts at the result of the bisection has
    # the derivative of the exact solution.
    slope_of_gap, _ = _tangent(gap_at_lower_end, point)
    fixed_slope = lax.stop_gradient(slope_of_gap)
    return point - gap_at_lower_end(point) / jnp.where(fixed_slope < -1e-12, fixed_slope, -jnp.inf)


_CURVES: dict[str, Callable[[Curve, Interval], tuple[Line, Line]]] = {
    **dict.fromkeys(("exp", "expm1", "square", "rsqrt"), _convex),
    **dict.fromkeys(("log", "log1p", "log2", "sqrt"), _concave),
    **dict.fromkeys(("logistic", "tanh", "erf", "atan"), _sigmoidal),
    "div": _reciprocal,
}
