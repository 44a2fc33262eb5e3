"""Interpolation between items: resize, grid_sample."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np


def _position(x, extent, count, scale, coordinates, region):
    """Return where item x of `count` lies along an axis of an extent."""
    if coordinates == "asymmetric":
        return x / scale
    if coordinates == "tf_half_pixel_for_nn":
        return (x + Fraction(1, 2)) / scale
    length = scale * extent  # before what is no whole item is cut off
    if coordinates == "align_corners":
        return x * (extent - 1) / (length - 1) if count > 1 else Fraction(0)
    if coordinates == "tf_crop_and_resize":
        start, end = region
        if length == 1:
            return (start + end) * (extent - 1) / 2
        return start * (extent - 1) + x * (end - start) * float((extent - 1) / (length - 1))
    if coordinates == "pytorch_half_pixel" and count == 1:
        return Fraction(0)
    centre = (x + Fraction(1, 2)) / scale - Fraction(1, 2)
    if coordinates == "half_pixel_symmetric":
        return Fraction(extent, 2) * (1 - count / (scale * extent)) + centre
    assert coordinates in ("half_pixel", "pytorch_half_pixel")
    return centre


def _rounded(position, nearest_mode):
    whole = math.floor(position)
    rest = position - whole
    up = {
        "floor": False,
        "ceil": rest > 0,
        "round_prefer_floor": rest > 0.5,
        "round_prefer_ceil": rest >= 0.5,
    }[nearest_mode]
    return whole + 1 if up else whole


def _linear(distance):
    return max(0.0, 1.0 - abs(distance))


def _cubic(distance, a):
    t = abs(distance)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    if t < 2:
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return 0.0


def _weights(position, extent, scale, interpolator, nearest_mode, a, exclude_outside, antialias):
    """Return the weight of each item of an axis at a position."""
    row = np.zeros(extent)
    if interpolator == "nearest":
        row[min(max(_rounded(position, nearest_mode), 0), extent - 1)] = 1.0
        return row
    step = min(float(scale), 1.0) if antialias else 1.0
    far = math.ceil(2 / step) + 1
    total = 0.0
    for i in range(math.floor(position) - far, math.floor(position) + far + 1):
        distance = float(i - position) * step
        weight = _linear(distance) if interpolator == "linear" else _cubic(distance, a)
        if exclude_outside and not 0 <= i < extent:
            continue
        row[min(max(i, 0), extent - 1)] += weight
        total += weight
    return row / total if total else row


def resize(
    input,
    roi=None,
    scales=(),
    sizes=(),
    mode="nearest",
    coordinate_transformation_mode="half_pixel",
    nearest_mode="floor",
    cubic_coeff_a=-0.75,
    exclude_outside=False,
    antialias=False,
    extrapolation_value=0.0,
):
    output = input.astype(np.float64)
    for axis, extent in enumerate(input.shape):
        if sizes:
            count = sizes[axis]
            scale = Fraction(count, extent)
        else:
            scale = Fraction(scales[axis]).limit_denominator(1000)
            count = math.floor(extent * scale)
        crop = coordinate_transformation_mode == "tf_crop_and_resize"
        region = (roi[axis], roi[axis + input.ndim]) if crop else None
        matrix = np.zeros((count, extent))
        outside = np.zeros(count, bool)
        for x in range(count):
            position = _position(x, extent, count, scale, coordinate_transformation_mode, region)
            matrix[x] = _weights(
                position,
                extent,
                scale,
                mode,
                nearest_mode,
                cubic_coeff_a,
                exclude_outside,
                antialias,
            )
            outside[x] = crop and not 0 <= position <= extent - 1
        moved = np.tensordot(matrix, np.moveaxis(output, axis, 0), 1)
        moved[outside] = extrapolation_value
        output = np.moveaxis(moved, 0, axis)
    return output.astype(input.dtype)


def core_resize(
    input,
    scales=(),
    sizes=(),
    coord_transformer="half_pixel",
    interpolator="nearest",
    nearest_mode="floor",
):
    # torch, which names its coordinates so, does not treat a single item in another way, and aligns
    # the last item that there is.
    if coord_transformer == "pytorch_half_pixel":
        coord_transformer = "half_pixel"
    if coord_transformer == "align_corners" and scales:
        exact = [Fraction(scale).limit_denominator(1000) for scale in scales]
        sizes = [math.floor(extent * s) for extent, s in zip(input.shape, exact, strict=True)]
        scales = ()
    return resize(input, None, scales, sizes, interpolator, coord_transformer, nearest_mode)


def _bounded(position, extent, padding_mode, align_corners):
    """Move a position into an axis, except where there are zeros outside."""
    if padding_mode == "zeros":
        return position
    if padding_mode == "reflection":
        low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
        if low == high:
            return 0.0
        while not low <= position <= high:
            position = 2 * low - position if position < low else 2 * high - position
    return min(max(position, 0.0), extent - 1.0)


def _taps(position, mode, bounded):
    """Return the items along an axis and their weights at a position."""
    if mode == "nearest":
        return [(round(bounded(position)), 1.0)]  # Python rounds halves to even
    if mode == "bilinear":
        position = bounded(position)
        first = math.floor(position)
        return [(first, first + 1 - position), (first + 1, position - first)]
    first = math.floor(position)
    return [(int(bounded(first + k)), _cubic(position - (first + k), -0.75)) for k in (-1, 0, 1, 2)]


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    extents = input.shape[2:]
    output = np.zeros((*input.shape[:2], *grid.shape[1:-1]))
    for n, *point in np.ndindex(*grid.shape[:-1]):
        taps = []
        for axis, extent in enumerate(extents):
            coordinate = grid[(n, *point, len(extents) - 1 - axis)]
            if align_corners:
                position = (coordinate + 1) / 2 * (extent - 1)
            else:
                position = (coordinate + 1) / 2 * extent - 0.5

            def bounded(position, extent=extent):
                return _bounded(position, extent, padding_mode, align_corners)

            taps.append(_taps(position, mode, bounded))
        for corner in itertools.product(*taps):
            items = [item for item, _ in corner]
            if all(0 <= i < extent for i, extent in zip(items, extents, strict=True)):
                weight = math.prod(weight for _, weight in corner)
                output[(n, slice(None), *point)] += weight * input[(n, slice(None), *items)]
    return output


OPERATIONS = {
    "tract_core_resize": core_resize,
    "resize": resize,
    "grid_sample": grid_sample,
}
