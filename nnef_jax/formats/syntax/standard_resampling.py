"""Expresses resizes as operations of NNEF 1.0, which resample by integer factors (spec 4.3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowering import resampling
from lowering.extents import UNKNOWN, is_known
from lowering.graph import Operation, Value

# The kind of an operation, and a dict from names of parameters to arguments.
Resampling = tuple[str, dict[str, Any]]

# For each pair (`coordinate_transformation_mode`, `nearest_mode`) of a resize that makes tensors
# larger: the largest factor for which the resize equals nearest_upsample, which repeats each item.
_LARGEST_REPEATING_FACTORS = {
    ("asymmetric", "floor"): math.inf,
    ("asymmetric", "round_prefer_floor"): 2,
    ("half_pixel", "round_prefer_floor"): math.inf,
    ("half_pixel", "round_prefer_ceil"): math.inf,
    ("half_pixel_symmetric", "round_prefer_floor"): math.inf,
    ("half_pixel_symmetric", "round_prefer_ceil"): math.inf,
    ("pytorch_half_pixel", "round_prefer_floor"): math.inf,
    ("pytorch_half_pixel", "round_prefer_ceil"): math.inf,
    ("tf_half_pixel_for_nn", "floor"): math.inf,
    ("align_corners", "round_prefer_floor"): 2,
    ("align_corners", "round_prefer_ceil"): 2,
}
# For each pair (`coordinate_transformation_mode`, `nearest_mode`) of a resize that makes tensors
# smaller: the largest factor n for which the resize equals nearest_downsample, which takes the
# first of every n items.
_LARGEST_SELECTING_FACTORS = {
    ("asymmetric", "floor"): math.inf,
    ("asymmetric", "ceil"): math.inf,
    ("asymmetric", "round_prefer_floor"): math.inf,
    ("asymmetric", "round_prefer_ceil"): math.inf,
    ("half_pixel", "floor"): 2,
    ("half_pixel", "round_prefer_floor"): 2,
    ("half_pixel_symmetric", "floor"): 2,
    ("half_pixel_symmetric", "round_prefer_floor"): 2,
    ("pytorch_half_pixel", "floor"): 2,
    ("pytorch_half_pixel", "round_prefer_floor"): 2,
}
# The method of multilinear_upsample for each `coordinate_transformation_mode`.
_METHODS = {
    "half_pixel": "symmetric",
    "half_pixel_symmetric": "symmetric",
    "pytorch_half_pixel": "symmetric",
    "asymmetric": "asymmetric",
    "align_corners": "aligned",
}
# The modes in which a linear resize by 1/2 takes the mean of two adjacent items.
_MODES_WITH_MEAN = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


def standard_resampling(operation: Operation) -> Resampling | None:
    """Return the operation of NNEF 1.0 that equals a resize, or None if there is no such operation.

    For example, a resize from (1, 3, 8, 8) to (1, 3, 16, 8) may equal a nearest_upsample by the
    factors (2, 1).
    """
    attributes: Any = dict(operation.attributes)
    x = dict(operation.operands)["input"]
    scales = attributes["scales"]
    if not isinstance(x, Value):
        return None
    has_known_result = scales or is_known(x.type.shape)
    if not has_known_result:
        return None
    # An open extent counts as 1, since scales do not depend on it.
    shape = [1 if extent is UNKNOWN else extent for extent in x.type.shape]
    # The extents of the result.
    lengths = list(map(resampling.resized_length, shape, scales)) if scales else attributes["sizes"]
    upscaling = _factors(lengths, shape)
    downscaling = _factors(shape, lengths)
    upsample = _upsample(x, upscaling, attributes) if upscaling else None
    if upsample is not None:
        return upsample
    if not downscaling or attributes["antialias"]:
        return None
    return _downsample(x, lengths, downscaling, attributes)


def _upsample(x: Value, factors: tuple[int, ...], attributes: Any) -> Resampling | None:
    """Return the upsampling that is equal to a resize by integer factors, or None if there is none.

    `attributes` are the attributes of the resize.
    """
    mode = attributes["mode"]
    coordinates = attributes["coordinate_transformation_mode"]
    rounding = attributes["nearest_mode"]
    if rounding == "simple":
        rounding = "floor"
    largest_factor = _LARGEST_REPEATING_FACTORS.get((coordinates, rounding), 0)
    if mode == "nearest" and max(factors) <= largest_factor:
        return "nearest_upsample", {"input": x, "factor": factors}
    if mode == "linear" and coordinates in _METHODS:
        method = {"method": _METHODS[coordinates], "border": "replicate"}
        return "multilinear_upsample", {"input": x, "factor": factors, **method}
    return None


def _downsample(
    x: Value, lengths: Sequence[float], factors: tuple[int, ...], attributes: Any
) -> Resampling | None:
    """Return the downsampling that is equal to a resize, or None if there is none.

    `lengths` has the extents of the result, and `factors` are the integers by which the spatial
    extents are divided. `attributes` are the attributes of the resize.
    """
    # The spatial axes are those from axis 2 on.
    shrunk_axes = [axis for axis, factor in enumerate(factors, start=2) if factor > 1]
    if any(x.type.shape[axis] is UNKNOWN for axis in shrunk_axes):
        return None  # in a run, the factor may fail to divide the extent
    mode = attributes["mode"]
    coordinates = attributes["coordinate_transformation_mode"]
    rounding = attributes["nearest_mode"]
    if rounding == "simple":
        # An upscaling rounds down, and a downscaling rounds up. A resize by factors of 1 is both,
        # and rounds down.
        has_no_change = max(factors) == 1
        rounding = "floor" if has_no_change else "ceil"
    if mode == "nearest":
        largest_factor = _LARGEST_SELECTING_FACTORS.get((coordinates, rounding), 0)
        takes_first = max(factors) <= largest_factor
    else:
        # The coordinates are 0, 2, 4, ... for the factor 2, so there is nothing to interpolate.
        takes_first = coordinates == "asymmetric"
    if takes_first:
        return "nearest_downsample", {"input": x, "factor": factors}
    is_mean = mode == "linear" and coordinates in _MODES_WITH_MEAN and max(factors) <= 2
    # For a result with a single item, pytorch_half_pixel takes the first item instead of the mean.
    has_single_item = any(lengths[axis] == 1 for axis in shrunk_axes)
    is_exception = has_single_item and coordinates == "pytorch_half_pixel"
    if is_mean and not is_exception:
        return "area_downsample", {"input": x, "factor": factors}
    return None


def _factors(larger: Sequence[float], smaller: Sequence[float]) -> tuple[int, ...]:
    """Return the ratio of `larger` to `smaller` for each spatial axis.

    `larger` and `smaller` have the extents of all axes: (1, 3, 8, 6) and (1, 3, 4, 6) have the
    ratios (2, 1). Return () if a ratio is no integer, or if the ratio of the batch or the channels
    is not 1.
    """
    factors: list[int] = []
    for large, small in zip(larger, smaller, strict=True):
        is_empty = large == 0 or small == 0
        if is_empty or large % small != 0:
            return ()
        factors.append(int(large // small))
    batch_and_channels, spatial_factors = factors[:2], factors[2:]
    return tuple(spatial_factors) if batch_and_channels == [1, 1] else ()
