"""Sum over the last axis of an array, by equal parts of each row."""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp
from jax import Array, lax

from lowering.contexts import is_enabled
from lowering.cpu.memory import materialised
from lowering.extents import at_least, is_symbolic

# XLA adds the items of a row one after the other. If the items are results of a computation, for
# example squares, XLA first writes the items to memory. A sum of equal parts of the row is a loop
# over the items of a part instead. XLA fuses this loop with the loop that computes the items. The
# measured milliseconds of a layer norm:
#   rows  items  as written  by parts
#   3136     96        0.58      0.30
#    784    192        0.31      0.20
#    196    384        0.23      0.14
#   1576    384        1.11      0.53
#    128    384        0.09      0.12
_FEWEST_LANES = 32  # the fewest items of a part
_MOST_PARTS = 24  # the most parts of a row, since separate instructions read each part
_FEWEST_ITEMS = 64 << 10  # An array with fewer items is not summed by parts.


def is_by_lanes(x: Array) -> bool:
    """Tell whether `sums_of_rows` is faster for x than a reduction over the last axis.

    Rows must be long enough to be divided into equal parts, and the array large enough.
    """
    if x.dtype != jnp.float32 or x.ndim < 2 or not is_enabled("lanes"):
        return False
    length = x.shape[-1]
    if is_symbolic(length) or not at_least(math.prod(x.shape), _FEWEST_ITEMS):
        return False
    return length >= 2 * _FEWEST_LANES and _lanes(length) > 0


def sums_of_rows(x: Array) -> Array:
    """Sum over the last axis: add up equal parts of each row, and then the items of this sum.

    A row of 96 items, for example, is divided into three parts of 32 items.
    """
    length = x.shape[-1]
    lanes = _lanes(length)
    starts = range(0, length, lanes)
    parts = [lax.slice_in_dim(x, start, start + lanes, axis=-1) for start in starts]
    total = functools.reduce(lax.add, parts)
    return jnp.sum(materialised(total), axis=-1)


def _lanes(length: int) -> int:
    """Return the number of items in a part of a row of `length` items.

    The number is the first of 32, 64, 128 and so on that gives at most 24 parts. If this number
    does not divide `length`, 0 is returned.
    """
    lanes = _FEWEST_LANES
    while length > lanes * _MOST_PARTS:
        lanes *= 2
    return lanes if length % lanes == 0 else 0
