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
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from numpy.typing import NDArray

from lowering import Slide, correlation

_Integers = TypeVar("_Integers", Array, NDArray[Any])
_LARGEST_EXACT = 1 << 24  # sums up to this number are exact in float32
_JOIN_COST = 32  # the cost of adding one sum of digits to the result, in multiply-adds
_MOST_CHUNKS = 256  # the largest number of unrolled chunks of channels
_MOST_CELLS = 256  # the largest number of unrolled cells of a window
# The largest number of bits of the lower word of a sum. A sum of 2**15 such words fits an int32.
_LOW_BITS = 16
_SATURATION_BITS = 17  # the number of bits of a quotient; larger quotients always saturate
_LARGEST_SHIFTED = 1 << 14  # this number, shifted by `_LOW_BITS` bits, fits an int32
_PIECE_BITS = 8  # the number of bits of a digit of the input
_MOST_UNROLLED_GROUPS = 8  # the largest number of groups that become separate convolutions
_HIGHEST = lax.Precision.HIGHEST
# The positions of a window of one cell on two axes: at each item, and without padding.
_SINGLE_CELL = Slide(
    stride=(1, 1), padding=((0, 0), (0, 0)), spread=(1, 1), dilation=(1, 1)
)  # fmt: skip


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["digits"],
    meta_fields=["width", "pieces", "depth", "largest"],
)
@dataclass(frozen=True, slots=True)
class Factors:
    """A filter of integers as `digits`, float32 arrays of digits of `width` bits, the lowest first.

    The filter has the shape (outputs, inputs of a group, *window). The input of the layer is split
    into `pieces` digits: one digit, or two digits of 8 bits. One float32 sum has the products of
    `depth` channels. No complete sum of products exceeds `largest`.
    """

    digits: tuple[Array, ...]
    width: int
    pieces: int
    depth: int
    largest: int


def factors(filter: Array | NDArray[Any]) -> Factors | None:
    """Split a filter into the digits that are cheapest for exact sums over any input.

    The filter has the shape (outputs, inputs of a group, *window). The digits are chosen by the
    values of the filter, or by the worst case if the values are traced. A filter in Q7.8 is
    typically one digit of 16 bits, and its input two digits of 8 bits. The result is None if there
    are too many products for exact sums. For a traced filter this happens if a channel has more
    than 16384 cells.
    """
    bits = jnp.iinfo(filter.dtype).bits
    values = None if isinstance(filter, Tracer) else np.asarray(filter, np.int32)
    splits: list[_Split] = []
    for width in {bits, 8, 4}:
        if values is None:
            sums = _largest_digit_sums(filter, width)
        else:
            planes = [x.reshape(*x.shape[:2], -1) for x in _digits(values, width, bits)]
            sums = [np.abs(x).sum(2, dtype=np.int64) for x in planes]
        splits += _splits(filter, width, sums)
    if not splits:
        return None
    best = min(splits)
    if values is None:
        integers = jnp.asarray(filter, np.int32)
        digits: Sequence[Array | NDArray[Any]] = _digits(integers, best.width, bits)
    else:
        digits = _digits(values, best.width, bits)
    float_digits = tuple(jnp.asarray(x, np.float32) for x in digits)
    return Factors(float_digits, best.width, best.pieces, best.depth, best.largest)


class _Split(NamedTuple):
    """A way to split a filter into digits. The way with the least `cost` is taken.

    The other fields are as in `Factors`, and `digit_count` is the number of digits.
    """

    cost: int
    digit_count: int
    width: int
    pieces: int
    depth: int
    largest: int


def _splits(
    filter: Array | NDArray[Any], width: int, sums: list[NDArray[np.int64]]
) -> list[_Split]:
    """Return the ways to split a filter into digits of `width` bits, for exact sums over any input.

    `sums` has an array of shape (outputs, inputs) for each digit of the filter: the sums of
    absolute values over the window.
    """
    limits = jnp.iinfo(filter.dtype)
    largest_input = max(-limits.min, limits.max)  # the inputs have the dtype of the filter
    channels = filter.shape[1]
    cells = math.prod(filter.shape[2:])
    largest_filter = 0
    for index, digit_sums in enumerate(sums):
        largest_filter += int(digit_sums.sum(1).max()) << (index * width)
    # The bound is rounded up to a power of 2. Filters with the same power of 2 share programs.
    bound = largest_input * largest_filter
    largest = 1 << max(bound - 1, 0).bit_length()
    # The largest magnitude of a digit of the input, by the number of digits. An input of 16 bits
    # may be split into two digits of 8 bits.
    largest_digits = {1: largest_input}
    if limits.bits != 8:
        largest_digits[2] = 1 << (_PIECE_BITS - 1)
    splits: list[_Split] = []
    for pieces, largest_digit in largest_digits.items():
        depth = _most_channels(sums, _LARGEST_EXACT // largest_digit)
        if depth > 0:
            chunks = math.ceil(channels / depth)
            work = channels * cells + chunks * _JOIN_COST
            cost = pieces * len(sums) * work
            splits.append(_Split(cost, len(sums), width, pieces, depth, largest))
    return splits


def _largest_digit_sums(filter: Array | NDArray[Any], width: int) -> list[NDArray[np.int64]]:
    """Return the largest possible sum of absolute values over a window, for each digit.

    The sums do not depend on the values of the filter. Each array has the shape (1, inputs).
    """
    limits = jnp.iinfo(filter.dtype)
    cells = math.prod(filter.shape[2:])
    sums: list[NDArray[np.int64]] = []
    for ends in _digits(np.array([limits.min, limits.max], np.int32), width, limits.bits):
        # The digits of the limits bound only the last digit. Any other digit may be -2**(width-1).
        largest_digit = max(1 << (width - 1), int(np.abs(ends).max()))
        sums.append(np.full((1, filter.shape[1]), cells * largest_digit, np.int64))
    return sums


def _most_channels(sums: list[NDArray[np.int64]], most: int) -> int:
    """Return the number of channels that can be summed at once without exceeding `most`.

    If there is no such number, return 0. `sums` has an array of shape (outputs, inputs) for each
    digit: the sums of absolute values over the window. For example, the result is 8 if 8 of 32
    channels can be summed at once.
    """
    channels = sums[0].shape[1]
    depth = channels
    while channels <= depth * _MOST_CHUNKS:
        starts = np.arange(0, channels, depth)
        fits = all(np.add.reduceat(digit_sums, starts, axis=1).max() <= most for digit_sums in sums)
        if fits:
            return depth
        if depth == 1:
            return 0
        depth = math.ceil(depth / 2)
    return 0


def _digits(x: _Integers, width: int, bits: int) -> list[_Integers]:
    """Split int32 into `bits / width` balanced digits, the lowest first.

    All digits except the last are from -2**(width-1) to 2**(width-1) - 1.
    """
    half = 1 << (width - 1)
    digits: list[_Integers] = []
    for _ in range(bits // width - 1):
        low = ((x + half) & (2 * half - 1)) - half
        digits.append(low)
        x = (x - low) >> width
    return [*digits, x]


def sums_of_products(x: Array, filter: Factors, slide: Slide) -> list[tuple[Array, int]]:
    """Return pairs (int32 array, shift), whose sum is the correlation of `x` with the filter.

    A pair stands for `array * 2**shift`. `x` has the shape (batch, channels, *positions).
    """
    batch, _, *extents = x.shape
    depth = filter.digits[0].shape[1]
    integers = x.astype(np.int32)
    if _is_by_cells(filter.digits[0], slide) and filter.largest < 1 << 31:
        # The sums fit an int32, so they are computed from the integers that the digits stand for.
        weights: Any = 0
        for index, digit in enumerate(filter.digits):
            weights += digit.astype(np.int32) << (index * filter.width)
        return [(_by_cells(integers, weights, slide), 0)]
    pieces = _digits(integers, _PIECE_BITS, 2 * _PIECE_BITS) if filter.pieces == 2 else [integers]
    inputs = jnp.concatenate(pieces).astype(np.float32)
    grouped = inputs.reshape(-1, slide.groups, depth, *extents)
    terms: list[tuple[Array, int]] = []
    for start in range(0, depth, filter.depth):
        channels = slice(start, start + filter.depth)
        part = grouped[:, :, channels].reshape(len(inputs), -1, *extents)
        for index, digit in enumerate(filter.digits):
            sums = _correlate(part, digit[:, channels], slide).astype(np.int32)
            # The batch has the lowest digits of all samples, then the highest digits.
            for piece in range(filter.pieces):
                rows = sums[piece * batch : (piece + 1) * batch]
                terms.append((rows, index * filter.width + piece * _PIECE_BITS))
    return terms


def _correlate(x: Array, filter: Array, slide: Slide) -> Array:
    """Return the correlation of `x` with a filter, exact for sums of integers up to 2**24.

    A filter of shape (outputs, inputs) is multiplied as a matrix.
    """
    if filter.ndim == 2:
        return jnp.einsum("bi,oi->bo", x, filter, precision=_HIGHEST)
    if _is_by_cells(filter, slide):
        return _by_cells(x, filter, slide)
    # Platforms other than CPUs may compute convolutions by inexact algorithms, such as Winograd's.
    return lax.platform_dependent(
        x, filter, cpu=partial(_convolved, slide=slide), default=partial(_by_cells, slide=slide)
    )


def _is_by_cells(filter: Array, slide: Slide) -> bool:
    """Tell whether to sum cell by cell of the window, as for depthwise filters of few cells.

    64 planes of 28x28 take 0.12 ms cell by cell, and 2.9 ms by convolutions. If sums fit an int32,
    they are computed in integers: a MobileNet then takes 10.9 ms, whereas float32 takes 12.7 ms.
    """
    has_few_cells = math.prod(filter.shape[2:]) <= _MOST_CELLS
    is_depthwise = filter.ndim > 2 and filter.shape[1] == 1 and slide.groups > 1
    return is_depthwise and has_few_cells


def _convolved(x: Array, filter: Array, slide: Slide) -> Array:
    """Return the correlation of `x` with a filter, by convolutions or a matrix product."""
    groups = slide.groups
    batch, depth, *extents = x.shape
    if math.prod(filter.shape[2:]) == 1 and slide == _SINGLE_CELL:
        # A matrix product is faster here, because XLA's convolution transposes its operands: a
        # MobileNet takes 6.0 ms with matrix products, and 10.9 ms with convolutions.
        matrix = jnp.broadcast_to(filter.reshape(-1, depth), (batch, len(filter), depth))
        planes = x.reshape(batch, depth, -1)
        product = jnp.einsum("boi,bip->bop", matrix, planes, precision=_HIGHEST)
        return product.reshape(batch, len(filter), *extents)
    if 1 < groups <= _MOST_UNROLLED_GROUPS:
        # Separate convolutions are faster: two groups of 5x5 windows take 0.36 ms as two
        # convolutions, and 0.84 ms as one convolution with groups.
        ungrouped = replace(slide, groups=1)
        inputs = jnp.split(x, groups, 1)
        filters = jnp.split(filter, groups)
        results: list[Array] = []
        for group_input, group_filter in zip(inputs, filters, strict=True):
            results.append(_convolved(group_input, group_filter, ungrouped))
        return jnp.concatenate(results, 1)
    return correlation.correlate(x, filter, slide, _HIGHEST)


def _by_cells(x: Array, filter: Array, slide: Slide) -> Array:
    """Return the correlation of `x` with a filter, as a sum over the cells of the window."""
    with jax.default_matmul_precision("highest"):
        return correlation.by_cells(x, filter, slide, x.dtype)


@partial(jax.tree_util.register_dataclass, data_fields=["high", "low"], meta_fields=["base"])
@dataclass(frozen=True, slots=True)
class Wide:
    """A tensor of integers `high * 2**base + low`, with 0 <= low < 2**base.

    `high` and `low` are arrays of int32.
    """

    high: Array
    low: Array
    base: int


def base_for(largest: int, shift: int) -> int | None:
    """Return the `base` of a `Wide` that holds sums up to `largest`.

    The last `shift` bits of the sums will be rounded away. The base is `shift` if possible, because
    this takes the fewest operations. The result is None if no base suffices.
    """
    cheapest_base = min(max(shift, 0), _LOW_BITS)
    for base in (cheapest_base, _LOW_BITS):
        if largest < 1 << (31 + base):
            return base
    return None


def total(terms: Sequence[tuple[Array, int]], base: int) -> Wide:
    """Return the sum of `value * 2**shift` over pairs (value, shift), in two words.

    `base` is the base of the result. The values are int32, and their shapes broadcast to each
    other.
    """
    high: Any = jnp.int32(0)
    low: Any = jnp.int32(0)
    for value, shift in terms:
        if shift >= base:
            high = high + (value << (shift - base))
        else:
            # The last bits of the value belong to the lower word.
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
    left_shift = min(max(-shift, 0), _LOW_BITS)
    rounded = _rounded(_clipped(x, shift), shift, rounding_policy)
    if left_shift:
        # A number beyond this bound could overflow an int32 by the shift, so it is clipped. This
        # does not change the result, since the shifted bound is not inside the range of 16 bits.
        rounded = jnp.clip(rounded, -_LARGEST_SHIFTED, _LARGEST_SHIFTED) << left_shift
    limits = jnp.iinfo(dtype)
    overflowed = (rounded < limits.min) | (rounded > limits.max)
    if overflow_policy == "wrap":
        unclipped = _rounded(x, shift, rounding_policy) << left_shift
        return unclipped.astype(dtype), overflowed
    return jnp.clip(rounded, limits.min, limits.max).astype(dtype), overflowed


def _clipped(x: Wide, shift: int) -> Wide:
    """Clip sums that are far outside the range of results, so that quotients fit an int32."""
    unshifted_bits = x.base - max(shift, 0)
    if unshifted_bits <= 0:
        return x
    largest_high = (1 << (_SATURATION_BITS - unshifted_bits)) + 1
    return Wide(jnp.clip(x.high, -largest_high, largest_high), x.low, x.base)


def _rounded(x: Wide, shift: int, rounding_policy: str) -> Array:
    """Return round(x / 2**shift) modulo 2**32. A negative shift counts as 0."""
    if shift <= 0:
        return (x.high << x.base) + x.low
    floor, half, lower = _quotient(x, shift)
    # To truncate, a negative number that is no integer is rounded up.
    rounds_up = (x.high < 0) & (half | lower)
    if rounding_policy == "nearest_even":
        is_odd = floor & 1 == 1
        rounds_up = half & (lower | is_odd)
    return floor + rounds_up.astype(np.int32)


class _Quotient(NamedTuple):
    """The parts of x / 2**shift: its floor, the bit below, and whether a lower bit is set."""

    floor: Array
    half: Array
    lower: Array


def _quotient(x: Wide, shift: int) -> _Quotient:
    """Return the floor of x / 2**shift, and the bits below it by which the floor is rounded."""
    if shift > x.base:
        high_shift = shift - x.base
        half = (x.high >> (high_shift - 1)) & 1 == 1
        lower = (x.high & ((1 << (high_shift - 1)) - 1) != 0) | (x.low != 0)
        return _Quotient(x.high >> high_shift, half, lower)
    floor = (x.high << (x.base - shift)) + (x.low >> shift)
    half = (x.low >> (shift - 1)) & 1 == 1
    lower = x.low & ((1 << (shift - 1)) - 1) != 0
    return _Quotient(floor, half, lower)
