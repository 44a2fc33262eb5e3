"""Chooses the dtype and the precision of computations. Numbers of 16 bits are widened."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.graph import TensorType

DType = np.dtype[Any] | type[Any] | str


def accumulator(dtype: DType) -> np.dtype[Any]:
    """Return the dtype in which items of the dtype `dtype` are summed.

    The returned dtype has at least 32 bits, and is signed for integers. For float16 the result is
    float32, and for uint8 the result is int32.
    """
    dtype = np.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.dtype(np.int64 if dtype.itemsize == 8 else np.int32)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def wide_dtype(*arrays: Array | NDArray[Any] | TensorType) -> np.dtype[Any]:
    """Return the floating-point or complex dtype, of 32 bits or more, to which arrays are promoted.

    Arrays of integers are ignored. For float16 and bfloat16 the result is float32.
    """
    dtype = np.dtype(np.float32)
    for array in arrays:
        if jnp.issubdtype(array.dtype, jnp.inexact):
            dtype = np.promote_types(dtype, array.dtype)
    return dtype


def widened(x: Array) -> Array:
    """Convert floating-point numbers of 16 bits to float32. Other numbers stay as they are.

    Numbers of 16 bits would lose digits or overflow in a computation.
    """
    return x.astype(wide_dtype(x))


def left_operand(x: Array, sum_dtype: DType | None) -> Array:
    """Return x with a barrier that keeps XLA from merging a transposition of x into a product.

    x is the left operand of a product whose sums have the dtype `sum_dtype`. There is a barrier
    only for bfloat16 with float32 sums, and for int8 with int32 sums. On a CPU, XLA first chooses
    YNNPACK for a bfloat16 product with float32 sums. Then XLA may merge a transposition into the
    product, for example under `jax.vmap`, so that the call raises JaxRuntimeError. A product of
    128x384 by 384x1536 items takes 0.26 ms with the barrier. In float32 the product takes 1.4 ms.
    """
    is_bfloat16_product = x.dtype == jnp.bfloat16 and sum_dtype == jnp.float32
    is_int8_product = x.dtype == jnp.int8 and sum_dtype == jnp.int32
    if is_bfloat16_product or is_int8_product:
        return lax.optimization_barrier(x)
    return x


def left_operand_anywhere(x: Array, sum_dtype: DType | None) -> Array:
    """Return `left_operand(x, sum_dtype)` on a CPU, and x on other platforms."""
    if x.dtype != jnp.bfloat16:
        return x

    def with_barrier(x: Array) -> Array:
        return left_operand(x, sum_dtype)

    return lax.platform_dependent(x, cpu=with_barrier, default=lambda x: x)


def is_bfloat16(precision: lax.PrecisionLike) -> bool:
    """Tell whether a precision rounds float32 factors to bfloat16, with float32 sums."""
    # A member of jax's enum has a name, and a string stands for itself.
    return getattr(precision, "name", precision) == "BF16_BF16_F32"


def precision_of(dtype: DType, precision: lax.PrecisionLike) -> lax.PrecisionLike:
    """Return the precision for products whose sums have the dtype `dtype`.

    The precision is `precision`, except that integers and complex numbers are never rounded to
    bfloat16.
    """
    is_floating = jnp.issubdtype(dtype, jnp.floating)
    if is_bfloat16(precision) and not is_floating:
        return None
    return precision


def narrowed(
    x: Array, filter: Array, precision: lax.PrecisionLike
) -> tuple[Array, Array, lax.PrecisionLike]:
    """Return the input and the filter of a convolution, and the precision to give to XLA.

    If `precision` asks for bfloat16 factors, a float32 input and its filter are rounded to
    bfloat16 here, and the returned precision is None, since XLA's convolutions do not round
    their operands.
    """
    if is_bfloat16(precision) and x.dtype == jnp.float32:
        return x.astype(jnp.bfloat16), filter.astype(jnp.bfloat16), None
    return x, filter, precision
