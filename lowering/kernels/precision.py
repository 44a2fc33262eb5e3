"""Tells in which dtype to compute: numbers of fewer than 32 bits are widened."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def accumulator(dtype: Any) -> Any:
    """Return the dtype to sum a dtype's items in: at least 32 bits, signed for integers."""
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.dtype(np.int64 if dtype.itemsize == 8 else np.int32)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def wide_dtype(*arrays: Any) -> np.dtype[Any]:
    """Return the common real (or complex) dtype, of 32 bits at least."""
    dtypes = (np.dtype(x.dtype) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))
    return functools.reduce(np.promote_types, dtypes, np.dtype(np.float32))


def widened(x: Array) -> Array:
    """Widen real numbers of 16 bits, which lose digits or overflow."""
    return x.astype(wide_dtype(x))


def left_operand(x: Array, sums: Any) -> Array:
    """Keep XLA from transposing the left operand of a product, whose sums run along its last axis.

    XLA decides early that YNNPACK takes a bfloat16 product with float32 sums on a CPU, then may
    merge a transposition into it, as under `jax.vmap`; the call ends in JaxRuntimeError. A barrier
    prevents it. 128x384 times 384x1536 takes 0.26 ms so, and 1.4 when widened instead.
    """
    narrow = (x.dtype, sums) in ((jnp.bfloat16, jnp.float32), (jnp.int8, jnp.int32))
    return lax.optimization_barrier(x) if narrow else x


def left_operand_anywhere(x: Array, sums: Any) -> Array:
    """Do the same in what any platform may run: a barrier on CPUs alone."""
    if x.dtype != jnp.bfloat16:
        return x
    return lax.platform_dependent(x, cpu=lambda x: left_operand(x, sums), default=lambda x: x)


def is_bfloat16(precision: Any) -> bool:
    """Tell whether products of float32 are those of its items in bfloat16, summed in float32."""
    return getattr(precision, "name", precision) == "BF16_BF16_F32"


def precision_of(dtype: Any, precision: Any) -> Any:
    """Return the precision of products of a dtype: bfloat16 is for real numbers alone."""
    is_real = jnp.issubdtype(dtype, jnp.floating)
    return None if is_bfloat16(precision) and not is_real else precision


def narrowed(x: Array, filter: Array, precision: Any) -> tuple[Array, Array, Any]:
    """Return the operands of a convolution and its precision, for which XLA takes no algorithm."""
    if is_bfloat16(precision) and x.dtype == jnp.float32:
        return x.astype(jnp.bfloat16), filter.astype(jnp.bfloat16), None
    return x, filter, precision
