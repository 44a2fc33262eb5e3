"""Convolves with a group for each channel, by sums of shifted inputs.

The input has the shape (batch, *input positions, channels), the filter has the shape (*window, 1,
outputs), and the result has the shape (batch, *positions, outputs).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.memory import materialised, uninlined
from lowering.cpu.phases import covered, scattered_sums
from lowering.cpu.products import sums_of_channels
from lowering.cpu.sliding_filter import Window, cells, padded
from lowering.kernels.precision import accumulator

# If a window has more cells than this, the sums over its cells are computed once, and kept in
# memory for the loops that read the sums. XLA may compute sums of fewer cells again in each loop
# that reads the sums. ConvNeXt-T, where a layer norm follows windows of 7x7 cells, takes 59 ms with
# this rule and 69 ms without it.
_MANY_CELLS = 25

# This is the number of float32 channels in a vector of 512 bits. If a window has more than
# _MANY_CELLS cells along an axis, the input is laid out vector by vector, so that the items of a
# window stay in the first cache. The measured times on two cores, at 8x200 positions: 75 cells of
# 512 channels take 2.7 ms in this layout and 5.7 ms without it. 33 cells of 256 channels take 0.75
# ms in this layout and 1.3 ms without it. QuartzNet takes 0.8 to 0.98 of the time that it takes
# without this layout, and its training step takes 0.94 to 0.99 of the time. Windows of 7x7 cells
# are not laid out in this way. On their own they would take 0.7 to 0.9 of the time, but ConvNeXt-T
# would take 0.97 of the time, and its training step would take 1.08 of the time.
_VECTOR_CHANNELS = 16


def depthwise(x: Array, filter: Array, window: Window) -> Array:
    """Convolve with a group for each channel, by sums of shifted inputs.

    The input has the shape (batch, *input positions, channels), the filter has the shape
    (*window, 1, outputs), and the result has the shape (batch, *positions, outputs).
    """
    if window.is_spread:
        return _spread_out(x, filter, window)
    *size, _, count = filter.shape
    sum_dtype = _accumulator(x, window)
    result_dtype = window.accumulator or x.dtype
    has_full_vectors = count > _VECTOR_CHANNELS and count % _VECTOR_CHANNELS == 0
    if max(size) > _MANY_CELLS and has_full_vectors:
        # Each channel of the result gets a copy of its input channel.
        wide_input = _repeated(x, count).astype(sum_dtype)
        total = _by_vectors(wide_input, filter.astype(sum_dtype), window)
        return total.astype(result_dtype)

    def terms() -> Iterator[Array]:
        for cell, part in cells(x, size, window):
            items = _repeated(part, count).astype(sum_dtype)
            yield items * _factors(filter, cell, sum_dtype)

    total = reduce(add, terms())
    if math.prod(size) > _MANY_CELLS:
        # Without this call, each loop that reads the sums might compute the sums again.
        total = materialised(total)
    return total.astype(result_dtype)


def _by_vectors(x: Array, filter: Array, window: Window) -> Array:
    """Convolve with a group for each channel, one vector of 16 channels after another.

    x has as many channels as the result. Its shape is (batch, *input positions, outputs).
    """
    *size, _, count = filter.shape

    def split_channels(array: Array) -> Array:
        """Split the last axis into vectors of 16 channels. The axis of vectors becomes axis 0."""
        vectors = array.reshape(*array.shape[:-1], -1, _VECTOR_CHANNELS)
        return jnp.moveaxis(vectors, -2, 0)

    def sums(inputs: Array, filters: Array) -> Array:
        """Return the sums of all vectors: (vectors, batch, *positions, 16)."""
        vector_count, batch, *positions_and_channels = inputs.shape
        # The vectors become items of the batch.
        joined_inputs = inputs.reshape(vector_count * batch, *positions_and_channels)
        ones = (1,) * (len(size) + 1)  # for the batch and the positions
        terms: list[Array] = []
        for cell, part in cells(joined_inputs, size, window.bare):
            items = part.reshape(vector_count, batch, *part.shape[1:])
            factors = filters[:, *cell].reshape(vector_count, *ones, _VECTOR_CHANNELS)
            terms.append(items * factors)
        # Each addition to a sum waits for the addition before it. The even and the odd terms have
        # separate sums, which are computed at the same time, in half the time of one sum.
        return reduce(lax.add, terms[::2]) + reduce(lax.add, terms[1::2])

    x = padded(x, window)
    total = uninlined(sums)(split_channels(x), split_channels(filter))
    total = jnp.moveaxis(total, 0, -2)  # (batch, *positions, vectors, 16)
    return total.reshape(*total.shape[:-2], count)


def _spread_out(x: Array, filter: Array, window: Window) -> Array:
    """Convolve a dilated input with a group for each channel.

    For example, the derivative of a strided convolution by its input has a dilated input. Then each
    item of x belongs to a window of the strided convolution, and the windows lie over the result of
    this function. Each item of x is multiplied by the cells of its window, and the products are
    added to the items of the result that the cells cover.
    """
    *size, _, count = filter.shape
    sum_dtype = _accumulator(x, window)
    repeated = _repeated(x, count)
    # This list gets the padding of the strided convolution. With windows of 3 cells, the padding
    # (2, 2) of the dilated input becomes the padding (0, 0) of the strided convolution.
    strided_padding: list[tuple[int, int]] = []
    axes = zip(size, window.dilation, window.padding, strict=True)
    for cell_count, dilation, (before, after) in axes:
        reach = (cell_count - 1) * dilation  # from the first to the last cell of a window
        strided_padding.append((reach - before, reach - after))
    strided = replace(window, padding=strided_padding, stride=window.input_dilation)
    positions = window.positions(repeated, size)
    result_shape = (repeated.shape[0], *positions, count)
    windows = strided.windows_over(size, upscaled=result_shape, downscaled=repeated.shape)
    reversed_filter = lax.rev(filter, tuple(range(len(size))))

    def term(cell: tuple[int, ...], part: Array) -> Array:
        _, *window_cell, _ = cell  # without the batch and the channels
        return part * _factors(reversed_filter, tuple(window_cell), sum_dtype)

    total = scattered_sums([(repeated.astype(sum_dtype), 0)], windows, term)
    return total.astype(window.accumulator or x.dtype)


def _factors(filter: Array, cell: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return the filter's items in one cell, in a shape that broadcasts to the result."""
    ones = (1,) * (filter.ndim - 1)  # for the batch and the positions
    return filter[cell].reshape(*ones, -1).astype(dtype)


def _accumulator(x: Array, window: Window) -> np.dtype[np.generic]:
    """Return the dtype in which a convolution of x sums products."""
    return accumulator(window.accumulator or x.dtype)


def _repeated(part: Array, count: int) -> Array:
    """Repeat each channel, so that the last axis has `count` channels."""
    times = count // part.shape[-1]
    return jnp.repeat(part, times, axis=-1) if times > 1 else part


def filter_gradient(gradient: Array, x: Array, size: Sequence[int], window: Window) -> Array:
    """Return the derivative of a depthwise convolution by its filter.

    The derivative has the shape (*window, 1, outputs). `gradient` is the derivative by the
    convolution's result, and `x` is the convolution's input. Batch and rows are divided into
    parts. A loop adds up the parts, and a product sums the items of the added parts.
    """
    count = gradient.shape[-1]
    sum_dtype = _accumulator(x, window)
    gradient = materialised(gradient).astype(sum_dtype)
    boxes = _boxes(gradient.shape[:2])
    gradient_parts = [gradient[box] for box in boxes]
    # The padding on the right must be at least as large as the padding on the left, since XLA
    # recognises the padded array only then.
    extended_padding = [(before, max(before, after)) for before, after in window.padding]
    extended = replace(window, padding=extended_padding)
    positions = (*gradient.shape[:-1], x.shape[-1])
    windows = extended.windows_over(size, upscaled=x.shape, downscaled=positions)
    sums: list[Array] = []
    # `items` has the items of x under one cell of all windows, in the shape of the positions.
    for items in covered(x, windows):
        terms: list[Array] = []
        for box, gradient_part in zip(boxes, gradient_parts, strict=True):
            terms.append(_repeated(items[box], count).astype(sum_dtype) * gradient_part)
        sums.append(sums_of_channels(reduce(lax.add, terms)))
    return jnp.stack(sums).reshape(*size, 1, count).astype(window.accumulator or x.dtype)


# `filter_gradient` divides its arrays into at least this number of boxes, if possible. If a loop
# reads at most 15 slices of an array, XLA computes the array in this loop again. For a window of
# nine cells there are nine loops, so that XLA would compute the array nine times.
_FEWEST_BOXES = 16


def _boxes(extents: Sequence[int]) -> list[tuple[slice, ...]]:
    """Return slices that divide two axes into boxes of equal extents.

    There are 16 to 32 boxes if the extents allow this number. If not, there are as many boxes as
    possible.
    """

    def divisors(extent: int) -> list[int]:
        return [n for n in range(1, extent + 1) if extent % n == 0]

    def preference(counts: tuple[int, ...]) -> tuple[int, int]:
        """Return the sort key of a division. The best division has the least key.

        The best division has the fewest boxes, but at least 16. If no division has 16 boxes, the
        division with the most boxes is the best.

        For 8, 12, 16 and 24 boxes the keys are (8, 8), (4, 12), (0, 16) and (0, 24).
        """
        box_count = math.prod(counts)
        missing_count = max(_FEWEST_BOXES - box_count, 0)
        return missing_count, box_count

    # A division has the number of parts along each axis.
    divisions = itertools.product(*map(divisors, extents))
    possible = [counts for counts in divisions if math.prod(counts) <= 2 * _FEWEST_BOXES]
    best = min(possible, key=preference)
    sizes = [extent // count for extent, count in zip(extents, best, strict=True)]
    boxes: list[tuple[slice, ...]] = []
    for box_index in np.ndindex(*best):
        box: list[slice] = []
        for part, size in zip(box_index, sizes, strict=True):
            box.append(slice(part * size, (part + 1) * size))
        boxes.append(tuple(box))
    return boxes
