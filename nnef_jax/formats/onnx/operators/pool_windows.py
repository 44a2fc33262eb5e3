"""Functions for pools, over windows or over all spatial axes, and for MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from nnef_jax.flattening.operators.attributes import flag, integer, number
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.spatial_windows import pooled
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.filters import windows_of
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.operators.rows import plane

_ROUNDS_UP = flag("ceil_mode")


def _pooled(
    site: NodeSite, x: Tensor, add: Callable[..., object], *, rounds_up: bool, **options: Any
) -> Any:
    """Add a pool over windows with the function `add`, such as `site.last.max_pool`.

    If `rounds_up`, the number of windows along an axis is rounded up. No window begins in the
    padding at the end of an axis. `options` are other arguments of `pooled`.
    """
    spatial_rank = site.rank() - 2
    kernel = site.spatial("kernel_shape", spatial_rank, default=None)
    rounding = "ceil_torch" if rounds_up else "floor"
    return pooled(site, x, add, kernel, windows_of(site, kernel), rounding, **options)


@operator("MaxPool")
def _max_pool(
    site: NodeSite,
    x: Tensor,
    *,
    order: int = integer("storage_order", 0),
    rounds_up: bool = _ROUNDS_UP,
) -> Any:
    """Return the maxima of windows.

    If output 1 is read, also return the index of each maximum in the flat tensor. The indices count
    in row-major order, or in column-major order if `order` is 1.
    """
    if order not in (0, 1):
        raise InvalidOperation(f"'storage_order' must be 0 or 1, it is {order}")
    if not site.is_read(1):
        return _pooled(site, x, site.last.max_pool, rounds_up=rounds_up)
    add = site.last.max_pool_with_index
    # With `first_axis` 0, an index counts the items of the entire tensor, not of a plane.
    maxima, indices = _pooled(site, x, add, rounds_up=rounds_up, first_axis=0)
    indices = site.cast(indices, site.computation_dtype("int64"))
    is_column_major = order == 1
    if is_column_major:
        plane_shape = site.known_shape()[2:]
        indices = _by_columns(site, indices, plane_shape)
    return maxima, indices


def _by_columns(site: NodeSite, indices: Tensor, extents: Shape) -> Any:
    """Convert flat indices from row-major to column-major order within each plane.

    `extents` is the shape of a plane. For example, in a plane of shape (2, 3) the item at row 1 and
    column 0 has the index 3 in row-major order, and 1 in column-major order.
    """
    step = site.step
    plane_size = math.prod(extents)
    index = step.rem(indices, plane_size)  # the index within the plane
    by_columns = step.sub(indices, index)  # the index of the first item of the plane
    # The last coordinate is the remainder of index / extent. In column-major order, neighbours
    # along the last axis are the farthest from each other.
    distance = plane_size
    for extent in reversed(extents):
        distance //= extent
        coordinate = step.rem(index, extent)
        by_columns = step.add(by_columns, step.mul(coordinate, distance))
        index = step.div(step.sub(index, coordinate), extent)
    return by_columns


@operator("AveragePool")
def _average_pool(
    site: NodeSite,
    x: Tensor,
    *,
    includes_padding: bool = flag("count_include_pad"),
    rounds_up: bool = _ROUNDS_UP,
) -> Any:
    """Compute the mean of each window.

    If `includes_padding`, items of the padding are included in the mean. If `rounds_up`, a window
    may reach beyond the padding. Items beyond the padding are never included.
    """
    add = site.last.avg_pool
    return _pooled(site, x, add, rounds_up=rounds_up, includes_padding=includes_padding)


def _norm(site: NodeSite, x: Tensor, power: float, total: Callable[[Tensor], Tensor]) -> Any:
    """Compute total(abs(x)^power)^(1/power). `total` sums a tensor over windows or axes."""
    magnitude = site.step.abs(x)
    if power < 1:
        raise InvalidOperation(f"'p' must be 1 or more, it is {power:g}")
    if power == 1:
        return total(magnitude)
    powers = site.step.sqr(magnitude) if power == 2 else site.step.pow(magnitude, power)
    return site.root(total(powers), degree=power)


@operator("LpPool")
def _lp_pool(
    site: NodeSite, x: Tensor, *, power: float = number("p", 2), rounds_up: bool = _ROUNDS_UP
) -> Any:
    """Compute sum(abs(x)^power)^(1/power) of each window."""

    def sum_of_windows(powers: Tensor) -> Tensor:
        return _pooled(site, powers, site.step.box, rounds_up=rounds_up, normalize=False)

    return _norm(site, x, power, sum_of_windows)


@operator("GlobalLpPool")
def _global_lp_pool(site: NodeSite, x: Tensor, *, power: float = number("p", 2)) -> Any:
    """Compute sum(abs(x)^power)^(1/power) of each channel."""
    spatial_axes = plane(site)
    return _norm(site, x, power, lambda powers: site.total(powers, spatial_axes))


@operator("MaxUnpool")
def _max_unpool(site: NodeSite, items: Tensor, indices: Tensor) -> Any:
    """Put items into a tensor of zeros, at the indices that MaxPool returned.

    The tensor has the shape of MaxPool's input. Input 2 is the shape of the result. If the shape of
    the result is larger than the tensor, zeros are added at the end of the axes.
    """
    shape = _shape_before_pool(site)
    item_count = math.prod(site.known_shape())
    flat_items = site.reshaped(items, (item_count,))
    flat_indices = site.reshaped(indices, (item_count,))
    zeros = site.filled(0, site.dtype_of(), (math.prod(shape),))
    flat = site.step.scatter_elements(zeros, flat_indices, flat_items, axis=0, reduction="none")
    result = site.reshaped(flat, shape)
    output_shape = site.integers(2) if site.has(2) else shape
    if output_shape == shape:
        return result
    padding: list[tuple[int, int]] = []
    for output_extent, extent in zip(output_shape, shape, strict=True):
        if output_extent < extent:
            raise InvalidOperation(f"'output_shape' {output_shape} must be {shape} or more")
        padding.append((0, output_extent - extent))
    return site.last.pad(result, padding=padding, border="constant", value=0.0)


def _shape_before_pool(site: NodeSite) -> list[int]:
    """Return the shape of the tensor from which MaxPool made input 0.

    The attributes of the node are the attributes of this MaxPool.
    """
    spatial_rank = site.rank() - 2
    batch, channels, *extents = site.known_shape()
    kernel = site.spatial("kernel_shape", spatial_rank, default=None)
    strides = site.spatial("strides", spatial_rank)
    pads = site.spatial("pads", 2 * spatial_rank, default=0)
    pads_before = pads[:spatial_rank]
    pads_after = pads[spatial_rank:]
    shape = [batch, channels]
    axes = zip(extents, strides, kernel, pads_before, pads_after, strict=True)
    for extent, stride, size, before, after in axes:
        shape.append((extent - 1) * stride + size - before - after)
    return shape
