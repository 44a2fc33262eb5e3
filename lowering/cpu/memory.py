"""Tell XLA which arrays to compute only once, and which functions not to fuse with others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata

from lowering import jaxprs
from lowering.contexts import is_enabled

P = ParamSpec("P")
R = TypeVar("R")


def materialised(x: Array) -> Array:
    """Return x / 1, so that XLA computes x once for all loops that read it.

    XLA computes the results of a loop again in each loop that reads them, nine times for a
    window of nine cells. But XLA computes quotients only once, since divisions count as expensive.
    The divisor is an expression, and only XLA's code generator sees that its value is 1.
    """
    if not is_enabled("in_memory"):
        return x
    is_floating = jnp.issubdtype(x.dtype, jnp.floating)
    largest = np.inf if is_floating else np.iinfo(x.dtype).max
    # No item is larger than `limit`, so that the divisor is always 1. XLA's simplifications do not
    # see this, and would remove a division by a constant 1.
    limit = np.array(largest, x.dtype)
    one = np.array(1, x.dtype)
    two = np.array(2, x.dtype)
    return lax.div(x, jnp.where(x > limit, two, one))


def uninlined(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls `function`, and that XLA does not inline.

    XLA does not fuse the function with kernels that read its results. The arguments and results
    of the function are in memory, in the order of their axes. XLA therefore reorders the loops
    of the function instead of copying transposed arrays.
    """

    @wraps(function)
    def with_inlined_calls(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, and let XLA inline the calls in it."""
        with set_xla_metadata(**{jaxprs.INLINED: None}):
            return function(*args, **kwargs)

    jitted = jax.jit(with_inlined_calls)

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with set_xla_metadata(**{jaxprs.INLINED: "false"}):
            return jitted(*args, **kwargs)

    return call


def unfused(x: Array) -> Array:
    """Return x, and keep XLA from fusing loops that compute x with loops that read x.

    The loops that compute x then go over the axes of x, even if a product reads x in another
    shape. Nothing is copied.
    """
    if not is_enabled("in_memory"):
        return x
    unchanged = uninlined(lambda x: lax.reshape(x, x.shape))
    return unchanged(x)
