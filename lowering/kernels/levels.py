"""Notes on traced arrays: which few levels a tensor is rounded to.

A note returns its array as it is, on every platform and for every derivative. What computes in
integers, `lowering.cpu.integers`, reads it.
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

from lowering.jaxprs import operation

NOTE = "levels"
MOST = 256  # levels that a byte has codes for

_levels = operation(NOTE)


@dataclass(frozen=True, slots=True)
class Levels:
    """Says of a tensor's levels: the lowest number, the highest, and which is exactly 0, if known.

    Level q stands for q * step + start.
    """

    lowest: int
    highest: int
    zero: int | None


def noted(x: Array, level: Any, step: Any, start: Any, lowest: int, highest: int) -> Array:
    """Return x, noting that it is `level * step + start`.

    `level` holds whole numbers from the lowest to the highest, in the shape of x; `step` and
    `start` broadcast to it. Real numbers of 16 bits, more levels than a byte has, and what is known
    on the host get no note.
    """
    if highest - lowest >= MOST or not isinstance(x, Tracer) or x.dtype != jnp.float32:
        return x
    levels = Levels(lowest, highest, _level_of_zero(step, start, lowest, highest))
    level = jnp.broadcast_to(level, x.shape)
    step, start = (jnp.asarray(v, jnp.float32) for v in (step, start))
    (result,) = _levels.bind(x, level, step, start, levels=levels)
    return result


# How far a level may be from 0, in steps, to be taken as 0: that of the standard's own formula, in
# float32, is as far.
_NEAR = 3e-5


def _level_of_zero(step: Any, start: Any, lowest: int, highest: int) -> int | None:
    """Return the level that stands for 0 in all channels, where numbers on the host tell."""
    if any(isinstance(v, Tracer) for v in (step, start)):
        return None
    steps, starts = np.asarray(step, np.float64), np.asarray(start, np.float64)
    if not (steps.size and np.all(steps) and np.all(np.isfinite(steps) & np.isfinite(starts))):
        return None
    found = -starts / steps
    level = int(np.clip(np.rint(found.ravel()[0]), lowest, highest))
    return level if np.all(np.abs(found - level) <= _NEAR) else None


@_levels.def_impl
@_levels.def_abstract_eval
def _as_it_is(x: Any, *_: Any, **__: Any) -> list[Any]:
    return [x]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    return _levels.bind(*primals, **params), [tangents[0]]


def _batched(operands: Sequence[Any], axes: Sequence[Any], **params: Any) -> Any:
    """Put the axis of a batch first in all that have one; scalars have none."""
    size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
    rank = operands[0].ndim + (axes[0] is None)

    def placed(x: Any, axis: int | None, whole: bool) -> Any:
        if axis is None:
            return jnp.broadcast_to(x, (size, *x.shape)) if whole else x[None] if x.ndim else x
        first = jnp.moveaxis(x, axis, 0)
        return first.reshape(size, *(1,) * (rank - x.ndim), *first.shape[1:])

    made = map(placed, operands, axes, (True, True, False, False))
    return _levels.bind(*made, **params), [0]


mlir.register_lowering(_levels, mlir.lower_fun(_as_it_is, multiple_results=True))
ad.primitive_jvps[_levels] = _jvp
batching.primitive_batchers[_levels] = _batched
