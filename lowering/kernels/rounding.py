"""Rounds floating-point numbers to fewer bits, in a trace or on the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.kernels.precision import DType, wide_dtype

HALVES = ("float16", "bfloat16")


@jax.custom_jvp
def straight_through(result: Array, x: Array) -> Array:
    """Return `result`, with the derivative of x.

    Source: straight-through estimation, Bengio, Leonard and Courville 2013, arXiv:1308.3432.
    """
    return result


@straight_through.defjvp
def _straight_through_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    _, x_tangent = tangents
    # Derivatives of higher order differentiate this result, so that it must be straight-through
    # too.
    return straight_through(*primals), x_tangent


def rounded_to(x: Array, dtype: DType) -> Array:
    """Round x to a dtype of 16 bits, even on platforms that compute this dtype in 32 bits.

    XLA and the passes for CPUs may remove a conversion to fewer bits and back, but they do not
    remove `reduce_precision`. `reduce_precision` turns subnormal numbers into 0. Therefore
    subnormal numbers are rounded here to multiples of the smallest subnormal number.
    """
    wide = x.astype(wide_dtype(x))
    narrow = jnp.finfo(dtype)
    result = lax.reduce_precision(wide, narrow.nexp, narrow.nmant)
    # bfloat16 has as many bits of the exponent as float32. Its subnormal numbers are subnormal in
    # float32 too, and may become 0.
    if narrow.nexp < jnp.finfo(wide.dtype).nexp:
        step = float(narrow.smallest_subnormal)
        steps = lax.round(wide / step, lax.RoundingMethod.TO_NEAREST_EVEN)
        result = jnp.where(jnp.abs(wide) < float(narrow.smallest_normal), steps * step, result)
    return straight_through(result, wide).astype(dtype)


def saturated(x: object, dtype: DType) -> NDArray[Any]:
    """Convert an array to a dtype. Finite numbers beyond the dtype's range become its limits.

    For example, masks often contain the lowest number of float32. This number becomes the lowest
    number of 16 bits instead of -inf, so that a product with 0 is 0 instead of NaN.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(x, dtype)
    array = np.asarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype, copy=False)
    saturate(result, array)
    return result


def saturate(result: NDArray[Any], array: NDArray[Any]) -> None:
    """Replace infinite items of `result`, in place, where `array` has finite items.

    `result` is `array` in another dtype. An infinite item becomes the lowest or the highest number
    of this dtype, with the sign of the item of `array`.
    """
    if not jnp.issubdtype(result.dtype, jnp.floating) or array.dtype == object:
        return
    beyond = np.isinf(result)
    if beyond.any():
        beyond &= np.isfinite(array)
        highest = jnp.finfo(result.dtype).max
        result[beyond] = np.where(array[beyond] < 0, -highest, highest)
