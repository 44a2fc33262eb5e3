"""Functions for operators that sample tensors at positions between items, such as Resize.

The module also has pools of regions and the suppression of boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import flag, integer, integers, number, numbers, word
from nnef_jax.flattening.sampling import box_lists, resized, roi_aligned, suppressed
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_CROP = "tf_crop_and_resize"
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", _CROP,
)  # fmt: skip
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
# Maps the name of a mode of GridSample since version 20 to the name before version 20.
_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _of_all_axes(items: Sequence[float], axes: Sequence[int], defaults: Sequence[float]) -> Any:
    """Return an item for each axis: the items `items` for `axes`, and defaults for all other axes.

    For example, the items 5, 6 for the axes 2, 3 and the defaults 1, 1, 1, 1 become 1, 1, 5, 6.
    Raises InvalidOperation if the lengths of `items` and `axes` differ.
    """
    if len(items) != len(axes):
        raise InvalidOperation(f"{list(items)} must have an item for each of {len(axes)} axes")
    item_by_axis = list(defaults)
    for axis, item in zip(axes, items, strict=True):
        item_by_axis[axis] = item
    return tuple(item_by_axis)


@operator("Resize", since=11)
def _resize(
    site: NodeSite,
    x: Tensor,
    *,
    mode: str = word("mode", "nearest", "linear", "cubic"),
    coordinates: str = word("coordinate_transformation_mode", *_COORDINATES),
    rounding: str = word("nearest_mode", *_ROUNDINGS),
    cubic: float = number("cubic_coeff_a", -0.75),
    excludes: bool = flag("exclude_outside"),
    antialiases: bool = flag("antialias"),
    outside: float = number("extrapolation_value", 0),
) -> Any:
    """Resize axes by the scales in input 2, or to the sizes in input 3.

    The attribute `keep_aspect_ratio_policy` may change the sizes, so that all axes get the same
    scale.
    """
    rank = site.rank()
    all_axes = tuple(range(rank))
    axes = [site.axis(axis) for axis in site.ints("axes", all_axes)]
    region = _region(site, axes, rank) if coordinates == _CROP else False
    size = _scales_or_sizes(site, axes)
    needs_antialias = antialiases and mode != "nearest"
    return resized(
        site.last, x, mode, coordinates, region, nearest_mode=rounding, cubic_coeff_a=cubic,
        exclude_outside=excludes, antialias=needs_antialias, extrapolation_value=outside, **size,
    )  # fmt: skip


def _scales_or_sizes(site: NodeSite, axes: Sequence[int]) -> dict[str, Any]:
    """Return the scales or the sizes of `axes`, as attributes of the resizing operation.

    Input 2 has the scales of the axes, or input 3 has the new extents. An empty input counts as
    left out.
    """
    has_scales = site.has(2) and site.shape(2) != (0,)
    has_sizes = site.has(3) and site.shape(3) != (0,)
    if has_scales == has_sizes:
        count = "both are" if has_scales else "none is"
        raise InvalidOperation(f"either 'scales' or 'sizes' must be given, {count}")
    if not has_scales:
        return _sizes(site, axes)
    scales = [float(scale) for scale in site.known(2)]
    return {"scales": _of_all_axes(scales, axes, [1.0] * site.rank())}


def _sizes(site: NodeSite, axes: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of the operation that resizes `axes` to the extents in input 3.

    Usually this is the attribute `sizes`. The node's attribute `keep_aspect_ratio_policy` may ask
    for one scale for all axes. Then the result has the attributes `scales` and `rounds`.
    """
    policies = ("stretch", "not_larger", "not_smaller")
    policy = site.choice("keep_aspect_ratio_policy", *policies, default="stretch")
    shape = site.known_shape()
    sizes = _of_all_axes(site.integers(3), axes, shape)
    if policy == "stretch":
        return {"sizes": sizes}
    scale_by_axis = [sizes[axis] / shape[axis] for axis in axes]
    common_scale = min(scale_by_axis) if policy == "not_larger" else max(scale_by_axis)
    scales = _of_all_axes([common_scale] * len(axes), axes, [1.0] * len(shape))
    return {"scales": scales, "rounds": True}


def _region(site: NodeSite, axes: Sequence[int], rank: int) -> Any:
    """Return the bounds of the region to resize: its starts along all axes, then its ends.

    Input 1 has the bounds for `axes`, as fractions of the extents. Along all other axes the region
    is from 0 to 1. `rank` is the number of all axes.
    """
    region = site.operand(1)
    count = len(axes)
    has_all_axes = list(axes) == list(range(rank))
    if has_all_axes:
        return region
    # The bounds of the region are gathered from a table. The table has the items of input 1, and
    # then the numbers 0 and 1. For example, `axes` may be 2 and 3, and `rank` 4. Then the table is
    # (start of axis 2, start of axis 3, end of axis 2, end of axis 3, 0, 1). The starts of the four
    # axes are at the indices 4, 4, 0 and 1 of the table, and their ends are at 5, 5, 2 and 3.
    zero_one = site.constant([0, 1], site.dtype_of(region))
    table = site.step.concat([site.tensor(region), site.tensor(zero_one)], axis=0)
    index_of_0 = 2 * count
    index_of_1 = 2 * count + 1
    starts = _of_all_axes(range(count), axes, [index_of_0] * rank)
    ends = _of_all_axes(range(count, 2 * count), axes, [index_of_1] * rank)
    return site.step.gather(table, site.constant([*starts, *ends], "int64"), axis=0)


_UPSAMPLE_MODE = word("mode", "nearest", "linear", "bilinear")


@operator("Upsample", since=9)
@operator("Resize", since=10)
def _upsample(site: NodeSite, x: Tensor, *, mode: str = _UPSAMPLE_MODE) -> Any:
    """Resize by the scales in input 1, as operators before version 11 do."""
    scales = [float(scale) for scale in site.known(1)]
    return _scaled(site, x, mode, scales)


@operator("Upsample", since=7)
def _upsample_by_attribute(
    site: NodeSite,
    x: Tensor,
    *,
    mode: str = _UPSAMPLE_MODE,
    scales: Sequence[float] = numbers("scales"),
) -> Any:
    """Resize by the scales in an attribute, as before version 9."""
    return _scaled(site, x, mode, [float(scale) for scale in scales])


@operator("Upsample")
def _upsample_plane(
    site: NodeSite,
    x: Tensor,
    *,
    mode: str = _UPSAMPLE_MODE,
    height: float = number("height_scale"),
    width: float = number("width_scale"),
) -> Any:
    """Resize images of shape (batch, channels, height, width), as before version 7."""
    return _scaled(site, x, mode, [1.0, 1.0, height, width])


def _scaled(site: NodeSite, x: Tensor, mode: str, scales: Sequence[float]) -> Any:
    """Resize by scales as before version 11. `scales` has an item for each axis.

    The first items of the input and of the output are at the same position. Items are interpolated
    linearly unless `mode` is "nearest".
    """
    if mode != "nearest":  # "bilinear" was another name for "linear".
        mode = "linear"
    return resized(site.last, x, mode, "asymmetric", scales=tuple(scales), nearest_mode="simple")


@operator("GridSample")
def _grid_sample(
    site: NodeSite,
    x: Tensor,
    grid: Tensor,
    *,
    aligns: bool = flag("align_corners"),
    padding: str = word("padding_mode", "zeros", "border", "reflection"),
) -> Any:
    """Sample x at the positions `grid`. `padding` says which items lie beyond the ends of x."""
    default = "linear" if site.version >= 20 else "bilinear"
    modes = (*_GRID_MODES, *_GRID_MODES.values(), "nearest")
    name = site.choice("mode", *modes, default=default)
    mode = _GRID_MODES.get(name, name)  # The operation has the names before version 20.
    return site.last.grid_sample(x, grid, mode=mode, align_corners=aligns, padding_mode=padding)


@operator("RoiAlign")
def _roi_align(
    site: NodeSite,
    x: Tensor,
    rois: Tensor,
    image: Tensor,
    *,
    coordinates: str = word("coordinate_transformation_mode", "half_pixel", "output_half_pixel"),
    scale: float = number("spatial_scale", 1),
    mode: str = word("mode", "avg", "max"),
    height: int = integer("output_height", 1),
    width: int = integer("output_width", 1),
    samples: int = integer("sampling_ratio", 0),
) -> Any:
    """Pool samples in regions of x. `rois` has a region (x1, y1, x2, y2) in each row.

    `image` has the index of the image of each region. If `coordinates` is "output_half_pixel", the
    corners of a region are indices of items. If `coordinates` is "half_pixel", the corners are
    positions, and the centre of item i is at the position i + 0.5. Before version 16, corners are
    always indices.
    """
    are_positions = coordinates == "half_pixel" and site.version >= 16
    shift = -0.5 if are_positions else 0.0
    least = 0.0 if are_positions else 1.0  # the smallest extent of a region
    if mode == "max":
        # Each neighbour of a sample is multiplied by its weight. The sample is the largest product.
        mode = "max_share"
    return roi_aligned(
        site, x, rois, image, scale=scale, shift=shift, output_size=(height, width),
        sampling_ratio=samples, least=least, mode=mode,
    )  # fmt: skip


@operator("MaxRoiPool")
def _max_roi_pool(
    site: NodeSite,
    x: Tensor,
    rois: Tensor,
    *,
    scale: float = number("spatial_scale", 1),
    size: Sequence[int] = integers("pooled_shape"),
) -> Any:
    """Divide each region (image, x1, y1, x2, y2) into cells, and return the maximum of each cell.

    `rois` has shape (regions, 5). `size` is the pair (rows of cells, columns of cells) of a region.
    The corners of regions are multiplied by `scale`.
    """
    image_column = site.part(rois, axis=1, first=0, last=1)
    image = site.squeezed(site.cast(image_column, "int32"), 1)
    corner_columns = site.part(rois, axis=1, first=1, last=5)
    corners = site.step.mul(corner_columns, scale)
    return site.last.max_roi_pool(x, corners, image, output_size=size)


@operator("NonMaxSuppression")
def _non_max_suppression(
    site: NodeSite, boxes: Tensor, scores: Tensor, *, centred: bool = flag("center_point_box")
) -> Value:
    """Return a row of indices (image, class, box) for each box that remains after suppression.

    A box is (y1, x1, y2, x2). If `centred`, a box is (x, y, width, height), where (x, y) is the
    centre.
    """
    lowest = float(np.finfo(np.float32).min)
    rows, _, count = suppressed(
        site, boxes, scores, score=lowest, center_point_box=centred, sorts=False
    )
    rows = site.cast(rows, site.computation_dtype("int64"))
    (rows,) = box_lists(site, count, rows)
    return rows
