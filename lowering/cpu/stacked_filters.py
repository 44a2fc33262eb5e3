"""Convolves by one product for all positions and cells, or by a product for each cell."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.cpu.products import product
from lowering.cpu.sliding_filter import Window, cells, padded

# The result of one product for all cells may have at most this number of bytes. Other kernels are
# faster if the result does not fit the caches. The measured milliseconds in bfloat16:
#   channels  positions  batch  one product  a product for each cell   XLA
#         64      56x56      1         0.56                     1.35  1.25
#         64      56x56      8        22.6                     22.4   7.5
#        256      14x14      1         0.45                     0.61  1.44
_MOST_BYTES = 8 << 20


def fits(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether `stacked` may compute a convolution.

    The stride must be 1, and the products of all cells must stay in the caches.
    """
    *size, _, count = filter.shape
    batch, *extents, _ = x.shape
    padded_extents: list[int] = []
    for extent, (before, after) in zip(extents, window.padding, strict=True):
        padded_extents.append(before + extent + after)
    product_items = math.prod((batch, *padded_extents, *size, count))
    itemsize = np.dtype(window.accumulator or x.dtype).itemsize
    is_small = product_items * itemsize <= _MOST_BYTES
    return is_small and all(stride == 1 for stride in window.stride)


def stacked(x: Array, filter: Array, window: Window) -> Array:
    """Convolve by one product for all cells: add up parts of the product at shifted positions.

    The result has the shape (batch, *positions, outputs).
    """
    *size, depth, count = filter.shape
    x = padded(x, window)
    matrix = jnp.moveaxis(filter, -2, 0).reshape(depth, -1)  # (channels, cells * outputs)
    products = _product(x, matrix, window)

    def terms() -> Iterator[Array]:
        # The product has the results of all cells side by side, as channels. At the positions of a
        # cell only this cell's own channels are read.
        for cell_number, (_, part) in enumerate(cells(products, size, window.bare)):
            first_channel = cell_number * count
            yield part[..., first_channel:][..., :count]

    return functools.reduce(lax.add, terms())


# A product in 16 bits sums at least this number of channels. With fewer channels, rounding the
# operands to 16 bits takes longer than the 16-bit product saves.
DEPTH = 16


def is_narrow(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether `narrow` may compute a convolution.

    The operands must be bfloat16 with sums in float32. The filter must have at least `DEPTH` input
    channels.
    """
    has_narrow_operands = x.dtype == jnp.bfloat16 and window.accumulator == jnp.float32
    is_plain = window.groups == 1 and not window.is_spread
    depth = filter.shape[-2]
    return has_narrow_operands and is_plain and depth >= DEPTH


def narrow(x: Array, filter: Array, window: Window) -> Array:
    """Convolve bfloat16 arrays by one product for all cells, or by a product for each cell.

    The result has the shape (batch, *positions, outputs).
    """
    if fits(x, filter, window):
        return stacked(x, filter, window)

    def terms() -> Iterator[Array]:
        for cell, part in cells(x, filter.shape[:-2], window):
            yield _product(part, filter[cell], window)

    return functools.reduce(lax.add, terms())


def _product(x: Array, matrix: Array, window: Window) -> Array:
    """Multiply the channels of each position by a matrix (channels, outputs)."""
    *positions, depth = x.shape
    result = product(x.reshape(-1, depth), matrix, window.kind, x_axis=1, matrix_axis=0)
    return result.reshape(*positions, -1)
