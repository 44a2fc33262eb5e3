"""Computes convolutions and deconvolutions of inputs whose channels precede the positions.

An input has the shape (batch, channels, *extents). A filter has the shape (outputs, channels /
groups, *size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.kernels.precision import DType, narrowed
from lowering.kernels.windows import Padding, Windows, extend, spans


@dataclass(frozen=True, slots=True)
class Slide:
    """The positions of a filter on an input (batch, channels, *extents).

    Each tuple has an item for each of the extents. First, zeros are put between the items of the
    input, so that two neighbours are `spread` apart. Then the input is padded. Negative padding
    cuts items off.
    """

    stride: tuple[int, ...] = ()
    padding: Padding = ()
    spread: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    def spread_out(self, x: Array) -> Array:
        """Return an input (batch, channels, *extents) with zeros around it and between its items.

        Negative padding cuts items off.
        """
        edges = [(0, 0, 0), (0, 0, 0)]  # batch and channels
        for (before, after), spread in zip(self.padding, self.spread, strict=True):
            edges.append((before, after, spread - 1))
        if not any(map(any, edges)):
            return x
        return lax.pad(x, np.array(0, x.dtype), edges)

    def places(self, extents: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
        """Return the number of a filter's positions along each spatial axis of an input.

        `extents` are the input's spatial extents before padding, and `size` has the filter's number
        of cells along each axis.
        """
        counts: list[int] = []
        for axis, span in enumerate(spans(size, self.dilation)):
            counts.append((extents[axis] - span) // self.stride[axis] + 1)
        return tuple(counts)

    def items(self, cell: Sequence[int], places: Sequence[int]) -> tuple[slice, ...]:
        """Return the items that one cell of the filter meets, as a slice for each spatial axis.

        `cell` has the cell's index along each axis, and `places` has the number of positions
        along each axis.
        """
        slices: list[slice] = []
        for axis, stride in enumerate(self.stride):
            start = cell[axis] * self.dilation[axis]
            stop = start + (places[axis] - 1) * stride + 1
            slices.append(slice(start, stop, stride))
        return tuple(slices)


def correlate(
    x: Array, filter: Array, slide: Slide, precision: lax.PrecisionLike, wide: DType | None = None
) -> Array:
    """Correlate an input with a filter, and sum in the dtype `wide`.

    The input has the shape (batch, channels, *extents), the filter has the shape (outputs, channels
    / groups, *size), and the result has the shape (batch, outputs, *positions).
    """
    x, filter, precision = narrowed(x, filter, precision)
    return lax.conv_general_dilated(
        x,
        filter,
        slide.stride,
        slide.padding,
        lhs_dilation=slide.spread,
        rhs_dilation=slide.dilation,
        feature_group_count=slide.groups,
        precision=precision,
        preferred_element_type=wide,
    )


def by_cells(x: Array, filter: Array, slide: Slide, wide: DType) -> Array:
    """Correlate integers as `correlate` does, by a sum of one product for each cell of the filter.

    XLA's convolution of integers does not run on every GPU. On CPUs XLA's convolution takes 1.5
    times as long as this sum for 3x3 windows of int32 from 3 to 16 channels, and 50 times as long
    for 32 groups of one channel.
    """
    x = slide.spread_out(x)
    groups = slide.groups
    output_count, group_channels, *size = filter.shape
    group_outputs = output_count // groups
    batch, _, *extents = x.shape
    positions = slide.places(extents, size)
    x = x.reshape(batch, groups, group_channels, *extents)
    filter = filter.reshape(groups, group_outputs, group_channels, *size)
    total = jnp.zeros((batch, groups, group_outputs, *positions), wide)
    for cell in np.ndindex(*size):
        items = x[:, :, :, *slide.items(cell, positions)]
        weights = filter[:, :, :, *cell]
        total += jnp.einsum("bgc...,gnc->bgn...", items, weights, preferred_element_type=wide)
    return total.reshape(batch, output_count, *positions)


def conv(
    x: Array,
    filter: Array,
    windows: Windows,
    groups: int,
    precision: lax.PrecisionLike,
    wide: DType,
) -> Array:
    """Compute the operation `conv` without its bias, with sums in the dtype `wide`.

    The input has the shape (batch, channels, *extents), the filter has the shape (outputs,
    channels / groups, *size), and the result has the shape (batch, outputs, *positions). If
    the border does not consist of zeros, the input is extended first.
    """
    x, padding = bordered(x, windows)
    no_spread = (1,) * len(padding)
    slide = Slide(
        stride=windows.stride,
        padding=padding,
        spread=no_spread,
        dilation=windows.dilation,
        groups=groups,
    )
    if jnp.issubdtype(wide, jnp.integer):
        return by_cells(x, filter, slide, wide)
    return correlate(x, filter, slide, precision, wide)


def transposed_filter(filter: Array, groups: int) -> Array:
    """Turn the filter of a deconvolution into a filter for `deconv`.

    The filter has the shape (input channels, output channels / groups, *size). The result has the
    shape (output channels, input channels / groups, *size), and each spatial axis is reversed.
    """
    inputs, group_outputs, *size = filter.shape
    group_inputs = inputs // groups
    grouped = filter.reshape(groups, group_inputs, group_outputs, *size)
    swapped = jnp.swapaxes(grouped, 1, 2).reshape(groups * group_outputs, group_inputs, *size)
    return lax.rev(swapped, tuple(range(2, filter.ndim)))


def deconv(
    x: Array,
    filter: Array,
    windows: Windows,
    groups: int,
    precision: lax.PrecisionLike,
    wide: DType,
) -> Array:
    """Compute the operation `deconv` without its bias, with sums in the dtype `wide`.

    The input has the shape (batch, input channels, *positions), the filter is the result of
    `transposed_filter`, and the result has the shape (batch, output channels, *extents).
    """
    x, padding = spread(x, windows)
    # The stride of a deconvolution is the distance between the items of its input.
    unit_stride = (1,) * len(padding)
    slide = Slide(
        stride=unit_stride,
        padding=padding,
        spread=windows.stride,
        dilation=windows.dilation,
        groups=groups,
    )
    return correlate(x, filter, slide, precision, wide)


def bordered(x: Array, windows: Windows) -> tuple[Array, Padding]:
    """Extend an input by a border that is not zeros. Return the input, and the padding by zeros.

    If the border consists of zeros, the input is unchanged, and the windows' padding is returned.
    If the border has other items, the padding is (0, 0) for each axis. Windows slide along the last
    axes of the input.
    """
    if windows.border in ("constant", "ignore"):
        return x, windows.padding
    rank = len(windows.size)
    leading = ((0, 0),) * (x.ndim - rank)
    x = extend(x, leading + windows.padding, windows.border)
    return x, ((0, 0),) * rank


def spread(x: Array, windows: Windows) -> tuple[Array, Padding]:
    """Prepare the input of a deconvolution or debox. Return the input, and its padding by zeros.

    The input is extended by the items that windows read beyond its edges. The caller then puts
    zeros between the items, so that the items are `windows.stride` apart. At last the caller
    applies the padding, which is negative where the output is cut.
    """
    leading = x.ndim - len(windows.size)
    reach = windows.reach
    if windows.border in ("constant", "ignore"):
        reach = ((0, 0),) * len(reach)
    x = extend(x, ((0, 0),) * leading + reach, windows.border)
    padding: list[tuple[int, int]] = []
    for axis, extent in enumerate(x.shape[leading:]):
        stride = windows.stride[axis]
        reach_before, _ = reach[axis]
        padding_before, _ = windows.padding[axis]
        # With a padding of span - 1 before the input, where span is the extent of a window with its
        # gaps, the output would begin `cut` items too early.
        cut = padding_before + reach_before * stride
        spread_extent = (extent - 1) * stride + 1
        before = windows.dilated[axis] - 1 - cut
        after = windows.upscaled[axis] + cut - spread_extent
        padding.append((before, after))
    return x, tuple(padding)
