"""Computes exact sums of products of 8-bit codes, less their zero points, in int32.

For codes p and q with zero points y and z:

    sum((p - y) * (q - z)) = sum(p * q) - sum(y * (q - z)) - sum(p * z)

3x3 windows from 64 to 64 channels at 56x56 positions take 2.5 ms on two cores with AVX-512 VNNI.
With factors of int32 they take 8.5 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.kernels import contraction
from lowering.kernels.correlation import Slide

# The most cells of a window that are multiplied at a time. For each of them the input is copied.
_CELLS_AT_A_TIME = 32
_CODE_DTYPE, _SUM_DTYPE = np.dtype(np.int8), np.dtype(np.int32)


def is_byte(*arrays: Array) -> bool:
    """Tell whether all arrays have the dtype int8 or uint8."""
    return all(str(jnp.asarray(x).dtype) in ("int8", "uint8") for x in arrays)


def contract(
    operands: Sequence[Array], zero_points: Sequence[Array], terms: Sequence[str], result: str
) -> Array:
    """Subtract the zero points from two operands of 8 bits, and sum their products in int32.

    `terms` has the letters of the axes of each operand, and `result` has the letters of the
    result's axes. Axes whose letter the result lacks are summed, as in `contraction.contract`.
    """
    left, right = operands
    left_zero, right_zero = zero_points
    p, y = _signed(left, left_zero)  # the names are those of the formula of this module
    q, z = _signed(right, right_zero)

    def total(left: Array, right: Array) -> Array:
        operands = (left, right)
        return contraction.contract(operands, terms, result, _SUM_DTYPE, precision=None)

    products = total(p, q)
    left_term = total(_aligned(y, p), q.astype(_SUM_DTYPE) - z)
    right_term = total(p.astype(_SUM_DTYPE), _aligned(z, q))
    return products - left_term - right_term


def correlate(x: Array, filter: Array, zero_points: Sequence[Array], slide: Slide) -> Array:
    """Subtract the zero points from an input and a filter of 8 bits, and correlate them in int32.

    The input has the shape (batch, channels, *extents), the filter has the shape (outputs,
    channels / groups, *window), and the result has the shape (batch, outputs, *positions). The
    input's zero point is a scalar, with which the input is padded. The filter's zero point is a
    scalar, or has the shape (outputs, 1, 1, ...).
    """
    input_zero, filter_zero = zero_points
    p, y = _signed(x, input_zero)  # the names are those of the formula of this module
    q, z = _signed(filter, filter_zero)
    edges = [(0, 0, 0), (0, 0, 0)]  # batch and channels
    edges += [(before, after, 0) for before, after in slide.padding]
    p = lax.pad(p, y.astype(_CODE_DTYPE), edges)
    groups = slide.groups
    count, depth, *size = q.shape
    batch, _, *extents = p.shape
    without_padding = replace(slide, padding=((0, 0),) * len(size))
    positions = without_padding.places(extents, size)
    p = p.reshape(batch, groups, depth, *extents)
    q = q.reshape(groups, -1, depth, *size)
    cells = list(np.ndindex(*size))
    total = jnp.zeros((batch, count, *positions), _SUM_DTYPE)
    for start in range(0, len(cells), _CELLS_AT_A_TIME):
        cells_of_product = cells[start : start + _CELLS_AT_A_TIME]
        items = [p[:, :, :, *without_padding.items(cell, positions)] for cell in cells_of_product]
        weights = [q[:, :, :, *cell] for cell in cells_of_product]
        columns = jnp.concatenate(items, 2)  # (batch, groups, cells * depth, *positions)
        matrix = jnp.concatenate(weights, 2)  # (groups, outputs of a group, cells * depth)
        sums = jnp.einsum("bgk...,gnk->bgn...", columns, matrix, preferred_element_type=_SUM_DTYPE)
        total += sums.reshape(total.shape)
    channel_shape = (1, -1, *[1] * len(size))  # the channels are axis 1 of the result
    # These are the sums of q - z over the filter of each output.
    item_count = depth * len(cells)
    filter_sums = q.astype(_SUM_DTYPE).reshape(count, -1).sum(1) - item_count * z.reshape(-1)
    # These are the sums of p over each window and the channels of a group.
    input_sums = lax.reduce_window(
        p.astype(_SUM_DTYPE).sum(2),
        np.int32(0),
        lax.add,
        (1, 1, *size),
        padding="VALID",
        window_strides=(1, 1, *slide.stride),
        window_dilation=(1, 1, *slide.dilation),
    )
    input_term = y * filter_sums.reshape(channel_shape)
    filter_term = jnp.repeat(input_sums, count // groups, 1) * z.reshape(channel_shape)
    return total - input_term - filter_term


def _signed(x: Array, zero: Array) -> tuple[Array, Array]:
    """Return codes x as int8, and the zero point of the int8 codes.

    The uint8 codes x with the zero point `zero` become x - 128 with the zero point `zero` -
    128.
    """
    x = jnp.asarray(x)
    if x.dtype == _CODE_DTYPE:
        return x, zero
    # The exclusive or with 128 subtracts 128: the bits of 130 become the bits of 2, and the bits of
    # 3 become the bits of -125.
    codes = lax.bitcast_convert_type(x ^ np.uint8(128), _CODE_DTYPE)
    return codes, zero - 128


def _aligned(zero: Array, x: Array) -> Array:
    """Return the zero point `zero` with leading axes of extent 1 added up to the rank of x."""
    added_axes = (1,) * (x.ndim - zero.ndim)
    return zero.reshape(added_axes + zero.shape)
