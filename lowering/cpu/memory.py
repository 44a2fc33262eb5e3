"""Tell XLA what to compute once, or by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata

from lowering import jaxprs
from lowering.contexts import runs


def in_memory(x: Array) -> Array:
    """Return the array, which XLA then computes once for all loops that read it.

    XLA computes in each loop anew what it reads of another loop's results, unless that has a
    division: nine times for a window of nine cells. Only the code generator sees that ours is by 1.
    """
    if not runs("in_memory"):
        return x
    is_real = jnp.issubdtype(x.dtype, jnp.floating)
    most = np.inf if is_real else np.iinfo(x.dtype).max
    one, two, most = (np.array(factor, x.dtype) for factor in (1, 2, most))
    return lax.div(x, jnp.where(x > most, two, one))


def uninlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a call that XLA does not inline.

    It is no part of the kernels that read its results. Its arguments and results lie in memory in
    the order of their axes: XLA turns its own loops instead of copying what is transposed.
    """

    @wraps(function)
    def plain(*args: Any) -> Any:
        with set_xla_metadata(**{jaxprs.INLINED: None}):
            return function(*args)

    program = jax.jit(plain)

    def call(*args: Any) -> Any:
        with set_xla_metadata(**{jaxprs.INLINED: "false"}):
            return program(*args)

    return call


def apart(x: Array) -> Array:
    """Return the array so that loops that compute it and loops that read it stay apart.

    The first ones are over its own axes then, whatever shape a product wants. It costs nothing.
    """
    return uninlined(lambda x: lax.reshape(x, x.shape))(x) if runs("in_memory") else x
