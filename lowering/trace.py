"""Walks a graph once under JAX tracing."""

from __future__ import annotations

from dataclasses import dataclass

import jax


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know beside its arguments."""

    precision: jax.lax.PrecisionLike = None  # of matrix products and convolutions; None is jax's default
