"""Rounding as the standard has it."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def round_half_up(x: Array) -> Array:
    """floor(x + 0.5) (spec 4.2.1) without the sum, inexact just below 0.5 and from 2**23 on."""
    whole = jnp.floor(x)
    return jnp.where(x - whole >= 0.5, whole + 1, whole)
