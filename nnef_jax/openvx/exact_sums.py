"""Computes exact sums of products of 8- and 16-bit integers, and rounds them to 8 or 16 bits.

Factors are split into balanced digits. Sums of products of digits are exact in float32 up to 2**24,
in any order of addition, so the fast float32 kernels compute them. The sum of products of the
original factors is a sum of such sums, each times a power of 2.

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
# The slide of a window of one cell over two axes: the window visits each item, without padding.
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
    """A filter of integers, split into digits.

    Args:
        digits: a float32 array for each digit, the lowest digit first. An array has the shape of
            the filter, (outputs, inputs of a group, *window).
        width: the number of bits of a digit.
        pieces: the number of digits of the layer's input: one digit, or two digits of 8 bits.
        depth: the number of channels whose products are added in one float32 sum.
        largest: a bound of all complete sums of products.
    """

    digits: tuple[Array, ...]
    width: int
    pieces: int
    depth: int
    largest: int


def factors(filter: Array | NDArray[Any]) -> Factors | None:
    """Split a filter into the digits that are cheapest for exact sums over any input.

    The filter has the shape (outputs, inputs of a group, *window). The digits are chosen for the
    values of the filter, or for the worst case if the values are traced. A filter in Q7.8 is
    typically one digit of 16 bits, and the layer's input two digits of 8 bits. Return None if there
    are too many products for exact sums. For a traced filter this happens if the window has more
    than 16384 cells.
    """
    bits = jnp.iinfo(filter.dtype).bits
    values = None if isinstance(filter, Tracer) else np.asarray(filter, np.int32)
    splits: list[_Split] = []
    for width in {bits, 8, 4}:
        if values is None:
            sums = _largest_digit_sums(filter, width)
        else:
            # For each digit, the sums of absolute values over the window: (outputs, inputs).
            planes = [x.reshape(*x.shape[:2], -1) for x in _digits(values, width, bits)]
            sums = [np.abs(x).sum(2, dtype=np.int64) for x in planes]
        splits += _splits(filter, width, sums)
    if not splits:
        return None
    best = min(splits)  # tuples are compared by the first field, the cost
    if values is None:
        integers = jnp.asarray(filter, np.int32)
        digits: Sequence[Array | NDArray[Any]] = _digits(integers, best.width, bits)
    else:
        digits = _digits(values, best.width, bits)
    float_digits = tuple(jnp.asarray(x, np.float32) for x in digits)
    return Factors(float_digits, best.width, best.pieces, best.depth, best.largest)


class _Split(NamedTuple):
    """A way to split a filter into digits. The way with the least `cost` is taken.

    `digit_count` is the number of digits of the filter. The other fields are as in `Factors`.
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
    # A bound of the sum of absolute weights of an output. Digit i has the factor 2**(i * width).
    largest_filter_sum = 0
    for index, digit_sums in enumerate(sums):
        largest_filter_sum += int(digit_sums.sum(1).max()) << (index * width)
    # The bound is rounded up to a power of 2: 5 becomes 8, and 8 stays 8. Filters with the same
    # power of 2 share programs.
    bound = largest_input * largest_filter_sum
    largest = 1 << max(bound - 1, 0).bit_length()
    # Maps the number of digits of the input to the largest magnitude of a digit. An input of 16
    # bits may be split into two digits of 8 bits.
    largest_digits = {1: largest_input}
    if limits.bits != 8:
        largest_digits[2] = 1 << (_PIECE_BITS - 1)
    splits: list[_Split] = []
    for pieces, largest_digit in largest_digits.items():
        depth = _most_channels(sums, most=_LARGEST_EXACT // largest_digit)
        if depth > 0:
            # The number of multiply-adds for an item of the result.
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
    extremes = np.array([limits.min, limits.max], np.int32)
    for digits_of_extremes in _digits(extremes, width, limits.bits):
        # The extremes bound only the last digit. Any other digit may be -2**(width-1).
        largest_digit = max(1 << (width - 1), int(np.abs(digits_of_extremes).max()))
        sums.append(np.full((1, filter.shape[1]), cells * largest_digit, np.int64))
    return sums


def _most_channels(sums: list[NDArray[np.int64]], most: int) -> int:
    """Return the number of channels that can be summed at once such that no sum exceeds `most`.

    Return 0 if even one channel is too much, or if there would be too many sums. `sums` has an
    array of shape (outputs, inputs) for each digit: the sums of absolute values over the window.
    For 32 channels the numbers 32, 16, 8, 4, 2 and 1 are tried.
    """
    channels = sums[0].shape[1]
    depth = channels
    while channels <= depth * _MOST_CHUNKS:
        # `reduceat` returns the sums over the channels of each chunk.
        starts = np.arange(0, channels, depth)
        fits = all(np.add.reduceat(digit_sums, starts, axis=1).max() <= most for digit_sums in sums)
        if fits:
            return depth
        if depth == 1:
            return 0
        depth = math.ceil(depth / 2)
    return 0


def _digits(x: _Integers, width: int, bits: int) -> list[_Integers]:
    """Split int32 numbers into `bits / width` balanced digits, the lowest digit first.

    All digits except the last are from -2**(width-1) to 2**(width-1) - 1. For example, 200 has the
    digits -56 and 1 of 8 bits, since 200 = -56 + 1 * 256.
    """
    half = 1 << (width - 1)
    digits: list[_Integers] = []
    for _ in range(bits // width - 1):
        low = ((x + half) & (2 * half - 1)) - half
        digits.append(low)
        x = (x - low) >> width
    return [*digits, x]


def sums_of_products(x: Array, filter: Factors, slide: Slide) -> list[tuple[Array, int]]:
    """Return the correlation of `x` with a filter, as pairs (int32 array, shift).

    A pair stands for `array * 2**shift`, and the correlation is the sum of all pairs. `x` has the
    shape (batch, channels, *positions).
    """
    batch, _, *extents = x.shape
    depth = filter.digits[0].shape[1]
    integers = x.astype(np.int32)
    fits_int32 = filter.largest < 1 << 31
    if fits_int32 and _is_by_cells(filter.digits[0], slide):
        # The sums are computed in integers, from the weights that the digits stand for.
        weights: Any = 0
        for index, digit in enumerate(filter.digits):
            weights += digit.astype(np.int32) << (index * filter.width)
        return [(_by_cells(integers, weights, slide), 0)]
    pieces = _digits(integers, _PIECE_BITS, 2 * _PIECE_BITS) if filter.pieces == 2 else [integers]
    # The new batch has the lowest digits of all samples, then the highest digits.
    inputs = jnp.concatenate(pieces).astype(np.float32)  # (pieces * batch, channels, *positions)
    grouped = inputs.reshape(-1, slide.groups, depth, *extents)
    terms: list[tuple[Array, int]] = []
    for start in range(0, depth, filter.depth):
        # Only some channels of each group are summed at once, since larger sums might not be exact.
        channels = slice(start, start + filter.depth)
        part = grouped[:, :, channels].reshape(len(inputs), -1, *extents)
        for index, digit in enumerate(filter.digits):
            sums = _correlate(part, digit[:, channels], slide).astype(np.int32)
            for piece in range(filter.pieces):
                rows = sums[piece * batch : (piece + 1) * batch]
                terms.append((rows, index * filter.width + piece * _PIECE_BITS))
    return terms


def _correlate(x: Array, filter: Array, slide: Slide) -> Array:
    """Return the correlation of `x` with a filter, exact for sums of integers up to 2**24.

    A filter of shape (outputs, inputs) is multiplied as a matrix.
    """
    is_matrix = filter.ndim == 2
    if is_matrix:
        return jnp.einsum("bi,oi->bo", x, filter, precision=_HIGHEST)
    if _is_by_cells(filter, slide):
        return _by_cells(x, filter, slide)
    # Platforms other than CPUs may compute convolutions by inexact algorithms, such as Winograd's.
    return lax.platform_dependent(
        x, filter, cpu=partial(_convolved, slide=slide), default=partial(_by_cells, slide=slide)
    )


def _is_by_cells(filter: Array, slide: Slide) -> bool:
    """Tell whether sums are computed cell by cell, as is fastest for small depthwise filters.

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
    is_single_cell = math.prod(filter.shape[2:]) == 1 and slide == _SINGLE_CELL
    if is_single_cell:
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
        inputs = jnp.split(x, groups, axis=1)
        filters = jnp.split(filter, groups)
        results: list[Array] = []
        for group_input, group_filter in zip(inputs, filters, strict=True):
            results.append(_convolved(group_input, group_filter, ungrouped))
        return jnp.concatenate(results, axis=1)
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
    """Return the `base` of a `Wide` that holds sums up to `largest`, or None if no base suffices.

    The last `shift` bits of the sums will be rounded away. The base is `shift` if possible, because
    this takes the fewest operations.
    """
    cheapest_base = min(max(shift, 0), _LOW_BITS)
    for base in (cheapest_base, _LOW_BITS):
        if largest < 1 << (31 + base):  # the higher word has 31 bits and a sign
            return base
    return None


def total(terms: Sequence[tuple[Array, int]], base: int) -> Wide:
    """Return the sum of `value * 2**shift` over pairs (value, shift), in two words.

    `base` is the base of the result. The values are int32, and their shapes broadcast to each
    other. For example, the pair (5, 1) is 10 = 2 * 2**2 + 2. For the base 2, it adds 5 >> 1 = 2 to
    `high`, and (5 & 1) << 1 = 2 to `low`.
    """
    high: Any = jnp.int32(0)
    low: Any = jnp.int32(0)
    for value, shift in terms:
        if shift >= base:
            high = high + (value << (shift - base))
        else:
            bits = base - shift  # this number of bits of the value belongs to the lower word
            high = high + (value >> bits)
            low = low + ((value & ((1 << bits) - 1)) << shift)
    carry = low >> base
    high, low = jnp.broadcast_arrays(high + carry, low & ((1 << base) - 1))
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
        # The shift of a larger number could overflow an int32, so the number is clipped. Clipping
        # does not change a saturated result: the shifted bound is outside the range of 16 bits.
        rounded = jnp.clip(rounded, -_LARGEST_SHIFTED - 1, _LARGEST_SHIFTED) << left_shift
    limits = jnp.iinfo(dtype)
    overflowed = (rounded < limits.min) | (rounded > limits.max)
    if overflow_policy == "wrap":
        # Wrapping keeps the last bits of the number. Clipping would change these bits.
        unclipped = _rounded(x, shift, rounding_policy) << left_shift
        return unclipped.astype(dtype), overflowed
    return jnp.clip(rounded, limits.min, limits.max).astype(dtype), overflowed


def _clipped(x: Wide, shift: int) -> Wide:
    """Clip sums that are far outside the range of results, so that quotients fit an int32.

    A quotient is about high * 2**left_bits, where left_bits = base - shift. It saturates if it has
    more than `_SATURATION_BITS` bits.
    """
    left_bits = x.base - max(shift, 0)
    if left_bits <= 0:
        return x  # the quotient has no more bits than `high`
    largest_high = (1 << (_SATURATION_BITS - left_bits)) + 1
    return Wide(jnp.clip(x.high, -largest_high, largest_high), x.low, x.base)


def _rounded(x: Wide, shift: int, rounding_policy: str) -> Array:
    """Return round(x / 2**shift) modulo 2**32. A negative shift counts as 0."""
    if shift <= 0:
        return (x.high << x.base) + x.low
    floor, half, lower = _quotient(x, shift)
    if rounding_policy == "nearest_even":
        # A fraction above 1/2 is rounded up. A fraction of 1/2 is rounded up if the floor is odd:
        # 1.5 and 2.5 both become 2.
        is_odd = floor & 1 == 1
        rounds_up = half & (lower | is_odd)
    else:
        # To truncate a negative quotient that is no integer, 1 is added to its floor: the floor of
        # -2.5 is -3, which becomes -2.
        rounds_up = (x.high < 0) & (half | lower)
    return floor + rounds_up.astype(np.int32)


class _Quotient(NamedTuple):
    """The parts of x / 2**shift: its floor, and two masks.

    `half` tells whether the bit for 1/2 is set, and `lower` whether any lower bit is set. For
    example, 11 / 4 = 2.75 has the floor 2, and both masks are True.
    """

    floor: Array
    half: Array
    lower: Array


def _quotient(x: Wide, shift: int) -> _Quotient:
    """Return the floor of x / 2**shift, and the masks by which the floor is rounded."""
    if shift > x.base:
        # The lower word and the last `high_shift` bits of the higher word are the fraction.
        high_shift = shift - x.base
        half = (x.high >> (high_shift - 1)) & 1 == 1
        lower = (x.high & ((1 << (high_shift - 1)) - 1) != 0) | (x.low != 0)
        return _Quotient(x.high >> high_shift, half, lower)
    floor = (x.high << (x.base - shift)) + (x.low >> shift)
    half = (x.low >> (shift - 1)) & 1 == 1
    lower = x.low & ((1 << (shift - 1)) - 1) != 0
    return _Quotient(floor, half, lower)
