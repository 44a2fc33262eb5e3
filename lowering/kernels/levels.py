"""Adds a note to a tensor in a trace: the few levels to which the tensor is rounded.

The note is a primitive that returns its operand unchanged, on every platform and in derivatives.
`lowering.cpu.integers` reads the note to compute products in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.interpreters import ad, batching, mlir
from numpy.typing import ArrayLike

from lowering.primitives import function_primitive

NOTE = "levels"
MOST = 256  # the most levels of a tensor that has 8-bit codes

_levels = function_primitive(NOTE)


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a tensor: integers q that stand for the numbers q * step + start.

    Args:
        lowest: the lowest level.
        highest: the highest level.
        zero: the level that stands for 0, or None if no level does, or if the level is unknown.
    """

    lowest: int
    highest: int
    zero: int | None


def noted(
    x: Array, level: Array, step: ArrayLike, start: ArrayLike, lowest: int, highest: int
) -> Array:
    """Return x with a note that x equals `level * step + start`.

    `level` has integers from `lowest` to `highest`, in the shape of x. `step` and `start` broadcast
    to this shape. No note is made for dtypes other than float32, for more than 256 levels, and
    outside of a trace.
    """
    has_codes = highest - lowest < MOST and x.dtype == jnp.float32
    if not has_codes or not isinstance(x, Tracer):
        return x
    levels = Levels(lowest, highest, _level_of_zero(step, start, lowest, highest))
    full_level = jnp.broadcast_to(level, x.shape)
    step_array = jnp.asarray(step, jnp.float32)
    start_array = jnp.asarray(start, jnp.float32)
    (result,) = _levels.bind(x, full_level, step_array, start_array, levels=levels)
    return result


# A level q stands for 0 if q * step + start is at most this many steps away from 0. The standard's
# formula in float32 has an error of this size.
_LARGEST_ERROR = 3e-5


def _level_of_zero(step: ArrayLike, start: ArrayLike, lowest: int, highest: int) -> int | None:
    """Return the level q with q * step + start = 0 in all channels, or None if no level fits.

    The result is None too if `step` or `start` is a tracer.
    """
    if isinstance(step, Tracer) or isinstance(start, Tracer):
        return None
    steps = np.asarray(step, np.float64)
    starts = np.asarray(start, np.float64)
    are_finite = np.all(np.isfinite(steps) & np.isfinite(starts))
    has_zero_step = np.any(steps == 0)
    if steps.size == 0 or has_zero_step or not are_finite:
        return None
    # If the zeros of all channels are close to one integer, it is the level of 0.
    zeros = -starts / steps
    nearest_level = np.rint(zeros.ravel()[0])
    level = int(np.clip(nearest_level, lowest, highest))
    return level if np.all(np.abs(zeros - level) <= _LARGEST_ERROR) else None


@_levels.def_impl
@_levels.def_abstract_eval
def _as_it_is(x: Array, *_: object, **__: object) -> list[Array]:
    """Return the noted tensor x unchanged. The other operands and attributes are the note."""
    return [x]


def _jvp(
    primals: Sequence[Array], tangents: Sequence[Array], **params: object
) -> tuple[Any, list[Array]]:
    """Return the noted tensor, and its tangent unchanged."""
    tensor_tangent, *_ = tangents
    return _levels.bind(*primals, **params), [tensor_tangent]


def _batched(
    operands: Sequence[Array], axes: Sequence[int | None], **params: object
) -> tuple[Any, list[int]]:
    """Add the note to a batch of tensors. The batch axis comes first in the results.

    `axes` has the batch axis of each operand, or None for an operand that all tensors share. A
    shared scalar stays a scalar.
    """
    pairs = zip(operands, axes, strict=True)
    sizes = [operand.shape[axis] for operand, axis in pairs if axis is not None]
    size = sizes[0]  # all sizes are equal
    tensor = operands[0]
    rank = tensor.ndim if axes[0] is not None else tensor.ndim + 1  # with the batch axis

    def with_batch_first(operand: Array, axis: int | None, repeats: bool) -> Array:
        """Return an operand that broadcasts to the batch, or is repeated if `repeats` is true."""
        if axis is not None:
            moved = jnp.moveaxis(operand, axis, 0)
            # An operand of lower rank gets the axes of extent 1 after the batch axis.
            added_axes = (1,) * (rank - operand.ndim)
            return moved.reshape(size, *added_axes, *moved.shape[1:])
        if repeats:
            return jnp.broadcast_to(operand, (size, *operand.shape))
        return operand[None] if operand.ndim else operand

    # The operands are x, level, step and start. x and level have the shape of the tensor, so that
    # they are repeated. step and start broadcast to this shape.
    repeats_operand = (True, True, False, False)
    batched = map(with_batch_first, operands, axes, repeats_operand)
    return _levels.bind(*batched, **params), [0]


mlir.register_lowering(_levels, mlir.lower_fun(_as_it_is, multiple_results=True))
ad.primitive_jvps[_levels] = _jvp
batching.primitive_batchers[_levels] = _batched
