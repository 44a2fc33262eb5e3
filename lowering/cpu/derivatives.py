"""Give functions other derivatives than those of the steps that compute them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from lowering.cpu.pipeline import runs

# The change of the result, of both operands and the change of one.
Tangent = Callable[[Array, Array, Array], Array]


def with_tangents(
    value: Callable[[Array, Array], Array],
    by_first: Tangent,
    by_second: Tangent,
    *,
    store: bool = False,
) -> Callable[[Array, Array], Array]:
    """Give a function of two arrays these tangents, each linear in its last operand.

    Backward passes run the transposed tangents, which decide their speed. With `store`, loops read
    the second operand, the result and its change from memory: see `stored`.
    """
    if not runs("tangents"):
        return value
    function: Any = jax.custom_jvp(value)

    def rule(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
        if store:  # the second is a filter, small, which would be scaled again for each item
            primals = primals[0], stored(primals[1], primals[1])
        result = function(*primals)
        changes = [
            tangent(*primals, change)
            for tangent, change in zip((by_first, by_second), tangents, strict=True)
            if not isinstance(change, SymbolicZero)
        ]
        change = functools.reduce(lax.add, changes)
        if not store:
            return result, change
        # The backward pass then needs nothing but the array that is in memory anyway.
        result = stored(result, result)
        return result, stored(change, result)

    function.defjvp(rule, symbolic_zeros=True)
    return function


def stored(x: Array, result: Array) -> Array:
    """Return the array so that XLA computes it once for all loops that read it.

    XLA computes in each loop anew what it reads of another loop's results, unless that has a
    division: nine times for a window of nine cells. Only the code generator sees that ours is by 1.
    """
    if not runs("stored"):
        return x
    one, two = (np.array(factor, x.dtype) for factor in (1, 2))
    return x / jnp.where(result > np.array(np.inf, x.dtype), two, one)


def transposition(function: Callable[[Array], Array], operand: Any) -> Callable[[Array], Array]:
    """Transpose a linear function of an array of this shape and dtype, for a backward pass."""
    turned = jax.linear_transpose(function, operand)
    return lambda change: turned(change)[0]


def sums_of_channels(x: Array) -> Array:
    """Sum over all axes but the last, by a product with ones.

    XLA's reduction takes two to five times as long unless YNNPACK does it. With one column of ones
    instead of two, XLA makes product and operand a loop for each channel.
    """
    rows = x.reshape(-1, x.shape[-1])
    ones = jnp.ones((rows.shape[0], 2), x.dtype)
    return lax.dot_general(rows, ones, (((0,), (0,)), ((), ())), precision="highest")[:, 0]
