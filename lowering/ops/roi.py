"""Operations on regions of interest (NNEF 1.0).

`input` has the shape (batch, channels, height, width). `rois` (n, 4) has rows x1, y1, x2, y2 in
pixels. `batch_index` (n,) has each region's image number. The result has the shape (n, channels,
*output_size). All operations are differentiable by the input, and `roi_resample` is also
differentiable by `rois`. The standard library expands aligned pools.

Pools follow Fast R-CNN. Corners are rounded, half away from zero. The corners belong to the region,
which therefore has at least one row and one column. Bin i of n over an extent e covers the items
from floor(i e / n) to before ceil((i + 1) e / n). Items outside of the input are left out. An empty
bin is 0.

`roi_resample` interpolates linearly and continues the edges. Output i of n lies at the position

    'symmetric'    x1 + (i + 1/2) (x2 - x1) / n - 1/2
    'asymmetric'   x1 + i (x2 - x1) / n
    'aligned'      x1 + i (x2 - x1 - 1) / (n - 1), or x1 where n = 1
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, differ, show, volume
from lowering.graph import TensorType
from lowering.kernels.resampling import bilinear
from lowering.kernels.windows import lowest, require_positive
from lowering.ops import require, rules
from lowering.ops.resample import METHODS


def bins_type(
    input: TensorType, rois: TensorType, batch_index: TensorType, output_size: Shape
) -> TensorType:
    """Return the type of pooled regions, whose shape is (regions, channels, *output_size).

    Raises InvalidOperation or InvalidShape if the arguments do not agree. The caller has
    checked the dtypes of `input` and `rois`, and that rows of `rois` are regions.
    """
    require.integer(batch_index=batch_index)
    require.layout("[B,C,H,W]", input=input)
    if len(batch_index.shape) != 1 or differ(batch_index.shape[0], rois.shape[0]):
        raise InvalidShape(
            f"'batch_index' {show(batch_index.shape)} must have an item for each row of "
            f"'rois' {show(rois.shape)}"
        )
    if len(output_size) != 2:
        raise InvalidOperation(f"'output_size' must have two items, it is {list(output_size)}")
    require_positive("output_size", output_size)
    require.within("int32", output_size, "an item of 'output_size', ")
    return TensorType((rois.shape[0], input.shape[1], *output_size), input.dtype)


def _roi_type(
    input: TensorType, rois: TensorType, batch_index: TensorType, output_size: Shape
) -> TensorType:
    require.floating(input=input, rois=rois)
    require.layout("[N,4]", "a row holds x1, y1, x2, y2", rois=rois)
    return bins_type(input, rois, batch_index, output_size)


@rules.rule("avg_roi_pool", _roi_type)
def avg_roi_pool(input: Array, rois: Array, batch_index: Array, output_size: Shape) -> Array:
    """Return the mean of each bin of each region, of shape (n, channels, *output_size).

    `rois` (n, 4) has rows x1, y1, x2, y2 in pixels, and `batch_index` (n,) has the image number
    of each region. A region has `output_size` bins.
    """

    def pool(plane: Array, rows: Array, columns: Array) -> Array:
        zero = np.array(0, plane.dtype)
        sums_of_rows = _masked(jnp.sum, plane, rows, zero)  # (channels, width, bin rows)
        total = _masked(jnp.sum, sums_of_rows, columns, zero)  # (channels, bin rows, bin columns)
        count = jnp.sum(rows, axis=1)[None, :, None] * jnp.sum(columns, axis=1)[None, None, :]
        return total / jnp.maximum(count, 1).astype(plane.dtype)

    return _pool_regions(pool, input, rois, batch_index, output_size)


@rules.rule("max_roi_pool", _roi_type)
def max_roi_pool(input: Array, rois: Array, batch_index: Array, output_size: Shape) -> Array:
    """Return the maximum of each bin of each region, of shape (n, channels, *output_size).

    `rois` (n, 4) has rows x1, y1, x2, y2 in pixels, and `batch_index` (n,) has the image number
    of each region. A region has `output_size` bins.
    """

    def pool(plane: Array, rows: Array, columns: Array) -> Array:
        # The shape of `maxima_of_rows` is (channels, width, bin rows), and that of `maxima` is
        # (channels, bin rows, bin columns).
        maxima_of_rows = _masked(jnp.max, plane, rows, lowest(plane.dtype))
        maxima = _masked(jnp.max, maxima_of_rows, columns, lowest(plane.dtype))
        has_items = jnp.any(rows, axis=1)[None, :, None] & jnp.any(columns, axis=1)[None, None, :]
        return jnp.where(has_items, maxima, np.array(0, plane.dtype))

    return _pool_regions(pool, input, rois, batch_index, output_size)


def _resample_type(
    input: TensorType, rois: TensorType, batch_index: TensorType, output_size: Shape, method: str
) -> TensorType:
    require.one_of("method", method, METHODS)
    return _roi_type(input, rois, batch_index, output_size)


# Each item of the result is interpolated between 4 items.
@rules.rule("roi_resample", _resample_type, work=lambda result: 4 * volume(result.shape))
def roi_resample(
    input: Array, rois: Array, batch_index: Array, output_size: Shape, method: str
) -> Array:
    """Interpolate each region linearly to the output size.

    The result has the shape (n, channels, *output_size). `rois` (n, 4) has rows x1, y1, x2, y2
    in pixels, and `batch_index` (n,) has the image number of each region. The module's docstring
    has the positions for the methods 'symmetric', 'asymmetric' and 'aligned'.
    """
    row_count, column_count = output_size
    columns = _places(rois[:, 0], rois[:, 2], column_count, method)
    rows = _places(rois[:, 1], rois[:, 3], row_count, method)
    return bilinear(input, batch_index, rows, columns)


def _places(start: Array, end: Array, count: int, method: str) -> Array:
    """Return the positions (n, count) of the outputs along one axis of n regions.

    `start` and `end` have the shape (n,). The module's docstring has the formula of each method.
    """
    # Positions between pixels need more digits than half precision has.
    dtype = start.dtype if start.dtype.itemsize > 4 else np.dtype(np.float32)
    start = start.astype(dtype)
    end = end.astype(dtype)
    number = jnp.arange(count, dtype=dtype)[None, :]
    first = start[:, None]
    length = (end - start)[:, None]
    if method == "symmetric":
        return first + (number + 0.5) * length / count - 0.5
    if method == "asymmetric":
        return first + number * length / count
    return first + number * (length - 1) / max(count - 1, 1)


def _pool_regions(
    pool: Callable[..., Array], input: Array, rois: Array, batch_index: Array, output_size: Shape
) -> Array:
    """Call `pool` for one region after another, and stack the results.

    `pool` takes the image (channels, height, width) of a region, the mask of the rows in each bin,
    and the mask of the columns in each bin. It returns the pooled bins. The gradient computes
    `pool` again, to save memory.
    """
    _, _, height, width = input.shape
    row_count, column_count = output_size

    def pooled(region: tuple[Array, Array]) -> Array:
        (x1, y1, x2, y2), batch = region
        plane = jnp.take(input, batch, 0, mode="clip")
        rows = _bins(y1, y2, row_count, height)
        columns = _bins(x1, x2, column_count, width)
        return pool(plane, rows, columns)

    rounded = lax.round(rois, lax.RoundingMethod.AWAY_FROM_ZERO).astype(jnp.int32)
    return lax.map(jax.checkpoint(pooled), (rounded, batch_index))


def _bins(start: Array, end: Array, count: int, extent: int) -> Array:
    """Return the mask (count, extent) of the indices in each of `count` bins of a region.

    The region reaches from the index `start` to the index `end`, inclusive, of an axis with the
    extent `extent`.
    """
    length = jnp.maximum(end - start + 1, 1)
    # The product number * length may not fit int32. Since length is quotient * count + remainder,
    # number * length / count equals number * quotient + number * remainder / count. The products
    # with quotient and remainder fit int32.
    quotient, remainder = length // count, length % count
    number = jnp.arange(count, dtype=np.int32)
    next_number = number + 1
    # The start of a bin is start + floor(number * length / count).
    first = start + number * quotient + number * remainder // count
    # The end of a bin is start + ceil(next_number * length / count). It is rounded up by
    # subtracting a negative number that is rounded down.
    end_of_bin = start + next_number * quotient - (-next_number * remainder) // count
    index = jnp.arange(extent, dtype=jnp.int32)[None, :]
    return (index >= first[:, None]) & (index < end_of_bin[:, None])


def _masked(
    reduce: Callable[..., Array], x: Array, mask: Array, fill: NDArray[np.generic]
) -> Array:
    """Reduce an array (channels, extent, ...) over the axis `extent`, within each of n masks.

    The masks have the shape (n, extent), and the result has the shape (channels, ..., n).
    """
    selected = jnp.where(mask[None, :, :, None], x[:, None], fill)  # (channels, n, extent, ...)
    reduced = reduce(selected, 2)  # (channels, n, ...)
    return jnp.moveaxis(reduced, 1, -1)
