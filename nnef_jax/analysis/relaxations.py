"""Finds affine bounds of nonlinear functions. They hold between the ends of the operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.jaxprs import Atom, Equation, primitive
from nnef_jax.analysis.curve_lines import CURVES, Line
from nnef_jax.analysis.intervals import Bounded, Interval, apply, ends, epsilon, interval, varies

# A line that bounds a library function has a rounding error of at most 32 epsilons.
_FUNCTION_ULPS = 32
_FEW_ULPS = 4  # A line that bounds any other function has a rounding error of at most 4 epsilons.

Pull = Callable[[Sequence[Array]], Sequence[Array]]


class Values(Protocol):
    """The values of the variables of a traced function, as `linear_bounds.Walk` computes them."""

    def read(self, variable: Atom) -> Bounded:
        """Return the array or interval of a variable or a literal."""
        ...

    def at(self, variable: Atom, values: Mapping[Atom, Bounded]) -> Bounded:
        """Return the value of `variable` after other variables get the values in `values`."""
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
        x: the variable that is compared.
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
        pulls: the transpose of the lower function's linear part, and the transpose of the upper
            function's linear part. If both linear parts are equal, there is a single transpose.
        low: the constant of the lower function, for each result.
        high: the constant of the upper function, for each result.
    """

    variables: Sequence[Atom]
    pulls: Sequence[Pull]
    low: Sequence[Array]
    high: Sequence[Array]


def lines_of(
    walk: Values, equation: Equation, operands: Sequence[Bounded], out: Interval
) -> BackwardStep | None:
    """Return lines that bound a nonlinear equation, or None if there is no rule.

    Args:
        walk: the values of all variables of the function to which the equation belongs.
        equation: the equation, which has a single result.
        operands: the operands of the equation.
        out: the interval of the result.
    """
    name = primitive(equation)
    varying = {position: x for position, x in enumerate(operands) if varies(x)}
    is_float = epsilon(out.low) > 0
    if not is_float:
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
    # A line takes item i of each operand to item i of the result. Operands that are broadcast have
    # no lines.
    if any(x.low.shape != out.low.shape for x in intervals):
        return None
    if name == "mul":
        below, above = _planes(*intervals)
        return _step(variables, intervals, below, above, out)
    if name not in CURVES:
        return None
    varies_only_in_denominator = list(varying) == [1]
    if name == "div" and not varies_only_in_denominator:
        return None  # A quotient of two intervals is no curve of one operand.

    def curve(array: Array) -> Array:
        """Return the result of the equation. `array` replaces the operand that is an interval."""
        values = list(operands)
        for position in varying:
            values[position] = array
        (result,) = apply(equation, values)
        return result

    below, above = CURVES[name](curve, *intervals)
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
        variables: the operands that are intervals.
        operands: the intervals of these operands.
        below: the line below the result.
        above: the line above the result.
        out: the interval of the result. One of its ends replaces a line that is not finite.
        ulps: the rounding error, in epsilons. The line below is moved down, and the line above is
            moved up, by this error.
    """

    def made_finite(line: Line, end: Array) -> tuple[Line, Array]:
        """Return a finite line, and its rounding error.

        Where the line is not finite, the constant `end` replaces the line. The rounding error of
        the constant is 0.
        """
        terms = [
            jnp.abs(slope) * x.magnitude for slope, x in zip(line.slopes, operands, strict=True)
        ]
        error = ulps * epsilon(end) * (sum(terms) + jnp.abs(line.constant))
        is_finite = jnp.isfinite(error)
        slopes = [jnp.where(is_finite, slope, 0) for slope in line.slopes]
        constant = jnp.where(is_finite, line.constant, end)
        return Line(slopes, constant), jnp.where(is_finite, error, 0)

    def transpose(line: Line) -> Pull:
        """Return a function that maps coefficients of the result to those of the operands."""

        def pull(coefficients: Sequence[Array]) -> Sequence[Array]:
            (of_result,) = coefficients
            return [slope * of_result for slope in line.slopes]

        return pull

    finite_below, error_below = made_finite(below, out.low)
    finite_above, error_above = made_finite(above, out.high)
    low = finite_below.constant - error_below
    high = finite_above.constant + error_above
    pulls = transpose(finite_below), transpose(finite_above)
    return BackwardStep(variables, pulls, low=[low], high=[high])


class _Kink(NamedTuple):
    """An elementwise function of two straight parts, such as max(x, 0).

    Args:
        variable: the operand.
        place: the value of the operand where the parts meet, such as 0.
        value: the value of the function at this place.
        slope_before: the slope for operands below the place.
        slope_after: the slope for operands above the place.
        is_continuous: whether both parts have the same value at the place.
    """

    variable: Atom
    place: Array
    value: Array
    slope_before: Array
    slope_after: Array
    is_continuous: Array | bool

    def value_at(self, x: Array) -> Array:
        """Return the value of the function at `x`. The function must be continuous."""
        change_before = self.slope_before * jnp.minimum(x - self.place, 0)
        change_after = self.slope_after * jnp.maximum(x - self.place, 0)
        return self.value + change_before + change_after


def _kink(walk: Values, equation: Equation, operands: Sequence[Bounded]) -> _Kink | None:
    """Return the two straight parts of a function such as max(x, 0); None for other equations."""
    name = primitive(equation)
    out = equation.outvars[0].aval
    if name == "select_n":
        return _selection_kink(walk, equation) if varies(operands[0]) else None
    # The values are the slopes below the kink and above the kink.
    slopes_by_name = {"max": (0, 1), "min": (1, 0), "abs": (-1, 1)}
    varying = [position for position, x in enumerate(operands) if varies(x)]
    if name not in slopes_by_name or len(varying) != 1:
        return None
    (position,) = varying
    if interval(operands[position]).low.shape != out.shape:
        return None
    place = jnp.zeros((), out.dtype)
    if name != "abs":
        # The two parts of max(x, c) or min(x, c) meet at x = c. The operand c is an array, and each
        # of its ends is the array.
        place, _ = ends(operands[1 - position])
    before, after = slopes_by_name[name]
    # The value at the kink is the same number as the place: max(x, c) and min(x, c) are c at x = c,
    # and |x| is 0 at x = 0.
    return _Kink(
        variable=equation.invars[position],
        place=place,
        value=place,
        slope_before=jnp.full(out.shape, before, out.dtype),
        slope_after=jnp.full(out.shape, after, out.dtype),
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
    # The slope of a case is computed from its values at two points. One point is the place, and the
    # other point is at a distance from the place, on the side where the case is selected.
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
            # `walk.at` did not evaluate the case for an array x, because there are too many
            # equations between x and the case.
            return None
        arrays.append(value)
    below_at_place, above_at_place, left, right = arrays
    return _Kink(
        variable=x,
        place=place,
        value=below_at_place,
        slope_before=(below_at_place - left) / distance,
        slope_after=(right - above_at_place) / distance,
        is_continuous=below_at_place == above_at_place,
    )


def _kink_step(x: Interval, kink: _Kink) -> tuple[Line, Line]:
    """Return a line below and a line above a function of two straight parts.

    A convex function is below its chord, and above the lines through its two parts. Of these two
    lines, the result has the line through the longer part. For example, max(x, 0) in the interval
    from -1 to 3 is above y = x, its longer part, and below its chord y = 0.75 x + 0.75. A concave
    function is above its chord, and below the lines through its two parts. The lines are NaN where
    the function is not continuous.
    """
    place = kink.place
    is_after = x.low >= place
    is_before = x.high <= place
    # If the kink is outside the interval, the function is straight in the interval. The chord is
    # then the line of one part, which passes through the kink.
    is_straight = is_after | is_before
    low = kink.value_at(x.low)
    high = kink.value_at(x.high)
    width = x.high - x.low
    chord_slope = (high - low) / jnp.where(width > 0, width, 1)
    chord_slope = jnp.where(is_before, kink.slope_before, chord_slope)
    chord_slope = jnp.where(is_after, kink.slope_after, chord_slope)
    through_kink = kink.value - chord_slope * place
    through_low_end = low - chord_slope * x.low
    chord = (chord_slope, jnp.where(is_straight, through_kink, through_low_end))
    is_longer_after = x.high - place >= place - x.low
    longer_slope = jnp.where(is_longer_after, kink.slope_after, kink.slope_before)
    part_slope = jnp.where(is_straight, chord_slope, longer_slope)
    part = (part_slope, kink.value - part_slope * place)
    is_convex = kink.slope_after >= kink.slope_before
    invalid = jnp.where(kink.is_continuous, 0, jnp.nan)

    def select(if_convex: tuple[Array, Array], if_concave: tuple[Array, Array]) -> Line:
        """Return one of two lines for each item. A line is a pair of slope and constant."""
        convex_slope, convex_constant = if_convex
        concave_slope, concave_constant = if_concave
        slope = jnp.where(is_convex, convex_slope, concave_slope)
        constant = jnp.where(is_convex, convex_constant, concave_constant)
        return Line([slope + invalid], constant + invalid)

    below = select(part, chord)
    above = select(chord, part)
    return below, above


def _planes(x: Interval, y: Interval) -> tuple[Line, Line]:
    """Return a plane below and a plane above the product of two operands (McCormick 1976).

    Let a be the lower end of x, and c the lower end of y. Since (x - a) (y - c) >= 0, the plane
    below is x y >= c x + a y - a c.
    """
    below = Line((y.low, x.low), -x.low * y.low)
    above = Line((y.high, x.low), -x.low * y.high)
    return below, above


def _maximum(equation: Equation, x: Interval, out: Interval) -> BackwardStep:
    """Return bounds of a maximum of several items, such as a reduction or a pooling.

    The lower bound of a maximum is one of its items: the item whose lower end is highest. The upper
    bound is a constant, the upper end of `out`, which is the interval of the result.
    """
    # The gradient of a maximum goes to the items that are equal to the maximum. Without the
    # barrier, the compiler might compute `low` twice with different rounding. Then no item might be
    # equal to the maximum.
    low = lax.optimization_barrier(lax.stop_gradient(x.low))
    _, pull_to_highest = jax.vjp(lambda operand: apply(equation, [operand])[0], low)
    # If windows overlap, the gradients of several windows are added up. The factor 2 covers the
    # rounding errors of these sums.
    slack = 2 * _FUNCTION_ULPS * epsilon(out.low) * out.magnitude

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
