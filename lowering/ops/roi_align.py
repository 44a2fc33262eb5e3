"""RoIAlign pools samples that lie between items (Mask R-CNN, He et al. 2017, arXiv:1703.06870)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidShape
from lowering.extents import Shape, show, volume
from lowering.graph import TensorType
from lowering.kernels.resampling import neighbours
from lowering.ops import require, rules
from lowering.ops.roi import bins_type
from lowering.tracing import Context

_MODES = ("avg", "max", "max_share")


def _align_type(
    input: TensorType, rois: TensorType, batch_index: TensorType, output_size: Shape,
    sampling_ratio: int, mode: str,
) -> TensorType:  # fmt: skip
    """Check the arguments of `roi_align`, and return the type of its result."""
    require.same_dtype(require.floating, input=input, rois=rois)
    require.one_of("mode", mode, _MODES)
    require.not_negative(sampling_ratio=sampling_ratio)
    require.indexable(samples=TensorType((sampling_ratio, sampling_ratio), "bool"))
    if len(rois.shape) != 2 or rois.shape[1] not in (4, 5):
        raise InvalidShape(
            f"'rois' must have the shape [N,4] or [N,5], it has {show(rois.shape)}",
            hint="a row holds x1, y1, x2, y2, or centre x, y, width, height, angle",
        )
    return bins_type(input, rois, batch_index, output_size)


# For any `sampling_ratio`, a bin is counted as 4 samples, each interpolated between 4 items.
@rules.rule("roi_align", _align_type, work=lambda result: 16 * volume(result.shape))
def roi_align(
    ctx: Context, input: Array, rois: Array, batch_index: Array, output_size: Shape,
    sampling_ratio: int, mode: str, least: float = 0.0,
) -> Array:  # fmt: skip
    """Return the mean or maximum of samples in each bin of regions.

    The result has the shape (regions, channels, *output_size). `batch_index` has the image number
    of each region. A region is given as x1, y1, x2, y2 in items, or as centre x, centre y,
    width, height, and an angle from x to y in radians. A positive `least` is the lower bound of
    the extents of upright regions.

    A bin has `sampling_ratio` samples in each direction. If the ratio is 0, a bin has as many
    samples as its extent, rounded up. Samples that are more than one item outside of the input are
    0. The `mode` is "avg", "max" or "max_share". The result of "max" is at least 0. "max_share" is
    the largest product of an item and its weight in a sample, as in ONNX, and may be negative.

    If `sampling_ratio` is 0, there are no derivatives by regions. For maxima and for rotated
    regions there are no derivatives in reverse mode.
    """
    x = jnp.asarray(input)
    regions = jnp.asarray(rois)
    # Positions between items need more digits than half precision has.
    regions = regions.astype(np.promote_types(regions.dtype, np.float32))
    if not sampling_ratio:
        regions = lax.stop_gradient(regions)
    is_rotated = regions.shape[1] == 5
    is_separable = mode == "avg" and not is_rotated
    smallest = float(least) if least else -jnp.inf
    bins = output_size[::-1]  # along x, then along y

    def pool(region: tuple[Array, Array]) -> Array:
        """Return the bins (channels, *output_size) of one region.

        The argument is the region and its batch index.
        """
        roi, batch = region
        plane = jnp.take(x, batch, 0, mode="clip")
        if is_rotated:
            size = roi[2:4]
            start = -size / 2  # relative to the centre, before the rotation
        else:
            size = jnp.maximum(roi[2:] - roi[:2], smallest)
            start = roi[:2]
        bin = size / jnp.array(bins, size.dtype)
        counts: Any = (sampling_ratio, sampling_ratio)  # the samples of a bin along x, and along y
        if not sampling_ratio:
            counts = jnp.ceil(bin).astype(jnp.int32)
        grid = _Grid(start=start, bin=bin, bins=bins, counts=counts)
        if is_separable:
            # The weight of an item in a mean is the weight of its row times the weight of its
            # column.
            height, width = plane.shape[1:]
            rows = grid.weights(axis=1, extent=height).astype(x.dtype)
            columns = grid.weights(axis=0, extent=width).astype(x.dtype)
            return jnp.einsum("cyx,hy,wx->chw", plane, rows, columns, precision="highest")

        return _joined_samples(plane, grid, roi, mode)

    pooled = lax.map(jax.checkpoint(pool), (regions, jnp.asarray(batch_index)))
    if is_separable:
        return pooled
    subject = "rotated regions" if is_rotated else "a maximum"
    reason = f"samples of {subject} are computed in a loop of unknown length"
    hint = "differentiate forwards, by jax.jvp or jax.jacfwd, or take the mean of upright regions"
    (result,) = ctx.forward_only([pooled], reason, hint)
    return result


class _Grid(NamedTuple):
    """The samples of all bins of one region. Each field has an item for x, and an item for y.

    Args:
        start: the start of the region.
        bin: the extents of a bin.
        bins: the number of bins along each axis.
        counts: the number of samples of a bin along each axis.
    """

    start: Array
    bin: Array
    bins: Sequence[int]
    counts: Any

    def positions(self, axis: int, number: Array) -> Array:
        """Return the positions (bins,) of one sample of each bin along an axis: 0 for x, 1 for y.

        `number` is the number of the sample in its bin.
        """
        dtype = self.bin.dtype
        within_bin = (jnp.asarray(number, dtype) + 0.5) / jnp.asarray(self.counts[axis], dtype)
        bin_numbers = jnp.arange(self.bins[axis], dtype=dtype)
        return self.start[axis] + (bin_numbers + within_bin) * self.bin[axis]

    def weights(self, axis: int, extent: int) -> Array:
        """Return the share of each item in each bin's mean along an axis, of shape (bins, extent).

        Axis 0 is x, and 1 is y. `extent` is the number of items along the axis.
        """
        dtype = self.bin.dtype
        items = jnp.arange(extent, dtype=dtype)[None, :]

        def add_weights(number: Array, total: Array) -> Array:
            """Add the weights of the items in one sample of each bin."""
            position = self.positions(axis, number)[:, None]
            distance = jnp.abs(jnp.clip(position, 0, extent - 1) - items)
            is_inside = _is_inside(position, extent)
            return total + jnp.where(is_inside, jnp.maximum(1 - distance, 0), 0)

        zeros = jnp.zeros((self.bins[axis], extent), dtype)
        total = lax.fori_loop(0, self.counts[axis], add_weights, zeros)
        return total / jnp.maximum(jnp.asarray(self.counts[axis], dtype), 1)


def _joined_samples(plane: Array, grid: _Grid, roi: Array, mode: str) -> Array:
    """Return the bins (channels, bin rows, bin columns) of a region, by a loop over the samples.

    `plane` is the image (channels, height, width) of the region, and `grid` has the samples. `roi`
    has five numbers if the region is rotated, and four otherwise. `mode` is as in `roi_align`.
    """
    is_rotated = len(roi) == 5
    bin_columns, bin_rows = grid.bins
    column_count, row_count = grid.counts
    sample_count = column_count * row_count
    join_samples = jnp.add if mode == "avg" else jnp.maximum
    join_shares = jnp.maximum if mode == "max_share" else jnp.add

    def join_sample(number: Array, total: Array) -> Array:
        """Join one sample of each bin with the samples before it."""
        column = grid.positions(0, number % column_count)[None, :]
        row = grid.positions(1, number // column_count)[:, None]
        if is_rotated:
            row, column = _rotated(row, column, roi)
        return join_samples(total, _sampled(plane, row, column, join_shares))

    # Only the maximum for "max_share" may be negative, so that it starts from -inf. A bin without
    # samples is 0.
    initial: Array | int = 0
    if mode == "max_share":
        initial = jnp.where(jnp.asarray(sample_count) > 0, -jnp.inf, 0)
    total = jnp.full((len(plane), bin_rows, bin_columns), initial, plane.dtype)
    total = lax.fori_loop(0, sample_count, join_sample, total)
    if mode == "avg":
        total = total / jnp.maximum(jnp.asarray(sample_count, plane.dtype), 1)
    return total


def _rotated(row: Array, column: Array, roi: Array) -> tuple[Array, Array]:
    """Rotate positions around the centre of a region, and return rows and columns in the image.

    `row` and `column` are relative to the centre. `roi` is centre x, centre y, width, height, and
    an angle from x to y in radians.
    """
    centre_x, centre_y, angle = roi[0], roi[1], roi[4]
    cos = jnp.cos(angle)
    sin = jnp.sin(angle)
    image_column = column * cos - row * sin + centre_x
    image_row = column * sin + row * cos + centre_y
    return image_row, image_column


def _is_inside(position: Array, extent: int) -> Array:
    """Tell whether a position is at most one item outside of an axis with the extent `extent`."""
    return (position >= -1) & (position <= extent)


def _sampled(
    plane: Array, row: Array, column: Array, join: Callable[[Array, Array], Array]
) -> Array:
    """Return the samples of a plane at rows and columns, and 0 outside of the plane.

    A sample joins four neighbouring items, each multiplied by its weight in the linear
    interpolation. `join` is addition or maximum. The plane has the shape (channels, height, width).
    The shape of the result is the channels, followed by the shape to which `row` and `column`
    broadcast.
    """
    height, width = plane.shape[1:]
    is_inside = _is_inside(row, height) & _is_inside(column, width)
    # `top`, `bottom`, `left` and `right` are indices of the neighbours. `down` is the weight of the
    # bottom row, and `across` is the weight of the right column.
    top, bottom, down = neighbours(row, height, plane.dtype)
    left, right, across = neighbours(column, width, plane.dtype)
    down = down[None]
    across = across[None]
    upper = join(plane[:, top, left] * (1 - across), plane[:, top, right] * across)
    lower = join(plane[:, bottom, left] * (1 - across), plane[:, bottom, right] * across)
    return jnp.where(is_inside[None], join(upper * (1 - down), lower * down), 0)
