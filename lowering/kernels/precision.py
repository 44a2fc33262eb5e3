"""Where fewer than 32 bits do not do."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array


def wide_dtype(*arrays: Any) -> np.dtype[Any]:
    """The dtype of real (or complex) numbers of 32 bits at least that all these numbers become."""
    dtypes = (np.dtype(x.dtype) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))
    return functools.reduce(np.promote_types, dtypes, np.dtype(np.float32))


def widened(x: Array) -> Array:
    """Real numbers of 16 bits as float32, for computations in which they lose or overflow."""
    return x.astype(wide_dtype(x))
