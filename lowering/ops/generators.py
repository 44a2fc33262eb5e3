"""Constants (spec 4.1.2) and ranges, as numpy arrays unless a value is a symbolic extent."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, show, volume
from lowering.graph import Scalar, TensorType, is_integer
from lowering.kernels.rounding import saturated
from lowering.ops import require, rules
from lowering.tracing import Context

_ARRAYS_OF_RANGE = 4  # To compute a range, the host needs this number of 64-bit arrays.


def _constant_type(shape: Shape, value: tuple[Scalar, ...], dtype: str) -> TensorType:
    """Check the arguments of `constant`, and return the type of its result."""
    require.rank(shape)
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"'shape' of a constant must not be negative, it is {show(shape)}")
    if len(value) not in (1, volume(shape)):
        raise InvalidShape(
            f"a constant of shape {show(shape)} takes 1 or {volume(shape)} values, "
            f"it has {len(value)}"
        )
    if value and is_integer(dtype):
        numbers: Any = value
        may_have_nan = float in set(map(type, numbers))
        if not may_have_nan:
            # If the least and the greatest number are in range, all numbers are in range. With NaN
            # there would be no least number.
            numbers = (min(numbers), max(numbers))
        require.within(dtype, numbers)
    return TensorType(shape, dtype)


@rules.rule("constant", _constant_type)
def constant(shape: Shape, value: tuple[Scalar, ...], dtype: str) -> Array | NDArray[np.generic]:
    """Return a tensor with the values in row-major order. A single value fills the whole tensor."""
    if any(map(is_symbolic, value)):
        traced_items = jnp.stack([jnp.asarray(item).astype(dtype) for item in value])
        items_shape = shape if len(value) > 1 else ()
        return jnp.broadcast_to(traced_items.reshape(items_shape), shape)
    items = saturated(value, dtype)
    if items.size == 1:
        return np.broadcast_to(items[0], shape)
    return items.reshape(shape)


def _range_type(start: float, end: float, step: float, dtype: str) -> TensorType:
    """Check the arguments of `range`, and return the type of its result."""
    if step == 0:
        raise InvalidOperation("'step' must not be 0")
    numbers = (start, end, step)
    if not all([number is UNKNOWN or math.isfinite(number) for number in numbers]):
        raise InvalidOperation(f"a range has finite ends and a step, not {start}, {end}, {step}")
    require.within("int64", [number for number in numbers if isinstance(number, int)])
    if any(number is UNKNOWN for number in numbers):
        return TensorType((UNKNOWN,), dtype)
    if not math.isfinite((end - start) / step):
        raise InvalidOperation(f"a range from {start} to {end} in steps of {step} is too long")
    return TensorType((max(0, _count(start, end, step)),), dtype)


def _count(start: float, end: float, step: float) -> int:
    """Return (end - start) / step, rounded up."""
    # Since `//` rounds down, the negated quotient of the negated range is rounded up.
    count: Any = -((start - end) // step)
    return count if is_symbolic(count) else int(count)


@rules.rule("range", _range_type)
def range_(
    ctx: Context, start: float, end: float, step: float, dtype: str
) -> Array | NDArray[np.generic]:
    """Return the vector `start`, `start + step` and so on, up to but excluding `end`."""
    if any(map(is_symbolic, (start, end, step))):
        numbers = lax.iota(dtype, _count(start, end, step))
        return jnp.asarray(start).astype(dtype) + jnp.asarray(step).astype(dtype) * numbers
    count = max(0, _count(start, end, step))
    # This call may raise an error if the host would compute too many items.
    ctx.fold(_ARRAYS_OF_RANGE * count)
    return (start + step * np.arange(count)).astype(dtype)
