"""Keep XLA's loops from computing anew what several of them read."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

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
