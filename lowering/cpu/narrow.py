"""Convolutions of bfloat16 with sums of 32 bits, by products."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import Array, lax

from lowering.cpu.stacked import fits, product, stacked
from lowering.cpu.window import Window, cells

# Items that a product sums. Fewer do not pay for rounding its operands.
DEPTH = 16


def is_narrow(x: Array, filter: Array, window: Window) -> bool:
    """Tell whether products of 16 bits can compute it."""
    return (
        x.dtype == jnp.bfloat16
        and window.accumulator == jnp.float32
        and window.groups == 1
        and not window.is_spread
        and filter.shape[-2] >= DEPTH
    )


def narrow(x: Array, filter: Array, window: Window) -> Array:
    """Compute the convolution (N,x...,O) by one product, or by one for each cell."""
    if fits(x, filter, window):
        return stacked(x, filter, window)
    parts = cells(x, filter.shape[:-2], window)
    return functools.reduce(lax.add, (product(part, filter[cell], window) for cell, part in parts))
