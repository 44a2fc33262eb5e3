"""The layers that pool: vxPoolingLayer and vxROIPoolingLayer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx import shapes
from nnef_jax.openvx.layers.accumulation import ends
from nnef_jax.openvx.layers.product_layers import SIZE_ROUNDING
from nnef_jax.openvx.profiles import SEMANTICS
from nnef_jax.openvx.tensor import Tensor, require_one_of
from nnef_jax.openvx.vx_errors import unsupported, wrong_dimension

POOLING = ("max", "avg")
# The largest number of cells of a window over which a mean is computed. The sum fits an int32.
_MOST_CELLS = 1 << 16
_TOO_MANY_PARTS = 1 << 15  # an axis of a region must have fewer parts than this number
_Pair = tuple[int, int]


@checks.layer
def pooling_layer(
    inputs: Tensor,
    *,
    pooling_size: tuple[int, int],
    pooling_type: str = "max",
    pooling_padding: tuple[int, int] = (0, 0),
    rounding: str = "floor",
    output_shape: tuple[int, ...] | None = None,
    skip: tuple[int, int] | None = None,
    semantics: str = "spec",
    strict: bool = True,
) -> Tensor:
    """Return the maximum or mean ('avg') of each window of the inputs (vxPoolingLayer).

    The inputs are ([batch,] channels, height, width). Pairs are (x, y). The inputs are padded with
    zeros. The zeros take part in maxima if `semantics` is 'spec', but not for 'khronos'. A mean is
    the sum divided by the size of the window, truncated. If sizes are rounded up, windows may reach
    beyond the padding. The cells beyond the padding are ignored in maxima, and count as zeros in
    means.

    `skip` is by default the smallest skip that leads to `output_shape`, or 1 if there is no
    `output_shape`. `rounding` of sizes is 'floor' or 'ceiling'. The output has the fixed-point
    position of the inputs. Raises TypeError for an argument of a wrong type, and VxError for one
    that OpenVX does not allow.
    """
    require_one_of("pooling_type", pooling_type, POOLING)
    require_one_of("rounding", rounding, SIZE_ROUNDING)
    require_one_of("semantics", semantics, SEMANTICS)
    x = checks.tensor("inputs", inputs, 3, 4)
    checks.same_format(strict, inputs=x)
    size = checks.pair("pooling_size", pooling_size, least=1)[::-1]
    padding = checks.pair("pooling_padding", pooling_padding)
    leading = x.shape[:-2]
    extents = x.shape[-2:]
    infer = partial(shapes.infer_skip, rounding=rounding)
    skip = checks.stride("skip", skip, output_shape, leading, infer, extents, size, padding[::-1])
    shape = shapes.pooling_output_shape(x.shape, size[::-1], padding, skip, rounding)
    checks.bounded_padding(x, padding, shape)
    if pooling_type == "avg" and size[0] * size[1] > _MOST_CELLS:
        unsupported(f"a mean of more than {_MOST_CELLS} items: pooling_size {size[::-1]}")
    # `pads` has a pair (before, after) for the rows, then a pair for the columns. The pairs (x, y)
    # of OpenVX are reversed to this order.
    pads = tuple(map(ends, extents, padding[::-1], size, shape[-2:], skip[::-1]))
    windows = _Windows(size, skip[::-1], pads)
    if pooling_type == "avg":
        pooled = _mean(x.data, windows=windows)
    else:
        pooled = _maximum(x.data, windows=windows, ignores_padding=semantics == "khronos")
    return Tensor(pooled, x.fixed_point_position)


class _Windows(NamedTuple):
    """Windows over planes (height, width): sizes, strides, and padding (before, after) by axis."""

    size: tuple[int, ...]
    skip: tuple[int, ...]
    pads: tuple[_Pair, ...]


@partial(jax.jit, static_argnames="windows")
def _mean(x: Array, *, windows: _Windows) -> Array:
    """Return the mean of each window, truncated. Padding counts as zeros."""
    total = _reduce(x.astype(np.int32), lax.add, padding=0, windows=windows)
    cell_count = np.int32(math.prod(windows.size))
    return lax.div(total, cell_count).astype(x.dtype)  # `div` truncates


@partial(jax.jit, static_argnames=("windows", "ignores_padding"))
def _maximum(x: Array, *, windows: _Windows, ignores_padding: bool) -> Array:
    """Return the maximum of each window.

    The zeros of the padding take part, unless `ignores_padding`.
    """
    least = int(jnp.iinfo(x.dtype).min)
    if not ignores_padding:
        # As many zeros follow the inputs as precede them. Cells beyond these zeros have the least
        # number of the dtype, so they do not change the maximum.
        zeros = tuple((before, min(before, after)) for before, after in windows.pads)
        x = _padded(x, value=0, pads=zeros)
        further = tuple((0, max(after - before, 0)) for before, after in windows.pads)
        windows = windows._replace(pads=further)
    return _reduce(x, lax.max, padding=least, windows=windows)


def _reduce(
    x: Array, operation: Callable[[Array, Array], Array], padding: int, windows: _Windows
) -> Array:
    """Reduce the items of each window by an operation. The number `padding` pads the planes."""
    leading = (1,) * (x.ndim - 2)
    neutral = np.asarray(padding, x.dtype)
    padded = _padded(x, padding, windows.pads)
    size = (*leading, *windows.size)
    skip = (*leading, *windows.skip)
    return lax.reduce_window(padded, neutral, operation, size, skip, "VALID")


def _padded(x: Array, value: int, pads: tuple[_Pair, ...]) -> Array:
    """Pad planes by a number. `pads` has the pair (before, after) for the rows and the columns."""
    # `lax.pad` takes (before, after, between the items) for each axis.
    leading = [(0, 0, 0)] * (x.ndim - 2)
    spatial = [(before, after, 0) for before, after in pads]
    return lax.pad(x, np.asarray(value, x.dtype), leading + spatial)


@checks.layer
def roi_pooling_layer(
    inputs: Tensor,
    input_rois: Tensor,
    *,
    output_shape: tuple[int, ...],
    pool_type: str = "max",
    semantics: str = "spec",
    strict: bool = True,
) -> Tensor:
    """Divide each region into parts, and return the maximum of each part (vxROIPoolingLayer).

    The inputs are ([batch,] channels, height, width). `input_rois` ([batch,] regions, 4) has x0,
    y0, x1 and y1 of each region, both ends included. These numbers are indices of items, whatever
    the fixed-point position is. `output_shape` is ([batch,] regions, channels, rows, columns),
    where a region is divided into rows x columns parts. The maximum of a part outside the inputs is
    0. If a part begins before the inputs, `semantics` decides: with 'spec' the maximum is over the
    part's items inside the inputs, and with 'khronos' the part has no items. Raises TypeError for
    an argument of a wrong type, and VxError for one that OpenVX does not allow.
    """
    require_one_of("semantics", semantics, SEMANTICS)
    if pool_type != "max":
        require_one_of("pool_type", pool_type, POOLING)
        unsupported("pool_type must be 'max'")
    x = checks.tensor("inputs", inputs, 3, 4)
    rois = checks.tensor("input_rois", input_rois, len(x.shape) - 1)
    # The regions have the type of the inputs, but may have any fixed-point position.
    checks.same_format(strict=False, inputs=x, input_rois=rois)
    checks.same_format(strict, inputs=x)
    *batch, count, corners = rois.shape
    if corners != 4 or tuple(batch) != x.shape[:-3]:
        wrong_dimension(
            f"input_rois have the shape {rois.shape}, it must be {(*x.shape[:-3], 'regions', 4)}"
        )
    leading = (*batch, count, x.shape[-3])
    output_shape = checks.output_shape(output_shape, leading, free=2)
    if max(output_shape[-2:]) >= _TOO_MANY_PARTS:
        unsupported(f"output_shape divides regions into 2**15 parts or more: {output_shape}")
    pool = partial(_pooled_regions, part_counts=output_shape[-2:], clips=semantics == "spec")
    if batch:  # `_pooled_regions` takes a single sample
        pool = jax.vmap(pool)
    return Tensor(pool(x.data, rois.data), x.fixed_point_position)


@partial(jax.jit, static_argnames=("part_counts", "clips"))
def _pooled_regions(x: Array, rois: Array, *, part_counts: _Pair, clips: bool) -> Array:
    """Divide each region into parts, and return the maximum of each part.

    A part may begin before the inputs. If `clips`, such a part has only its items inside the
    inputs; otherwise it has no items.

    `rois` has the shape (regions, 4), `x` has the shape (channels, height, width), and the result
    has the shape (regions, channels, rows, columns). The rows of `x` are reduced first, then the
    columns.
    """
    corners = rois.astype(np.int32)
    x0, y0, x1, y1 = (corners[:, i] for i in range(4))
    _, height, width = x.shape
    row_count, column_count = part_counts
    rows = _items_of_parts(y0, y1, row_count, height, clips)  # (regions, rows of parts, height)
    # (regions, columns of parts, width)
    columns = _items_of_parts(x0, x1, column_count, width, clips)
    least = np.asarray(jnp.iinfo(x.dtype).min, x.dtype)
    # The maxima over axis 3, the height, have the shape (regions, channels, rows of parts, width).
    row_maxima = jnp.where(rows[:, None, :, :, None], x[None, :, None], least).max(3)
    # The maxima over axis 4, the width, have the shape (regions, channels, rows, columns of parts).
    maxima = jnp.where(columns[:, None, None], row_maxima[:, :, :, None], least).max(4)
    has_items = rows.any(2)[:, None, :, None] & columns.any(2)[:, None, None]
    return jnp.where(has_items, maxima, np.asarray(0, x.dtype))


def _items_of_parts(first: Array, last: Array, count: int, extent: int, clips: bool) -> Array:
    """Return a mask that tells whether an item along an axis belongs to a part of a region.

    The mask has the shape (regions, count, extent), where `count` is the number of parts, and
    `extent` is the number of items. `first` and `last` are the ends of the regions. `clips` is as
    in `_pooled_regions`.
    """
    length = jnp.maximum(last - first, 0) + 1
    part = jnp.arange(count, dtype=np.int32)
    # Starts are rounded down, and ends are rounded up, so that neighbouring parts may overlap. Two
    # parts of a region of 3 items have the items 0 to 1 and 1 to 2.
    start = lax.div(part[None] * length[:, None], np.int32(count))  # (regions, count)
    end = lax.div((part[None] + 1) * length[:, None] + (count - 1), np.int32(count))
    first_item = (first[:, None] + start)[:, :, None]  # (regions, count, 1)
    end_item = (first[:, None] + end)[:, :, None]
    item = jnp.arange(extent, dtype=np.int32)[None, None]  # (1, 1, extent)
    is_inside = (item >= first_item) & (item < end_item)
    if clips:
        return is_inside
    starts_inside = first_item >= 0
    return is_inside & starts_inside
