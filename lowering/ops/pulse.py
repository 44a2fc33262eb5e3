"""Operations that only streaming in pieces needs."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.graph import TensorType
from lowering.ops import rules
from lowering.ops.require import normal_axis


def _pulse_mask_type(input: TensorType, axis: int) -> TensorType:
    normal_axis(axis, len(input.shape))
    return input


@rules.rule("tract.pulse_mask", _pulse_mask_type)
def pulse_mask(input: Any, position: Any, axis: int, begin: int, end: int, value: float) -> Array:
    """Return the input in begin ... end - 1 of the stream, from `position` on, else the value."""
    x = jnp.asarray(input)
    places = position + lax.broadcasted_iota(position.dtype, x.shape, normal_axis(axis, x.ndim))
    return jnp.where((places >= begin) & (places < end), x, jnp.asarray(value, x.dtype))
