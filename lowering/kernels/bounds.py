"""Maxima and minima; those with a number have one array as their derivative, not two."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.kernels.broadcast import align
from lowering.static import is_static


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
    if is_static(x) or not is_static(y) or np.size(y) != 1 or np.ndim(y) > x.ndim:
        return None
    if not jnp.issubdtype(x.dtype, jnp.floating):
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
