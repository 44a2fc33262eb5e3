"""Computes shapes, padding and cells of sliding windows (spec 4.3).

Basic operations (conv, box, max_pool) map an up-scaled shape to a down-scaled shape. Reverse
operations (deconv, debox) map a down-scaled shape to an up-scaled shape. Padding, stride and
dilation count items of the up-scaled shape. The border mode chooses the values that extend the
input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import (
    MAX_EXTENT,
    Shape,
    along,
    ceil_div,
    differ,
    is_symbolic,
    padded,
    volume,
)
from lowering.kernels.precision import DType

Padding = tuple[tuple[int, int], ...]

BORDERS = ("constant", "replicate", "reflect", "reflect-even")
POOL_BORDERS = ("ignore", *BORDERS)

# This dict maps borders to modes of `numpy.pad`.
PAD_MODES = {"replicate": "edge", "reflect": "reflect", "reflect-even": "symmetric"}

# To count cells along an axis, the host computes with this number of arrays of 64-bit items at a
# time.
_ARRAYS_AT_A_TIME = 8
# If a window has at most this number of cells along an axis, their maximum is searched by unrolled
# operations. For more cells it is searched by a loop.
_UNROLLED_CELLS = 64


class Sliding(TypedDict):
    """The attributes that all operations with windows have."""

    border: str
    padding: Padding
    stride: Shape
    dilation: Shape


class Pool(Sliding):
    """The attributes of operations whose window size is an attribute."""

    size: Shape


@dataclass(frozen=True, slots=True)
class Windows:
    """Sliding windows. Each attribute has an item for each axis.

    `upscaled` is the shape over which the windows slide. `downscaled` is the number of windows
    along each axis. Extents and computed padding may be UNKNOWN.
    """

    size: Shape
    padding: Padding
    stride: Shape
    dilation: Shape
    upscaled: Shape
    downscaled: Shape
    border: str = "constant"

    @property
    def dilated(self) -> Shape:
        """Return the number of items from the first to the last cell of a window, for each axis."""
        return spans(self.size, self.dilation)

    @property
    def volume(self) -> int:
        """Return the number of cells of a window."""
        return volume(self.size)

    @property
    def reach(self) -> Padding:
        """Return, for each axis, how many items a reverse operation reads beyond its input.

        Each axis has a pair: the number before the input, and the number after it. Reverse
        operations are deconvolutions and deboxes.
        """
        reach: list[tuple[int, int]] = []
        for axis, (padding_before, _) in enumerate(self.padding):
            stride = self.stride[axis]
            # A window k positions before the first one starts at -padding_before - k * stride. It
            # covers item 0 of the up-scaled shape if it starts at 1 - dilated or later.
            before = (self.dilated[axis] - 1 - padding_before) // stride
            # The last window that covers the last item of the up-scaled shape has this position.
            last = (self.upscaled[axis] - 1 + padding_before) // stride
            after = last - (self.downscaled[axis] - 1)
            reach.append((max(before, 0), max(after, 0)))
        return tuple(reach)

    def cell(self, x: Array, axis: int, index: Array | int) -> Array:
        """Return the items of x that lie in cell `index` of each window, along one axis.

        x must include its border already. In the result, this axis counts the windows.
        """
        dilation = self.dilation[axis]
        stride = self.stride[axis]
        span = (self.downscaled[axis] - 1) * stride + 1  # from the first to the last item
        if isinstance(index, int):
            start = index * dilation
        else:
            # The index is traced. A slice with a traced start can have no stride, so that the span
            # is cut out first.
            start = 0
            x = lax.dynamic_slice_in_dim(x, index * dilation, span, axis)
        return lax.slice_in_dim(x, start, start + span, stride, axis)


def basic_windows(
    shape: Shape, size: Shape, border: str, padding: Padding, stride: Shape, dilation: Shape
) -> Windows:
    """Return the windows of a convolution or pool on an input of the shape `shape`.

    `size`, `stride` and `dilation` have an item for each axis. Missing items are 1. `padding` has
    a pair for each of the first axes. The other axes get automatic padding.
    """
    rank = len(shape)
    size = padded(size, rank)
    stride = padded(stride, rank)
    dilation = padded(dilation, rank)
    dilated = spans(size, dilation)
    # Both lists have the number of window positions along each axis. With automatic padding this
    # number is the extent divided by the stride, rounded up. Otherwise the padding determines it.
    automatic: list[int] = []
    downscaled: list[int] = []
    for axis, extent in enumerate(shape):
        automatic.append(ceil_div(extent, stride[axis]))
        if axis < len(padding):
            before, after = padding[axis]
            downscaled.append((before + extent + after - dilated[axis]) // stride[axis] + 1)
        else:
            downscaled.append(automatic[axis])
    return Windows(
        size=size,
        padding=_complete(padding, shape, tuple(automatic), dilated, stride),
        stride=stride,
        dilation=dilation,
        upscaled=shape,
        downscaled=tuple(downscaled),
        border=border,
    )


def reverse_windows(
    shape: Shape, output_shape: Shape, size: Shape, **sliding: Unpack[Sliding]
) -> Windows:
    """Return the windows of a deconvolution or debox on an input of the shape `shape`.

    If `output_shape` is (), it is computed from the input. `size`, `stride`, `dilation` and
    `padding` are as in `basic_windows`.
    """
    padding = sliding["padding"]
    rank = len(shape)
    size = padded(size, rank)
    stride = padded(sliding["stride"], rank)
    dilation = padded(sliding["dilation"], rank)
    dilated = spans(size, dilation)
    computed: list[int] = []  # the extents of the result, computed from the input
    for axis, extent in enumerate(shape):
        if axis < len(padding):
            before, after = padding[axis]
            computed.append((extent - 1) * stride[axis] + dilated[axis] - before - after)
        else:  # automatic padding
            computed.append(extent * stride[axis])
    upscaled = output_shape or tuple(computed)
    return Windows(
        size=size,
        padding=_complete(padding, upscaled, shape, dilated, stride),
        stride=stride,
        dilation=dilation,
        upscaled=upscaled,
        downscaled=shape,
        border=sliding["border"],
    )


def spans(size: Sequence[int], dilation: Sequence[int]) -> Shape:
    """Return the number of items from the first to the last cell of a window, along each axis.

    For the size (3, 3) and the dilation (1, 2) the result is (3, 5).
    """
    return tuple([(count - 1) * step + 1 for count, step in zip(size, dilation, strict=True)])


def _complete(
    padding: Padding, upscaled: Shape, downscaled: Shape, dilated: Shape, stride: Shape
) -> Padding:
    """Return `padding`, continued by automatic padding for the remaining axes."""
    complete = list(padding)
    for axis in range(len(padding), len(upscaled)):
        # All windows together span this number of items.
        span = (downscaled[axis] - 1) * stride[axis] + dilated[axis]
        total = max(span - upscaled[axis], 0)
        before = total // 2
        complete.append((before, total - before))
    return tuple(complete)


def extend(x: Array, padding: Padding, border: str, fill: float = 0.0) -> Array:
    """Extend an array by a border. `padding` has the numbers of items before and after each axis.

    The borders 'constant' and 'ignore' consist of the number `fill`.
    """
    if not any(before or after for before, after in padding):
        return x
    if border == "replicate":
        return jnp.pad(x, padding, mode="edge")
    if border in PAD_MODES:
        for axis, (before, after) in enumerate(padding):
            if before or after:
                x = _mirrored(x, axis, before, after, border)
        return x
    edges = [(before, after, 0) for before, after in padding]
    return lax.pad(x, np.array(fill, x.dtype), edges)


def _mirrored(x: Array, axis: int, before: int, after: int, border: str) -> Array:
    """Extend an array at both ends of one axis, by the border 'reflect' or 'reflect-even'."""
    extent = x.shape[axis]
    if is_symbolic(extent) or max(before, after) < extent:
        pads = [(0, 0)] * x.ndim
        pads[axis] = before, after
        return jnp.pad(x, pads, mode=PAD_MODES[border])
    # Items are reflected several times, and `jnp.pad` would trace an operation for each time.
    # Therefore the items are read by their indices, which go up to the end of the axis and back.
    # With 3 items, 'reflect' repeats the indices 0 1 2 1. 'reflect-even' also repeats the edges,
    # and has the indices 0 1 2 2 1 0.
    edge_repeats = 0 if border == "reflect" else 1
    period = 2 * (extent - 1 + edge_repeats)
    phase = (lax.iota(np.int32, before + extent + after) - before) % period
    index = jnp.where(phase < extent, phase, period - edge_repeats - phase)
    return jnp.take(x, index, axis, mode="clip")


def valid_counts(windows: Windows, fold: Callable[[int], None]) -> Any:
    """Return, for each window, the number of cells that lie on the input, not on its padding.

    The returned array broadcasts to the shape `windows.downscaled`. `fold` is called with the
    number of items that are computed on the host.
    """
    rank = len(windows.size)
    counts = np.ones((1,) * rank)
    for axis, cell_count in enumerate(windows.size):
        before, after = windows.padding[axis]
        if before == 0 and after == 0:
            counts = counts * cell_count  # without padding all cells lie on the input
            continue
        fold(_ARRAYS_AT_A_TIME * windows.downscaled[axis] * counts.size)
        dilation = windows.dilation[axis]
        start = np.arange(windows.downscaled[axis]) * windows.stride[axis] - before
        # Cell k of a window lies at start + k * dilation. The cells from `first` to `stop` - 1 lie
        # on the input. The bounds are -start / dilation and (extent - start) / dilation, rounded
        # up.
        first = np.maximum(-(start // dilation), 0)
        stop = np.minimum(-((start - windows.upscaled[axis]) // dilation), cell_count)
        counts = counts * np.maximum(stop - first, 0).reshape(along(axis, rank))
    return counts


def lowest(dtype: DType) -> Any:
    """Return the lowest number of a dtype as a numpy array without axes.

    The number is the initial value of a maximum. `lax.reduce_window` has a gradient only if its
    initial value is no jax array. For floating-point dtypes the lowest number is -inf.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(-np.inf, dtype)
    return np.array(jnp.iinfo(dtype).min, dtype)


def window_max_and_index(x: Array, windows: Windows, border: str) -> tuple[Array, Array]:
    """Return the maximum of each window, and the index of the cell that has it.

    The cells of a window are numbered in row-major order. If several maxima are equal, the index is
    that of the first cell. NaN is greater than all numbers.
    """
    fill = lowest(x.dtype) if border == "ignore" else 0.0
    maximum = extend(x, windows.padding, border, fill)
    index = jnp.zeros(maximum.shape, jnp.int32)
    cell_count = 1  # the number of cells along the axes that are reduced already
    # The axes are reduced one by one, from the last to the first, so that of equal maxima the first
    # one is selected.
    for axis in reversed(range(x.ndim)):
        maximum, index = _first_of_cells(maximum, index, windows, axis, index_step=cell_count)
        cell_count *= windows.size[axis]
    return maximum, index


def _first_of_cells(
    x: Array, index: Array, windows: Windows, axis: int, index_step: int
) -> tuple[Array, Array]:
    """Return the maximum along one axis of each window, and the index of the cell that has it.

    x is the maximum along the axes that are reduced already. For each item of x, `index` has the
    number of the cell of this maximum along these axes. `index_step` is the number by which the
    index grows from cell to cell along this axis. If several maxima are equal, the first is taken.
    """

    def take_better(
        best: tuple[Array, Array], cell: Array | int
    ) -> tuple[tuple[Array, Array], None]:
        """Return the better one of `best` and a cell. `lax.scan` needs a pair, thus the None."""
        maximum, maximum_index = best
        candidate = windows.cell(x, axis, cell)
        is_larger = candidate > maximum
        is_first_nan = (candidate != candidate) & (maximum == maximum)  # only NaN is not itself
        is_better = is_larger | is_first_nan
        candidate_index = windows.cell(index, axis, cell) + cell * index_step
        maximum = jnp.where(is_better, candidate, maximum)
        maximum_index = jnp.where(is_better, candidate_index, maximum_index)
        return (maximum, maximum_index), None

    best = windows.cell(x, axis, 0), windows.cell(index, axis, 0)
    size = windows.size[axis]
    if size > _UNROLLED_CELLS:
        best, _ = lax.scan(take_better, best, lax.iota(np.int32, size - 1) + 1)
        return best
    for cell in range(1, size):
        best, _ = take_better(best, cell)
    return best


def positions(index: Array, windows: Windows) -> tuple[Array, ...]:
    """Return the coordinates of one cell of each window, as an array for each axis.

    `index` has the number of the cell in the row-major order of the window's cells. Coordinates
    count items of the input after it is extended by its border.
    """
    remaining = jnp.clip(index, 0, windows.volume - 1)
    coordinates: list[Array] = []
    for axis in reversed(range(index.ndim)):
        size = windows.size[axis]
        window_number = lax.broadcasted_iota(index.dtype, index.shape, axis)
        start = window_number * windows.stride[axis]
        coordinates.append(start + remaining % size * windows.dilation[axis])
        remaining = remaining // size
    return tuple(reversed(coordinates))


def require_attributes(rank: int, attributes: Mapping[str, Any]) -> None:
    """Raise InvalidOperation if an attribute has more than `rank` items, or an item out of range.

    The attributes are size, stride, dilation and padding of windows.
    """
    for name in ("size", "stride", "dilation", "padding"):
        values = attributes.get(name, ())
        if len(values) > rank:
            raise InvalidOperation(
                f"'{name}' has {len(values)} items, the windows have only {rank} dimensions",
                hint="conv and deconv take an item for each spatial dimension, "
                "pools and boxes also for batch and channel",
            )
        if name != "padding":
            require_positive(name, values)
        elif any([before < 0 or after < 0 for before, after in values]):
            raise InvalidOperation(
                f"'padding' must not be negative, it is {[tuple(pair) for pair in values]}",
                hint="cut the input with slice instead",
            )


def require_positive(name: str, values: Shape) -> None:
    """Raise InvalidOperation if one of the values is below 1. The error contains `name`."""
    if any([item < 1 for item in values]):
        raise InvalidOperation(f"items of '{name}' must be at least 1, it is {list(values)}")


def require_basic(windows: Windows, first_axis: int = 0) -> None:
    """Raise InvalidShape if a window is larger than the padded input, or a border is impossible.

    `first_axis` is the number that the error gives to the first axis of the windows.
    """
    axes = zip(windows.upscaled, windows.dilated, windows.padding, strict=True)
    for axis, (extent, span, (before, after)) in enumerate(axes, first_axis):
        # A batch without items is allowed.
        is_empty_batch = extent == before == after == 0 and span == 1
        if before + extent + after < span and not is_empty_batch:
            hint = "give more padding, or leave 'padding' empty to have it computed"
            if first_axis == 0 and axis < 2:
                hint = (
                    "'size', 'stride' and 'padding' begin with batch and channel, as in [1,1,2,2]"
                )
            raise InvalidShape(
                f"the window spans {span} items at axis {axis}, "
                f"the input with its padding has only {before} + {extent} + {after}",
                hint=hint,
            )
    _require_countable(windows)
    require_reflection(windows.upscaled, windows.padding, windows.border, first_axis)


def require_reverse(windows: Windows, padding: Padding, first_axis: int = 0) -> None:
    """Raise InvalidShape if the output of a deconvolution or debox is empty or has a wrong shape.

    Windows on the output must have as many positions as the input has items. `padding` is the
    attribute of the operation. It has no item for axes with automatic padding. `first_axis` is the
    number that the error gives to the first axis of the windows.
    """
    on_output = basic_windows(
        windows.upscaled,
        size=windows.size,
        border=windows.border,
        padding=padding,
        stride=windows.stride,
        dilation=windows.dilation,
    )
    extents = zip(
        windows.upscaled,
        windows.downscaled,
        on_output.downscaled,
        windows.padding,
        strict=True,
    )
    for axis, (extent, input_extent, position_count, pads) in enumerate(extents, first_axis):
        are_both_empty = extent == input_extent == 0
        if extent < 1 and not are_both_empty:
            raise InvalidShape(
                f"the output has extent {extent} at axis {axis}: "
                f"'padding' {pads} removes all items that the windows cover"
            )
        if differ(input_extent, position_count):
            raise InvalidShape(
                f"'output_shape' has extent {extent} at axis {axis}: the windows have "
                f"{position_count} positions along it, but the input has extent {input_extent}",
                hint="the basic operation with the same attributes must map 'output_shape' to the "
                "shape of the input",
            )
    _require_countable(windows)
    require_reflection(windows.downscaled, windows.reach, windows.border, first_axis)


def _require_countable(windows: Windows) -> None:
    """Raise InvalidShape if a window or a padded input has more items than 32 bits can count."""
    counts = [windows.volume, *windows.dilated, *windows.stride, *windows.dilation]
    for axis, (before, after) in enumerate(windows.padding):
        # The span is the number of items from the first position to the last one.
        span = (windows.downscaled[axis] - 1) * windows.stride[axis] + 1
        counts.append(before + span + after)
        counts.append(before + windows.upscaled[axis] + after)
    if any([count > MAX_EXTENT for count in counts]):
        raise InvalidShape(
            f"windows, and the input with its padding, have at most {MAX_EXTENT} places",
            hint="'size', 'stride', 'dilation' or 'padding' is too large",
        )


def require_reflection(shape: Shape, padding: Padding, border: str, first_axis: int) -> None:
    """Raise InvalidShape if the border is 'reflect' and an axis of extent 1 is padded.

    `first_axis` is the number that the error gives to the first axis of `shape`.
    """
    if border != "reflect":
        return
    for axis, (extent, pads) in enumerate(zip(shape, padding, strict=True), first_axis):
        if extent == 1 and max(pads) > 0:
            raise InvalidShape(
                f"border 'reflect' needs two items to reflect, "
                f"the input has extent 1 at axis {axis}",
                hint="'replicate' and 'reflect-even' can extend a single item",
            )
