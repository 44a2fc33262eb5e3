"""Tensors made of nothing. A reader emits them, no document names them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.extents import UNKNOWN, Shape, is_symbolic
from lowering.graph import TensorType
from lowering.ops import rules


def _range_type(start: float, end: float, step: float, dtype: str) -> TensorType:
    if any(x is UNKNOWN for x in (start, end, step)):
        return TensorType((UNKNOWN,), dtype)
    return TensorType((max(0, _count(start, end, step)),), dtype)


def _count(start: Any, end: Any, step: Any) -> Any:
    count = -((start - end) // step)
    return count if is_symbolic(count) else int(count)


@rules.rule("range", _range_type)
def range_(start: Any, end: Any, step: Any, dtype: str) -> Array | NDArray[np.generic]:
    """The numbers from `start` to before `end` in steps; the bounds may be symbolic extents."""
    if any(map(is_symbolic, (start, end, step))):
        places = lax.iota(dtype, _count(start, end, step))
        return jnp.asarray(start).astype(dtype) + jnp.asarray(step).astype(dtype) * places
    return (start + step * np.arange(max(0, _count(start, end, step)))).astype(dtype)


def _values_type(shape: Shape, value: tuple[int, ...], dtype: str) -> TensorType:
    return TensorType(shape, dtype)


@rules.rule("values", _values_type)
def values(shape: Shape, value: tuple[int, ...], dtype: str) -> Array | NDArray[np.generic]:
    """A tensor of values in row-major order, none or symbolic extents among them."""
    if any(map(is_symbolic, value)):
        return jnp.stack([jnp.asarray(x).astype(dtype) for x in value]).reshape(shape)
    return np.array(value, np.dtype(dtype)).reshape(shape)
