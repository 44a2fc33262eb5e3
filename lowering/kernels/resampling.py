"""Resizes arrays along one axis: an item of the result is a weighted sum of items of the input.

The place of an item is a real number: the index in the input at which the item lies. An axis of e
items is resized to a length, which need not be an integer, and gets n = floor(length) items. With
scale = length / e, item x of the result lies at a place that depends on the coordinates, as in ONNX
Resize:

    'half_pixel'             (x + 1/2) / scale - 1/2
    'pytorch_half_pixel'     (x + 1/2) / scale - 1/2, or 0 where n = 1
    'half_pixel_symmetric'   (x + 1/2) / scale - 1/2 + (e - n / scale) / 2
    'tf_half_pixel_for_nn'   (x + 1/2) / scale
    'asymmetric'             x / scale
    'align_corners'          x (e - 1) / (length - 1), or 0 where n = 1
    'tf_crop_and_resize'     start (e - 1) + x (end - start) (e - 1) / (length - 1),
                             or (start + end) (e - 1) / 2 where length = 1

Here start and end are the ends of a region, as fractions of the axis. Beyond its ends the input is
continued by the nearest item. Places and weights are numpy arrays. They are traced arrays if start
and end are traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.errors import InvalidShape
from lowering.extents import Shape, along, is_symbolic, volume
from lowering.kernels.precision import DType
from lowering.kernels.windows import extend

AnyArray = Array | NDArray[Any]

CROP = "tf_crop_and_resize"
COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
    "asymmetric",
    "align_corners",
    CROP,
)
INTERPOLATORS = ("nearest", "linear", "cubic")
# These functions round a place to the index of the nearest item. The arguments are the module numpy
# or `jax.numpy`, the place, and the largest error of the place.
_ROUND: dict[str, Callable[[Any, Any, Any], Any]] = {
    "floor": lambda xp, place, error: xp.floor(place + error),
    "ceil": lambda xp, place, error: xp.ceil(place - error),
    "round_prefer_floor": lambda xp, place, error: xp.ceil(place - 0.5 - error),
    "round_prefer_ceil": lambda xp, place, error: xp.floor(place + 0.5 + error),
}
SIMPLE = "simple"  # "ceil" along axes that shrink, "floor" along others
ROUNDINGS = (*_ROUND, SIMPLE)
CUBIC = -0.75  # the coefficient of torch's and tract's cubic kernel

# A matrix product replaces gathers if it has at most this number of multiply-adds for each gathered
# item. On CPUs gathering an item takes as long as about 25 multiply-adds, or 200 in a backward
# pass, where the gather becomes a scatter.
_MULTIPLY_ADDS_OF_GATHER = 32

# The host computes with this number of arrays of 64-bit items at a time.
_ARRAYS_AT_A_TIME = 8
# Upsampling by a factor of 3 has 3 phases. Up to this number of phases are computed one by one. If
# there are more phases, they are computed by one operation.
_UNROLLED_PHASES = 32
# `upsample_linear` computes an output from three input items. This dict maps the argument `shift`
# to the offsets of these items.
_OFFSETS = {False: (0, 0, 1), True: (-1, 0, 1)}
# This dict maps coordinates to the argument `shift` of `upsample_linear`.
_SHIFTED = {"half_pixel": True, "pytorch_half_pixel": True, "asymmetric": False}

# This is the relative precision of scales, which are float32. For example, 1.7 is rounded up, so
# that 17 / 1.7 is less than 10.
_PRECISION = 2.0**-23


@dataclass(frozen=True, slots=True)
class Method:
    """The attributes of ONNX Resize that determine the interpolation.

    `coordinates` is ONNX's attribute coordinate_transformation_mode, `interpolator` is ONNX's mode,
    and `cubic` is ONNX's cubic_coeff_a. `nearest_mode` may also be "simple", as in OpenVINO's
    Interpolate.
    """

    coordinates: str
    interpolator: str
    nearest_mode: str
    cubic: float = CUBIC
    exclude_outside: bool = False
    antialias: bool = False


def resized_length(extent: int, scale: float) -> float:
    """Return extent * scale, rounded if it is within float32's precision of an integer.

    A symbolic extent stays as it is if the scale is 1. Raises InvalidShape if the product is not
    finite.
    """
    if scale == 1 and is_symbolic(extent):
        return extent
    exact = extent * scale
    if not math.isfinite(exact):
        raise InvalidShape(f"an axis of {extent} items is too long once it is resized by {scale}")
    nearest = float(round(exact))
    return nearest if abs(exact - nearest) <= nearest * _PRECISION else exact


def places(
    extent: int, length: float, coordinates: str, region: Any, count: int | None = None
) -> Any:
    """Return the places (count,) of the result's items along an axis that is resized.

    The place of an item is the index in the input, a real number, at which the item lies. `extent`
    is the number of items of the input, and `length` is the length to which the axis is resized.
    The length need not be an integer. `region` is (start, end) for 'tf_crop_and_resize', and other
    coordinates do not use `region`. `count` is the number of the result's items, by default
    floor(length).
    """
    if count is None:
        count = int(length)
    scale = length / extent
    numbers = np.arange(count, dtype=np.float64)
    match coordinates:
        case "asymmetric":
            return numbers / scale
        case "tf_half_pixel_for_nn":
            return (numbers + 0.5) / scale
        case "half_pixel_symmetric":
            return (numbers + 0.5) / scale - 0.5 + (extent - count / scale) / 2
        case "align_corners":
            return _corners(numbers, extent, length)
        case "tf_crop_and_resize":
            start, end = region
            if length == 1:  # the item lies in the middle of the region
                return (start + end).reshape(1) * ((extent - 1) / 2)
            corners = _corners(numbers, extent, length).astype(start.dtype)
            return start * (extent - 1) + (end - start) * corners
        case "pytorch_half_pixel" if count == 1:
            return numbers
        case _:
            return (numbers + 0.5) / scale - 0.5


def _corners(numbers: AnyArray, extent: int, length: float) -> AnyArray:
    """Return the places of a result's items, if the ends of input and result coincide.

    `numbers` has the numbers of the result's items. The first and the last item of the result
    lie at the first and the last item of the input, which has `extent` items. `length` is the
    length of the result.
    """
    if len(numbers) <= 1:
        return numbers  # a single item has the number 0, and lies at the place 0
    return numbers * (extent - 1) / (length - 1)


def resample(x: Array, axis: int, item_places: AnyArray, scale: float, method: Method) -> Array:
    """Interpolate x at the places `item_places` along an axis.

    x must hold floating-point numbers, unless the interpolator is "nearest". `scale` is the
    quotient of the result's length and the input's length.
    """
    extent = x.shape[axis]
    keeps_extent = isinstance(item_places, np.ndarray) and len(item_places) == extent
    is_unchanged = keeps_extent and np.array_equal(item_places, np.arange(extent))
    if is_unchanged:
        return x
    if method.interpolator == "nearest":
        rounding = method.nearest_mode
        if rounding == SIMPLE:
            rounding = "ceil" if scale < 1 else "floor"
        return _nearest(x, axis, item_places, rounding)
    if method.interpolator == "linear" and method.coordinates in _SHIFTED:
        is_by_integer = scale > 1 and scale == int(scale) and len(item_places) == extent * scale
        if is_by_integer:
            shift = _SHIFTED[method.coordinates]
            return upsample_linear(x, axis, int(scale), shift, "replicate")
    items, weights = _weights(item_places, extent, scale, method)
    return _weighted(x, axis, items, weights)


def multiply_adds(shape: Shape, lengths: Sequence[float], method: Method) -> int:
    """Return the number of multiply-adds of resizing one axis after another to `lengths`.

    An axis that keeps its length needs no multiply-adds.
    """
    if method.interpolator == "nearest":
        return 0
    total = 0
    result = list(shape)
    for axis, (extent, length) in enumerate(zip(shape, lengths, strict=True)):
        result[axis] = int(length)
        is_resized = extent not in (0, length)
        if is_resized:
            tap_count = len(_taps(length / extent, method))
            total += volume(result) * tap_count
    return total


def host_work(extent: int, length: float, method: Method) -> tuple[int, int]:
    """Return the work of resizing one axis from `extent` to `length` items.

    The result has the number of items that the host computes, and the number of operations that
    are traced.
    """
    count = int(length)
    if method.interpolator == "nearest":
        return _ARRAYS_AT_A_TIME * count, 1
    tap_count = len(_taps(length / extent, method))
    is_product = extent <= _MULTIPLY_ADDS_OF_GATHER * tap_count
    if is_product:  # the host makes a matrix (count, extent) of the weights
        return _ARRAYS_AT_A_TIME * count * (tap_count + extent), 1
    return _ARRAYS_AT_A_TIME * count * tap_count, tap_count


def _nearest(x: Array, axis: int, item_places: AnyArray, rounding: str) -> Array:
    """Return the items of x nearest to the places `item_places` along an axis.

    `rounding` is the key in `_ROUND` of the function that rounds a place to an index. The items
    are read by a repetition or a slice if possible, and otherwise by a gather.
    """
    xp = item_places.__array_namespace__()
    extent = x.shape[axis]
    error = (xp.abs(item_places) + 1) * _PRECISION
    items = _ROUND[rounding](xp, item_places, error)
    items = xp.clip(items, 0, extent - 1).astype(np.int32)
    if isinstance(items, np.ndarray):
        # The gradient of a repetition or of a slice is faster than the gradient of a gather.
        count = len(items)
        times = count // extent
        is_repetition = count % extent == 0 and np.array_equal(items, np.arange(count) // times)
        if is_repetition:
            return jnp.repeat(x, times, axis)
        step = int(items[1] - items[0]) if count > 1 else 1
        # In a slice all steps between items are equal.
        is_slice = step > 0 and np.array_equal(items, items[0] + step * np.arange(count))
        if is_slice:
            return lax.slice_in_dim(x, int(items[0]), int(items[-1]) + 1, step, axis)
    return jnp.take(x, items, axis, mode="clip")


def _weights(item_places: AnyArray, extent: int, scale: float, method: Method) -> tuple[Any, Any]:
    """Return the indices of the input's items that contribute to each place, and their weights.

    Both arrays have the shape (places, taps), where taps is the number of items for a place.
    `extent` is the number of items of the input, and `scale` is the quotient of the result's
    and the input's length.
    """
    xp = item_places.__array_namespace__()  # numpy, or `jax.numpy` in a trace
    shrink = _shrink(scale, method)
    offsets = np.array(_taps(scale, method))[None, :]
    items = xp.floor(item_places)[:, None] + offsets.astype(item_places.dtype)
    distance = xp.abs(items - item_places[:, None]) * shrink
    if method.interpolator == "linear":
        weights = xp.maximum(1 - distance, 0)
    else:
        weights = cubic_kernel(distance, method.cubic)
    if method.exclude_outside:
        is_inside = (items >= 0) & (items < extent)
        weights = xp.where(is_inside, weights, 0.0)
    # If no item of a place is inside the input, all weights of the place are 0.
    total = xp.sum(weights, axis=1, keepdims=True)
    weights = weights / xp.where(total == 0, 1.0, total)
    indices = xp.clip(items, 0, extent - 1).astype(np.int32)
    return indices, weights


def _shrink(scale: float, method: Method) -> float:
    """Return the factor by which distances between items and places are multiplied.

    The factor is below 1 only if the kernel is antialiased and the axis shrinks. Such a factor
    makes the kernel wider.
    """
    return min(scale, 1.0) if method.antialias else 1.0


def _taps(scale: float, method: Method) -> range:
    """Return the offsets of the items that contribute to a place.

    Offsets count from the last item at or before the place. A linear kernel that is not widened
    reaches items at a distance below 1, and has the offsets 0 and 1. A cubic kernel reaches items
    at a distance below 2, and has the offsets -1, 0, 1 and 2.
    """
    radius = 1 if method.interpolator == "linear" else 2
    reach = radius / _shrink(scale, method)
    first = math.floor(-reach) + 1
    return range(first, 2 - first)


def cubic_kernel(distance: AnyArray, a: float) -> Any:
    """Return the weight of an item at a distance of at least 0, in Keys' cubic convolution.

    `a` is the coefficient of the kernel.
    """
    xp = distance.__array_namespace__()  # numpy, or `jax.numpy` in a trace
    t = distance
    up_to_1 = ((a + 2) * t - (a + 3)) * t * t + 1
    from_1_to_2 = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    above_1 = xp.where(t < 2, from_1_to_2, 0.0)
    return xp.where(t <= 1, up_to_1, above_1)


def _weighted(x: Array, axis: int, items: AnyArray, weights: AnyArray) -> Array:
    """Return weighted sums of the items of x at the indices `items` along an axis.

    `items` and `weights` have the shape (places, taps). The places are along `axis` in the
    result. The sums are computed by a matrix product if the axis is short, and otherwise by
    gathers.
    """
    extent = x.shape[axis]
    _, tap_count = items.shape
    if extent <= _MULTIPLY_ADDS_OF_GATHER * tap_count:
        matrix = jnp.asarray(_weight_matrix(items, weights, extent), x.dtype)
        # Sum over the axis of x and axis 1 of the matrix. The places become the last axis.
        dimension_numbers = ((axis,), (1,)), ((), ())
        result = lax.dot_general(x, matrix, dimension_numbers, precision="highest")
        return jnp.moveaxis(result, -1, axis)
    total = jnp.zeros((), x.dtype)
    # A tap reads one of the items that contribute to each place.
    for tap in range(tap_count):
        weight = jnp.asarray(weights[:, tap], x.dtype).reshape(along(axis, x.ndim))
        total = total + jnp.take(x, items[:, tap], axis, mode="clip") * weight
    return total


def _weight_matrix(items: AnyArray, weights: AnyArray, extent: int) -> AnyArray:
    """Return the matrix (places, extent) with the weight of each item for each place.

    `items` and `weights` have the shape (places, taps).
    """
    place_count, _ = items.shape
    rows = np.arange(place_count, dtype=np.int32)[:, None]
    if isinstance(weights, np.ndarray):
        matrix = np.zeros((place_count, extent))
        np.add.at(matrix, (rows, items), weights)
        return matrix
    return jnp.zeros((place_count, extent), weights.dtype).at[rows, items].add(weights)


def merged(x: Array, axis: int) -> Array:
    """Merge an axis with the axis after it: for axis 1, (2, 3, 4, 5) becomes (2, 12, 5)."""
    before = x.shape[:axis]
    after = x.shape[axis + 2 :]
    return x.reshape(*before, x.shape[axis] * x.shape[axis + 1], *after)


def upsample_linear(x: Array, axis: int, factor: int, shift: bool, border: str) -> Array:
    """Interpolate linearly to `factor` times as many items along an axis.

    Output i lies at the place i / factor in the input. If `shift` is true, output i lies at
    (i - (factor - 1) / 2) / factor. `border` provides the neighbours of the edges.
    """
    extent = x.shape[axis]
    # With a shift, the first outputs lie before the first item.
    before = int(shift)
    edges = [(0, 0)] * x.ndim
    edges[axis] = (before, 1)
    extended = extend(x, tuple(edges), border)

    def neighbour(offset: int) -> Array:
        """Return, for each item of x, the item that lies `offset` items after it."""
        start = before + offset
        return lax.slice_in_dim(extended, start, start + extent, 1, axis)

    # Output k * factor + r has the same weights for every k. The outputs with one r are a phase.
    if factor > _UNROLLED_PHASES:
        items = [neighbour(offset) for offset in _OFFSETS[shift]]
        return merged(_all_phases(items, axis, factor, shift), axis)
    phases: list[Array] = []
    for r in range(factor):
        # Output k * factor + r lies at the place k + numerator / (2 * factor), between the items
        # k + offset and k + offset + 1.
        numerator = 2 * r - (factor - 1) if shift else 2 * r
        offset, remainder = divmod(numerator, 2 * factor)
        phase = neighbour(offset)
        right = neighbour(offset + 1)
        weight = remainder / (2 * factor)
        if weight:
            phase = phase * (1 - weight) + right * weight
        phases.append(phase)
    return merged(jnp.stack(phases, axis=axis + 1), axis)


def _all_phases(items: Sequence[Array], axis: int, factor: int, shift: bool) -> Array:
    """Return all phases of `upsample_linear` along a new axis after `axis`.

    `items` has three arrays: for each item, the item before it, the item itself and the item after
    it. Without a shift no output lies before its item, so that the first array is not used.
    """
    before, here, after = (jnp.expand_dims(x, axis + 1) for x in items)
    place = lax.iota(np.float32, factor)
    if shift:
        place = place - (factor - 1) / 2
    place = place / factor  # the place is relative to the item
    place = place.astype(here.dtype).reshape(along(axis + 1, here.ndim))
    # The output lies between the items `left` and `right`. The weight belongs to `right`.
    is_before_item = place < 0
    left = jnp.where(is_before_item, before, here)
    right = jnp.where(is_before_item, here, after)
    weight = jnp.where(is_before_item, place + 1, place)
    return left * (1 - weight) + right * weight


def upsample_aligned(x: Array, axis: int, factor: int, fold: Callable[[int], None]) -> Array:
    """Interpolate linearly to `factor` times as many items along an axis, with coinciding ends.

    The first item of the output has the place of the first item of the input, and the last item of
    the output has the place of the last item of the input. `fold` is called with the number of
    items that are computed on the host.
    """
    extent = x.shape[axis]
    count = extent * factor
    fold(_ARRAYS_AT_A_TIME * count)
    # Output i is at the place i * (extent - 1) / divisor, between the items `before` and `after`.
    divisor = max(count - 1, 1)
    before, remainder = np.divmod(np.arange(count) * (extent - 1), divisor)
    after = np.minimum(before + 1, extent - 1)
    weight = (remainder / divisor).reshape(along(axis, x.ndim))
    left = jnp.take(x, before, axis, mode="clip")
    right = jnp.take(x, after, axis, mode="clip")
    return left * (1 - weight).astype(x.dtype) + right * weight.astype(x.dtype)


def bilinear(x: Array, batch: Array, row: Array, column: Array) -> Array:
    """Sample images (batch, channels, height, width) bilinearly on grids.

    Grid n lies in image `batch[n]`, and has the rows `row[n]` and the columns `column[n]`,
    which are real numbers. The result has the shape (grids, channels, rows, columns). A place
    outside of the image has the value of the nearest place inside.
    """
    _, _, height, width = x.shape
    # `down` is the weight of the bottom row, and `across` is the weight of the right column.
    top, bottom, down = neighbours(row, height, x.dtype)
    left, right, across = neighbours(column, width, x.dtype)
    # The weights get the axes of the items: (grids, rows, columns, channels).
    down = down[:, :, None, None]
    across = across[:, None, :, None]

    def items(row_index: Array, column_index: Array) -> Array:
        """Return the items (grids, rows, columns, channels) at the indices of each grid."""
        rows = row_index[:, :, None]
        columns = column_index[:, None, :]
        indices = (batch[:, None, None], slice(None), rows, columns)
        return jnp.asarray(x).at[indices].get(mode="clip")

    upper = items(top, left) * (1 - across) + items(top, right) * across
    lower = items(bottom, left) * (1 - across) + items(bottom, right) * across
    return jnp.moveaxis(upper * (1 - down) + lower * down, -1, 1)


def neighbours(place: Array, extent: int, dtype: DType) -> tuple[Array, Array, Array]:
    """Return the indices of the items before and after each place, and the second item's weight.

    The weight is for a linear interpolation, and has the dtype `dtype`. Places are clamped to the
    axis, which has `extent` items. The place 2.25 gives the indices 2 and 3 and the weight 0.25.
    """
    place = jnp.clip(place, 0, extent - 1)
    whole_place = jnp.floor(place)
    before = whole_place.astype(jnp.int32)
    after = jnp.minimum(before + 1, extent - 1)
    weight = (place - whole_place).astype(dtype)
    return before, after, weight
