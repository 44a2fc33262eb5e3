"""Interpolation between items: resize and grid_sample.

A resize treats one axis after another. `scales` or `sizes` has an item for every axis. The extents
become `sizes`, or floor(extent * scale) with scales in float32. With `rounds` the product is
rounded to the nearest integer instead, halves up. Half precision and integers are interpolated in
float32. `lowering.kernels.resampling` computes the positions of items.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, along, differ, is_symbolic, show, volume
from lowering.graph import ABSENT, TensorType, is_float
from lowering.kernels.precision import widened
from lowering.kernels.resampling import (
    COORDINATES,
    CROP,
    CUBIC,
    INTERPOLATORS,
    ROUNDINGS,
    Method,
    cubic_kernel,
    host_work,
    multiply_adds,
    places,
    resample,
    resized_length,
)
from lowering.kernels.rounding import saturated
from lowering.ops import require, rules
from lowering.ops.shape import cast
from lowering.tracing import Context

_ROUNDING_ERROR = 2.0**-20  # the relative error of a sum of a few products in float32


def _resize_type(
    input: TensorType,
    roi: TensorType,
    scales: tuple[float, ...],
    sizes: Shape,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    rounds: bool = False,
) -> TensorType:
    """Check the arguments of `resize`, and return the type of its result."""
    require.ordered(input=input)
    if roi != ABSENT:
        require.floating(roi=roi)
    require.one_of("mode", mode, INTERPOLATORS)
    require.one_of("nearest_mode", nearest_mode, ROUNDINGS)
    require.one_of("coordinate_transformation_mode", coordinate_transformation_mode, COORDINATES)
    if coordinate_transformation_mode == CROP:
        _require_roi(roi, 2 * len(input.shape))
    if scales and sizes:
        raise InvalidOperation("one of 'scales' and 'sizes' must be given, both are")
    if not scales and not sizes:
        raise InvalidOperation("one of 'scales' and 'sizes' must be given, none is")
    name = "scales" if scales else "sizes"
    items = scales or sizes
    if len(items) != len(input.shape):
        raise InvalidShape(
            f"'{name}' {list(items)} must have an item for each axis of 'input' "
            f"{show(input.shape)}",
            hint="batch and channel count too: scale 1, or their extents, leaves them as they are",
        )
    if any(item <= 0 for item in items) or not all(map(math.isfinite, scales)):
        raise InvalidOperation(f"items of '{name}' must be positive, it is {list(items)}")
    shape = sizes
    if scales:
        pairs = zip(input.shape, scales, strict=True)
        shape = tuple(_extent(extent, scale, rounds) for extent, scale in pairs)
    for extent, new_extent in zip(input.shape, shape, strict=True):
        is_empty = extent == 0
        becomes_empty = new_extent == 0
        if is_empty != becomes_empty:
            raise InvalidShape(
                f"'input' {show(input.shape)} cannot be resized to {show(shape)}: an empty axis "
                "must stay empty, and no other axis may become empty"
            )
    return TensorType(shape, input.dtype)


def _require_roi(roi: TensorType, items: int) -> None:
    """Raise InvalidShape unless `roi` is present, and is a vector with `items` items."""
    is_vector = roi != ABSENT and len(roi.shape) == 1
    if is_vector and not differ(roi.shape[0], items):
        return
    actual = "there is none" if roi == ABSENT else f"it is {roi}"
    raise InvalidShape(
        f"'{CROP}' needs a 'roi' of shape [{items}], {actual}",
        hint="it has the starts of all axes of 'input', then the ends, as parts of the extents",
    )


def _extent(extent: int, scale: float, rounds: bool) -> int:
    """Return extent * scale, rounded down, or to the nearest integer if `rounds` is true.

    If the extent is UNKNOWN, the result is UNKNOWN.
    """
    if extent is UNKNOWN:
        return UNKNOWN
    return _item_count(resized_length(extent, scale), rounds)


def _is_unchanged(extent: int, new_length: float, coordinates: str) -> bool:
    """Tell whether a resize to `new_length` returns the items of an axis unchanged.

    Some modes of coordinates move the items even if the extent stays the same.
    """
    return new_length == extent and coordinates not in (CROP, "tf_half_pixel_for_nn")


def _item_count(new_length: float, rounds: bool) -> int:
    """Return a length, rounded down, or to the nearest integer if `rounds` is true."""
    return int(new_length + 0.5) if rounds else int(new_length)


def _lengths(shape: Shape, scales: tuple[float, ...], sizes: Shape) -> tuple[float, ...]:
    """Return the lengths to which the axes are resized. Without scales the lengths are `sizes`."""
    return tuple(map(resized_length, shape, scales)) if scales else sizes


def _resize_work(
    input: TensorType, scales: tuple[float, ...], sizes: Shape, mode: str, antialias: bool
) -> int:
    # The coordinates and the rounding do not matter for the number of multiply-adds.
    method = Method("half_pixel", mode, "floor", antialias=antialias)
    return multiply_adds(input.shape, _lengths(input.shape, scales, sizes), method)


@rules.rule("resize", _resize_type, work=_resize_work)
def resize(
    ctx: Context,
    input: Array,
    roi: Array | Literal[False],
    scales: tuple[float, ...],
    sizes: Shape,
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    cubic_coeff_a: float,
    exclude_outside: bool,
    antialias: bool,
    extrapolation_value: float,
    rounds: bool = False,
) -> Array:
    """Resize the input as ONNX Resize does. The `nearest_mode` "simple" is the mode of OpenVINO.

    One of `sizes` and `scales` is empty, and the other has an item for each axis. With `sizes`
    the extents become `sizes`. With `scales` they become extent * scale, rounded down, or
    rounded to the nearest integer if `rounds` is true.

    Only the `coordinate_transformation_mode` 'tf_crop_and_resize' uses `roi` and
    `extrapolation_value`: the latter is the value at positions outside of the input. If
    `exclude_outside` is true, items beyond the ends have the weight 0. If `antialias` is true, the
    kernel is wider along axes that shrink.
    """
    coordinates = coordinate_transformation_mode
    method = Method(
        coordinates=coordinates,
        interpolator=mode,
        nearest_mode=nearest_mode,
        cubic=cubic_coeff_a,
        exclude_outside=exclude_outside,
        antialias=antialias,
    )
    x = jnp.asarray(input)
    # The region has the starts of all axes, and then their ends. A constant region stays a numpy
    # array, so that the host computes the positions.
    region = None
    if coordinates == CROP and isinstance(roi, np.ndarray):
        region = roi.astype(np.float64)
    elif coordinates == CROP and roi is not False:
        region = widened(roi)
    dtype = x.dtype
    if mode != "nearest":
        x = widened(x)
    for axis, new_length in enumerate(_lengths(x.shape, scales, sizes)):
        extent = x.shape[axis]
        if extent == 0:
            continue  # an empty axis stays empty
        if is_symbolic(extent) and _is_unchanged(extent, new_length, coordinates):
            continue
        ends = None if region is None else (region[axis], region[axis + x.ndim])
        # These calls may raise errors for too much work on the host, and for too many traced
        # operations.
        host_items, gather_count = host_work(extent, new_length, method)
        ctx.fold(host_items)
        ctx.unroll(gather_count)
        count = _item_count(new_length, rounds)
        item_places = places(extent, new_length, coordinates, region=ends, count=count)
        x = resample(x, axis, item_places, scale=new_length / extent, method=method)
        if region is not None:
            is_outside = (item_places < 0) | (item_places > extent - 1)
            is_outside = is_outside.reshape(along(axis, x.ndim))
            # The fill must be finite in the dtype of the result.
            fill_dtype = dtype if is_float(dtype.name) else x.dtype
            fill = saturated(extrapolation_value, fill_dtype)
            x = jnp.where(is_outside, jnp.asarray(fill, x.dtype), x)
    if x.dtype == dtype:
        return x
    if dtype.kind in "iu":
        # A cast truncates. The float32 weights sum to 1 only approximately, so that an integer may
        # have become slightly smaller. Such a number is rounded to the integer.
        nearest = jnp.round(x)
        is_integer = jnp.abs(x - nearest) <= (jnp.abs(nearest) + 1) * _ROUNDING_ERROR
        x = jnp.where(is_integer, nearest, x)
    return cast(x, dtype.name)


# A tap reads one item along an axis for each point. It has the indices of these items, and their
# weights.
_Tap = tuple[Array, Array]


def _bilinear(place: Array, bounded: Callable[[Array], Array]) -> list[_Tap]:
    """Return taps for the items before and after `place`, a position along an axis.

    `bounded` moves a place into the axis, as the padding mode of `grid_sample` says.
    """
    place = bounded(place)
    first = jnp.floor(place)
    return [(_item(first), first + 1 - place), (_item(first + 1), place - first)]


def _nearest(place: Array, bounded: Callable[[Array], Array]) -> list[_Tap]:
    """Return a tap for the item nearest to a place. `bounded` applies the padding mode."""
    nearest = jnp.round(bounded(place))
    return [(_item(nearest), jnp.ones_like(place))]


def _bicubic(place: Array, bounded: Callable[[Array], Array]) -> list[_Tap]:
    """Return taps for the four items around a place. `bounded` applies the padding mode."""
    first = jnp.floor(place)
    taps: list[_Tap] = []
    for offset in (-1, 0, 1, 2):
        item = first + offset
        weight = cubic_kernel(jnp.abs(place - item), CUBIC)
        taps.append((_item(bounded(item)), weight))
    return taps


def _item(place: Array) -> Array:
    """Convert positions along an axis to indices of items, in int32.

    Positions that are not finite, or that do not fit int32, are outside of the input.
    """
    return jnp.where(jnp.abs(place) < 2**30, place, -1.0).astype(jnp.int32)


_MODES = {"bilinear": _bilinear, "nearest": _nearest, "bicubic": _bicubic}
_PADDINGS = ("zeros", "border", "reflection")


def _bounded(place: Array, extent: int, padding_mode: str, align_corners: bool) -> Array:
    """Return a position along an axis, moved into the axis by `padding_mode`, as in torch.

    'zeros' leaves the position unchanged, 'border' moves the position to the nearest end, and
    'reflection' reflects the position at two mirrors. If `align_corners` is true, the mirrors are
    at the centres of the first and the last item. If `align_corners` is false, the mirrors are at
    the outer edges of these items. The derivatives are as in torch too.
    """
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        # `span` is the distance between the two mirrors.
        first_mirror, span = (0.0, extent - 1.0) if align_corners else (-0.5, float(extent))
        if span == 0:
            return jnp.zeros_like(place)  # both mirrors are at the only item
        is_before = place < first_mirror
        distance = jnp.where(is_before, first_mirror - place, place - first_mirror)
        remainder = lax.rem(distance, jnp.full_like(distance, 2 * span))
        place = jnp.where(remainder < span, remainder, 2 * span - remainder) + first_mirror
    # Clamp the position to the centres of the first and the last item. NaN goes to the first item,
    # as in torch.
    is_positive = place > 0
    at_most_last = jnp.where(place < extent - 1, place, extent - 1.0)
    return jnp.where(is_positive, at_most_last, 0.0)


def _grid_type(
    input: TensorType, grid: TensorType, mode: str, padding_mode: str, align_corners: bool
) -> TensorType:
    """Check the arguments of `grid_sample`, and return the type of its result."""
    require.floating(input=input, grid=grid)
    require.one_of("mode", mode, tuple(_MODES))
    require.one_of("padding_mode", padding_mode, _PADDINGS)
    count = len(input.shape) - 2
    if count < 1:
        raise InvalidShape(f"'input' {show(input.shape)} must have spatial axes behind [N,C]")
    if mode == "bicubic" and count != 2:
        raise InvalidOperation(
            f"mode 'bicubic' needs two spatial axes, 'input' {show(input.shape)} has {count}",
            hint="'bilinear' and 'nearest' take any number",
        )
    if len(grid.shape) != count + 2 or differ(grid.shape[-1], count):
        raise InvalidShape(
            f"'grid' must have {count + 2} axes and {count} coordinates along the last one for "
            f"'input' {show(input.shape)}, it has the shape {show(grid.shape)}",
            hint="coordinates are in the order x, y, z: that of the last axis of 'input' is first",
        )
    if differ(input.shape[0], grid.shape[0]):
        raise InvalidShape(
            f"'input' {show(input.shape)} and 'grid' {show(grid.shape)} must have one batch extent"
        )
    return TensorType((*input.shape[:2], *grid.shape[1:-1]), input.dtype)


def _grid_work(result: TensorType, input: TensorType, mode: str) -> int:
    taps = {"nearest": 0, "bilinear": 2, "bicubic": 4}[mode]
    return volume(result.shape) * taps ** (len(input.shape) - 2)


@rules.rule("grid_sample", _grid_type, work=_grid_work)
def grid_sample(
    ctx: Context, input: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool
) -> Array:
    """Sample an input at the points of a grid, as torch does.

    The input has the shape (batch, channels, *extents), the grid has the shape (batch, *points, k),
    and the result has the shape (batch, channels, *points). A point has k coordinates: x for the
    last axis of the input, y for the axis before it, and z for the axis before that. A coordinate
    is -1 at the start of an axis and 1 at its end. If `align_corners` is true, start and end are
    the centres of the first and the last item. If `align_corners` is false, start and end are the
    outer edges of these two items.

    `padding_mode` decides the value at a point beyond start or end. The value is 0 for 'zeros',
    the nearest item for 'border', and the value at the point's mirror image for 'reflection'.
    Start and end are the mirrors.

    Of two equally near items the mode 'nearest' takes the item with the even index. The result
    is differentiable by input and grid. The derivative by a coordinate that 'border' clamps is
    0.
    """
    x = widened(jnp.asarray(input))
    points = widened(jnp.asarray(grid))
    taps: list[list[_Tap]] = []
    for axis, extent in enumerate(x.shape[2:]):
        from_start = points[..., -1 - axis] + 1  # from 0 to 2
        # The place goes from 0 to extent - 1 if corners are aligned, or from -1/2 to extent - 1/2.
        place = from_start / 2 * (extent - 1) if align_corners else (from_start * extent - 1) / 2

        # The loop changes `extent`. The default of this function keeps the extent of this axis.
        def bounded(place: Array, extent: int = extent) -> Array:
            return _bounded(place, extent, padding_mode, align_corners)

        taps.append(_MODES[mode](place, bounded))

    @jax.vmap
    def read(image: Array, items: tuple[Array, ...]) -> Array:
        """Return the items of all channels of an image, and 0 for items outside of the image."""
        return image.at[(slice(None), *items)].get(
            mode="fill", fill_value=0, wrap_negative_indices=False
        )

    # The operations of each combination of taps are traced. This call may raise an error for too
    # many combinations.
    ctx.unroll(math.prod(map(len, taps)))
    total = jnp.zeros((), x.dtype)
    # A combination has one tap for each axis. Its weight is the product of the taps' weights.
    for combination in itertools.product(*taps):
        items, weights = zip(*combination, strict=True)
        weight = functools.reduce(jnp.multiply, weights)
        total = total + read(x, items) * weight[:, None]
    return total.astype(input.dtype)
