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

# The most bytes that the result of one product for all cells may have. Other kernels are faster if
# the result does not fit the caches. Measured times in bfloat16, in milliseconds:
#   channels  positions  batch  one product  a product for each cell   XLA
#         64      56x56      1         0.56                     1.35  1.25
#         64      56x56      8        22.6                     22.4   7.5
#        256      14x14      1         0.45                     0.61  1.44
_BYTES = 8 << 20


def fits(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether `stacked` may compute a convolution.

    The stride must be 1, and the products of all cells must stay in the caches.
    """
    *size, _, count = filter.shape
    extents = [n + sum(p) for n, p in zip(x.shape[1:-1], window.padding, strict=True)]
    items = math.prod((len(x), *extents, *size, count))
    itemsize = np.dtype(window.accumulator or x.dtype).itemsize
    return all(s == 1 for s in window.stride) and items * itemsize <= _BYTES


def stacked(x: Array, filter: Array, window: Window) -> Array:
    """Convolve by one product for all cells, and add up its parts at shifted positions.

    The result has the shape (batch, *positions, outputs).
    """
    *size, depth, count = filter.shape
    x = padded(x, window)
    matrix = jnp.moveaxis(filter, -2, 0).reshape(depth, -1)
    products = _product(x, matrix, window)

    def terms() -> Iterator[Array]:
        for i, (_, part) in enumerate(cells(products, size, window.bare)):
            # The results of cell i are `count` channels from i * count on.
            yield part[..., i * count :][..., :count]

    return functools.reduce(lax.add, terms())


# The fewest channels that a product sums. With fewer channels, rounding the operands to 16 bits
# takes longer than the 16-bit product saves.
DEPTH = 16


def is_narrow(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether `narrow` may compute a convolution.

    The operands must be bfloat16 with sums in float32. The filter must have at least `DEPTH` input
    channels.
    """
    has_narrow_operands = x.dtype == jnp.bfloat16 and window.accumulator == jnp.float32
    is_plain = window.groups == 1 and not window.is_spread
    return has_narrow_operands and is_plain and filter.shape[-2] >= DEPTH


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
    rows = x.reshape(-1, x.shape[-1])
    return product(rows, 1, matrix, 0, window.kind).reshape(*x.shape[:-1], -1)
