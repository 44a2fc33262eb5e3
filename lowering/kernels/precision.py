"""Widens what fewer than 32 bits do not do for."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def wide_dtype(*arrays: Any) -> np.dtype[Any]:
    """Return the real (or complex) dtype of 32 bits at least that all these become."""
    dtypes = (np.dtype(x.dtype) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))
    return functools.reduce(np.promote_types, dtypes, np.dtype(np.float32))


def widened(x: Array) -> Array:
    """Widen real numbers of 16 bits, for computations in which they lose or overflow."""
    return x.astype(wide_dtype(x))


def left_operand(x: Array, sums: Any) -> Array:
    """Keep the left operand of a product on a CPU as it is; sums run along its last axis.

    XLA decides early whether its library YNNPACK takes a product of bfloat16 with float32 sums. It
    may make a transposition of the left operand part of the product later on, as under `jax.vmap`:
    no library takes that, and the call ends in JaxRuntimeError. A barrier prevents it. To widen the
    operand is safe too, but with AMX 128x384 times 384x1536 takes 1.4 ms in float32, and 0.26 here.
    """
    narrow = x.dtype == jnp.bfloat16 and sums == jnp.float32
    return lax.optimization_barrier(x) if narrow else x


def left_operand_anywhere(x: Array, sums: Any) -> Array:
    """Do the same in what may be compiled for any platform: a barrier on CPUs alone."""
    if x.dtype != jnp.bfloat16:
        return x
    return lax.platform_dependent(x, cpu=lambda x: left_operand(x, sums), default=lambda x: x)
