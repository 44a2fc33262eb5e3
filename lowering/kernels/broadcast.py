"""Broadcasts from the left: a shape that is too short is continued by 1s (spec 4.2.2).

Maxima and minima with a number have one array as their derivative, not two.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.errors import InvalidShape
from lowering.extents import Shape, common, is_static, show


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the common shape; raise InvalidShape where two extents differ and neither is 1."""
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    made: list[int] = []
    for axis, extents in enumerate(zip_longest(*shapes, fillvalue=1)):
        made.append(1)
        for extent in extents:
            both = common(made[axis], extent)
            if both is None:
                one_rank = len({len(s) for s in shapes if s}) == 1
                raise InvalidShape(
                    f"shapes {' and '.join(map(show, shapes))} do not broadcast: "
                    f"extents {made[axis]} and {extent} at axis {axis}",
                    hint="along each axis extents must be equal, or 1"
                    if one_rank
                    else "shapes are matched from the left, a shorter one is continued by 1s: "
                    "a value for each channel has shape [1,C]",
                )
            made[axis] = both
    return tuple(made)


def align(*arrays: Any) -> tuple[Any, ...]:
    """Add trailing 1s up to the largest rank, for numpy's rules; Python numbers stay."""
    rank = max((np.ndim(x) for x in arrays), default=0)
    return tuple(expand(x, rank) for x in arrays)


def expand(x: Any, rank: int) -> Any:
    """Add trailing 1s up to this rank."""
    if isinstance(x, (bool, int, float)) or x.ndim == rank:
        return x
    return x.reshape(x.shape + (1,) * (rank - x.ndim))


def maximum(x: Any, y: Any) -> Array:
    """Return the greater of both; where they are equal each has half the derivative."""
    return _extreme(jnp.maximum, x, y)


def minimum(x: Any, y: Any) -> Array:
    """Return the smaller of both; where they are equal each has half the derivative."""
    return _extreme(jnp.minimum, x, y)


def _extreme(compute: Callable[..., Array], x: Any, y: Any) -> Array:
    for a, b in ((x, y), (y, x)):
        if (bound := _number(a, b)) is not None:
            return _bounded(a, (compute, bound))
    return compute(*align(x, y))


def clamped(x: Any, a: Any, b: Any) -> Array:
    """Keep x between a and b, of which a wins; at a bound the derivative is 1/2."""
    low, high = _number(x, a), _number(x, b)
    if low is not None and high is not None and low < high:
        return _bounded(x, (jnp.minimum, high), (jnp.maximum, low))
    return maximum(minimum(x, b), a)


def _number(x: Any, y: Any) -> float | None:
    """Return y as a number if it is a finite one, and x a real tensor of its rank or a higher."""
    is_real = not is_static(x) and jnp.issubdtype(x.dtype, jnp.floating)
    if not (is_real and is_static(y) and np.size(y) == 1 and np.ndim(y) <= x.ndim):
        return None
    number = np.asarray(y, x.dtype).astype(float).item()
    return number if math.isfinite(number) else None


def _bounded(x: Array, *bounds: tuple[Callable[..., Array], float]) -> Array:
    """Compute extremes of x and one number after the other.

    Of `jnp.maximum` and `jnp.minimum` a backward pass reads an array each, made by divisions: a
    step of training of MobileNetV2 takes 1.1 times as long.
    """
    sides = [(compute, np.array(bound, x.dtype)) for compute, bound in bounds]

    @jax.custom_jvp
    def value(x: Array) -> Array:
        return reduce(lambda x, side: side[0](x, side[1]), sides, x)

    @value.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (change,) = primals, tangents
        one, half, zero = (np.array(factor, x.dtype) for factor in (1, 0.5, 0))
        inside = [x > bound if f is jnp.maximum else x < bound for f, bound in sides]
        met = [x == bound for _, bound in sides]
        factor = jnp.where(reduce(operator.or_, met), half, zero)
        return value(x), change * jnp.where(reduce(operator.and_, inside), one, factor)

    return value(x)
