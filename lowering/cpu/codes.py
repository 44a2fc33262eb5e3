"""Tensors of few levels as codes of 8 bits, and their products in integers.

With x = a * (p - y) + b and w = c * (q - z) + d, codes p and q, the sum of x * w over n items is
a * c * P + a * d * (sum p - n y) + b * c * (sum q - n z) + n b d, where P is the integer
sum p q - z sum p - y sum q + n y z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.tree_util import register_dataclass

from lowering.cpu.memory import in_memory
from lowering.cpu.products import row_twice
from lowering.jaxpr_types import Equation, Params
from lowering.jaxprs import bind, primitive
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.levels import Levels

BYTE, _WIDE, REAL = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.float32)
_LOW, _HIGH = -128, 127
Real = Array | np.float32  # a scalar of numpy is a literal of the program

# Numbers of summed items, and of a window's channels. With fewer items float32 is as fast. Products
# of codes less zero points are at most 255**2: sums of more items may not fit an int32.
_DEPTHS = range(16, (1 << 15) + 1)


@partial(register_dataclass, data_fields=["codes", "step", "start"], meta_fields=["zero"])
@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A tensor `(codes - zero) * step + start`; `codes` are int8.

    `step` and `start` are scalars, or arrays of the tensor's rank with several items along at most
    one axis. Without a `start` the code `zero` stands for exactly 0.
    """

    codes: Any  # an array like `step` and `start`; variables while a program is rewritten
    step: Any
    zero: int = 0
    start: Any = None

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the extents of step and start along the axes of the tensor."""
        shapes = (np.shape(v) for v in (self.step, self.start) if v is not None)
        return broadcast_shapes((1,) * self.codes.ndim, *shapes)

    def real(self) -> Array:
        """Return the tensor in float32."""
        x = (self.codes.astype(REAL) - np.float32(self.zero)) * self.step
        return x if self.start is None else x + self.start

    def changed(self, name: str, other: Array) -> Codes | None:
        """Return the codes of x + other, x - other, x * other or x / other, by name.

        Return None if step or start would have several items along more than one axis.
        """
        start = 0 if self.start is None else self.start
        if name in ("add", "sub"):
            codes = replace(self, start=start + (other if name == "add" else -other))
        else:
            factor = other if name == "mul" else 1 / other
            start = None if self.start is None else self.start * factor
            codes = replace(self, step=self.step * factor, start=start)
        return codes if is_slim(codes.extents) else None


def of_levels(level: Array, step: Array, start: Array, levels: Levels) -> Codes:
    """Return the codes of a tensor: the numbers of its levels, shifted to int8.

    If possible, the code of 0 is 0.
    """
    zero, shift = levels.zero, levels.lowest - _LOW
    if levels.lowest >= _LOW and levels.highest <= _HIGH:
        shift = 0
    if zero is not None and levels.lowest - zero >= _LOW and levels.highest - zero <= _HIGH:
        shift = zero
    codes = in_memory((level - np.float32(shift)).astype(_WIDE).astype(BYTE))
    if zero is not None:
        return Codes(codes, step, zero - shift)
    return Codes(codes, step, 0, start + np.float32(shift) * step)


def of_bytes(x: Array) -> Codes:
    """Return the codes of an array of int8 or uint8."""
    if x.dtype == BYTE:
        return Codes(x, np.float32(1))
    return Codes(lax.bitcast_convert_type(x ^ np.uint8(_HIGH + 1), BYTE), np.float32(1), _LOW)


def moved(equation: Equation, x: Codes) -> Codes | None:
    """Apply an equation that moves items to codes; None if steps or starts may move otherwise."""
    parts = x.codes, x.step, x.start
    if primitive(equation) != "transpose" and any(map(np.ndim, parts[1:])):
        return None
    codes, step, start = (bind(equation, [v])[0] if np.ndim(v) else v for v in parts)
    return Codes(codes, step, x.zero, start)


def is_slim(shape: tuple[int, ...]) -> bool:
    """Tell whether an array has several items along at most one axis."""
    return sum(n > 1 for n in shape) <= 1


def product(left: Codes, right: Codes, params: Params) -> Array | None:
    """Return the real result of a `lax.dot_general` of codes, computed in integers.

    Return None if it has batches, if steps vary along a summed axis, or if the number of summed
    items is out of range.
    """
    numbers, both = params["dimension_numbers"], (left, right)
    sums, batch = numbers
    depth = math.prod(left.codes.shape[axis] for axis in sums[0])
    varies = any(x.extents[i] > 1 for x, axes in zip(both, sums, strict=True) for i in axes)
    if any(batch) or varies or depth not in _DEPTHS:
        return None
    free = [x.codes.ndim - len(axes) for x, axes in zip(both, sums, strict=True)]

    def placed(x: Real, side: int) -> Real:
        """Return an operand's step, start or sums in the axes of the result."""
        if np.ndim(x) == 0:
            return x
        if np.ndim(x) > free[side]:
            x = jnp.squeeze(x, tuple(sums[side]))
        first = 0 if side else free[0]
        return lax.expand_dims(x, range(first, first + free[1 - side]))

    totals = [jnp.sum(x.codes, tuple(sums[side]), dtype=_WIDE) for side, x in enumerate(both)]
    kind: dict[str, Any] = {"preferred_element_type": _WIDE}
    if left.codes.size == depth and free[1] == 1 == len(sums[1]):
        matrix = jnp.moveaxis(right.codes, sums[1][0], 1)
        total = row_twice(left.codes.reshape(-1), matrix, 1, kind)
        total = total.reshape((1,) * free[0] + total.shape)
    else:
        total = lax.dot_general(left.codes, right.codes, numbers, **kind)
    return _joined(total, both, placed, totals, depth)


def convolution(x: Codes, filter: Codes, params: Params) -> Array | None:
    """Return the real result of a convolution of codes; None if integers cannot compute it."""
    numbers, padding = params["dimension_numbers"], params["padding"]
    (_, _, *places), (outputs, *summed) = numbers.lhs_spec, numbers.rhs_spec
    shape, channel, is_padded = filter.codes.shape, numbers.out_spec[1], any(map(any, padding))
    depth = math.prod(shape[axis] for axis in summed)
    if (
        params["feature_group_count"] * params["batch_group_count"] > 1
        or any(n > 1 for n in (*params["lhs_dilation"], *x.extents))
        or any(n > 1 for axis, n in enumerate(filter.extents) if axis != outputs)
        or (is_padded and x.start is not None)
        or not {depth, shape[summed[0]]}.issubset(_DEPTHS)
    ):
        return None
    codes, ones = x.codes, [1 if axis == outputs else n for axis, n in enumerate(shape)]
    if is_padded and x.zero:  # padding is 0
        sides = dict(zip(places, padding, strict=True))
        edges = [(*sides.get(axis, (0, 0)), 0) for axis in range(codes.ndim)]
        codes, padding = lax.pad(codes, np.array(x.zero, BYTE), edges), [(0, 0)] * len(padding)
    # Another output channel, whose filter is ones, computes the sums of the covered codes.
    needs_sums = filter.zero or filter.start is not None
    parts = [filter.codes, *([jnp.ones(ones, BYTE)] if needs_sums else [])]
    total = lax.conv_general_dilated(
        codes,
        jnp.concatenate(parts, outputs),
        params["window_strides"],
        padding,
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=numbers,
        preferred_element_type=_WIDE,
    )
    ends = (0, shape[outputs]), (shape[outputs], None)
    total, sums = (lax.slice_in_dim(total, *part, axis=channel) for part in ends)

    def placed(v: Real, side: int) -> Real:
        """Return an operand's step, start or sums along the channels of the result."""
        if np.ndim(v) == codes.ndim and not side:
            return v
        return jnp.reshape(v, [np.size(v) if i == channel else 1 for i in range(codes.ndim)])

    totals = [sums, jnp.sum(filter.codes, tuple(summed), dtype=_WIDE)]
    return _joined(total, (x, filter), placed, totals, depth)


def _joined(
    total: Array,
    both: tuple[Codes, Codes],
    placed: Callable[[Real, int], Real],
    totals: Sequence[Array],
    depth: int,
) -> Array:
    """Return sums of real products by the formula at the top of this module.

    `total` has the sums of products of codes, `totals` the sums of codes for each operand.
    """
    (a, p), (c, q) = ((placed(x.step, i), placed(totals[i], i)) for i, x in enumerate(both))
    b, d = (None if x.start is None else placed(x.start, i) for i, x in enumerate(both))
    y, z, n = (np.int32(v) for v in (both[0].zero, both[1].zero, depth))
    if z:
        total = total - z * p
    if y:
        total = total - y * (q - z * n)
    real = total.astype(REAL) * (a * c)
    if d is not None:
        real = real + (p - y * n).astype(REAL) * (a * d)
    if b is not None:
        real = real + (q - z * n).astype(REAL) * (b * c)
    return real if b is None or d is None else real + np.float32(depth) * (b * d)
