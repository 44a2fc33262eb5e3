"""Fixed-point numbers: sums that are wider than an int32, and their rounding to 8 or 16 bits.

A product of two 16-bit integers has 31 bits, so that two of them overflow an int32. A sum is kept
as two: `high * 2**base + low`, of up to 2**47, exact without 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_LOW = 16  # bits of the lower word at most: 2**15 values of such fit their int32
_BEYOND = 17  # bits of what no result holds: clipping there changes none


@partial(jax.tree_util.register_dataclass, data_fields=["high", "low"], meta_fields=["base"])
@dataclass(frozen=True, slots=True)
class Wide:
    """A tensor of `high * 2**base + low`, where 0 <= low < 2**base, both int32."""

    high: Array
    low: Array
    base: int


def base_for(largest: int, shift: int) -> int | None:
    """Return the base for sums up to a magnitude, of which `shift` bits are rounded away.

    That shift itself takes the fewest operations. None says that no base holds such sums.
    """
    bases = (min(max(shift, 0), _LOW), _LOW)
    return next((base for base in bases if largest < 1 << (31 + base)), None)


def total(terms: Sequence[tuple[Array, int]], base: int) -> Wide:
    """Return the sum of `value * 2**shift` over terms (value, shift), int32 that broadcast."""
    high: Any = jnp.int32(0)
    low: Any = jnp.int32(0)
    for value, shift in terms:
        if shift >= base:
            high = high + (value << (shift - base))
        else:
            under = base - shift
            high = high + (value >> under)
            low = low + ((value & ((1 << under) - 1)) << shift)
    high, low = jnp.broadcast_arrays(high + (low >> base), low & ((1 << base) - 1))
    return Wide(high, low, base)


def narrow(
    x: Wide, shift: int, overflow_policy: str, rounding_policy: str, dtype: Any
) -> tuple[Array, Array]:
    """Return round(x / 2**shift) in 8 or 16 bits, and whether it lies beyond them, by item.

    Rounding is 'to_zero' or 'nearest_even', overflow 'wrap' (two's complement) or 'saturate'. A
    negative shift multiplies. Shifts are at most `base + 31`.
    """
    up = min(max(-shift, 0), _LOW)
    near = _rounded(_clipped(x, shift), shift, rounding_policy)
    if up:
        near = jnp.clip(near, -(1 << 14), 1 << 14) << up
    limits = jnp.iinfo(dtype)
    overflowed = (near < limits.min) | (near > limits.max)
    if overflow_policy == "wrap":
        return (_rounded(x, shift, rounding_policy) << up).astype(dtype), overflowed
    return jnp.clip(near, limits.min, limits.max).astype(dtype), overflowed


def _clipped(x: Wide, shift: int) -> Wide:
    """Bring sums near to those that fit, so that quotients fit an int32."""
    more = x.base - max(shift, 0)
    if more <= 0:
        return x
    most = (1 << (_BEYOND - more)) + 1
    return Wide(jnp.clip(x.high, -most, most), x.low, x.base)


def _rounded(x: Wide, shift: int, rounding_policy: str) -> Array:
    """Return round(x / 2**shift) modulo 2**32; a negative shift counts as 0."""
    if shift <= 0:
        return (x.high << x.base) + x.low
    floor, half, rest = _parts(x, shift)
    up = (x.high < 0) & (half | rest)
    if rounding_policy == "nearest_even":
        up = half & (rest | (floor & 1 == 1))
    return floor + up.astype(np.int32)


def _parts(x: Wide, shift: int) -> tuple[Array, Array, Array]:
    """Return floor(x / 2**shift), the bit below it, and whether any bit below that is set."""
    if shift > x.base:
        more = shift - x.base
        half = (x.high >> (more - 1)) & 1 == 1
        rest = (x.high & ((1 << (more - 1)) - 1) != 0) | (x.low != 0)
        return x.high >> more, half, rest
    floor = (x.high << (x.base - shift)) + (x.low >> shift)
    return floor, (x.low >> (shift - 1)) & 1 == 1, x.low & ((1 << (shift - 1)) - 1) != 0
