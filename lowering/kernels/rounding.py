"""Rounds real numbers to fewer bits: as a Cast does, or as what is stored is narrowed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.kernels.precision import wide_dtype

HALVES = ("float16", "bfloat16")


@jax.custom_jvp
def straight_through(result: Array, x: Array) -> Array:
    """Return the result, which has the derivative of x here.

    Source: straight-through estimation, Bengio, Leonard and Courville 2013, arXiv:1308.3432.
    """
    return result


@straight_through.defjvp
def _straight_through_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return straight_through(*primals), tangents[1]  # itself, for derivatives of derivatives


def rounded_to(x: Array, dtype: Any) -> Array:
    """Return x in a dtype of 16 bits, rounded even where a platform computes such in 32.

    XLA and the passes for CPUs may leave out a conversion to fewer bits and back. They keep
    `reduce_precision`. It gives 0 below the least normal number: such numbers are rounded by steps.
    """
    wide, narrow = x.astype(wide_dtype(x)), jnp.finfo(dtype)
    result = lax.reduce_precision(wide, narrow.nexp, narrow.nmant)
    if narrow.nexp < jnp.finfo(wide.dtype).nexp:
        step = float(narrow.smallest_subnormal)
        steps = lax.round(wide / step, lax.RoundingMethod.TO_NEAREST_EVEN)
        result = jnp.where(jnp.abs(wide) < float(narrow.smallest_normal), steps * step, result)
    return straight_through(result, wide).astype(dtype)


def saturated(x: Any, dtype: Any) -> NDArray[Any]:
    """Return an array in a dtype, finite real numbers beyond its range at the ends of it.

    The least number of 32 bits, as masks have it, stays finite in 16: times 0 it is 0, not NaN.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(x, dtype)
    array = np.asarray(x)
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype, copy=False)
    saturate(result, array)
    return result


def saturate(result: NDArray[Any], array: NDArray[Any]) -> None:
    """Put infinite items of a result, finite in the array, at the ends of the result's dtype."""
    if not jnp.issubdtype(result.dtype, jnp.floating) or array.dtype == object:
        return
    beyond = np.isinf(result)
    if beyond.any():
        beyond &= np.isfinite(array)
        most = jnp.finfo(result.dtype).max
        result[beyond] = np.where(array[beyond] < 0, -most, most)
