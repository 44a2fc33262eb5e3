"""Tells in which dtype sums are taken."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def accumulator(dtype: Any) -> Any:
    """Return the dtype to sum a dtype's items in: at least 32 bits, signed for integers."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.dtype(np.int64 if dtype.itemsize == 8 else np.int32)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype
