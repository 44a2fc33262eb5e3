"""Estimate the time of convolution kernels from counts of their work and the machine's rates.

The factors are fitted to 220 chains of convolutions that were drawn at random and measured on two
cores with AVX-512. The convolutions have one or two axes, 8 to 512 channels, 3 to 7 cells along an
axis, and 25 to 100,000 positions. Two thirds of the estimates are within a fifth of the measured
time. For 53 other chains, the kernel of least estimated cost takes 1.045 times as long as the
fastest kernel, and XLA's convolution takes 1.23 times as long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from jax import Array

from lowering.cpu.sliding_filter import Window
from lowering.extents import ceil_div, is_symbolic
from lowering.machine import profile

_VECTOR_ITEMS = 16  # Products compute full vectors of this number of items.
_FEWEST_CHANNELS = 8  # A product with fewer channels takes as long as one with this number.
_FEWEST_ROWS = 16  # A product with fewer rows lays out only a part of the matrix.
_CACHED_ITEMS = 1 << 19  # the most items of inputs and results that stay in the caches


class Extents(NamedTuple):
    """Numbers of positions, cells and channels that determine the work of a convolution.

    Symbolic extents count as 1.
    """

    positions: int  # the positions of the window, for all items of the batch
    tiles: int  # the tiles for all items of the batch; a tile has two positions along each axis
    padded: int  # the positions of the padded input, for all items of the batch
    cells: int  # the cells of the window
    depth: int  # the number of input channels
    results: int  # the number of output channels

    @property
    def matrix(self) -> int:
        """Return the number of items of the filter."""
        return self.cells * self.depth * self.results


def extents(x: Array, filter: Array, window: Window) -> Extents:
    """Return the numbers that determine the work of a convolution of `x` with `filter`.

    The input has the shape (batch, *input positions, channels), and the filter has the shape
    (*window, channels, outputs).
    """
    *size, depth, count = filter.shape
    batch, *inputs, _ = map(_known, x.shape)
    positions = list(map(_known, window.positions(x, size)))
    tiles = [ceil_div(extent, 2) for extent in positions]
    padded: list[int] = []
    for extent, (before, after) in zip(inputs, window.padding, strict=True):
        padded.append(before + extent + after)
    return Extents(
        positions=batch * math.prod(positions),
        tiles=batch * math.prod(tiles),
        padded=batch * math.prod(padded),
        cells=math.prod(size),
        depth=depth,
        results=count,
    )


def _known(extent: int) -> int:
    """Return an extent, or 1 for a symbolic extent."""
    return 1 if is_symbolic(extent) else extent


def direct(e: Extents) -> float:
    """Return the estimated seconds of XLA's own convolution.

    XLA first gathers the items that windows cover. The factors are fitted to measured times.
    """
    covered_items = e.positions * e.cells * e.depth
    result_items = e.positions * e.results
    matrix_items = _read(e.matrix, e.positions)
    moved_items = 4.4 * covered_items + 12 * result_items + 6.4 * matrix_items
    multiply_adds = 0.55 * covered_items * _vectors(e.results)
    return _seconds(multiply_adds, moved_items, starts=2.6)


def stacked(e: Extents) -> float:
    """Return the estimated seconds of the kernel `stacked`: one product, and sums over cells.

    The factors are fitted to measured times plus a twentieth. If this kernel and XLA's convolution
    take equally long on their own, XLA's convolution is faster in networks.
    """
    columns = e.cells * e.results
    multiply_adds = e.padded * max(e.depth, _FEWEST_CHANNELS) * _vectors(columns)
    matrix_items = _read(e.matrix, e.padded)
    moved_items = e.padded * (10.5 * e.depth + 3.05 * columns) + 6.9 * matrix_items
    return _seconds(0.63 * multiply_adds, moved_items, starts=1)


def winograd(e: Extents) -> float:
    """Return the estimated seconds of the kernel `winograd`: 16 products, and three transforms.

    The factors are fitted to measured times plus an eighth, since many operations take long to
    compile. Transforms that leave the caches cost more: 64 channels at 256x256 positions take 26 to
    41 ms in networks, and 20 ms by `direct`.
    """
    channels = e.depth + e.results
    rows = 16 * e.tiles  # the rows of the products
    transformed_matrix = e.matrix * 16 / 9  # 3x3 cells become 4x4 matrices
    matrix_items = _read(transformed_matrix, e.tiles)
    moved_items = 8.0 * rows * channels + 6.2 * matrix_items
    multiply_adds = 0.56 * rows * e.depth * _vectors(e.results)
    seconds = _seconds(multiply_adds, moved_items, starts=28)
    uncached_items = max(0, e.positions * channels - _CACHED_ITEMS)
    nbytes = 2 * 4 * uncached_items  # items of 4 bytes, written and read
    return seconds + nbytes / profile().costs.memory


def summed(e: Extents) -> float:
    """Return the estimated seconds of the kernel `summed`, which is one loop over all terms.

    Vectors have 8 output channels. Channels in a vector that is not full cost twice as much: 19
    channels cost as much as 16 + 2 * 3 = 22. The factors are fitted to measured times.
    """
    remaining_channels = e.results % 8
    channels = e.results + remaining_channels
    moved_items = 0.55 * e.positions * e.cells * e.depth * channels
    return _seconds(multiply_adds=0, moved_items=moved_items, starts=2)


def _read(matrix: float, rows: int) -> float:
    """Return the number of items that a product of `rows` rows reads from a matrix and lays out.

    `matrix` is the number of all items of the matrix. A product of few rows reads only a part of
    the matrix.
    """
    return matrix * min(1.0, rows / _FEWEST_ROWS)


def _vectors(channels: int) -> int:
    """Round a number of channels up to full vectors of 16 items: 17 becomes 32."""
    return ceil_div(channels, _VECTOR_ITEMS) * _VECTOR_ITEMS


def _seconds(multiply_adds: float, moved_items: float, starts: float) -> float:
    """Return the seconds that an amount of work takes at the rates of the machine.

    `multiply_adds`, `moved_items` (of 4 bytes) and `starts` (of operations) are the amounts of
    work.
    """
    costs = profile().costs
    moved_bytes = 4 * moved_items
    return multiply_adds / costs.product + moved_bytes / costs.cached + starts * costs.start
