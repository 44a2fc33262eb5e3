"""Expresses resizes as operations of NNEF 1.0, which resample by integer factors (spec 4.3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowering import resampling
from lowering.extents import UNKNOWN, is_known
from lowering.graph import Operation, Value

Resampling = tuple[str, dict[str, Any]]  # the kind, and the arguments by the name of the parameter

# For upsampling to the nearest item: the largest factor by which each item is repeated. The keys
# are (`coordinate_transformation_mode`, `nearest_mode`).
_REPEATS = {
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
# For downsampling to the nearest item: the largest factor with which the first item of each block
# is taken. The keys are (`coordinate_transformation_mode`, `nearest_mode`).
_FIRSTS = {
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
_MEANS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


def standard_resampling(operation: Operation) -> Resampling | None:
    """Return the operation of NNEF 1.0 that is equal to a resize, or None if there is none.

    The result is the name of the operation and its arguments by name.
    """
    attributes: Any = dict(operation.attributes)
    x = dict(operation.operands)["input"]
    scales = attributes["scales"]
    if not isinstance(x, Value) or not (scales or is_known(x.type.shape)):
        return None
    # An open extent counts as 1, since scales do not depend on it.
    shape = [1 if extent is UNKNOWN else extent for extent in x.type.shape]
    lengths = list(map(resampling.length, shape, scales)) if scales else attributes["sizes"]
    mode = attributes["mode"]
    is_linear = mode == "linear"
    coordinates = attributes["coordinate_transformation_mode"]
    rounding = attributes["nearest_mode"]
    upscaling = _factors(lengths, shape)
    downscaling = _factors(shape, lengths)
    if rounding == "simple":
        rounding = "floor" if upscaling else "ceil"
    key = coordinates, rounding
    if upscaling and mode == "nearest" and max(upscaling) <= _REPEATS.get(key, 0):
        return "nearest_upsample", {"input": x, "factor": upscaling}
    if upscaling and is_linear and coordinates in _METHODS:
        method = {"method": _METHODS[coordinates], "border": "replicate"}
        return "multilinear_upsample", {"input": x, "factor": upscaling, **method}
    if not downscaling or attributes["antialias"]:
        return None
    shrunk_axes = [axis for axis, factor in enumerate(downscaling, 2) if factor > 1]
    if any(x.type.shape[axis] is UNKNOWN for axis in shrunk_axes):
        return None
    if mode == "nearest":
        takes_first = max(downscaling) <= _FIRSTS.get(key, 0)
    else:
        takes_first = coordinates == "asymmetric"
    if takes_first:
        return "nearest_downsample", {"input": x, "factor": downscaling}
    has_single_item = coordinates == "pytorch_half_pixel" and any(
        lengths[a] == 1 for a in shrunk_axes
    )
    if is_linear and coordinates in _MEANS and max(downscaling) <= 2 and not has_single_item:
        return "area_downsample", {"input": x, "factor": downscaling}
    return None


def _factors(larger: Sequence[float], smaller: Sequence[float]) -> tuple[int, ...]:
    """Return the ratio of `larger` to `smaller` for each spatial axis.

    `larger` and `smaller` have the extents of all axes. Return () unless all ratios are integers,
    and the ratios of the axes of batch and channels are 1.
    """
    factors: list[int] = []
    for large, small in zip(larger, smaller, strict=True):
        if large == 0 or small == 0 or large % small:
            return ()
        factors.append(int(large // small))
    batch_and_channels = factors[:2]
    return tuple(factors[2:]) if batch_and_channels == [1, 1] else ()
