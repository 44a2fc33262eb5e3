"""Bounds functions that are not affine by lines, between the ends of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.jaxprs import primitive
from nnef_jax.analysis.intervals import Interval, apply, epsilon, varies

_ULPS = 32  # of the functions that lines bound, and of the numbers of a line
_FEW = 4
_HALVINGS = 24

Pull = Callable[[Sequence[Array]], Sequence[Array]]


class Values(Protocol):
    """What is known of the variables of a function: see `linear_bounds.Walk`."""

    def read(self, v: Any) -> Any:
        """Return an array or interval."""
        ...

    def at(self, v: Any, given: Mapping[Any, Any]) -> Any:
        """Return a variable's value at given values of others."""
        ...

    def compared(self, equation: Any) -> tuple[Any, Any, int] | None:
        """Return a selection's variable, threshold, and case below, or None."""
        ...

    def is_affine_in(self, v: Any, x: Any) -> bool:
        """Tell whether it is affine in another."""
        ...


class BackwardStep(NamedTuple):
    """Bounds the results of an equation by affine functions of its operands.

    Args:
        variables: the operands that vary.
        pulls: the transposes of the linear functions below and above; one where they are equal.
        low: what is added to the function below, for each result.
        high: what is added to that above.
    """

    variables: Sequence[Any]
    pulls: Sequence[Pull]
    low: Sequence[Array]
    high: Sequence[Array]


class Line(NamedTuple):
    """The function of operands `slopes[0] * x + slopes[1] * y ... + constant`, by item."""

    slopes: Sequence[Array]
    constant: Array


def lines_of(
    walk: Values, equation: Any, operands: Sequence[Any], out: Interval
) -> BackwardStep | None:
    """Return lines that bound an equation that is not affine, or None where no rule has them."""
    name, places = primitive(equation), [i for i, x in enumerate(operands) if varies(x)]
    if not epsilon(out.low):
        return None
    if name in ("reduce_max", "reduce_window_max"):
        return _chosen(equation, operands, out)
    if (kink := _kink(walk, equation, operands)) is not None:
        variable, *numbers = kink
        x = walk.read(variable)
        return _step([variable], [x], *_bent(x, *numbers), out)
    found, xs = [equation.invars[i] for i in places], [operands[i] for i in places]
    if any(x.low.shape != out.low.shape for x in xs):
        return None
    if name == "mul":
        return _step(found, xs, *_planes(*xs), out)
    if name not in _CURVES or (name == "div" and places != [1]):
        return None

    def curve(x: Array) -> Array:
        given = {**dict(enumerate(operands)), places[0]: x}
        return apply(equation, [*given.values()])[0]

    return _step(found, xs, *_CURVES[name](curve, *xs), out, _ULPS)


def _step(
    variables: Sequence[Any],
    xs: Sequence[Interval],
    below: Line,
    above: Line,
    out: Interval,
    ulps: int = _FEW,
) -> BackwardStep:
    """Return lines as a step; where one is infinite, the interval instead."""

    def kept(line: Line, end: Array) -> tuple[Line, Array]:
        sizes = [jnp.abs(a) * x.size for a, x in zip(line.slopes, xs, strict=True)]
        error = ulps * epsilon(end) * (sum(sizes) + jnp.abs(line.constant))
        fits = jnp.isfinite(error)
        slopes = [jnp.where(fits, a, 0) for a in line.slopes]
        return Line(slopes, jnp.where(fits, line.constant, end)), jnp.where(fits, error, 0)

    def pull(line: Line) -> Pull:
        return lambda given: [a * given[0] for a in line.slopes]

    (below, under), (above, over) = kept(below, out.low), kept(above, out.high)
    pulls = pull(below), pull(above)
    return BackwardStep(variables, pulls, [below.constant - under], [above.constant + over])


def _kink(walk: Values, equation: Any, operands: Sequence[Any]) -> Any:
    """Return a function of two straight parts that meet at a place, or None.

    It is a variable, the place, the value there, both slopes, and whether there is no jump.
    """
    name, out = primitive(equation), equation.outvars[0].aval
    if name == "select_n":
        if not varies(operands[0]) or (found := walk.compared(equation)) is None:
            return None
        x, place, below = found
        under, over = equation.invars[1 + below], equation.invars[2 - below]
        if not all(walk.is_affine_in(v, x) for v in (under, over)):
            return None
        place = jnp.broadcast_to(place, out.shape)
        here, there = (walk.at(v, {x: place}) for v in (under, over))
        away = 1 + jnp.abs(place)
        before = (here - walk.at(under, {x: place - away})) / away
        slopes = before, (walk.at(over, {x: place + away}) - there) / away
        return x, place, here, *slopes, here == there
    bends = {"max": (0, 1), "min": (1, 0), "abs": (-1, 1)}
    found = [i for i, x in enumerate(operands) if varies(x)]
    if name not in bends or len(found) != 1 or operands[found[0]].low.shape != out.shape:
        return None
    place = operands[1 - found[0]] if name != "abs" else jnp.zeros((), out.dtype)
    value = place
    first, second = (jnp.full(out.shape, slope, out.dtype) for slope in bends[name])
    return equation.invars[found[0]], place, value, first, second, True


def _bent(
    x: Interval, place: Array, value: Array, before: Array, after: Array, fits: Any
) -> tuple[Line, Line]:
    """Bound a function of two lines: by its chord, and from the other side by one line."""
    left, right = x.low >= place, x.high <= place
    low = (
        value + before * (jnp.minimum(x.low, place) - place) + after * jnp.maximum(x.low - place, 0)
    )
    high = (
        value
        + before * jnp.minimum(x.high - place, 0)
        + after * (jnp.maximum(x.high, place) - place)
    )
    width = x.high - x.low
    slope = (high - low) / jnp.where(width > 0, width, 1)
    straight = left | right
    slope = jnp.where(left, after, jnp.where(right, before, slope))
    chord = jnp.where(straight, value - slope * place, low - slope * x.low)
    steep = jnp.where(straight, slope, jnp.where(x.high - place >= place - x.low, after, before))
    lines = (steep, value - steep * place), (slope, chord)
    rises, unknown = after >= before, jnp.where(fits, 0, jnp.nan)
    below = [jnp.where(rises, a, b) + unknown for a, b in zip(*lines, strict=True)]
    above = [jnp.where(rises, b, a) + unknown for a, b in zip(*lines, strict=True)]
    return Line(below[:1], below[1]), Line(above[:1], above[1])


def _planes(x: Interval, y: Interval) -> tuple[Line, Line]:
    """Bound a product of two operands (McCormick 1976)."""
    below = Line((y.low, x.low), -x.low * y.low)
    return below, Line((y.high, x.low), -x.low * y.high)


def _chosen(equation: Any, operands: Sequence[Any], out: Interval) -> BackwardStep:
    """Bound a maximum from below by the operand whose lower end is the highest."""
    # Computed once: a maximum that is rounded otherwise would be that of none.
    low = lax.optimization_barrier(lax.stop_gradient(operands[0].low))
    _, pull = jax.vjp(lambda x: apply(equation, [x])[0], low)
    slack = 2 * _ULPS * epsilon(out.low) * out.size  # windows overlap

    def below(given: Sequence[Array]) -> Sequence[Array]:
        return pull(given[0])

    def above(given: Sequence[Array]) -> Sequence[Array]:
        return [jnp.zeros_like(low)]

    return BackwardStep([equation.invars[0]], (below, above), [-slack], [out.high])


Curve = Callable[[Array], Array]


def _tangent(curve: Curve, x: Array) -> tuple[Array, Array]:
    value, slope = jax.jvp(curve, (x,), (jnp.ones_like(x),))
    return slope, value - slope * x


def _chord(curve: Curve, x: Interval) -> tuple[Array, Array]:
    width, low = x.high - x.low, curve(x.low)
    slope = (curve(x.high) - low) / jnp.where(width > 0, width, 1)
    return slope, low - slope * x.low


def _convex(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Bound by the tangent in the middle, and a chord."""
    (slope, constant), chord = _tangent(curve, (x.low + x.high) / 2), _chord(curve, x)
    return Line([slope], constant), Line([chord[0]], chord[1])


def _concave(curve: Curve, x: Interval) -> tuple[Line, Line]:
    below, above = _convex(curve, x)
    return above, below


def _reciprocal(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Bound a multiple of 1 / x where x keeps its sign."""
    lines, rises = _convex(curve, x), curve(x.low) >= 0
    unknown = jnp.where(x.low * x.high > 0, 0, jnp.nan)

    def chosen(one: Line, other: Line) -> Line:
        slope = jnp.where(rises, one.slopes[0], other.slopes[0])
        return Line([slope], jnp.where(rises, one.constant, other.constant) + unknown)

    return chosen(*lines), chosen(*lines[::-1])


def _sigmoidal(curve: Curve, x: Interval) -> tuple[Line, Line]:
    """Bound a sigmoid: convex below 0, concave above, and odd but for a constant."""
    slope, constant = _over(lambda t: -curve(-t), Interval(-x.high, -x.low))
    above = _over(curve, x)
    return Line([slope], -constant), Line([above[0]], above[1])


def _over(curve: Curve, x: Interval) -> tuple[Array, Array]:
    """Return the line above: the chord, or the tangent at a place that is above the lower end.

    That place is the middle where it is all concave, or where the tangent meets the lower end.
    """
    slope, constant = _chord(curve, x)

    def missing(place: Array, low: Array = x.low) -> Array:
        a, b = _tangent(curve, place)
        return curve(low) - (a * low + b)

    fixed = lax.stop_gradient(x)

    def halved(_: int, found: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = found
        middle = (low + high) / 2
        fits = missing(middle, fixed.low) <= 0
        return jnp.where(fits, low, middle), jnp.where(fits, middle, high)

    start = jnp.zeros_like(fixed.low), jnp.maximum(fixed.high, 0)
    place = lax.fori_loop(0, _HALVINGS, halved, start)[1]
    # One step of Newton's method has the derivative of where it is.
    change = lax.stop_gradient(_tangent(missing, place)[0])
    place = place - missing(place) / jnp.where(change < -1e-12, change, -jnp.inf)
    place = jnp.where(x.low >= 0, (x.low + x.high) / 2, jnp.clip(place, 0, jnp.maximum(x.high, 0)))
    touching, _ = _tangent(curve, place)
    places = (x.low, place, x.high)
    above = reduce(jnp.maximum, [curve(t) - touching * t for t in places])
    is_chord = (x.high <= 0) | ((x.low < 0) & (slope <= _tangent(curve, x.high)[0]))
    return jnp.where(is_chord, slope, touching), jnp.where(is_chord, constant, above)


_CURVES: dict[str, Callable[[Curve, Interval], tuple[Line, Line]]] = {
    **dict.fromkeys(("exp", "expm1", "square", "rsqrt"), _convex),
    **dict.fromkeys(("log", "log1p", "log2", "sqrt"), _concave),
    **dict.fromkeys(("logistic", "tanh", "erf", "atan"), _sigmoidal),
    "div": _reciprocal,
}
