"""Holds tensors of few levels as codes of 8 bits, and computes their products in integers.

A tensor x = a * (p - y) + b has the integer codes p, the step a, the zero point y and the start b.
Another tensor w = c * (q - z) + d has the codes q, the step c, the zero point z and the start d.
The sum of x * w over n items is

    a * c * P + a * d * (sum p - n y) + b * c * (sum q - n z) + n b d

where the integer P is sum p q - z sum p - y sum q + n y z.
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

from lowering.cpu.memory import materialised
from lowering.cpu.products import row_twice
from lowering.extents import with_extent
from lowering.jaxpr_types import Equation, Params
from lowering.jaxprs import bind, primitive
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.levels import Levels

BYTE, _WIDE, FLOAT = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.float32)
_LOW, _HIGH = -128, 127
Operand = Array | np.float32  # a scalar of numpy is a literal of the program

# The numbers of summed items, and of a window's channels, for which integers are used. With fewer
# items float32 is as fast. A product of two codes, less their zero points, is at most 255**2, so
# that the sum of more items may not fit an int32.
_DEPTHS = range(16, (1 << 15) + 1)


@partial(register_dataclass, data_fields=["codes", "step", "start"], meta_fields=["zero"])
@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A tensor whose items are (codes - zero) * step + start, where `codes` are int8.

    `step` and `start` are scalars, or arrays of the tensor's rank that have several items along
    at most one axis. If `start` is None, it counts as 0, and the code `zero` stands for exactly
    0.
    """

    # `codes`, `step` and `start` are arrays. While a program is rewritten, they are variables.
    codes: Any
    step: Any
    zero: int = 0
    start: Any = None

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the shape, of the tensor's rank, to which step and start broadcast."""
        shapes = (np.shape(v) for v in (self.step, self.start) if v is not None)
        return broadcast_shapes((1,) * self.codes.ndim, *shapes)

    def dequantised(self) -> Array:
        """Return the items (codes - zero) * step + start in float32."""
        x = (self.codes.astype(FLOAT) - np.float32(self.zero)) * self.step
        return x if self.start is None else x + self.start

    def changed(self, name: str, other: Array) -> Codes | None:
        """Return the codes of x + other, x - other, x * other or x / other.

        x is this tensor. `name` is "add", "sub", "mul" or "div". None is returned if step or
        start would have several items along more than one axis.
        """
        if name in ("add", "sub"):
            term = other if name == "add" else -other
            start = 0 if self.start is None else self.start
            codes = replace(self, start=start + term)
        else:
            factor = other if name == "mul" else 1 / other
            start = self.start
            if start is not None:
                start = start * factor
            codes = replace(self, step=self.step * factor, start=start)
        return codes if is_slim(codes.extents) else None


def of_levels(level: Array, step: Array, start: Array, levels: Levels) -> Codes:
    """Return int8 codes of a tensor whose items are level * step + start.

    The codes are the levels minus a shift. If possible, the item 0 has the code 0.
    """

    def fits(shift: int) -> bool:
        return levels.lowest - shift >= _LOW and levels.highest - shift <= _HIGH

    zero = levels.zero
    if zero is not None and fits(zero):
        shift = zero
    elif fits(0):
        shift = 0
    else:
        shift = levels.lowest - _LOW
    codes = materialised((level - np.float32(shift)).astype(_WIDE).astype(BYTE))
    if zero is not None:
        return Codes(codes, step, zero - shift)
    return Codes(codes, step, 0, start + np.float32(shift) * step)


def of_bytes(x: Array) -> Codes:
    """Return an array of int8 or uint8 as codes with the step 1."""
    if x.dtype == BYTE:
        return Codes(x, np.float32(1))
    # The exclusive or subtracts 128.
    codes = lax.bitcast_convert_type(x ^ np.uint8(_HIGH + 1), BYTE)
    return Codes(codes, np.float32(1), _LOW)


def moved(equation: Equation, x: Codes) -> Codes | None:
    """Return the codes of an equation's result, from the codes x of its operand.

    The equation only moves items. None is returned if it might move the items of step or start
    in another way than the codes.
    """

    def moved_part(part: Any) -> Any:
        return bind(equation, [part])[0] if np.ndim(part) else part

    has_scalars = np.ndim(x.step) == np.ndim(x.start) == 0
    if primitive(equation) != "transpose" and not has_scalars:
        return None
    codes = moved_part(x.codes)
    step = moved_part(x.step)
    start = moved_part(x.start)
    return Codes(codes, step, x.zero, start)


def is_slim(shape: tuple[int, ...]) -> bool:
    """Tell whether an array has several items along at most one axis."""
    return sum(n > 1 for n in shape) <= 1


def product(left: Codes, right: Codes, params: Params) -> Array | None:
    """Compute a `lax.dot_general` of codes in integers, and return its result in float32.

    `params` are the parameters of the `dot_general`. None is returned if the product has batch
    axes, if steps vary along a summed axis, or if the number of summed items is out of range.
    """
    numbers = params["dimension_numbers"]
    sums, batch = numbers
    left_sums, right_sums = sums
    depth = math.prod(left.codes.shape[axis] for axis in left_sums)
    left_varies = any(left.extents[axis] > 1 for axis in left_sums)
    right_varies = any(right.extents[axis] > 1 for axis in right_sums)
    if left_varies or right_varies:
        return None
    if any(batch) or depth not in _DEPTHS:
        return None
    # The numbers of axes that the result has from the left and from the right operand. The axes of
    # the left operand come first.
    left_free = left.codes.ndim - len(left_sums)
    right_free = right.codes.ndim - len(right_sums)

    def of_left(x: Operand) -> Operand:
        """Return a left operand's step, start or sums, in a shape for the axes of the result."""
        if np.ndim(x) == 0:
            return x
        if np.ndim(x) > left_free:
            x = jnp.squeeze(x, tuple(left_sums))
        return lax.expand_dims(x, range(left_free, left_free + right_free))

    def of_right(x: Operand) -> Operand:
        """Return a right operand's step, start or sums, in a shape for the axes of the result."""
        if np.ndim(x) == 0:
            return x
        if np.ndim(x) > right_free:
            x = jnp.squeeze(x, tuple(right_sums))
        return lax.expand_dims(x, range(left_free))

    totals = [
        jnp.sum(left.codes, tuple(left_sums), dtype=_WIDE),
        jnp.sum(right.codes, tuple(right_sums), dtype=_WIDE),
    ]
    kind: dict[str, Any] = {"preferred_element_type": _WIDE}
    is_row = left.codes.size == depth
    is_matrix = right_free == 1 and len(right_sums) == 1
    if is_row and is_matrix:
        matrix = jnp.moveaxis(right.codes, right_sums[0], 1)
        total = row_twice(left.codes.reshape(-1), matrix, 1, kind)
        total = total.reshape((1,) * left_free + total.shape)
    else:
        total = lax.dot_general(left.codes, right.codes, numbers, **kind)
    return _joined(total, (left, right), (of_left, of_right), totals, depth)


def convolution(x: Codes, filter: Codes, params: Params) -> Array | None:
    """Compute a convolution of codes in integers, and return its result in float32.

    `params` are the parameters of a `lax.conv_general_dilated`. None is returned if integers
    cannot compute the convolution.
    """
    numbers = params["dimension_numbers"]
    padding = params["padding"]
    _, _, *spatial_axes = numbers.lhs_spec
    outputs, *summed = numbers.rhs_spec
    channel = numbers.out_spec[1]
    shape = filter.codes.shape
    is_padded = any(map(any, padding))
    depth = math.prod(shape[axis] for axis in summed)
    has_groups = params["feature_group_count"] * params["batch_group_count"] > 1
    is_dilated = any(d > 1 for d in params["lhs_dilation"])
    has_depth = depth in _DEPTHS and shape[summed[0]] in _DEPTHS
    if has_groups or is_dilated or not has_depth:
        return None
    # The padding stands for 0, which has no code if there is a start.
    has_coded_padding = not is_padded or x.start is None
    step_varies = any(n > 1 for n in x.extents) or any(filter.extents[axis] > 1 for axis in summed)
    if step_varies or not has_coded_padding:
        return None
    codes = x.codes
    if is_padded and x.zero:  # the convolution itself would pad with the code 0
        sides = dict(zip(spatial_axes, padding, strict=True))
        edges = [(*sides.get(axis, (0, 0)), 0) for axis in range(codes.ndim)]
        codes = lax.pad(codes, np.array(x.zero, BYTE), edges)
        padding = [(0, 0)] * len(padding)
    filters = [filter.codes]
    if filter.zero or filter.start is not None:
        # An additional output channel, whose filter is ones, computes the sums of the covered
        # codes.
        filters.append(jnp.ones(with_extent(shape, outputs, 1), BYTE))
    total = lax.conv_general_dilated(
        codes,
        jnp.concatenate(filters, outputs),
        params["window_strides"],
        padding,
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=numbers,
        preferred_element_type=_WIDE,
    )
    result = lax.slice_in_dim(total, 0, shape[outputs], axis=channel)
    sums = lax.slice_in_dim(total, shape[outputs], None, axis=channel)

    def along_channels(v: Operand) -> Operand:
        """Return an operand's step, start or sums, in a shape along the result's channels."""
        return jnp.reshape(v, with_extent((1,) * codes.ndim, channel, np.size(v)))

    def of_input(v: Operand) -> Operand:
        has_result_axes = np.ndim(v) == codes.ndim
        return v if has_result_axes else along_channels(v)

    totals = [sums, jnp.sum(filter.codes, tuple(summed), dtype=_WIDE)]
    return _joined(result, (x, filter), (of_input, along_channels), totals, depth)


Aligned = Callable[[Operand], Operand]


def _joined(
    total: Array,
    operands: tuple[Codes, Codes],
    aligned: tuple[Aligned, Aligned],
    totals: Sequence[Array],
    depth: int,
) -> Array:
    """Return the float32 sums of products of items, from the int32 sums of products of codes.

    The formula is at the top of this module.

    Args:
        total: the sums of products of codes.
        operands: the codes of the left and of the right operand.
        aligned: two functions that return the step, start or sums of the left and of the right
            operand in a shape that broadcasts to the result.
        totals: the sums of codes of the left and of the right operand.
        depth: the number of summed items.
    """
    # The names are those of the formula.
    left, right = operands
    of_left, of_right = aligned
    a, p = of_left(left.step), of_left(totals[0])
    c, q = of_right(right.step), of_right(totals[1])
    b = None if left.start is None else of_left(left.start)
    d = None if right.start is None else of_right(right.start)
    y, z, n = np.int32(left.zero), np.int32(right.zero), np.int32(depth)
    if z:
        total = total - z * p
    if y:
        total = total - y * (q - z * n)
    result = total.astype(FLOAT) * (a * c)
    if d is not None:
        result = result + (p - y * n).astype(FLOAT) * (a * d)
    if b is not None:
        result = result + (q - z * n).astype(FLOAT) * (b * c)
    if b is not None and d is not None:
        result = result + np.float32(depth) * (b * d)
    return result
