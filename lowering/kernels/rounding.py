"""Rounds to whole numbers, of 0.5 up, away from zero, or to the even one."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

TIES = ("up", "away", "even")


def rounded(x: Array, ties: str) -> Array:
    """Round; "up" is floor(x + 0.5) (spec 4.2.1) without a sum inexact below 0.5 and from 2**23."""
    if ties == "up":
        whole = jnp.floor(x)
        return jnp.where(x - whole >= 0.5, whole + 1, whole)
    away = lax.RoundingMethod.AWAY_FROM_ZERO
    return lax.round(x, away if ties == "away" else lax.RoundingMethod.TO_NEAREST_EVEN)
