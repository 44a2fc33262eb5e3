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
from lowering.jaxpr_evaluation import bind
from lowering.jaxpr_types import Equation, Params
from lowering.jaxprs import primitive
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.levels import Levels

BYTE = np.dtype(np.int8)  # the dtype of codes
_SUM = np.dtype(np.int32)  # the dtype of sums of codes, and of sums of products of codes
FLOAT = np.dtype(np.float32)
_LOWEST, _HIGHEST = -128, 127  # the lowest and the highest code
Operand = Array | np.float32  # a scalar of numpy is a literal of the program

# Integers are used only if the number of summed items, and the number of a window's channels, are
# in this range. With fewer items float32 is as fast. With more items a sum may not fit an int32,
# since a product of two codes, less their zero points, may be 255**2.
_DEPTHS = range(16, (1 << 15) + 1)


@partial(register_dataclass, data_fields=["codes", "step", "start"], meta_fields=["zero"])
@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A tensor whose items are (codes - zero) * step + start, where `codes` are int8.

    `step` and `start` are scalars, or arrays of the tensor's rank that have several items along at
    most one axis. If `start` is None, the start is 0, and the code `zero` stands for exactly 0.
    """

    # The fields `codes`, `step` and `start` are arrays. While a program is rewritten, the fields
    # are variables of the program.
    codes: Any
    step: Any
    zero: int = 0
    start: Any = None

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the common shape of step and start, with as many axes as the tensor has."""
        ones = (1,) * self.codes.ndim
        start_shape = () if self.start is None else np.shape(self.start)
        return broadcast_shapes(ones, np.shape(self.step), start_shape)

    def dequantised(self) -> Array:
        """Return the items (codes - zero) * step + start in float32."""
        x = (self.codes.astype(FLOAT) - np.float32(self.zero)) * self.step
        return x if self.start is None else x + self.start

    def changed(self, name: str, other: Array) -> Codes | None:
        """Return the codes of x + other, x - other, x * other or x / other, for this tensor x.

        `name` is "add", "sub", "mul" or "div". None is returned if step or start would have
        several items along more than one axis.
        """
        step, start = self.step, self.start
        if name in ("add", "sub"):
            term = other if name == "add" else -other
            if start is None:
                start = 0
            start = start + term
        else:
            factor = other if name == "mul" else 1 / other
            step = step * factor
            start = None if start is None else start * factor
        codes = replace(self, step=step, start=start)
        return codes if is_slim(codes.extents) else None


def of_levels(level: Array, step: Array, start: Array, levels: Levels) -> Codes:
    """Return int8 codes of a tensor whose items are level * step + start.

    The codes are the levels minus a shift. If possible, the item 0 has the code 0.
    """

    def fits(shift: int) -> bool:
        return levels.lowest - shift >= _LOWEST and levels.highest - shift <= _HIGHEST

    zero_level = levels.zero
    if zero_level is not None and fits(zero_level):
        shift = zero_level
    elif fits(0):
        shift = 0
    else:
        shift = levels.lowest - _LOWEST
    codes = materialised((level - np.float32(shift)).astype(_SUM).astype(BYTE))
    if zero_level is not None:
        return Codes(codes, step, zero=zero_level - shift)
    # The item is level * step + start = code * step + (shift * step + start).
    return Codes(codes, step, start=start + np.float32(shift) * step)


def of_bytes(x: Array) -> Codes:
    """Return an array of int8 or uint8 as codes with the step 1."""
    if x.dtype == BYTE:
        return Codes(x, np.float32(1))
    # The exclusive or with 128 subtracts 128, if the result is read as int8: the bits of 130 become
    # the bits of 2, and the bits of 3 become the bits of -125.
    codes = lax.bitcast_convert_type(x ^ np.uint8(128), BYTE)
    return Codes(codes, np.float32(1), zero=_LOWEST)


def moved(equation: Equation, x: Codes) -> Codes | None:
    """Return the codes of an equation's result, from the codes x of its operand.

    The equation only moves items. None is returned if it might move the items of step or start
    in another way than the codes.
    """
    are_scalars = np.ndim(x.step) == np.ndim(x.start) == 0
    if primitive(equation) != "transpose" and not are_scalars:
        return None

    def move(array: Any) -> Any:
        if np.ndim(array) == 0:  # a scalar, or None for a start
            return array
        (result,) = bind(equation, [array])
        return result

    codes = move(x.codes)
    step = move(x.step)
    start = move(x.start)
    return Codes(codes, step, x.zero, start)


def is_slim(shape: tuple[int, ...]) -> bool:
    """Tell whether an array has several items along at most one axis."""
    return sum(extent > 1 for extent in shape) <= 1


def product(left: Codes, right: Codes, params: Params) -> Array | None:
    """Compute a `lax.dot_general` of codes in integers, and return its result in float32.

    `params` are the parameters of the `dot_general`. None is returned if the product has batch
    axes, if steps vary along a summed axis, or if the number of summed items is out of range.
    """
    (left_sums, right_sums), batch_axes = params["dimension_numbers"]
    left_varies = any(left.extents[axis] > 1 for axis in left_sums)
    right_varies = any(right.extents[axis] > 1 for axis in right_sums)
    if left_varies or right_varies:
        return None
    depth = math.prod(left.codes.shape[axis] for axis in left_sums)
    if any(batch_axes) or depth not in _DEPTHS:
        return None
    # The result has `left_rank` axes of the left operand, and then `right_rank` axes of the right
    # operand.
    left_rank = left.codes.ndim - len(left_sums)
    right_rank = right.codes.ndim - len(right_sums)

    def along_left(x: Operand) -> Operand:
        """Reshape a left operand's step, start or sums, so that they broadcast to the result."""
        if np.ndim(x) == 0:
            return x
        has_summed_axes = np.ndim(x) > left_rank  # sums of codes lack them
        if has_summed_axes:
            x = jnp.squeeze(x, tuple(left_sums))
        return lax.expand_dims(x, range(left_rank, left_rank + right_rank))

    def along_right(x: Operand) -> Operand:
        """Reshape a right operand's step, start or sums, so that they broadcast to the result."""
        if np.ndim(x) == 0:
            return x
        has_summed_axes = np.ndim(x) > right_rank
        if has_summed_axes:
            x = jnp.squeeze(x, tuple(right_sums))
        return lax.expand_dims(x, range(left_rank))

    code_sums = [
        jnp.sum(left.codes, tuple(left_sums), dtype=_SUM),
        jnp.sum(right.codes, tuple(right_sums), dtype=_SUM),
    ]
    total = _product_of_codes(left.codes, right.codes, left_sums, right_sums)
    return _joined(total, (left, right), (along_left, along_right), code_sums, depth)


def _product_of_codes(
    left: Array, right: Array, left_sums: Sequence[int], right_sums: Sequence[int]
) -> Array:
    """Return the int32 sums of products of codes, over the axes `left_sums` and `right_sums`."""
    kind: dict[str, Any] = {"preferred_element_type": _SUM}
    is_row = left.size == math.prod(left.shape[axis] for axis in left_sums)
    is_matrix = right.ndim == 2 and len(right_sums) == 1
    if not is_row or not is_matrix:
        numbers = (tuple(left_sums), tuple(right_sums)), ((), ())
        return lax.dot_general(left, right, numbers, **kind)
    matrix = jnp.moveaxis(right, right_sums[0], 1)  # (outputs, depth)
    total = row_twice(left.reshape(-1), matrix, axis=1, params=kind)
    ones = (1,) * (left.ndim - len(left_sums))
    return total.reshape(*ones, -1)


def convolution(x: Codes, filter: Codes, params: Params) -> Array | None:
    """Compute a convolution of codes in integers, and return its result in float32.

    `params` are the parameters of a `lax.conv_general_dilated`. None is returned if integers
    cannot compute the convolution.
    """
    if not _is_convolution_of_codes(x, filter, params):
        return None
    numbers = params["dimension_numbers"]
    padding = params["padding"]
    _, _, *spatial_axes = numbers.lhs_spec
    output_axis, *summed_axes = numbers.rhs_spec
    _, result_channel_axis, *_ = numbers.out_spec
    filter_shape = filter.codes.shape
    output_count = filter_shape[output_axis]
    depth = math.prod(filter_shape[axis] for axis in summed_axes)
    codes = x.codes
    is_padded = any(map(any, padding))
    if is_padded and x.zero:
        # The convolution would pad with the code 0, but `x.zero` is the code of the item 0.
        codes = _padded(x, spatial_axes, padding)
        padding = [(0, 0)] * len(padding)
    filters = [filter.codes]
    if filter.zero or filter.start is not None:
        # The formula needs the sums of the codes that the windows cover. An additional output
        # channel, whose filter is ones, computes these sums.
        filters.append(jnp.ones(with_extent(filter_shape, output_axis, 1), BYTE))
    total = lax.conv_general_dilated(
        codes,
        jnp.concatenate(filters, output_axis),
        params["window_strides"],
        padding,
        rhs_dilation=params["rhs_dilation"],
        dimension_numbers=numbers,
        preferred_element_type=_SUM,
    )
    result = lax.slice_in_dim(total, 0, output_count, axis=result_channel_axis)
    # Without the additional channel this array is empty, and `_joined` does not need it.
    covered_sums = lax.slice_in_dim(total, output_count, None, axis=result_channel_axis)
    filter_sums = jnp.sum(filter.codes, tuple(summed_axes), dtype=_SUM)

    def along_channels(numbers: Operand) -> Operand:
        """Return the filter's step, start or sums, in a shape along the result's channels."""
        shape = with_extent((1,) * codes.ndim, result_channel_axis, np.size(numbers))
        return jnp.reshape(numbers, shape)

    def along_result(numbers: Operand) -> Operand:
        """Return the input's step, start or sums, in a shape that broadcasts to the result."""
        has_result_axes = np.ndim(numbers) == codes.ndim
        return numbers if has_result_axes else along_channels(numbers)

    aligned = along_result, along_channels
    return _joined(result, (x, filter), aligned, [covered_sums, filter_sums], depth)


def _is_convolution_of_codes(x: Codes, filter: Codes, params: Params) -> bool:
    """Tell whether integers can compute a convolution with the parameters `params`."""
    has_groups = params["feature_group_count"] * params["batch_group_count"] > 1
    is_dilated = any(dilation > 1 for dilation in params["lhs_dilation"])
    if has_groups or is_dilated:
        return False
    _, *summed_axes = params["dimension_numbers"].rhs_spec
    summed_extents = [filter.codes.shape[axis] for axis in summed_axes]
    depth = math.prod(summed_extents)
    channel_count, *_ = summed_extents
    if depth not in _DEPTHS or channel_count not in _DEPTHS:
        return False
    # An item of the padding is 0. If the input has a start, no code stands for 0.
    is_padded = any(map(any, params["padding"]))
    if is_padded and x.start is not None:
        return False
    input_step_varies = any(extent > 1 for extent in x.extents)
    filter_step_varies = any(filter.extents[axis] > 1 for axis in summed_axes)
    return not input_step_varies and not filter_step_varies


def _padded(x: Codes, axes: Sequence[int], padding: Sequence[tuple[int, int]]) -> Array:
    """Return the codes of x, padded with the code of the item 0.

    `padding` has the numbers of codes before and after x, for each axis in `axes`.
    """
    edges = [(0, 0, 0)] * x.codes.ndim
    for axis, (before, after) in zip(axes, padding, strict=True):
        edges[axis] = before, after, 0
    return lax.pad(x.codes, np.array(x.zero, BYTE), edges)


Aligned = Callable[[Operand], Operand]


def _joined(
    total: Array,
    operands: tuple[Codes, Codes],
    aligned: tuple[Aligned, Aligned],
    code_sums: Sequence[Array],
    depth: int,
) -> Array:
    """Return the float32 sums of products of items, from the int32 sums of products of codes.

    The formula is at the top of this module.

    Args:
        total: the sums of products of codes.
        operands: the codes of the left and of the right operand.
        aligned: a function for each operand. The function reshapes the step, start or sums of the
            operand, so that they broadcast to the result.
        code_sums: the sums of codes of the left and of the right operand.
        depth: the number of summed items.
    """
    # Here p and q are the sums of codes. The other names are those of the formula. The result is
    #     a * c * P + a * d * (p - n * y) + b * c * (q - n * z) + n * b * d
    # where P is total - z * p - y * (q - n * z).
    left, right = operands
    along_left, along_right = aligned
    left_sums, right_sums = code_sums
    a, p = along_left(left.step), along_left(left_sums)
    c, q = along_right(right.step), along_right(right_sums)
    b = None if left.start is None else along_left(left.start)
    d = None if right.start is None else along_right(right.start)
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
