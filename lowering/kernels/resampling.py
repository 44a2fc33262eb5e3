"""Resizes along one axis: places of the result's items in the input, and weights of input items.

An axis of extent e and length e * scale gets n = floor(length) items. Item x lies at

    'half_pixel'             (x + 1/2) / scale - 1/2
    'pytorch_half_pixel'     the same, but 0 where n = 1
    'half_pixel_symmetric'   (x + 1/2) / scale - 1/2 + (e - n / scale) / 2
    'tf_half_pixel_for_nn'   (x + 1/2) / scale
    'asymmetric'             x / scale
    'align_corners'          x (e - 1) / (length - 1), or 0 where n = 1
    'tf_crop_and_resize'     start (e - 1) + x (end - start) (e - 1) / (length - 1),
                             or (start + end) (e - 1) / 2 where length = 1

with scale = length / e, as in ONNX Resize. Outside of the input the nearest item continues it.
Places and weights are numpy arrays, or traced if start and end of the region are traced.
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
from lowering.extents import Shape, along, volume
from lowering.kernels.precision import DType
from lowering.kernels.windows import extend

Places = Array | NDArray[Any]

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
# Functions of a place, whose error is at most `t`, to the index of the nearest item.
_ROUND: dict[str, Callable[[Any, Any, Any], Any]] = {
    "floor": lambda xp, place, t: xp.floor(place + t),
    "ceil": lambda xp, place, t: xp.ceil(place - t),
    "round_prefer_floor": lambda xp, place, t: xp.ceil(place - 0.5 - t),
    "round_prefer_ceil": lambda xp, place, t: xp.floor(place + 0.5 + t),
}
SIMPLE = "simple"  # "ceil" along axes that shrink, "floor" along others
ROUNDINGS = (*_ROUND, SIMPLE)
CUBIC = -0.75  # the coefficient of torch's and tract's cubic kernel

# Multiply-adds of a matrix product that take as long as gathering an item: on CPUs about 25, and
# 200 in a backward pass, where the gather becomes a scatter.
_PRODUCTS = 32

_WORK = 8  # arrays with 64-bit items; the host has so many at once
# Upsampling by a factor has as many phases as the factor. Up to this number the phases are computed
# one by one, more phases by one operation.
_UNROLLED = 32
# Offsets, by `shift`, of the three input items from which `upsample_linear` computes an output.
_OFFSETS = {False: (0, 0, 1), True: (-1, 0, 1)}
# The argument `shift` of `upsample_linear`, by coordinates.
_SHIFTED = {"half_pixel": True, "pytorch_half_pixel": True, "asymmetric": False}

# Scales have single precision: 1.7 is rounded up, and 17 / 1.7 is less than 10.
_PRECISION = 2.0**-23


@dataclass(frozen=True, slots=True)
class Method:
    """The attributes of ONNX Resize by which it interpolates.

    `cubic` is cubic_coeff_a. `nearest_mode` may also be "simple", as in OpenVINO's Interpolate.
    """

    coordinates: str
    interpolator: str
    nearest_mode: str
    cubic: float = CUBIC
    exclude_outside: bool = False
    antialias: bool = False


def length(extent: int, scale: float) -> float:
    """Return extent * scale, rounded to an integer within the precision of scales."""
    exact = extent * scale
    if not math.isfinite(exact):
        raise InvalidShape(f"an axis of {extent} items is too long once it is resized by {scale}")
    nearest = float(round(exact))
    return nearest if abs(exact - nearest) <= nearest * _PRECISION else exact


def places(
    extent: int, length: float, coordinates: str, region: Any, count: int | None = None
) -> Any:
    """Return the places of the result's items in an axis of the input.

    `region` is (start, end) for 'tf_crop_and_resize', and unused for other coordinates. `count` is
    the number of the result's items, by default floor(length).
    """
    if count is None:
        count = int(length)
    scale = length / extent
    x = np.arange(count, dtype=np.float64)
    match coordinates:
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "half_pixel_symmetric":
            return (x + 0.5) / scale - 0.5 + (extent - count / scale) / 2
        case "align_corners":
            return _corners(x, extent, length)
        case "tf_crop_and_resize":
            start, end = region
            if length == 1:
                return (start + end).reshape(1) * ((extent - 1) / 2)
            corners = _corners(x, extent, length).astype(start.dtype)
            return start * (extent - 1) + (end - start) * corners
        case "pytorch_half_pixel" if count == 1:
            return x
        case _:
            return (x + 0.5) / scale - 0.5


def _corners(x: Places, extent: int, length: float) -> Places:
    """Return the places of items if the first and last items of input and result coincide."""
    return x * (extent - 1) / (length - 1) if len(x) > 1 else x


def resample(x: Array, axis: int, where: Places, scale: float, method: Method) -> Array:
    """Interpolate floats at places along an axis; "nearest" takes any dtype."""
    extent = x.shape[axis]
    if isinstance(where, np.ndarray) and np.array_equal(where, np.arange(extent)):
        return x
    if method.interpolator == "nearest":
        rounding = method.nearest_mode
        if rounding == SIMPLE:
            rounding = "ceil" if scale < 1 else "floor"
        return _nearest(x, axis, where, rounding)
    shift = _SHIFTED.get(method.coordinates)
    is_by_integer = scale > 1 and len(where) == extent * scale and scale == int(scale)
    if method.interpolator == "linear" and is_by_integer and shift is not None:
        return upsample_linear(x, axis, int(scale), shift, "replicate")
    items, weights = _weights(where, extent, scale, method)
    return _weighted(x, axis, items, weights)


def multiply_adds(shape: Shape, lengths: Sequence[float], method: Method) -> int:
    """Count the multiply-adds of resizing axis by axis. Axes of the same length cost none."""
    if method.interpolator == "nearest":
        return 0
    total = 0
    result = list(shape)
    for axis, (extent, length) in enumerate(zip(shape, lengths, strict=True)):
        result[axis] = int(length)
        if extent not in (0, length):
            total += volume(result) * len(_taps(length / extent, method))
    return total


def host_work(extent: int, length: float, method: Method) -> tuple[int, int]:
    """Return the number of items that the host computes, and the number of traced operations."""
    count = int(length)
    if method.interpolator == "nearest":
        return _WORK * count, 1
    taps = len(_taps(length / extent, method))
    if extent <= _PRODUCTS * taps:  # the weights become a matrix
        return _WORK * count * (taps + extent), 1
    return _WORK * count * taps, taps


def _nearest(x: Array, axis: int, where: Places, mode: str) -> Array:
    """Return the items nearest to places, by a repetition or slice if possible, else a gather."""
    xp = where.__array_namespace__()
    extent = x.shape[axis]
    error = (xp.abs(where) + 1) * _PRECISION
    items = _ROUND[mode](xp, where, error)
    items = xp.clip(items, 0, extent - 1).astype(np.int32)
    if isinstance(items, np.ndarray):  # the gradient of a slice is faster than that of a gather
        count = len(items)
        times = count // extent
        if count % extent == 0 and np.array_equal(items, np.arange(count) // times):
            return jnp.repeat(x, times, axis)
        step = int(items[1] - items[0]) if count > 1 else 1
        if step > 0 and np.array_equal(items, items[0] + step * np.arange(count)):
            return lax.slice_in_dim(x, int(items[0]), int(items[-1]) + 1, step, axis)
    return jnp.take(x, items, axis, mode="clip")


def _weights(where: Places, extent: int, scale: float, method: Method) -> tuple[Any, Any]:
    """Return the input items for each place, and their weights, both (count, taps)."""
    xp = where.__array_namespace__()
    shrink = _shrink(scale, method)
    taps = np.array(_taps(scale, method))[None, :]
    items = xp.floor(where)[:, None] + taps.astype(where.dtype)
    distance = xp.abs(items - where[:, None]) * shrink
    if method.interpolator == "linear":
        weights = xp.maximum(1 - distance, 0)
    else:
        weights = cubic_kernel(distance, method.cubic)
    if method.exclude_outside:
        weights = xp.where((items >= 0) & (items < extent), weights, 0.0)
    total = xp.sum(weights, axis=1, keepdims=True)
    weights = weights / xp.where(total == 0, 1.0, total)
    return xp.clip(items, 0, extent - 1).astype(np.int32), weights


def _shrink(scale: float, method: Method) -> float:
    """Return the factor of distances: an antialiased kernel is wider where the axis shrinks."""
    return min(scale, 1.0) if method.antialias else 1.0


def _taps(scale: float, method: Method) -> range:
    """Return the offsets of input items from the item before a place."""
    radius = 1 if method.interpolator == "linear" else 2
    reach = radius / _shrink(scale, method)
    first = math.floor(-reach) + 1
    return range(first, 2 - first)


def cubic_kernel(distance: Places, a: float) -> Any:
    """Return the weight at a distance of at least 0, in Keys' cubic convolution."""
    xp = distance.__array_namespace__()
    t = distance
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return xp.where(t <= 1, near, xp.where(t < 2, far, 0.0))


def _weighted(x: Array, axis: int, items: Places, weights: Places) -> Array:
    """Return weighted sums of items (count,taps) along an axis, by a product or by gathers."""
    extent = x.shape[axis]
    taps = items.shape[1]
    if extent <= _PRODUCTS * taps:
        rows = np.arange(len(items), dtype=np.int32)[:, None]
        if isinstance(weights, np.ndarray):
            matrix: Any = np.zeros((len(items), extent))
            np.add.at(matrix, (rows, items), weights)
        else:
            matrix = jnp.zeros((len(items), extent), weights.dtype).at[rows, items].add(weights)
        matrix = jnp.asarray(matrix, x.dtype)
        y = lax.dot_general(x, matrix, (((axis,), (1,)), ((), ())), precision="highest")
        return jnp.moveaxis(y, -1, axis)
    total = jnp.zeros((), x.dtype)
    for k in range(taps):
        weight = jnp.asarray(weights[:, k], x.dtype).reshape(along(axis, x.ndim))
        total = total + jnp.take(x, items[:, k], axis, mode="clip") * weight
    return total


def merged(x: Array, axis: int) -> Array:
    """Merge an axis with the next one."""
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def upsample_linear(x: Array, axis: int, factor: int, shift: bool, border: str) -> Array:
    """Interpolate output i at place i / factor, or with `shift` (i - (factor - 1) / 2) / factor."""
    extent = x.shape[axis]
    edges = [(0, 0)] * x.ndim
    edges[axis] = (int(shift), 1)
    extended = extend(x, tuple(edges), border)

    def neighbour(offset: int) -> Array:
        start = offset + int(shift)
        return lax.slice_in_dim(extended, start, start + extent, 1, axis)

    # Output k * factor + r has the same weights for every k.
    if factor > _UNROLLED:
        place = lax.iota(np.float32, factor)
        if shift:
            place = place - (factor - 1) / 2
        place = place / factor  # relative to item k
        place = place.astype(x.dtype).reshape(along(axis + 1, x.ndim + 1))
        before, here, after = (jnp.expand_dims(neighbour(i), axis + 1) for i in _OFFSETS[shift])
        left = jnp.where(place < 0, before, here)
        right = jnp.where(place < 0, here, after)
        weight = jnp.where(place < 0, place + 1, place)
        return merged(left * (1 - weight) + right * weight, axis)
    phases: list[Array] = []
    for r in range(factor):
        # The place is k + doubled / (2 * factor).
        doubled = 2 * r - (factor - 1) if shift else 2 * r
        offset, remainder = divmod(doubled, 2 * factor)
        left = neighbour(offset)
        right = neighbour(offset + 1)
        weight = remainder / (2 * factor)
        phases.append(left * (1 - weight) + right * weight if weight else left)
    return merged(jnp.stack(phases, axis + 1), axis)


def upsample_aligned(x: Array, axis: int, factor: int, fold: Callable[[int], None]) -> Array:
    """Interpolate linearly; the first and the last items of output and input coincide.

    `fold` is called with the number of items that are computed on the host.
    """
    extent = x.shape[axis]
    count = extent * factor
    fold(_WORK * count)
    # Output i is at place i * (extent - 1) / divisor.
    divisor = max(count - 1, 1)
    before, remainder = np.divmod(np.arange(count) * (extent - 1), divisor)
    after = np.minimum(before + 1, extent - 1)
    weight = (remainder / divisor).reshape(along(axis, x.ndim))
    left = jnp.take(x, before, axis, mode="clip")
    right = jnp.take(x, after, axis, mode="clip")
    return left * (1 - weight).astype(x.dtype) + right * weight.astype(x.dtype)


def bilinear(x: Array, batch: Array, row: Array, column: Array) -> Array:
    """Sample images (B,C,H,W) bilinearly on N grids; return (N,C,h,w).

    Grid n has rows `row[n]` (h) and columns `column[n]` (w) in image `batch[n]`. A place outside of
    the image has the value at the nearest place inside.
    """
    top, bottom, down = neighbours(row, x.shape[2], x.dtype)
    left, right, across = neighbours(column, x.shape[3], x.dtype)
    down = down[:, :, None, None]
    across = across[:, None, :, None]

    def corner(row: Array, column: Array) -> Array:
        places = (batch[:, None, None], slice(None), row[:, :, None], column[:, None, :])
        return jnp.asarray(x).at[places].get(mode="clip")  # (N,h,w,C)

    upper = corner(top, left) * (1 - across) + corner(top, right) * across
    lower = corner(bottom, left) * (1 - across) + corner(bottom, right) * across
    return jnp.moveaxis(upper * (1 - down) + lower * down, -1, 1)


def neighbours(place: Array, extent: int, dtype: DType) -> tuple[Array, Array, Array]:
    """Return the items before and after each place, and the weight of the item after it."""
    place = jnp.clip(place, 0, extent - 1)
    first = jnp.floor(place)
    index = first.astype(jnp.int32)
    return index, jnp.minimum(index + 1, extent - 1), (place - first).astype(dtype)
