"""Pools of regions whose bins have channels of their own (R-FCN, Dai et al., arXiv:1605.06409)."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
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
    require.same_dtype(require.real, input=input, rois=rois)
    require.layout("[B,C,H,W]", input=input)
    require.layout("[N,5]", rois=rois)
    require.one_of("mode", mode, _MODES)
    require.length("bins", bins, 2, "axes")
    parts = bins[0] * bins[1] if mode == "bilinear" else group_size**2
    if differ(input.shape[1], output_channels * parts):
        raise InvalidShape(
            f"'input' {show(input.shape)} must have {parts} channels for each of {output_channels}"
        )
    require.int32(**{f"bins[{axis}]": count for axis, count in enumerate(bins)})
    require_positive("bins", bins)
    require_positive("group_size", (group_size,))
    require_positive("output_channels", (output_channels,))
    if isinstance(offsets, TensorType) and offsets != ABSENT:
        require.real(offsets=offsets)
        require.layout("[N,2K,H,W]", offsets=offsets)
        expected = (rois.shape[0], *offsets.shape[1:])
        require.shape("offsets", offsets, expected, "one for each row of 'rois'")
        kinds = offsets.shape[1] // 2
        if offsets.shape[1] % 2 or not kinds or output_channels % kinds:
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
    """Return the mean of each bin of regions (image, x1, y1, x2, y2), in the bin's own channels.

    The mode determines the items of a bin:

    - "average" rounds corners, and averages the items whose cells a bin touches.
    - "bilinear" takes regions as parts of the input's extents, from 0 to 1. The samples of a region
      are interpolated, and averaged over `bins` (rows, columns), each of which has its own
      channels.
    - "deformable" rounds corners. A bin has `bins` (rows, columns) samples, and the samples inside
      the input are averaged. Samples are moved by `offsets` times `offset_scale`, in units of the
      region's extents (Dai et al. 2017, arXiv:1703.06211). `offsets` has the shape (regions, 2 *
      classes, rows, columns), with x and y for each class of channels.

    From the first region on whose image is -1, results are 0.
    """
    x = jnp.asarray(input)
    regions = jnp.asarray(rois)
    batch, _, height, width = x.shape
    has_region = jnp.cumprod((regions[:, 0] >= 0).astype(jnp.int32)) > 0
    images = jnp.clip(regions[:, 0].astype(jnp.int32), 0, batch - 1)
    place = jnp.arange(group_size, dtype=x.dtype)

    def mean(region: Array, image: Array) -> Array:
        corners = lax.round(region[1:], lax.RoundingMethod.AWAY_FROM_ZERO)
        start = corners[:2] * spatial_scale
        end = (corners[2:] + 1) * spatial_scale
        size = jnp.maximum(end - start, 0.1) / group_size

        def is_touched(axis: int, extent: int) -> Array:
            """Return the mask (bins, extent) of the items that each bin touches along an axis."""
            low = jnp.clip(jnp.floor(place * size[axis] + start[axis]), 0, extent)
            high = jnp.clip(jnp.ceil((place + 1) * size[axis] + start[axis]), 0, extent)
            items = jnp.arange(extent, dtype=x.dtype)[None, :]
            return (items >= low[:, None]) & (items < high[:, None])

        rows = is_touched(1, height).astype(x.dtype)
        columns = is_touched(0, width).astype(x.dtype)
        plane = x[image].reshape(output_channels, group_size, group_size, height, width)
        total = jnp.einsum("cghyx,gy,hx->cgh", plane, rows, columns, precision="highest")
        count = (rows.sum(1)[:, None] * columns.sum(1)[None, :])[None]
        return jnp.where(count > 0, total / jnp.where(count > 0, count, 1), 0)

    def interpolated(region: Array, image: Array) -> Array:
        rows, columns = bins
        ctx.unroll(rows * columns)
        scale = region[1:] * spatial_scale
        start = scale[:2]
        extent = jnp.array([width - 1, height - 1], x.dtype)
        size = (scale[2:] - scale[:2]) / jnp.array([columns, rows], x.dtype)
        plane = x[image].reshape(rows, columns, output_channels, height, width)

        def samples(row: int, column: int) -> Array:
            low = start + size * jnp.array([column, row], x.dtype)
            step = size * extent / max(group_size - 1, 1)
            if group_size > 1:
                y = place * step[1] + low[1] * extent[1]
                at_x = place * step[0] + low[0] * extent[0]
            else:
                middle = (2 * low + size) / 2 * extent
                y = jnp.full(1, middle[1])
                at_x = jnp.full(1, middle[0])
            return _linear(plane[row, column], y, at_x)

        parts = [samples(row, column) for row in range(rows) for column in range(columns)]
        return sum(parts[1:], parts[0]) / (rows * columns)

    def deformed(region: Array, image: Array, moves: Array | None) -> Array:
        corners = lax.round(region[1:], lax.RoundingMethod.AWAY_FROM_ZERO)
        start = corners[:2] * spatial_scale - 0.5
        end = (corners[2:] + 1) * spatial_scale - 0.5
        size = jnp.maximum(end - start, 0.1)
        shift = None
        if moves is not None:
            channels, moves_height, moves_width = moves.shape
            kinds = channels // 2
            rows = jnp.arange(group_size) * moves_height // group_size
            columns = jnp.arange(group_size) * moves_width // group_size
            shift = moves[:, rows][:, :, columns].reshape(kinds, 2, group_size, group_size)
            shift = shift.repeat(output_channels // kinds, axis=0) * offset_scale

        def shares(axis: int, count: int, extent: int) -> tuple[Array, Array]:
            """Return each item's weight in the sum of samples, and the number of samples inside."""
            bin = size[axis] / group_size
            first = start[axis] + place * bin
            first = first[None, None, :] if axis == 0 else first[None, :, None]
            if shift is not None:
                first = first + shift[:, axis] * size[axis]
            step = jnp.arange(count, dtype=x.dtype) * bin / count
            # The samples have the shape (channels, rows, columns, samples of a bin).
            samples = first[..., None] + step[None, None, None]
            inside = ((samples >= -0.5) & (samples <= extent - 0.5)).astype(x.dtype)
            items = jnp.arange(extent, dtype=x.dtype)
            nearest = jnp.clip(samples, 0, extent - 1)
            distance = jnp.abs(nearest[..., None] - items[None, None, None, None])
            weight = jnp.sum(jnp.maximum(1 - distance, 0) * inside[..., None], axis=-2)
            grid = (output_channels, group_size, group_size)
            return jnp.broadcast_to(weight, (*grid, extent)), jnp.sum(inside, axis=-1)

        plane = x[image].reshape(output_channels, group_size, group_size, height, width)
        across, columns = shares(0, bins[1], width)
        down, rows = shares(1, bins[0], height)
        total = jnp.einsum("cghyx,cghy,cghx->cgh", plane, down, across, precision="highest")
        return total / jnp.maximum(rows * columns, 1)

    if mode == "deformable":
        moves = None if offsets is False else jnp.asarray(offsets)
        moves_axis = None if offsets is False else 0
        pooled = jax.vmap(deformed, (0, 0, moves_axis))(regions, images, moves)
    elif mode == "bilinear":
        pooled = jax.vmap(interpolated)(regions, images)
    else:
        pooled = jax.vmap(mean)(regions, images)
    return jnp.where(has_region[:, None, None, None], pooled, 0)


def _linear(plane: Array, y: Array, x: Array) -> Array:
    """Return the values of a plane at rows y and columns x, and 0 outside of the plane.

    The plane has the shape (channels, height, width), and the values have the shape (channels,
    rows, columns).
    """
    height, width = plane.shape[1:]

    def weights(position: Array, extent: int) -> Array:
        is_inside = (position >= 0) & (position <= extent - 1)
        distance = jnp.abs(position[:, None] - jnp.arange(extent, dtype=position.dtype)[None, :])
        return jnp.where(is_inside[:, None], jnp.maximum(1 - distance, 0), 0)

    return jnp.einsum(
        "cyx,hy,wx->chw", plane, weights(y, height), weights(x, width), precision="highest"
    )
