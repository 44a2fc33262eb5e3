"""Finds lines below and above curves: convex functions, concave functions, and sigmoids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from nnef_jax.analysis.intervals import Interval

_HALVINGS = 24  # A bisection halves its interval this many times.


class Line(NamedTuple):
    """The elementwise function slopes[0] * x + slopes[1] * y + ... + constant of operands x, y."""

    slopes: Sequence[Array]
    constant: Array


Curve = Callable[[Array], Array]


def _tangent(curve: Curve, x: Array) -> tuple[Array, Array]:
    """Return slope and constant of the tangent of a curve at the point `x`."""
    value, slope = jax.jvp(curve, (x,), (jnp.ones_like(x),))
    return slope, value - slope * x


def _chord(curve: Curve, x: Interval) -> tuple[Array, Array]:
    """Return slope and constant of the chord of a curve.

    The chord is the line through the curve's points at the two ends of `x`.
    """
    width = x.high - x.low
    low = curve(x.low)
    slope = (curve(x.high) - low) / jnp.where(width > 0, width, 1)
    return slope, low - slope * x.low


def _convex(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below a convex curve, and a line above the curve.

    The line below is the tangent in the middle of the interval, and the line above is the chord.
    """
    tangent_slope, tangent_constant = _tangent(curve, (x.low + x.high) / 2)
    chord_slope, chord_constant = _chord(curve, x)
    return Line([tangent_slope], tangent_constant), Line([chord_slope], chord_constant)


def _concave(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below and a line above a concave curve: the chord and a tangent."""
    tangent, chord = _convex(curve, x)
    return chord, tangent


def _reciprocal(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Return a line below and a line above a multiple of 1 / x.

    The curve is convex or concave on each side of 0. The lines are NaN where the interval
    contains 0.
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

    A sigmoid here is a rising curve such as the logistic function or tanh. It is convex below 0 and
    concave above 0, and it is an odd function plus a constant.
    """
    slope_above, constant_above = _line_above(curve, x)
    above = Line([slope_above], constant_above)

    # A rotation by 180 degrees around the origin turns a line below the curve into a line above the
    # rotated curve.
    def rotated_curve(t: Array) -> Array:
        return -curve(-t)

    rotated_x = Interval(-x.high, -x.low)
    slope_below, rotated_constant = _line_above(rotated_curve, rotated_x)
    below = Line([slope_below], -rotated_constant)
    return below, above


def _line_above(curve: Curve, x: Interval) -> tuple[Array, Array]:
    """Return slope and constant of a line above a sigmoid. The line is a chord or a tangent.

    If the interval is in the concave half, where x is above 0, the tangent touches the curve in the
    middle of the interval. If the interval begins below 0, the tangent also passes through the
    curve's point at the lower end of the interval.
    """
    is_concave = x.low >= 0
    middle = (x.low + x.high) / 2
    tangent_point = jnp.clip(_point_of_tangent(curve, x), 0, jnp.maximum(x.high, 0))
    point = jnp.where(is_concave, middle, tangent_point)
    tangent_slope, _ = _tangent(curve, point)
    # Three lines have the slope of the tangent. Each meets the curve at one of three places, and
    # has the constant curve(place) - tangent_slope * place. The line with the largest constant is
    # not below the curve at any of the three places, even after rounding.
    constants = [curve(place) - tangent_slope * place for place in (x.low, point, x.high)]
    tangent_constant = reduce(jnp.maximum, constants)
    # The chord is above a convex curve. It is also above a curve that is convex only at first, if
    # the curve's slope at the upper end of x is larger than the chord's slope.
    chord_slope, chord_constant = _chord(curve, x)
    is_convex = x.high <= 0
    starts_convex = x.low < 0
    slope_at_end, _ = _tangent(curve, x.high)
    is_chord = is_convex | (starts_convex & (chord_slope <= slope_at_end))
    slope = jnp.where(is_chord, chord_slope, tangent_slope)
    constant = jnp.where(is_chord, chord_constant, tangent_constant)
    return slope, constant


def _point_of_tangent(curve: Curve, x: Interval) -> Array:
    """Return the point at which a tangent touches a sigmoid.

    The tangent also meets the curve at the lower end of the interval.
    """

    def gap(point: Array, low: Array) -> Array:
        """Return the curve's height at `low` above the tangent that touches it at `point`."""
        tangent_slope, tangent_constant = _tangent(curve, point)
        return curve(low) - (tangent_slope * low + tangent_constant)

    def gap_at_lower_end(point: Array) -> Array:
        return gap(point, x.low)

    fixed = lax.stop_gradient(x)  # The bisection is not differentiated.

    def halve(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        """Halve the interval `bracket`, which contains the point of the tangent."""
        left, right = bracket
        middle = (left + right) / 2
        is_tangent_above = gap(middle, fixed.low) <= 0
        new_left = jnp.where(is_tangent_above, left, middle)
        new_right = jnp.where(is_tangent_above, middle, right)
        return new_left, new_right

    bracket = (jnp.zeros_like(fixed.low), jnp.maximum(fixed.high, 0))
    _left, point = lax.fori_loop(0, _HALVINGS, halve, bracket)
    # One step of Newton's method follows the bisection. With this step, jax computes the derivative
    # of the exact solution. If the slope is about 0, the step has the length 0.
    slope_of_gap, _ = _tangent(gap_at_lower_end, point)
    fixed_slope = lax.stop_gradient(slope_of_gap)
    divisor = jnp.where(fixed_slope < -1e-12, fixed_slope, -jnp.inf)
    return point - gap_at_lower_end(point) / divisor


CURVES: dict[str, Callable[[Curve, Interval], tuple[Line, Line]]] = {
    **dict.fromkeys(("exp", "expm1", "square", "rsqrt"), _convex),
    **dict.fromkeys(("log", "log1p", "log2", "sqrt"), _concave),
    **dict.fromkeys(("logistic", "tanh", "erf", "atan"), _sigmoidal),
    "div": _reciprocal,
}
