"""Computes bounds of the results of jax's primitives by interval arithmetic.

Ends are moved outwards by what rounding may take: the interval holds the exact result, and what
32 bits make of it in whatever order they sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import jaxprs
from lowering.facts import facts
from lowering.jaxprs import primitive


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Interval:
    """A tensor of which each item is between two ends; what is known is an array instead."""

    low: Array
    high: Array

    @property
    def size(self) -> Array:
        """Return how far from 0 each item may be."""
        return jnp.maximum(jnp.abs(self.low), jnp.abs(self.high))

    def within(self, other: Interval) -> Interval:
        """Return the intersection with another interval."""
        return Interval(jnp.maximum(self.low, other.low), jnp.minimum(self.high, other.high))


class NoBounds(Exception):
    """No rule bounds what an equation computes."""

    def __init__(self, equation: Any = None) -> None:
        super().__init__("no rule bounds it")
        self.equation = equation


def ends(x: Any) -> tuple[Any, Any]:
    """Return both ends, of a known array the array."""
    return (x.low, x.high) if isinstance(x, Interval) else (x, x)


def interval(x: Any) -> Interval:
    """Return a known array as an interval too."""
    return Interval(*map(jnp.asarray, ends(x)))


def size(x: Any) -> Any:
    """Return how far from 0 each item may be."""
    return interval(x).size


def varies(x: Any) -> bool:
    """Tell whether a value is an interval, not a known array."""
    return isinstance(x, Interval)


def apply(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the results of an equation for arrays, products being exact in 32 bits.

    What stops a gradient, or notes something, is the identity: bounds have derivatives.
    """
    name, highest = primitive(equation), lax.Precision.HIGHEST
    if name in ("stop_gradient", "levels", "optimization_barrier"):
        return list(operands[: len(equation.outvars)])
    if name in (jaxprs.PRODUCT, jaxprs.CONVOLUTION):
        return jaxprs.bind(equation, operands, precision=(highest, highest))
    return jaxprs.bind(equation, operands)


def epsilon(x: Any) -> float:
    """Return the step from 1 to the next number: twice what rounding may take."""
    return float(jnp.finfo(x.dtype).eps) if jnp.issubdtype(x.dtype, jnp.floating) else 0.0


def widened(x: Interval, error: Any) -> Interval:
    """Return an interval with its ends moved outwards; what is no number is unbounded."""
    if not epsilon(x.low):
        return x
    error = error + jnp.finfo(x.low.dtype).tiny  # smaller numbers may be taken for 0
    low, high = x.low - error, x.high + error
    return Interval(
        jnp.where(jnp.isnan(low), -jnp.inf, low), jnp.where(jnp.isnan(high), jnp.inf, high)
    )


# How the result follows each operand, 1 for rising and -1 for falling: without rounding, with that
# of one operation, and with that of a function.
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
_ULPS = 16  # that a function may be beside its value
_SUMS = {"reduce_sum", "cumsum", "reduce_window_sum", "scatter-add"}
_PRODUCTS = {jaxprs.PRODUCT, jaxprs.CONVOLUTION}


def is_affine(equation: Any, operands: Sequence[Any]) -> bool:
    """Tell whether an equation is linear in the operands that vary, but for a constant."""
    name, found = primitive(equation), [i for i, x in enumerate(operands) if varies(x)]
    if not epsilon(equation.outvars[0].aval) or not all(epsilon(operands[i].low) for i in found):
        return False
    if name == "mul" or name in _PRODUCTS:
        return len(found) == 1
    if name == "div":
        return found == [0]
    sums = name in ("add", "add_any", "sub", "neg", "levels") or name in _SUMS
    return (sums or facts(equation).moves) and not _has_indices(equation, found)


def _indices(name: str) -> range:
    """Return the positions of operands that choose or index, which must be known."""
    first, last = {
        "gather": (1, 2), "scatter": (1, 2), "scatter-add": (1, 2), "select_n": (0, 1),
        "dynamic_slice": (1, 99), "dynamic_update_slice": (2, 99),
    }.get(name, (0, 0))  # fmt: skip
    return range(first, last)


def _has_indices(equation: Any, varying: Sequence[int]) -> bool:
    return not set(varying).isdisjoint(_indices(primitive(equation)))


def terms(equation: Any) -> tuple[int, int]:
    """Return of how many products an item of the result is the sum, and one of the transposed."""
    name, params = primitive(equation), equation.params
    sizes = [math.prod(v.aval.shape) for v in (*equation.invars, equation.outvars[0])]
    first, result = max(1, sizes[0]), max(1, sizes[-1])
    if name == jaxprs.PRODUCT:
        ((axes, _), (batch, _)), shape = params["dimension_numbers"], equation.invars[0].aval.shape
        count = math.prod(shape[i] for i in axes)
        kept = math.prod(shape[i] for i in batch) * count
        return count, max(sizes[0], sizes[1]) // max(1, kept)
    if name == jaxprs.CONVOLUTION:
        out, inputs, *_ = params["dimension_numbers"].rhs_spec
        filters = equation.invars[1].aval.shape
        return sizes[1] // max(1, filters[out]), sizes[1] // max(1, filters[inputs])
    if name in ("reduce_window_sum", "reduce_sum", "cumsum", "scatter-add"):
        window = params.get("window_dimensions")
        count = math.prod(window) if window else max(first, sizes[-2])
        return count, count
    return 1, result if name in ("gather", "tile") else max(1, result // first)


def magnitude(equation: Any, operands: Sequence[Any]) -> Any:
    """Return the sum of the sizes of all that an affine equation adds up, by item."""
    name = primitive(equation)
    sizes = [x if i in _indices(name) else size(x) for i, x in enumerate(operands)]
    if name in ("add", "add_any", "sub"):
        return sizes[0] + sizes[1]
    return sizes[0] if name == "neg" else apply(equation, sizes)[0]


def bounded(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Return the intervals of an equation's results. Raises NoBounds where no rule has them."""
    name, found = primitive(equation), [i for i, x in enumerate(operands) if varies(x)]
    if name in _RULES:
        return [_RULES[name](equation, *operands)]
    if _has_indices(equation, found):
        raise NoBounds
    if name == "top_k":
        values, _ = _between(equation, operands, (1,))
        places = jnp.zeros_like(jaxprs.bind(equation, [operands[0].low])[1])
        last = operands[0].low.shape[equation.params["axis"]] - 1
        return [values, Interval(places, places + max(0, last))]
    if name in _SUMS:
        (result,) = _between(equation, operands, (1, 1, 1))
        share = (terms(equation)[0] + 4) * epsilon(result.low)
        return [widened(result, share * magnitude(equation, operands) if share else 0)]
    if name in _ROUNDED or name in _FUNCTIONS:
        (result,) = _between(equation, operands, {**_ROUNDED, **_FUNCTIONS}[name])
        ulps = 2 if name in _ROUNDED else _ULPS
        result = widened(result, ulps * epsilon(result.low) * result.size)
        if name in _POSITIVE:
            return [Interval(jnp.maximum(result.low, 0), result.high)]
        return [result]
    is_bool = all(v.aval.dtype == bool for v in equation.invars)
    if name == "not" and is_bool:
        return _between(equation, operands, (-1,))
    if name in _SIGNS and (name != "sort" or len(operands) == 1):
        return _between(equation, operands, _SIGNS[name])
    if name == "levels" or (name in ("and", "or") and is_bool) or facts(equation).moves:
        return _between(equation, operands, (1,) * len(operands))
    raise NoBounds


def _between(equation: Any, operands: Sequence[Any], signs: Sequence[int]) -> list[Any]:
    """Bound a function that rises or falls with each operand."""
    pairs = [ends(x)[::sign] for x, sign in zip(operands, signs, strict=False)]
    lows, highs = (apply(equation, side) for side in zip(*pairs, strict=True))
    return [Interval(*pair) for pair in zip(lows, highs, strict=True)]


def _hull(values: Sequence[Any]) -> Interval:
    """Return the least interval that holds all of some values; a NaN makes it unbounded."""
    low, high = values[0], values[0]
    for x in values[1:]:
        low, high = jnp.minimum(low, x), jnp.maximum(high, x)
    return Interval(low, high)


def _corners(equation: Any, x: Any, y: Any) -> Interval:
    pairs = [(a, b) for a in ends(x)[: 1 + varies(x)] for b in ends(y)[: 1 + varies(y)]]
    result = _hull([apply(equation, pair)[0] for pair in pairs])
    return widened(result, 2 * epsilon(result.low) * result.size)


def _mul(equation: Any, x: Any, y: Any) -> Interval:
    if varies(x) and equation.invars[0] is equation.invars[1]:
        return _valley(lambda x: x * x, x)
    return _corners(equation, x, y)


def _div(equation: Any, x: Any, y: Any) -> Interval:
    return _where_known(ends(y)[0] * ends(y)[1] > 0, _corners(equation, x, y))


def related(equation: Any, x: Interval, y: Interval, result: Interval) -> Interval:
    """Bound a part of a softmax: items less their maximum, or shares of their sum."""
    if primitive(equation) == "sub":
        return Interval(result.low, jnp.minimum(result.high, 0))
    error = (terms(equation)[0] + 8) * epsilon(y.low) * y.size
    fewest = jnp.maximum(y.low - x.low - error, 0)
    most = jnp.maximum(y.high - x.high + error, 0)
    share = Interval(x.low / (x.low + most), x.high / (x.high + fewest))
    share = widened(share, 4 * epsilon(y.low)).within(Interval(*map(jnp.asarray, (0.0, 1.0))))
    positive = x.low >= 0
    return Interval(
        jnp.where(positive, jnp.maximum(result.low, share.low), result.low),
        jnp.where(positive, jnp.minimum(result.high, share.high), result.high),
    )


def _where_known(known: Any, x: Interval) -> Interval:
    return Interval(jnp.where(known, x.low, -jnp.inf), jnp.where(known, x.high, jnp.inf))


def _product(equation: Any, x: Any, y: Any) -> Interval:
    """Bound a product by centres and radii, as Gowal et al. (2018) do."""

    def parts(x: Any) -> tuple[Any, Any]:
        if not varies(x):
            return x, None
        return (x.low + x.high) / 2, (x.high - x.low) / 2

    def times(x: Any, y: Any) -> Any:
        return apply(equation, [x, y])[0]

    (a, p), (b, q) = parts(x), parts(y)
    result = equation.outvars[0].aval
    if not epsilon(result):
        raise NoBounds
    share, centre = (terms(equation)[0] + 4) * epsilon(result), times(a, b)
    if q is None:
        radius = times(p + share * (jnp.abs(a) + p), jnp.abs(b))
    elif p is None:
        radius = times(jnp.abs(a), q + share * (jnp.abs(b) + q))
    else:  # a q + p b + p q, and what rounding may take of all
        radius = times(jnp.abs(a), q) + times(p, jnp.abs(b) + q)
        radius = radius + share * times(jnp.abs(a) + p, jnp.abs(b) + q)
    return widened(Interval(centre - radius, centre + radius), 0)


def _valley(function: Callable[[Any], Any], x: Interval) -> Interval:
    """Bound a function that falls to its value at 0, and rises from there on."""
    result = _hull([function(x.low), function(x.high)])
    low = jnp.where((x.low < 0) & (x.high > 0), function(jnp.zeros_like(x.low)), result.low)
    result = Interval(low, result.high)
    return widened(result, _ULPS * epsilon(low) * result.size)


def _valley_rule(equation: Any, x: Interval) -> Interval:
    return _valley(lambda x: apply(equation, [x])[0], x)


def _integer_pow(equation: Any, x: Interval) -> Interval:
    exponent = equation.params["y"]
    if exponent > 0 and exponent % 2 == 0:
        return _valley_rule(equation, x)
    result = _hull([apply(equation, [end])[0] for end in ends(x)])
    result = widened(result, _ULPS * epsilon(result.low) * result.size)
    return result if exponent > 0 else _where_known(x.low * x.high > 0, result)


def _pow(equation: Any, x: Any, y: Any) -> Interval:
    result = _corners(equation, x, y)
    result = widened(result, _ULPS * epsilon(result.low) * result.size)
    return _where_known((ends(x)[0] > 0) | ((ends(x)[0] >= 0) & (ends(y)[0] > 0)), result)


def _waves(shift: float) -> Callable[..., Interval]:
    """Return the rule of a cosine, shifted to the right."""

    def rule(equation: Any, x: Interval) -> Interval:
        def passes(offset: float) -> Any:
            """Tell whether the interval has a place where the cosine is at this angle."""
            near = _ULPS * epsilon(x.low) * (1 + x.size)
            first = jnp.ceil((x.low - near - shift - offset) / (2 * np.pi)) * (2 * np.pi)
            return first + shift + offset <= x.high + near

        result = _hull([apply(equation, [end])[0] for end in ends(x)])
        low = jnp.where(passes(np.pi), -1, result.low)
        result = Interval(low, jnp.where(passes(0), 1, result.high))
        return widened(result, _ULPS * epsilon(low))

    return rule


def _tan(equation: Any, x: Interval) -> Interval:
    near = _ULPS * epsilon(x.low) * (1 + x.size)
    turns = [jnp.floor((end + np.pi / 2) / np.pi) for end in (x.low - near, x.high + near)]
    (result,) = _between(equation, [x], (1,))
    slopes = jnp.square(result.size) + 1
    return _where_known(turns[0] == turns[1], widened(result, near * slopes))


def _rem(_: Any, x: Any, y: Any) -> Interval:
    (low, high), limit = ends(x), size(y)
    zero = jnp.zeros_like(low)
    low = jnp.where(low < 0, -jnp.minimum(limit, -low), zero)
    return Interval(low, jnp.where(high > 0, jnp.minimum(limit, high), zero))


def _equal(equation: Any, x: Any, y: Any) -> Interval:
    (a, b), (c, d) = ends(x), ends(y)
    if equation.invars[0] is equation.invars[1]:
        same = jnp.ones(equation.outvars[0].aval.shape, bool)
        possible, certain = same, same
    else:
        possible, certain = (a <= d) & (c <= b), (a == b) & (c == d) & (a == c)
    if primitive(equation) == "ne":
        possible, certain = ~certain, ~possible
    return Interval(certain, possible)


def _position(equation: Any, x: Interval) -> Interval:
    result, axes = equation.outvars[0].aval, equation.params["axes"]
    count = math.prod(x.low.shape[axis] for axis in axes)
    zero = jnp.zeros(result.shape, result.dtype)
    return Interval(zero, zero + max(0, count - 1))


def _finite(equation: Any, _: Any) -> Interval:
    return interval(jnp.ones(equation.outvars[0].aval.shape, bool))


def _running_product(x: Interval, axis: int, reverse: bool = False) -> Interval:
    def times(x: Interval, y: Interval) -> Interval:
        result = _hull([a * b for a in ends(x) for b in ends(y)])
        return widened(result, 2 * epsilon(result.low) * result.size)

    return lax.associative_scan(times, x, axis=axis, reverse=reverse)


def _cumprod(equation: Any, x: Interval) -> Interval:
    return _running_product(x, equation.params["axis"], equation.params["reverse"])


def _reduce_prod(equation: Any, x: Interval) -> Interval:
    axes, shape = equation.params["axes"], equation.outvars[0].aval.shape

    def last(end: Array) -> Array:
        moved = jnp.moveaxis(end, axes, range(-len(axes), 0))
        return moved.reshape(*shape, math.prod(end.shape[axis] for axis in axes))

    flat = Interval(last(x.low), last(x.high))
    if not flat.low.shape[-1] or not axes:
        return interval(apply(equation, [x.low])[0]) if axes else x
    found = _running_product(flat, len(shape))
    return Interval(found.low[..., -1], found.high[..., -1])


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
