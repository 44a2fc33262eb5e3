"""Moves the filter of a convolution over an input (batch, *input positions, channels)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax import Array, lax

from lowering.jaxpr_types import Params
from lowering.kernels.windows import Shape, Windows, extend

# These parameters of `lax.conv_general_dilated` are the fields of `Window`, in the same order.
WINDOW = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "feature_group_count",
    "precision",
    "preferred_element_type",
)


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution moves its filter over an input, and how it computes products.

    The sequences have an item for each spatial axis.
    """

    stride: Sequence[int]
    padding: Sequence[tuple[int, int]]
    input_dilation: Sequence[int]
    dilation: Sequence[int]  # of the filter
    groups: int
    precision: lax.PrecisionLike
    accumulator: np.dtype[np.generic] | None  # the dtype of sums; None: the operands' dtype

    @property
    def is_spread(self) -> bool:
        """Tell whether the input is dilated, as in a transposed convolution."""
        return any(dilation != 1 for dilation in self.input_dilation)

    @property
    def kind(self) -> Params:
        """Return the precision and the dtype of sums, as parameters of `lax.dot_general`."""
        return {"precision": self.precision, "preferred_element_type": self.accumulator}

    def is_single(self, x: Array) -> bool:
        """Tell whether the convolution of an input x multiplies and sums in float32."""
        return x.dtype == np.float32 and self.accumulator in (None, np.float32)

    @property
    def edges(self) -> Sequence[tuple[int, int, int]]:
        """Return the argument of `lax.pad` that dilates and pads an input, for all its axes.

        An axis has the numbers of zeros before the input, after it, and between two of its items.
        """
        unchanged = (0, 0, 0)
        edges: list[tuple[int, int, int]] = [unchanged]  # for the batch
        for (before, after), dilation in zip(self.padding, self.input_dilation, strict=True):
            edges.append((before, after, dilation - 1))
        edges.append(unchanged)  # for the channels
        return edges

    @property
    def bare(self) -> Window:
        """Return the window without padding and input dilation.

        This window slides over an input that is dilated and padded already.
        """
        rank = len(self.stride)
        return replace(self, padding=((0, 0),) * rank, input_dilation=(1,) * rank)

    @property
    def inner(self) -> Window:
        """Return the window for all spatial axes but the first."""
        return replace(
            self,
            stride=self.stride[1:],
            padding=self.padding[1:],
            input_dilation=self.input_dilation[1:],
            dilation=self.dilation[1:],
        )

    def positions(self, x: Array, size: Sequence[int]) -> list[int]:
        """Return the number of positions of a window along each spatial axis of an input x.

        x has the shape (batch, *input positions, channels). `size` is the number of the window's
        cells along each axis.
        """
        _, *input_extents, _ = x.shape
        positions: list[int] = []
        for axis, cell_count in enumerate(size):
            before, after = self.padding[axis]
            # Compute the extent of the dilated and padded input. For 3 items, one zero between
            # neighbours and the padding (1, 1), the extent is 1 + 5 + 1.
            dilated_extent = (input_extents[axis] - 1) * self.input_dilation[axis] + 1
            extent = before + dilated_extent + after
            span = (cell_count - 1) * self.dilation[axis] + 1  # from the first to the last cell
            positions.append((extent - span) // self.stride[axis] + 1)
        return positions

    def windows_over(self, size: Sequence[int], upscaled: Shape, downscaled: Shape) -> Windows:
        """Return windows of `size` cells that slide over an array of the shape `upscaled`.

        `downscaled` is the shape of the windows' positions. Both shapes have the batch first
        and the channels last.
        """
        return Windows(
            size=(1, *size, 1),
            padding=((0, 0), *self.padding, (0, 0)),
            stride=(1, *self.stride, 1),
            dilation=(1, *self.dilation, 1),
            upscaled=upscaled,
            downscaled=downscaled,
        )


def padded(x: Array, window: Window) -> Array:
    """Pad an input (batch, *input positions, channels) with zeros, as the window says."""
    return extend(x, ((0, 0), *window.padding, (0, 0)), "constant")


def cells(
    x: Array, size: Sequence[int], window: Window, counts: Sequence[int] | None = None
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """Yield each cell of the window, and the items that the cell covers at all positions.

    The items have the shape (batch, *positions, channels). `counts` has the number of positions
    along each axis. By default these are all positions of the window on the input.
    """
    if counts is None:
        counts = window.positions(x, size)
    extended = padded(x, window)
    if extended is not x:
        # Without the barrier, XLA reads the padded array only for cells that cover zeros. For all
        # other cells it reads the input, so that both arrays stay in memory. EfficientNet-B0 takes
        # 8.9 ms with the barrier and 10.2 ms without it. MobileNetV2 takes 5.1 ms with the barrier
        # and 5.6 ms without it.
        x = lax.optimization_barrier(extended)
    batch, *_, channels = x.shape
    if x.shape == (batch, *counts, channels):
        # The window has one cell, which covers all items. No slice is needed.
        only_cell = (0,) * len(size)
        yield only_cell, x
        return
    strides = (1, *window.stride, 1)
    for cell in np.ndindex(*size):
        starts: list[int] = []
        stops: list[int] = []
        for axis, cell_index in enumerate(cell):
            start = cell_index * window.dilation[axis]
            starts.append(start)
            stops.append(start + (counts[axis] - 1) * window.stride[axis] + 1)
        yield cell, lax.slice(x, (0, *starts, 0), (batch, *stops, channels), strides)
