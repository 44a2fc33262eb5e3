"""Pools regions with separate channels for each bin (R-FCN, Dai et al., arXiv:1605.06409)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import differ, show
from lowering.graph import ABSENT, TensorType
from lowering.kernels.windows import require_positive
from lowering.ops import require, rules
from lowering.tracing import Context

_MODES = ("average", "bilinear", "deformable")


def _pool_type(
    input: TensorType, rois: TensorType, output_channels: int, group_size: int, mode: str,
    bins: tuple[int, int], offsets: TensorType | Literal[False] = False,
) -> TensorType:  # fmt: skip
    """Check the arguments of `position_sensitive_roi_pool`, and return the type of its result."""
    require.same_dtype(require.floating, input=input, rois=rois)
    require.layout("[B,C,H,W]", input=input)
    require.layout("[N,5]", rois=rois)
    require.one_of("mode", mode, _MODES)
    require.length("bins", bins, 2, "axes")
    # Each bin of an output channel has its own input channel.
    bin_count = bins[0] * bins[1] if mode == "bilinear" else group_size**2
    if differ(input.shape[1], output_channels * bin_count):
        raise InvalidShape(
            f"'input' {show(input.shape)} must have {bin_count} channels for each of "
            f"{output_channels}"
        )
    require.int32(**{f"bins[{axis}]": count for axis, count in enumerate(bins)})
    require_positive("bins", bins)
    require_positive("group_size", (group_size,))
    require_positive("output_channels", (output_channels,))
    if isinstance(offsets, TensorType) and offsets != ABSENT:
        require.floating(offsets=offsets)
        require.layout("[N,2K,H,W]", offsets=offsets)
        expected = (rois.shape[0], *offsets.shape[1:])
        require.shape("offsets", offsets, expected, "one for each row of 'rois'")
        class_count = offsets.shape[1] // 2
        if offsets.shape[1] % 2 or not class_count or output_channels % class_count:
            raise InvalidShape(
                f"'offsets' {show(offsets.shape)} must have 2 channels for each class, and the "
                f"number of classes must divide the {output_channels} channels"
            )
    return TensorType((rois.shape[0], output_channels, group_size, group_size), input.dtype)


@rules.rule("position_sensitive_roi_pool", _pool_type)
def position_sensitive_roi_pool(
    ctx: Context, input: Array, rois: Array, output_channels: int, group_size: int,
    spatial_scale: float, mode: str, bins: tuple[int, int],
    offsets: Array | Literal[False] = False, offset_scale: float = 0.0,
) -> Array:  # fmt: skip
    """Return the mean of each bin of regions. Each bin reads input channels of its own.

    `rois` has rows (image, x1, y1, x2, y2). The input has the shape (batch, channels, height,
    width), and the result has the shape (regions, output_channels, group_size, group_size).
    `mode` decides which items of the input a bin averages:

    - "average" rounds corners, and averages the items whose cells the bin touches.
    - "bilinear" takes the coordinates of regions as fractions of the input's extents, from 0 to 1.
      A region is divided into `bins` (rows, columns) cells with separate channels. Interpolated
      samples are averaged over the cells.
    - "deformable" rounds corners. A bin has `bins` (rows, columns) samples, and averages the
      samples inside the input. The samples are moved by `offsets` times `offset_scale`, in
      units of the region's extents (Dai et al. 2017, arXiv:1703.06211). `offsets` has the shape
      (regions, 2 * classes, rows, columns), with x and y for each class of channels.

    From the first region with the image -1 on, results are 0.
    """
    x = jnp.asarray(input)
    regions = jnp.asarray(rois)
    batch = x.shape[0]
    has_region = jnp.cumprod((regions[:, 0] >= 0).astype(jnp.int32)) > 0
    images = jnp.clip(regions[:, 0].astype(jnp.int32), 0, batch - 1)
    pool = _Pool(x, output_channels, group_size, spatial_scale)
    if mode == "deformable":
        deformed = partial(pool.deformed, bins, offset_scale)
        if offsets is False:
            pooled = jax.vmap(deformed, in_axes=(0, 0, None))(regions, images, None)
        else:
            pooled = jax.vmap(deformed)(regions, images, jnp.asarray(offsets))
    elif mode == "bilinear":
        rows, columns = bins
        # The operations of each sample are traced. This call may raise an error for too many
        # samples.
        ctx.unroll(rows * columns)
        pooled = jax.vmap(partial(pool.interpolated, bins))(regions, images)
    else:
        pooled = jax.vmap(pool.mean)(regions, images)
    return jnp.where(has_region[:, None, None, None], pooled, 0)


@dataclass(frozen=True, eq=False)
class _Pool:
    """Pools one region of an image. Each method returns an array (channels, bin rows, bin columns).

    Args:
        x: the input (batch, channels, height, width).
        channels: the number of channels of the result.
        group_size: the number of bins along each axis.
        scale: the factor of a region's coordinates.
    """

    x: Array
    channels: int
    group_size: int
    scale: float

    def _bin_numbers(self) -> Array:
        """Return the numbers of the bins along an axis, in the dtype of the input."""
        return jnp.arange(self.group_size, dtype=self.x.dtype)

    def _planes(self, image: Array) -> Array:
        """Return the planes (channels, bin rows, bin columns, height, width) of an image."""
        height, width = self.x.shape[2:]
        bins = (self.group_size, self.group_size)
        return self.x[image].reshape(self.channels, *bins, height, width)

    def mean(self, region: Array, image: Array) -> Array:
        """Return, for each bin of a region, the mean of the items whose cells the bin touches.

        `region` is (image, x1, y1, x2, y2), and `image` is the number of the image.
        """
        height, width = self.x.shape[2:]
        corners = lax.round(region[1:], lax.RoundingMethod.AWAY_FROM_ZERO)
        start = corners[:2] * self.scale
        end = (corners[2:] + 1) * self.scale
        size = jnp.maximum(end - start, 0.1) / self.group_size  # the extents of a bin
        bin_numbers = self._bin_numbers()

        def is_touched(axis: int, extent: int) -> Array:
            """Return the mask (bins, extent) of the items that each bin touches along an axis."""
            low = jnp.clip(jnp.floor(bin_numbers * size[axis] + start[axis]), 0, extent)
            high = jnp.clip(jnp.ceil((bin_numbers + 1) * size[axis] + start[axis]), 0, extent)
            items = jnp.arange(extent, dtype=self.x.dtype)[None, :]
            return (items >= low[:, None]) & (items < high[:, None])

        # Corners have x at the index 0, and y at the index 1.
        rows = is_touched(axis=1, extent=height).astype(self.x.dtype)
        columns = is_touched(axis=0, extent=width).astype(self.x.dtype)
        # The letters stand for channel, bin row, bin column, row and column.
        planes = self._planes(image)
        total = jnp.einsum("cghyx,gy,hx->cgh", planes, rows, columns, precision="highest")
        count = (rows.sum(axis=1)[:, None] * columns.sum(axis=1)[None, :])[None]
        has_items = count > 0
        return jnp.where(has_items, total / jnp.where(has_items, count, 1), 0)

    def interpolated(self, bins: tuple[int, int], region: Array, image: Array) -> Array:
        """Return interpolated samples of a region, averaged over the cells of the region.

        `bins` has the numbers of rows and columns of cells. Each cell has channels of its own.

        `region` is (image, x1, y1, x2, y2), and `image` is the number of the image.
        """
        height, width = self.x.shape[2:]
        dtype = self.x.dtype
        rows, columns = bins
        corners = region[1:] * self.scale
        start = corners[:2]
        # Corners are fractions of the axes, and are multiplied by the index of the last item.
        last_item = jnp.array([width - 1, height - 1], dtype)
        size = (corners[2:] - corners[:2]) / jnp.array([columns, rows], dtype)
        planes = self.x[image].reshape(rows, columns, self.channels, height, width)
        bin_numbers = self._bin_numbers()

        def samples(row: int, column: int) -> Array:
            """Return samples (channels, bin rows, bin columns) of one cell of the region.

            The region is divided into `rows` * `columns` cells. Each cell has as many samples as
            the result has bins.
            """
            low = start + size * jnp.array([column, row], dtype)  # x, y
            if self.group_size > 1:
                step_x, step_y = size * last_item / (self.group_size - 1)
                low_x, low_y = low * last_item
                sample_rows = bin_numbers * step_y + low_y
                sample_columns = bin_numbers * step_x + low_x
            else:
                # A single sample lies in the middle of the cell.
                middle_x, middle_y = (2 * low + size) / 2 * last_item
                sample_rows = jnp.full(1, middle_y)
                sample_columns = jnp.full(1, middle_x)
            return _linear(planes[row, column], sample_rows, sample_columns)

        first, *further = [samples(row, column) for row, column in np.ndindex(rows, columns)]
        return sum(further, first) / (rows * columns)

    def deformed(
        self,
        bins: tuple[int, int],
        offset_scale: float,
        region: Array,
        image: Array,
        moves: Array | None,
    ) -> Array:
        """Return the mean of the moved samples of each bin, without samples outside of the input.

        Each bin has rows x columns samples, where `bins` is (rows, columns). `moves` are the
        offsets (2 * classes, rows, columns) of the region, or None, and `offset_scale` is the
        factor of these offsets. `region` is (image, x1, y1, x2, y2), and `image` is the number of
        the image.
        """
        height, width = self.x.shape[2:]
        sample_rows, sample_columns = bins
        dtype = self.x.dtype
        grid = (self.channels, self.group_size, self.group_size)
        corners = lax.round(region[1:], lax.RoundingMethod.AWAY_FROM_ZERO)
        start = corners[:2] * self.scale - 0.5  # x, y
        end = (corners[2:] + 1) * self.scale - 0.5
        size = jnp.maximum(end - start, 0.1)
        shift = None if moves is None else self._shift(moves) * offset_scale
        bin_numbers = self._bin_numbers()

        def shares(axis: int, count: int, extent: int) -> tuple[Array, Array]:
            """Return each item's weight in a sum of samples, and the number of samples.

            Samples outside of the input are left out.

            The weights have the shape (channels, bin rows, bin columns, extent). `axis` is 0 for x
            and 1 for y. `count` is the number of samples of a bin along this axis. `extent` is the
            input's extent.
            """
            bin_extent = size[axis] / self.group_size
            first = start[axis] + bin_numbers * bin_extent  # the first sample of each bin
            first = first[None, None, :] if axis == 0 else first[None, :, None]
            if shift is not None:
                first = first + shift[:, axis] * size[axis]
            steps = jnp.arange(count, dtype=dtype) * bin_extent / count
            # The samples have the shape (channels, bin rows, bin columns, samples of a bin).
            samples = first[..., None] + steps[None, None, None]
            is_inside = ((samples >= -0.5) & (samples <= extent - 0.5)).astype(dtype)
            items = jnp.arange(extent, dtype=dtype)
            # The distances have the shape (channels, bin rows, bin columns, samples, extent).
            clipped = jnp.clip(samples, 0, extent - 1)
            distance = jnp.abs(clipped[..., None] - items[None, None, None, None])
            weight = jnp.sum(jnp.maximum(1 - distance, 0) * is_inside[..., None], axis=-2)
            return jnp.broadcast_to(weight, (*grid, extent)), jnp.sum(is_inside, axis=-1)

        column_weights, column_counts = shares(axis=0, count=sample_columns, extent=width)
        row_weights, row_counts = shares(axis=1, count=sample_rows, extent=height)
        # The letters stand for channel, bin row, bin column, row and column.
        planes = self._planes(image)
        total = jnp.einsum(
            "cghyx,cghy,cghx->cgh", planes, row_weights, column_weights, precision="highest"
        )
        return total / jnp.maximum(row_counts * column_counts, 1)

    def _shift(self, moves: Array) -> Array:
        """Return the offsets (channels, 2, bin rows, bin columns) of each bin.

        `moves` has the shape (2 * classes, rows, columns), with x and y for each class of
        channels. A bin takes the offsets at its start.
        """
        offset_channels, height, width = moves.shape
        classes = offset_channels // 2
        bin_numbers = jnp.arange(self.group_size)
        rows = bin_numbers * height // self.group_size
        columns = bin_numbers * width // self.group_size
        shift = moves[:, rows][:, :, columns]
        shift = shift.reshape(classes, 2, self.group_size, self.group_size)
        return shift.repeat(self.channels // classes, axis=0)


def _linear(plane: Array, y: Array, x: Array) -> Array:
    """Return the values of a plane at rows y and columns x, interpolated linearly.

    The plane has the shape (channels, height, width), y and x have the shapes (rows,) and
    (columns,), and the values have the shape (channels, rows, columns). Values outside of the
    plane are 0.
    """
    height, width = plane.shape[1:]

    def weights(position: Array, extent: int) -> Array:
        """Return the weight of each item at each position, of shape (positions, extent)."""
        is_inside = (position >= 0) & (position <= extent - 1)
        items = jnp.arange(extent, dtype=position.dtype)
        distance = jnp.abs(position[:, None] - items[None, :])
        return jnp.where(is_inside[:, None], jnp.maximum(1 - distance, 0), 0)

    row_weights = weights(y, height)
    column_weights = weights(x, width)
    return jnp.einsum("cyx,hy,wx->chw", plane, row_weights, column_weights, precision="highest")
