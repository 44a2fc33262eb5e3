"""Keep XLA from computing anew what several loops read, and from laying out arrays otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata

from lowering import jaxprs
from lowering.cpu.pipeline import runs


def stored(x: Array) -> Array:
    """Return the array so that XLA computes it once for all loops that read it.

    XLA computes in each loop anew what it reads of another loop's results, unless that has a
    division: nine times for a window of nine cells. Only the code generator sees that ours is by 1.
    """
    if not runs("stored"):
        return x
    is_real = jnp.issubdtype(x.dtype, jnp.floating)
    most = np.inf if is_real else np.iinfo(x.dtype).max
    one, two, most = (np.array(factor, x.dtype) for factor in (1, 2, most))
    return lax.div(x, jnp.where(x > most, two, one))


def as_laid_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with arguments and results that lie in memory as their axes are written.

    XLA does not copy an array that is transposed for a loop: it turns the loop instead. What it
    does not inline it compiles by itself, for arrays in the usual order.
    """

    def laid_out(*args: Any) -> Any:
        with set_xla_metadata(**{jaxprs.INLINED: None}):
            return function(*args)

    def call(*args: Any) -> Any:
        with set_xla_metadata(**{jaxprs.INLINED: "false"}):
            return jax.jit(laid_out)(*args)

    return call
