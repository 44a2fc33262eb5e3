"""Tensors of few levels as codes of 8 bits, and their products in integers.

With x = a * (p - y) and w = c * (q - z), codes p and q, the sum of x * w over n items is
a * c * (sum p q - z sum p - y sum q + n y z). All of this but a * c is an integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.memory import stored
from lowering.cpu.products import row_twice
from lowering.kernels.levels import Levels

BYTE, _WIDE, _REAL = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.float32)
_LOW, _HIGH = -128, 127

# Products of codes and zero points are at most 255**2: so many of them fit an int32.
_MOST = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A tensor `codes * step + start`; `codes` are int8.

    `step` and `start` are scalars, or have the tensor's rank and several items along one axis at
    most. `zero` is the code of 0; None where 0 has none that is known.
    `origin` is the variable of what was rounded.
    """

    codes: Any
    step: Any
    start: Any
    zero: int | None
    origin: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return self.codes.shape

    def real(self) -> Array:
        """Return the tensor in float32."""
        codes = self.codes.astype(_REAL)
        if self.zero is None:
            return codes * self.step + self.start
        return (codes - np.float32(self.zero)) * self.step

    def moved(self, move: Callable[[Any], Any]) -> Codes | None:
        """Return the codes after a change of axes or positions; None where steps differ by axis."""
        if any(map(np.ndim, (self.step, self.start))):
            return None
        return replace(self, codes=move(self.codes))


def of_levels(level: Any, step: Any, start: Any, levels: Levels, origin: Any) -> Codes:
    """Return the codes of whole numbers, shifted to int8; 0 is that of 0 where it can be."""
    zero, shift = levels.zero, levels.lowest - _LOW
    if levels.lowest >= _LOW and levels.highest <= _HIGH:
        shift = 0
    if zero is not None and levels.lowest - zero >= _LOW and levels.highest - zero <= _HIGH:
        shift = zero
    codes = stored((level - np.float32(shift)).astype(_WIDE).astype(BYTE))
    start = start + np.float32(shift) * step
    return Codes(codes, step, start, None if zero is None else zero - shift, origin)


def of_bytes(x: Any, origin: Any) -> Codes:
    """Return the codes of an array of int8 or uint8."""
    if x.dtype == BYTE:
        return Codes(x, np.float32(1), np.float32(0), 0, origin)
    codes = lax.bitcast_convert_type(x ^ np.uint8(_HIGH + 1), BYTE)
    return Codes(codes, np.float32(1), np.float32(-_LOW), _LOW, origin)


def is_slim(x: Any) -> bool:
    """Tell whether an array has several items along one axis at most."""
    return sum(n > 1 for n in np.shape(x)) <= 1


def shape_of_steps(x: Codes) -> tuple[int, ...]:
    """Return the extents of step and start along the axes of the tensor."""
    return np.broadcast_shapes((1,) * len(x.shape), np.shape(x.step), np.shape(x.start))


def product(left: Codes, right: Codes, params: dict[str, Any]) -> Array | None:
    """Compute a `lax.dot_general` without batches; None where codes cannot.

    Steps may not vary along its sums, nor these be too long.
    """
    sums, batch = params["dimension_numbers"]
    depth = math.prod(left.shape[axis] for axis in sums[0])
    for x, axes in zip((left, right), sums, strict=True):
        if any(shape_of_steps(x)[axis] > 1 for axis in axes):
            return None
    if any(batch) or depth > _MOST:
        return None
    ranks = [len(x.shape) for x in (left, right)]
    free = [rank - len(axes) for rank, axes in zip(ranks, sums, strict=True)]

    def placed(x: Any, side: int) -> Any:
        """Lay what belongs to one operand, but for its axes of sums, along axes of the result."""
        if np.ndim(x) == 0:
            return x
        if np.ndim(x) == ranks[side]:
            x = jnp.squeeze(x, tuple(sums[side]))
        first = 0 if side else free[0]
        return lax.expand_dims(x, range(first, first + free[1 - side]))

    def total(side: int) -> Any:
        codes = (left, right)[side].codes
        return placed(jnp.sum(codes, tuple(sums[side]), dtype=_WIDE), side)

    if math.prod(left.shape) == depth and free[1] == 1 == len(sums[1]):
        kind = {"preferred_element_type": _WIDE}
        matrix = jnp.moveaxis(right.codes, sums[1][0], 1)
        found = row_twice(left.codes.reshape(-1), matrix, 1, kind)
        found = found.reshape((1,) * free[0] + found.shape)
    else:
        found = lax.dot_general(
            left.codes, right.codes, params["dimension_numbers"], preferred_element_type=_WIDE
        )
    return _joined(found, left, right, placed, total, depth)


def convolution(x: Codes, filter: Codes, params: dict[str, Any]) -> Array | None:
    """Compute `lax.conv_general_dilated` of one group; None where codes cannot."""
    numbers = params["dimension_numbers"]
    (_, _, *places), (outputs, *summed) = numbers.lhs_spec, numbers.rhs_spec
    channel = numbers.out_spec[1]
    depth = math.prod(filter.shape[axis] for axis in summed)
    padding = params["padding"]
    if (
        any(n > 1 for n in shape_of_steps(x))
        or any(n > 1 for axis, n in enumerate(shape_of_steps(filter)) if axis != outputs)
        or (x.zero is None and any(map(any, padding)))
        or depth > _MOST
    ):
        return None
    codes = x.codes
    if any(map(any, padding)) and not _is_zero(x):  # padding is 0
        sides = dict(zip(places, padding, strict=True))
        edges = [(*sides.get(axis, (0, 0)), 0) for axis in range(codes.ndim)]
        codes = lax.pad(codes, np.array(x.zero, BYTE), edges)
        padding = ((0, 0),) * len(padding)

    def correlated(filter: Any) -> Array:
        return lax.conv_general_dilated(
            codes,
            filter,
            params["window_strides"],
            padding,
            rhs_dilation=params["rhs_dilation"],
            dimension_numbers=numbers,
            preferred_element_type=_WIDE,
        )

    def placed(v: Any, side: int) -> Any:
        """Lay what belongs to one operand along the axis of the result's channels."""
        several = side and np.size(v) > 1
        return jnp.reshape(v, [-1 if several and i == channel else 1 for i in range(codes.ndim)])

    count = filter.shape[outputs]
    matrix = filter.codes
    if _is_zero(filter):
        found, sums = correlated(matrix), None
    else:
        one = list(filter.shape)
        one[outputs] = 1
        found = correlated(jnp.concatenate([matrix, jnp.ones(one, BYTE)], outputs))
        sums = lax.slice_in_dim(found, count, count + 1, axis=channel)
        found = lax.slice_in_dim(found, 0, count, axis=channel)

    def total(side: int) -> Any:
        return placed(jnp.sum(matrix, tuple(summed), dtype=_WIDE), 1) if side else sums

    return _joined(found, x, filter, placed, total, depth)


def _is_zero(x: Codes) -> bool:
    return x.zero == 0


def _joined(
    found: Array,
    left: Codes,
    right: Codes,
    placed: Callable[[Any, int], Any],
    total: Callable[[int], Any],
    depth: int,
) -> Array:
    """Return the sums of real products, of sums of products of codes."""
    both = left, right
    a, c = (placed(x.step, side) for side, x in enumerate(both))
    if left.zero is not None and right.zero is not None:
        y, z = np.int32(left.zero), np.int32(right.zero)
        if z:
            found = found - z * total(0)
        if y:
            found = found - y * total(1)
        if y and z:
            found = found + y * z * np.int32(depth)
        return found.astype(_REAL) * (a * c)
    b, d = (placed(x.start, side) for side, x in enumerate(both))
    real = found.astype(_REAL) * (a * c)
    if not _is_zero(right):
        real = real + total(0).astype(_REAL) * (a * d)
    if not _is_zero(left):
        real = real + total(1).astype(_REAL) * (b * c) + np.float32(depth) * (b * d)
    return real
