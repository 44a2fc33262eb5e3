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

_LANES = 16  # the items of a vector; products compute full vectors
_SHALLOW = 8  # a product with fewer channels takes as long as one with 8
_ROWS = 16  # a product of fewer rows lays out only a part of the matrix
_CACHED = 1 << 19  # the most items of inputs and results that stay in the caches


class Extents(NamedTuple):
    """Numbers of positions, cells and channels that determine the work of a convolution.

    Symbolic extents count as 1.
    """

    positions: int
    tiles: int  # a tile has two positions along each axis
    padded: int
    cells: int
    depth: int
    results: int

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
    padded = [n + p + q for n, (p, q) in zip(inputs, window.padding, strict=True)]
    tiles = [ceil_div(n, 2) for n in positions]
    return Extents(
        positions=batch * math.prod(positions),
        tiles=batch * math.prod(tiles),
        padded=batch * math.prod(padded),
        cells=math.prod(size),
        depth=depth,
        results=count,
    )


def _known(extent: int) -> int:
    return 1 if is_symbolic(extent) else extent


def direct(e: Extents) -> float:
    """Return the estimated seconds of XLA's own convolution.

    XLA first gathers the items that windows cover.
    """
    covered = e.positions * e.cells * e.depth
    moved = 4.4 * covered + 12 * e.positions * e.results + 6.4 * _read(e.matrix, e.positions)
    return _seconds(0.55 * covered * _vectors(e.results), moved, starts=2.6)


def stacked(e: Extents) -> float:
    """Return the estimated seconds of the kernel `stacked`: one product, and sums over cells.

    A twentieth is added: if this kernel and XLA's convolution take equally long on their own,
    XLA's convolution is better in networks.
    """
    columns = e.cells * e.results
    products = e.padded * max(e.depth, _SHALLOW) * _vectors(columns)
    moved = e.padded * (10.5 * e.depth + 3.05 * columns) + 6.9 * _read(e.matrix, e.padded)
    return _seconds(0.63 * products, moved, starts=1)


def winograd(e: Extents) -> float:
    """Return the estimated seconds of the kernel `winograd`: 16 products, and their transforms.

    An eighth is added, since many operations take long to compile. Transforms that leave the
    caches cost more: 64 channels at 256x256 positions take 26 to 41 ms in networks, and 20 ms
    by `direct`.
    """
    channels = e.depth + e.results
    rows = 16 * e.tiles  # the rows of the products
    moved = 8.0 * rows * channels + 6.2 * _read(e.matrix * 16 / 9, e.tiles)
    seconds = _seconds(0.56 * rows * e.depth * _vectors(e.results), moved, starts=28)
    uncached = max(0, e.positions * channels - _CACHED)
    nbytes = 2 * 4 * uncached  # the bytes written and read
    return seconds + nbytes / profile().costs.memory


def summed(e: Extents) -> float:
    """Return the estimated seconds of the kernel `summed`, which is one loop over all terms.

    Output channels that do not fill a vector of 8 count twice.
    """
    channels = e.results // 8 * 8 + 2 * (e.results % 8)
    return _seconds(0, 0.55 * e.positions * e.cells * e.depth * channels, starts=2)


def _read(matrix: float, rows: int) -> float:
    """Return how many of a matrix's items a product with `rows` rows reads to lay them out.

    `matrix` is the number of items of the matrix.
    """
    return matrix * min(1.0, rows / _ROWS)


def _vectors(channels: int) -> int:
    """Return the number of channels, rounded up to a multiple of 16, the items of a vector."""
    return ceil_div(channels, _LANES) * _LANES


def _seconds(multiply_adds: float, items: float, starts: float) -> float:
    """Return the seconds that work takes at the rates of the machine.

    The work is some multiply-adds, some items that are moved, and some operations that start.
    """
    costs = profile().costs
    return multiply_adds / costs.product + 4 * items / costs.cached + starts * costs.start
