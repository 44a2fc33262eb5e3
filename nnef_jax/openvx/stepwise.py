"""Sums of products that are rounded and saturated one by one, as C routines of OpenVX 1.3 have it.

Each product is divided, rounded and brought into the type. After each channel the sum is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import Slide

_UNROLLED = 32  # products that one loop adds
_CHUNK = 16  # of more of them

_item: Callable[..., Array] = partial(lax.dynamic_index_in_dim, keepdims=False)

Sums: TypeAlias = tuple[Array, Array | None]  # and where something overflowed


@dataclass(frozen=True, slots=True)
class Steps:
    """What is done to products of numbers of a dtype, and to sums after a channel.

    Policies are of overflow and rounding.
    """

    dtype: Any
    shift: int
    policies: tuple[str, str]
    report: bool = False

    @property
    def saturates(self) -> bool:
        """Tell whether numbers saturate: then products are computed in float32.

        It holds those exactly that do not saturate. XLA's int32 products take 1.3 times as long.
        """
        return self.policies[0] == "saturate"

    def factors(self, x: Array, filter: Array) -> tuple[Array, Array]:
        """Return two factors in the type of their products, which are divided already if real."""
        if self.saturates:
            return x.astype(np.float32) * np.float32(2.0**-self.shift), filter.astype(np.float32)
        return x.astype(np.int32), filter.astype(np.int32)

    def add(self, sums: Sums, product: Array) -> Sums:
        """Add a product: rounding to the nearest adds a half, then the quotient is truncated."""
        half = 0.5 if self.saturates else (1 << self.shift) >> 1
        if self.shift and self.policies[1] == "nearest_even":
            product = product + np.asarray(half, product.dtype)
        if self.shift and not self.saturates:  # the shift floors
            product = product + ((product >> 31) & ((1 << self.shift) - 1))
            product = product >> self.shift
        fitted, overflowed = self._fitted(product, sums[1])
        return sums[0] + fitted.astype(np.int32), overflowed

    def end(self, sums: Sums) -> Sums:
        """End a channel."""
        fitted, overflowed = self._fitted(*sums)
        return fitted if self.saturates else fitted.astype(self.dtype).astype(np.int32), overflowed

    def _fitted(self, x: Array, overflowed: Array | None) -> Sums:
        low, high = jnp.iinfo(self.dtype).min, jnp.iinfo(self.dtype).max
        if overflowed is not None:
            below, above = np.asarray(low - 1, x.dtype), np.asarray(high + 1, x.dtype)
            overflowed = overflowed | (x <= below) | (x >= above)
        ends = np.asarray(low, x.dtype), np.asarray(high, x.dtype)
        return jnp.clip(x, *ends) if self.saturates else x, overflowed


@partial(jax.jit, static_argnames=("slide", "steps"))
def stepwise(x: Array, filter: Array, biases: Array | None, *, slide: Slide, steps: Steps) -> Sums:
    """Return the sums (B,O,x...) of an input (B,C,X...) and a filter (O,C/G,f...), by channels.

    Biases broadcast to the result. If steps report, also where a product, or a sum after a
    channel, did not fit.
    """
    batch, count, groups = len(x), len(filter), slide.groups
    cells, weights, channels, extents = _operands(*steps.factors(x, filter), slide)
    start: Any = np.int32(0) if biases is None else biases.astype(np.int32)
    start = jnp.broadcast_to(start, (batch, count, *extents))
    start = jnp.moveaxis(start.reshape(batch, groups, count // groups, -1), 0, 2)
    start = start.reshape(groups, count // groups, -1)
    swap = start.shape[1] > start.shape[2]  # the longer axis is the one that vectors run along

    def swapped(x: Array) -> Array:
        return x.swapaxes(1, 2) if swap else x

    def fetch(k: Any) -> tuple[Array, Array]:
        return (cells(k), weights(k)) if swap else (weights(k), cells(k))

    def channel(sums: Sums, operands: Any) -> Sums:
        return steps.end(_products(sums, operands, steps))

    (row, *_), (column, *_) = fetch(0)  # adding none of it gives sums the sharding of products
    none = (row[:, :, None] * column[:, None]).astype(np.int32) * 0
    start = swapped(start) + none
    flags = none != 0 if steps.report else None
    made = _pipelined(channels, fetch, channel, (start, flags))

    def result(x: Array) -> Array:
        parted = swapped(x).reshape(groups, count // groups, batch, *extents)
        return jnp.moveaxis(parted, 2, 0).reshape(batch, count, *extents)

    return jax.tree.map(result, (made[0].astype(steps.dtype), made[1]))


def _operands(
    x: Array, filter: Array, slide: Slide
) -> tuple[Callable[[Any], Array], Callable[[Any], Array], int, tuple[int, ...]]:
    """Return functions from a channel of the groups to its cells (f,G,B*x) and weights (f,G,O/G).

    Also the number of channels and the extents of the output. A product of matrices is one channel.
    """
    if filter.ndim == 2:
        return lambda _: x.T[:, None], lambda _: filter.T[:, None], 1, ()
    groups, (count, depth, *size) = slide.groups, filter.shape
    x = slide.spread_out(x)
    planes = jnp.moveaxis(x.reshape(len(x), groups, depth, *x.shape[2:]), (2, 1), (0, 1))
    extents = slide.places(x.shape[2:], size)
    grouped = jnp.moveaxis(filter.reshape(groups, count // groups, depth, -1), (2, 3), (0, 1))

    def cells(k: Any) -> Array:
        plane = _item(planes, k)  # (G,B,X...)
        if math.prod(size) <= _UNROLLED:
            parts = [plane[:, :, *slide.items(cell, extents)] for cell in np.ndindex(*size)]
            return jnp.stack([part.reshape(groups, -1) for part in parts])
        # A slice for each would compile for minutes.
        axes = zip(size, slide.dilation, extents, slide.stride, strict=True)
        rows, columns = (np.arange(k)[:, None] * d + np.arange(n) * s for k, d, n, s in axes)
        part = plane[:, :, rows[:, None, :, None], columns[None, :, None, :]]
        return jnp.moveaxis(part, (2, 3), (0, 1)).reshape(math.prod(size), groups, -1)

    return cells, lambda k: _item(grouped, k), depth, extents


def _products(sums: Sums, operands: tuple[Array, Array], steps: Steps) -> Sums:
    """Add the products of rows (f,G,R) and columns (f,G,C) to sums (G,R,C)."""
    count = len(operands[0])
    if count <= _UNROLLED:
        for rows, columns in zip(*operands, strict=True):
            sums = steps.add(sums, rows[:, :, None] * columns[:, None, :])
        return sums
    more = -count % _CHUNK  # products with 0 are 0 however they are rounded
    filled = [jnp.pad(x, ((0, more), (0, 0), (0, 0))) for x in operands]
    chunked = [x.reshape(-1, _CHUNK, *x.shape[1:]) for x in filled]

    def fetch(k: Any) -> Any:
        return tuple(_item(x, k) for x in chunked)

    return _pipelined(len(chunked[0]), fetch, partial(_products, steps=steps), sums)


def _pipelined(
    count: int, fetch: Callable[[Any], Any], body: Callable[[Sums, Any], Sums], sums: Sums
) -> Sums:
    """Do `sums = body(sums, fetch(k))` for each k, fetching for one step in the step before it.

    So XLA's loop over products reads arrays that are there, and is vectorised: a third of the time.
    """
    if count == 1:
        return body(sums, fetch(0))

    def step(k: Any, state: Any) -> Any:
        return body(state[0], state[1]), fetch(jnp.minimum(k + 1, count - 1))

    return lax.fori_loop(0, count, step, (sums, fetch(0)))[0]
