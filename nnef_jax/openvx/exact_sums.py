"""Exact sums of products of 8- and 16-bit integers, and their rounding to as many bits.

Factors are written in balanced digits. Sums of products of digits that stay within 2**24 are exact
in float32, in whichever order they are added, and run on what computes networks fast. Joined with
the digits' weights they are the sums of the factors' products.

A product of two 16-bit integers has 31 bits, so that two of them overflow an int32. A sum is kept
as two: `high * 2**base + low`, of up to 2**47, exact without 64-bit integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer

from lowering import Slide, correlation

_EXACT = 1 << 24
_JOIN = 32  # what joining one sum of digits costs, in multiply-adds
_CHUNKS = 256  # of channels at most, or cells of a window, each a part of the program
_LOW = 16  # bits of the lower word at most: 2**15 values of such fit their int32
_BEYOND = 17  # bits of what no result holds: clipping there changes none
_UNROLLED_GROUPS = 8  # groups that are convolutions of their own
_HIGHEST = lax.Precision.HIGHEST
_EACH = Slide((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1))  # one cell after the other of two axes


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["digits"],
    meta_fields=["width", "pieces", "depth", "largest"],
)
@dataclass(frozen=True, slots=True)
class Factors:
    """A filter (O,I,k...) of integers as float32 digits of `width` bits, the lowest first.

    The other factor is written in `pieces` digits of 8 bits (or as it is), `depth` channels are
    summed at once, and no sum of products exceeds `largest`.
    """

    digits: tuple[Array, ...]
    width: int
    pieces: int
    depth: int
    largest: int


def factors(filter: Any) -> Factors | None:
    """Write a filter (O,I,k...) in as few digits as sums over it and any input of its dtype allow.

    Known values need fewer than the worst case, which is taken where jax traces: filters of
    networks in Q7.8 are one digit of 16 bits, their inputs two of 8. None says that there are too
    many products to sum: more than 16384 cells of a channel in the worst case.
    """
    limits = jnp.iinfo(filter.dtype)
    bits, reach = limits.bits, max(-limits.min, limits.max)
    channels, cells = filter.shape[1], math.prod(filter.shape[2:])
    known = None if isinstance(filter, Tracer) else np.asarray(filter, np.int32)
    plans: list[tuple[int, int, tuple[int, int, int, int]]] = []
    for width in {bits, 8, 4}:
        if known is None:  # the lower digits reach -2**(width-1), whatever the ends are
            tops = _digits(np.array([limits.min, limits.max], np.int32), width, bits)
            most = [max(1 << (width - 1), int(np.abs(top).max())) for top in tops]
            sums = [np.full((1, channels), cells * top, np.int64) for top in most]
        else:
            planes = [x.reshape(*x.shape[:2], -1) for x in _digits(known, width, bits)]
            sums = [np.abs(x).sum(2, dtype=np.int64) for x in planes]
        largest = reach * sum(int(x.sum(1).max()) << (k * width) for k, x in enumerate(sums))
        largest = 1 << max(largest - 1, 0).bit_length()  # for other values the same program
        for pieces, digit in ((1, reach), (2, 128))[: bits // 8]:
            depth = _depth(sums, _EXACT // digit)
            if depth:
                work = channels * cells + -(-channels // depth) * _JOIN
                plan = (width, pieces, depth, largest)
                plans.append((pieces * len(sums) * work, len(sums), plan))
    if not plans:
        return None
    _, _, (width, *plan) = min(plans)
    numbers = _digits(filter.astype(np.int32) if known is None else known, width, bits)
    return Factors(tuple(jnp.asarray(x, np.float32) for x in numbers), width, *plan)


def _depth(sums: list[np.ndarray[Any, Any]], most: int) -> int:
    """Return how many channels may be summed at once so that no sum is above `most`, or 0."""
    channels = depth = sums[0].shape[1]
    while channels <= depth * _CHUNKS:
        starts = np.arange(0, channels, depth)
        if all(np.add.reduceat(x, starts, axis=1).max() <= most for x in sums):
            return depth
        depth = 0 if depth == 1 else -(-depth // 2)
    return 0


def _digits(x: Any, width: int, bits: int) -> list[Any]:
    """Write int32 in balanced digits: the lowest ones are -2**(width-1) to 2**(width-1) - 1."""
    half, digits = 1 << (width - 1), list[Any]()
    for _ in range(bits // width - 1):
        low = ((x + half) & (2 * half - 1)) - half
        digits.append(low)
        x = (x - low) >> width
    return [*digits, x]


def sums_of_products(x: Array, filter: Factors, slide: Slide) -> list[tuple[Array, int]]:
    """Return terms (int32, shift) whose sum is the correlation of (B,C,X...) with the filter."""
    batch, _, *extents = x.shape
    depth = filter.digits[0].shape[1]
    whole = x.astype(np.int32)
    if _is_by_cells(filter.digits[0], slide) and filter.largest < 1 << 31:
        places = enumerate(filter.digits)
        integers: Any = sum(d.astype(np.int32) << (k * filter.width) for k, d in places)
        return [(_by_cells(whole, integers, slide), 0)]
    pieces = _digits(whole, 8, 16) if filter.pieces == 2 else [whole]
    inputs = jnp.concatenate(pieces).astype(np.float32)
    grouped = inputs.reshape(-1, slide.groups, depth, *extents)
    terms: list[tuple[Array, int]] = []
    for start in range(0, depth, filter.depth):
        chosen = slice(start, start + filter.depth)
        part = grouped[:, :, chosen].reshape(len(inputs), -1, *extents)
        for place, digit in enumerate(filter.digits):
            sums = _correlate(part, digit[:, chosen], slide).astype(np.int32)
            for piece in range(filter.pieces):
                rows = sums[piece * batch : (piece + 1) * batch]
                terms.append((rows, place * filter.width + piece * 8))
    return terms


def _correlate(x: Array, filter: Array, slide: Slide) -> Array:
    if filter.ndim == 2:
        return jnp.einsum("bi,oi->bo", x, filter, precision=_HIGHEST)
    if _is_by_cells(filter, slide):
        return _by_cells(x, filter, slide)
    # Elsewhere than on CPUs convolutions may be computed by other algorithms than sums of products.
    return lax.platform_dependent(
        x, filter, cpu=partial(_conv, slide=slide), default=partial(_by_cells, slide=slide)
    )


def _is_by_cells(filter: Array, slide: Slide) -> bool:
    """Tell whether each plane has a filter of its own: 64 of 28x28 take 0.12 instead of 2.9 ms.

    They are summed as integers where these fit an int32: a MobileNet takes 10.9 ms instead of 12.7.
    """
    few = math.prod(filter.shape[2:]) <= _CHUNKS
    return filter.ndim > 2 and filter.shape[1] == 1 and slide.groups > 1 and few


def _conv(x: Array, filter: Array, slide: Slide) -> Array:
    groups, (batch, depth, *extents) = slide.groups, x.shape
    if math.prod(filter.shape[2:]) == 1 and slide == _EACH:
        # XLA's convolution transposes: a MobileNet takes 10.9 ms with it, 6.0 so.
        matrix = jnp.broadcast_to(filter.reshape(-1, depth), (batch, len(filter), depth))
        planes = x.reshape(batch, depth, -1)
        product = jnp.einsum("boi,bip->bop", matrix, planes, precision=_HIGHEST)
        return product.reshape(batch, len(filter), *extents)
    if 1 < groups <= _UNROLLED_GROUPS:  # 2 groups of 5x5 windows take 0.36 instead of 0.84 ms
        alone = replace(slide, groups=1)
        pairs = zip(jnp.split(x, groups, 1), jnp.split(filter, groups), strict=True)
        return jnp.concatenate([_conv(*pair, alone) for pair in pairs], 1)
    return correlation.correlate(x, filter, slide, _HIGHEST)


def _by_cells(x: Array, filter: Array, slide: Slide) -> Array:
    with jax.default_matmul_precision("highest"):
        return correlation.by_cells(x, filter, slide, x.dtype)


@partial(jax.tree_util.register_dataclass, data_fields=["high", "low"], meta_fields=["base"])
@dataclass(frozen=True, slots=True)
class Wide:
    """A tensor of `high * 2**base + low`, where 0 <= low < 2**base, both int32."""

    high: Array
    low: Array
    base: int


def base_for(largest: int, shift: int) -> int | None:
    """Return the base for sums up to a magnitude, of which `shift` bits are rounded away.

    That shift itself takes the fewest operations. None says that no base holds such sums.
    """
    bases = (min(max(shift, 0), _LOW), _LOW)
    return next((base for base in bases if largest < 1 << (31 + base)), None)


def total(terms: Sequence[tuple[Array, int]], base: int) -> Wide:
    """Return the sum of `value * 2**shift` over terms (value, shift), int32 that broadcast."""
    high: Any = jnp.int32(0)
    low: Any = jnp.int32(0)
    for value, shift in terms:
        if shift >= base:
            high = high + (value << (shift - base))
        else:
            under = base - shift
            high = high + (value >> under)
            low = low + ((value & ((1 << under) - 1)) << shift)
    high, low = jnp.broadcast_arrays(high + (low >> base), low & ((1 << base) - 1))
    return Wide(high, low, base)


def narrow(
    x: Wide, shift: int, overflow_policy: str, rounding_policy: str, dtype: Any
) -> tuple[Array, Array]:
    """Return round(x / 2**shift) in 8 or 16 bits, and whether it lies beyond them, by item.

    Rounding is 'to_zero' or 'nearest_even', overflow 'wrap' (two's complement) or 'saturate'. A
    negative shift multiplies. Shifts are at most `base + 31`.
    """
    up = min(max(-shift, 0), _LOW)
    near = _rounded(_clipped(x, shift), shift, rounding_policy)
    if up:
        near = jnp.clip(near, -(1 << 14), 1 << 14) << up
    limits = jnp.iinfo(dtype)
    overflowed = (near < limits.min) | (near > limits.max)
    if overflow_policy == "wrap":
        return (_rounded(x, shift, rounding_policy) << up).astype(dtype), overflowed
    return jnp.clip(near, limits.min, limits.max).astype(dtype), overflowed


def _clipped(x: Wide, shift: int) -> Wide:
    """Bring sums near to those that fit, so that quotients fit an int32."""
    more = x.base - max(shift, 0)
    if more <= 0:
        return x
    most = (1 << (_BEYOND - more)) + 1
    return Wide(jnp.clip(x.high, -most, most), x.low, x.base)


def _rounded(x: Wide, shift: int, rounding_policy: str) -> Array:
    """Return round(x / 2**shift) modulo 2**32; a negative shift counts as 0."""
    if shift <= 0:
        return (x.high << x.base) + x.low
    floor, half, rest = _parts(x, shift)
    up = (x.high < 0) & (half | rest)
    if rounding_policy == "nearest_even":
        up = half & (rest | (floor & 1 == 1))
    return floor + up.astype(np.int32)


def _parts(x: Wide, shift: int) -> tuple[Array, Array, Array]:
    """Return floor(x / 2**shift), the bit below it, and whether any bit below that is set."""
    if shift > x.base:
        more = shift - x.base
        half = (x.high >> (more - 1)) & 1 == 1
        rest = (x.high & ((1 << (more - 1)) - 1) != 0) | (x.low != 0)
        return x.high >> more, half, rest
    floor = (x.high << (x.base - shift)) + (x.low >> shift)
    return floor, (x.low >> (shift - 1)) & 1 == 1, x.low & ((1 << (shift - 1)) - 1) != 0
