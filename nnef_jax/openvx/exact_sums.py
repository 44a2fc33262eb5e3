"""Computes exact sums of products of 8- and 16-bit integers, and rounds them to 8 or 16 bits.

Factors are split into balanced digits. Sums of products of digits are exact in float32 up to 2**24,
in any order of addition, so the fast float32 kernels compute them. A sum of products of the
original factors is the sum of these sums, weighted by powers of 2.

A product of two 16-bit integers has 31 bits, so two such products overflow an int32. Therefore a
sum is stored as two int32: `high * 2**base + low`. This is exact up to 2**47, without 64-bit
integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from numpy.typing import NDArray

from lowering import Slide, correlation

_Integers = TypeVar("_Integers", Array, NDArray[Any])
_EXACT = 1 << 24  # Sums up to this number are exact in float32.
_JOIN = 32  # The cost of adding one sum of digits to the result, in multiply-adds.
_CHUNKS = 256  # the largest number of unrolled chunks of channels, or of cells of a window
_LOW = 16  # the largest number of bits of the lower word; a sum of 2**15 such words fits an int32
_BEYOND = 17  # number of bits of a quotient; larger quotients always saturate
_UNROLLED_GROUPS = 8  # the largest number of groups that become separate convolutions
_HIGHEST = lax.Precision.HIGHEST
_EACH = Slide((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1))  # windows of one cell on two axes


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["digits"],
    meta_fields=["width", "pieces", "depth", "largest"],
)
@dataclass(frozen=True, slots=True)
class Factors:
    """A filter of integers, as float32 digits of `width` bits, with the lowest digit first.

    The filter has the shape (outputs, inputs of a group, *window). The input of the layer is split
    into `pieces` digits: one digit, or two digits of 8 bits. `depth` channels are summed at once.
    No sum of products exceeds `largest`.
    """

    digits: tuple[Array, ...]
    width: int
    pieces: int
    depth: int
    largest: int


def factors(filter: Array | NDArray[Any]) -> Factors | None:
    """Split a filter into the digits that are cheapest for exact sums over any input.

    The filter has the shape (outputs, inputs of a group, *window). The digits are chosen by the
    values of the filter, or by the worst case if these are traced. A filter in Q7.8 is typically
    one digit of 16 bits, and its input two digits of 8 bits. The result is None if there are too
    many products for exact sums. In the worst case this happens for more than 16384 cells of a
    channel.
    """
    limits = jnp.iinfo(filter.dtype)
    bits = limits.bits
    reach = max(-limits.min, limits.max)
    channels = filter.shape[1]
    cells = math.prod(filter.shape[2:])
    values = None if isinstance(filter, Tracer) else np.asarray(filter, np.int32)
    plans: list[tuple[int, int, tuple[int, int, int, int]]] = []
    for width in {bits, 8, 4}:
        # `sums` has, for each digit, the sums of absolute values over the window: (outputs,
        # inputs).
        if values is None:
            # In the worst case lower digits reach -2**(width-1), whatever the limits are.
            ends = _digits(np.array([limits.min, limits.max], np.int32), width, bits)
            most = [max(1 << (width - 1), int(np.abs(digit).max())) for digit in ends]
            sums = [np.full((1, channels), cells * digit, np.int64) for digit in most]
        else:
            planes = [x.reshape(*x.shape[:2], -1) for x in _digits(values, width, bits)]
            sums = [np.abs(x).sum(2, dtype=np.int64) for x in planes]
        largest_filter = sum(int(x.sum(1).max()) << (k * width) for k, x in enumerate(sums))
        largest = reach * largest_filter
        # The bound is rounded up to a power of 2, so that filters with the same power share
        # programs.
        largest = 1 << max(largest - 1, 0).bit_length()
        # An input of 16 bits may also be split into two digits of 8 bits.
        for pieces, largest_digit in ((1, reach), (2, 128))[: bits // 8]:
            depth = _depth(sums, _EXACT // largest_digit)
            if depth:
                chunks = math.ceil(channels / depth)
                work = channels * cells + chunks * _JOIN
                plan = (width, pieces, depth, largest)
                plans.append((pieces * len(sums) * work, len(sums), plan))
    if not plans:
        return None
    _, _, (width, *plan) = min(plans)
    if values is None:
        digits: Sequence[Array | NDArray[Any]] = _digits(jnp.asarray(filter, np.int32), width, bits)
    else:
        digits = _digits(values, width, bits)
    return Factors(tuple(jnp.asarray(x, np.float32) for x in digits), width, *plan)


def _depth(sums: list[NDArray[np.int64]], most: int) -> int:
    """Return how many channels can be summed at once without a sum above `most`, or 0.

    `sums` has, for each digit, the sums of absolute values over the window: (outputs, inputs).
    """
    channels = depth = sums[0].shape[1]
    while channels <= depth * _CHUNKS:
        starts = np.arange(0, channels, depth)
        if all(np.add.reduceat(x, starts, axis=1).max() <= most for x in sums):
            return depth
        depth = 0 if depth == 1 else (depth + 1) // 2
    return 0


def _digits(x: _Integers, width: int, bits: int) -> list[_Integers]:
    """Split int32 into balanced digits; lower digits are from -2**(width-1) to 2**(width-1) - 1."""
    half = 1 << (width - 1)
    digits: list[_Integers] = []
    for _ in range(bits // width - 1):
        low = ((x + half) & (2 * half - 1)) - half
        digits.append(low)
        x = (x - low) >> width
    return [*digits, x]


def sums_of_products(x: Array, filter: Factors, slide: Slide) -> list[tuple[Array, int]]:
    """Return terms (int32, shift), whose shifted sum is the correlation of `x` with the filter.

    `x` has the shape (batch, channels, *positions).
    """
    batch, _, *extents = x.shape
    depth = filter.digits[0].shape[1]
    integers = x.astype(np.int32)
    if _is_by_cells(filter.digits[0], slide) and filter.largest < 1 << 31:
        digits = enumerate(filter.digits)
        weights: Any = sum(d.astype(np.int32) << (k * filter.width) for k, d in digits)
        return [(_by_cells(integers, weights, slide), 0)]
    pieces = _digits(integers, 8, 16) if filter.pieces == 2 else [integers]
    inputs = jnp.concatenate(pieces).astype(np.float32)
    grouped = inputs.reshape(-1, slide.groups, depth, *extents)
    terms: list[tuple[Array, int]] = []
    for start in range(0, depth, filter.depth):
        channels = slice(start, start + filter.depth)
        part = grouped[:, :, channels].reshape(len(inputs), -1, *extents)
        for k, digit in enumerate(filter.digits):
            sums = _correlate(part, digit[:, channels], slide).astype(np.int32)
            for piece in range(filter.pieces):
                rows = sums[piece * batch : (piece + 1) * batch]
                terms.append((rows, k * filter.width + piece * 8))
    return terms


def _correlate(x: Array, filter: Array, slide: Slide) -> Array:
    if filter.ndim == 2:
        return jnp.einsum("bi,oi->bo", x, filter, precision=_HIGHEST)
    if _is_by_cells(filter, slide):
        return _by_cells(x, filter, slide)
    # Platforms other than CPUs may compute convolutions by inexact algorithms, such as Winograd's.
    return lax.platform_dependent(
        x, filter, cpu=partial(_conv, slide=slide), default=partial(_by_cells, slide=slide)
    )


def _is_by_cells(filter: Array, slide: Slide) -> bool:
    """Tell whether to sum cell by cell of the window, as for depthwise filters of few cells.

    64 planes of 28x28 take 0.12 ms cell by cell, and 2.9 ms by convolutions. If sums fit an int32,
    they are computed in integers: a MobileNet then takes 10.9 ms, whereas float32 takes 12.7 ms.
    """
    is_small = math.prod(filter.shape[2:]) <= _CHUNKS
    return filter.ndim > 2 and filter.shape[1] == 1 and slide.groups > 1 and is_small


def _conv(x: Array, filter: Array, slide: Slide) -> Array:
    groups = slide.groups
    batch, depth, *extents = x.shape
    if math.prod(filter.shape[2:]) == 1 and slide == _EACH:
        # A matrix product is faster here, because XLA's convolution transposes its operands: a
        # MobileNet takes 6.0 ms with this, and 10.9 ms with convolutions.
        matrix = jnp.broadcast_to(filter.reshape(-1, depth), (batch, len(filter), depth))
        planes = x.reshape(batch, depth, -1)
        product = jnp.einsum("boi,bip->bop", matrix, planes, precision=_HIGHEST)
        return product.reshape(batch, len(filter), *extents)
    if 1 < groups <= _UNROLLED_GROUPS:
        # Separate convolutions are faster: two groups of 5x5 windows take 0.36 ms instead of 0.84
        # ms.
        ungrouped = replace(slide, groups=1)
        pairs = zip(jnp.split(x, groups, 1), jnp.split(filter, groups), strict=True)
        return jnp.concatenate([_conv(*pair, ungrouped) for pair in pairs], 1)
    return correlation.correlate(x, filter, slide, _HIGHEST)


def _by_cells(x: Array, filter: Array, slide: Slide) -> Array:
    with jax.default_matmul_precision("highest"):
        return correlation.by_cells(x, filter, slide, x.dtype)


@partial(jax.tree_util.register_dataclass, data_fields=["high", "low"], meta_fields=["base"])
@dataclass(frozen=True, slots=True)
class Wide:
    """A tensor of integers `high * 2**base + low`, with 0 <= low < 2**base. Both are int32."""

    high: Array
    low: Array
    base: int


def base_for(largest: int, shift: int) -> int | None:
    """Return the base for sums up to `largest`, whose last `shift` bits are rounded away.

    The base is `shift` if possible, which takes the fewest operations. The result is None if no
    base suffices.
    """
    bases = (min(max(shift, 0), _LOW), _LOW)
    return next((base for base in bases if largest < 1 << (31 + base)), None)


def total(terms: Sequence[tuple[Array, int]], base: int) -> Wide:
    """Return the sum of `value * 2**shift` over pairs (value, shift).

    The values are int32 and broadcast.
    """
    high: Any = jnp.int32(0)
    low: Any = jnp.int32(0)
    for value, shift in terms:
        if shift >= base:
            high = high + (value << (shift - base))
        else:
            bits = base - shift
            high = high + (value >> bits)
            low = low + ((value & ((1 << bits) - 1)) << shift)
    high, low = jnp.broadcast_arrays(high + (low >> base), low & ((1 << base) - 1))
    return Wide(high, low, base)


def narrow(
    x: Wide, shift: int, overflow_policy: str, rounding_policy: str, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Return round(x / 2**shift) in a dtype of 8 or 16 bits, and a mask of items that overflow.

    The rounding policy is 'to_zero' or 'nearest_even'. The overflow policy is 'wrap' (two's
    complement) or 'saturate'. A negative shift multiplies. A shift is at most `base + 31`.
    """
    up = min(max(-shift, 0), _LOW)
    rounded = _rounded(_clipped(x, shift), shift, rounding_policy)
    if up:
        rounded = jnp.clip(rounded, -(1 << 14), 1 << 14) << up
    limits = jnp.iinfo(dtype)
    overflowed = (rounded < limits.min) | (rounded > limits.max)
    if overflow_policy == "wrap":
        return (_rounded(x, shift, rounding_policy) << up).astype(dtype), overflowed
    return jnp.clip(rounded, limits.min, limits.max).astype(dtype), overflowed


def _clipped(x: Wide, shift: int) -> Wide:
    """Clip sums that are far outside the range of results, so that quotients fit an int32."""
    more = x.base - max(shift, 0)
    if more <= 0:
        return x
    most = (1 << (_BEYOND - more)) + 1
    return Wide(jnp.clip(x.high, -most, most), x.low, x.base)


def _rounded(x: Wide, shift: int, rounding_policy: str) -> Array:
    """Return round(x / 2**shift) modulo 2**32. A negative shift counts as 0."""
    if shift <= 0:
        return (x.high << x.base) + x.low
    floor, half, lower = _parts(x, shift)
    rounds_up = (x.high < 0) & (half | lower)
    if rounding_policy == "nearest_even":
        rounds_up = half & (lower | (floor & 1 == 1))
    return floor + rounds_up.astype(np.int32)


def _parts(x: Wide, shift: int) -> tuple[Array, Array, Array]:
    """Return floor(x / 2**shift), the next lower bit, and whether any bit below that is set."""
    if shift > x.base:
        more = shift - x.base
        half = (x.high >> (more - 1)) & 1 == 1
        lower = (x.high & ((1 << (more - 1)) - 1) != 0) | (x.low != 0)
        return x.high >> more, half, lower
    floor = (x.high << (x.base - shift)) + (x.low >> shift)
    half = (x.low >> (shift - 1)) & 1 == 1
    lower = x.low & ((1 << (shift - 1)) - 1) != 0
    return floor, half, lower
