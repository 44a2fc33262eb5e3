"""Rounds as the standard and its dialects do: 0.5 up, away from zero, or to even."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def round_half_up(x: Array) -> Array:
    """Take floor(x + 0.5) (spec 4.2.1), without the sum: inexact below 0.5 and from 2**23 on."""
    whole = jnp.floor(x)
    return jnp.where(x - whole >= 0.5, whole + 1, whole)


def round_half_away(x: Array) -> Array:
    """Return the nearest whole number, of two equally near ones that further from zero."""
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def round_half_even(x: Array) -> Array:
    """Return the nearest whole number, of two equally near ones the even one."""
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
