"""Functions for layers with indices: gather, scatter, one-hot, range and search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import Shape, is_symbolic
from lowering.graph import Value, is_float, is_integer
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.operators.attributes import dtype, flag, integer, number, word
from nnef_jax.flattening.ranges import symbolic_range
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import computation_dtype, element_type
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import (
    axis_at,
    integer_at,
    integers_at,
    legacy,
    operator,
    opsets,
)

_AxisIndices = tuple[int, NDArray[np.int64]]  # an axis, and indices along the axis


@opsets("Gather")
def _gather(
    site: LayerSite, x: Value, *, axis: int = axis_at(2), batch_dims: int = integer("batch_dims", 0)
) -> Value:
    """Gather items of `x` along an axis, at the indices in input 1.

    The first `batch_dims` axes of `x` and of the indices are batch axes. The rank of the indices is
    added to a negative `batch_dims`.
    """
    if not x.type.shape:
        return x  # a scalar has no axis, and only one item
    indices = site.indices(1)
    if batch_dims == 0:
        return site.last.gather(x, indices, axis=axis)
    if batch_dims < 0:
        batch_dims += site.rank(1)
    return site.last.gather_in_batches(x, indices, axis=axis, batch_dims=batch_dims)


@legacy("Gather")
def _legacy_gather(site: LayerSite, *, axis: int = integer("axis", 0)) -> Value:
    """Gather items along an axis at indices.

    In most files the data are input 0 and the indices are input 1. In OpenVINO's catalogue of
    layers the order is reversed. The reversed order is used if only this order leads to the shape
    that the file declares for the result.
    """
    shapes = [site.shape(0), site.shape(1)]
    fits_data_first = _gathered_shape(shapes[0], shapes[1], axis) == site.declared
    fits_indices_first = _gathered_shape(shapes[1], shapes[0], axis) == site.declared
    are_indices_first = fits_indices_first and not fits_data_first
    data_index, indices_index = (1, 0) if are_indices_first else (0, 1)
    positive_axis = site.axis(axis, len(shapes[data_index]))
    indices = site.indices(indices_index)
    return site.last.gather(site.tensor(data_index), indices, axis=positive_axis)


def _gathered_shape(data: Shape, indices: Shape, axis: int) -> Shape:
    """Return the shape of a gather's result, from the shapes of the data and of the indices.

    Return () if the data do not have the axis.
    """
    rank = len(data)
    has_axis = -rank <= axis < rank
    if not has_axis:
        return ()
    positive_axis = axis % rank
    return (*data[:positive_axis], *indices, *data[positive_axis + 1 :])


@opsets("GatherND")
def _gather_nd(
    site: LayerSite, x: Value, indices: Value, *, batch_dims: int = integer("batch_dims", 0)
) -> Value:
    """Gather slices of `x` at coordinates. The last axis of `indices` has the coordinates.

    The first `batch_dims` axes are batch axes. In operation set 5, the batch axes are joined to one
    axis of the result.
    """
    joins_batch_axes = batch_dims > 1 and site.layer.opset == "opset5"
    slices = site.step_or_last(not joins_batch_axes).gather_nd(x, indices, batch_dims=batch_dims)
    return site.flattened(slices, first=0, last=batch_dims - 1) if joins_batch_axes else slices


_NEW_AXIS: dict[str, Any] = {
    "axis": integer("axis", -1),
    "negative": word("negative_indices_mode", "ignore_negative", "normalize"),
}


_MOST_EXACT = 1 << 24  # float32 has all integers up to this number


def _one_hot_result(
    site: LayerSite, indices: Value, values: Sequence[float], dtype: str, *, axis: int, depth: int
) -> Value:
    """Add a one-hot of `indices` along a new axis, as the last operation of the layer.

    `values` is the pair (off, on): the result has `on` at the indices and `off` elsewhere. `dtype`
    is the dtype of the result, and `depth` is the extent of the new axis.
    """
    if is_float(dtype):
        # Numbers beyond the range of the dtype become the smallest or largest number of the dtype.
        values = [float(rounding.saturated(value, dtype)) for value in values]
    off, on = values
    needs_cast = dtype != "float32"  # the operation `one_hot` returns float32
    one_hot = site.step_or_last(not needs_cast).one_hot(
        indices, on_value=on, off_value=off, axis=axis, depth=depth
    )
    return site.last.cast(one_hot, dtype=dtype) if needs_cast else one_hot


def _one_hot_indices(site: LayerSite, depth: int, negative: str) -> Value:
    """Return the indices of a one-hot (input 0), with ignored indices replaced by `depth`.

    The index `depth` is outside the result. If `negative` is "normalize", negative indices count
    from the end and are unchanged. Otherwise the layer ignores negative indices that the network
    computes. Constant indices are always unchanged.
    """
    step = site.step
    indices = site.indices(0)
    is_known = isinstance(site.operand(0), Constant)
    if is_known or negative == "normalize":
        return indices
    is_negative = step.lt(indices, site.number_like(indices, 0))
    outside = step.constant(shape=(), value=(depth,), dtype=indices.type.dtype)
    return step.select(is_negative, outside, indices)


@legacy("OneHot", **_NEW_AXIS)
def _legacy_one_hot(
    site: LayerSite,
    *,
    depth: int = integer("depth"),
    off: float = number("off_value", 0),
    on: float = number("on_value", 1),
    axis: int,
    negative: str,
) -> Value:
    """Put the value `on` at indices along a new axis, and `off` elsewhere."""
    indices = _one_hot_indices(site, depth, negative)
    axis = site.axis(axis, site.rank() + 1)
    return _one_hot_result(site, indices, (off, on), site.real, axis=axis, depth=depth)


@opsets("OneHot", **_NEW_AXIS)
def _one_hot(site: LayerSite, *, depth: int = integer_at(1), axis: int, negative: str) -> Value:
    """Put the value of input 2 at indices along a new axis, and the value of input 3 elsewhere."""
    step = site.step
    indices = _one_hot_indices(site, depth, negative)
    rank = site.rank() + 1
    axis = site.axis(axis, rank)
    are_known = all(isinstance(site.operand(i), Constant) for i in (2, 3))
    if are_known:
        off_and_on = site.scalar(3), site.scalar(2)
        dtype = site.dtype_of(2)
        if is_float(dtype) or all(abs(value) <= _MOST_EXACT for value in off_and_on):
            return _one_hot_result(site, indices, off_and_on, dtype, axis=axis, depth=depth)
    # The operation `one_hot` takes only constant values of float32. Values that the network
    # computes, and large integers, are selected afterwards.
    one_hot = step.one_hot(indices, axis=axis, depth=depth, on_value=1.0, off_value=0.0)
    on = site.reshaped(site.tensor(2), [1] * rank)
    off = site.reshaped(site.tensor(3), [1] * rank)
    return site.last.select(step.ne(one_hot, 0.0), on, off)


@operator("Range")
def _range(site: LayerSite) -> Constant | Value:
    """Return the numbers from input 0 to input 1 in steps of input 2, without input 1 itself.

    For example, the inputs 1, 7 and 2 give [1, 3, 5]. The numbers are constants, unless an input is
    a symbolic extent.
    """
    start, stop, step = (site.known(i).reshape(-1).tolist()[0] for i in range(3))
    if site.has_attribute("output_type"):
        type = element_type(site.text("output_type"))
    else:
        first = site.operand(0)
        type = first.type if isinstance(first, Constant) else "f32"
    if step == 0:
        raise InvalidOperation("the step of a range must not be 0")
    has_symbols = is_symbolic(start) or is_symbolic(stop) or is_symbolic(step)
    if has_symbols:
        return symbolic_range(site, start, stop, step, computation_dtype(type, site.real))
    count = abs((stop - start) / step)
    if count > site.graph.options.meter.limits.array_items:
        raise InvalidOperation("the range has too many items")
    dtype = np.int64 if type[0] in "iu" else np.float32
    items = np.arange(start, stop, step).astype(dtype)
    return Constant(items, type, derived=True)


@operator("Bucketize")
def _bucketize(
    site: LayerSite, x: Value, edges: Value, *, has_right: bool = flag("with_right_bound", True)
) -> Value:
    """Return the index of the bucket of each item of `x`. The buckets lie between `edges`.

    A bucket includes its right edge if `has_right`, otherwise its left edge.
    """
    rank = len(x.type.shape)
    # Each item is compared with all edges, along a new last axis. The edges below the item are
    # counted.
    x = site.unsqueezed(x, (rank,))
    edges = site.step.unsqueeze(site.cast(edges, x.type.dtype), axes=[*range(rank)])
    compare = site.step.gt if has_right else site.step.ge
    is_beyond_edge = compare(x, edges)
    return site.last.squeeze(site.count(is_beyond_edge, rank, "int32"), axes=(rank,))


@opsets("SearchSorted")
def _search_sorted(
    site: LayerSite,
    edges: Value,
    x: Value,
    *,
    right: bool = flag("right_mode"),
    dtype: str = dtype("output_type", "i64"),
) -> Value:
    """Count, for each item of `x`, the edges that are less than the item.

    If `right`, an edge that equals the item counts too. `edges` are sorted along the last axis. One
    vector of edges may serve all rows of `x`.
    """
    rank = len(x.type.shape)
    if len(edges.type.shape) == 1:
        edges = site.step.unsqueeze(edges, axes=[*range(rank - 1)])
    # Each item is compared with all edges, along a new last axis.
    edges = site.unsqueezed(edges, (rank - 1,))  # shape (..., 1, edges)
    x = site.unsqueezed(x, (rank,))  # shape (..., items, 1)
    compare = site.step.le if right else site.step.lt
    is_edge_below = compare(edges, x)
    return site.last.squeeze(site.count(is_edge_below, rank, dtype), axes=(rank,))


_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}
_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "min": np.inf, "max": -np.inf}  # neutral items


@opsets("ScatterElementsUpdate")
def _scatter_elements(
    site: LayerSite,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    axis: int = axis_at(3),
    reduction: str = word("reduction", *_REDUCTIONS, "mean"),
    keeps_first: bool = flag("use_init_val", True),
) -> Value:
    """Put `updates` into `x` at indices along an axis, or combine `updates` with the items of `x`.

    `reduction` is the way to combine updates and items, such as "sum". If it is "none", updates
    replace items. If `keeps_first` is false, the updates at an index are combined without the item
    of `x`.
    """
    dtype = x.type.dtype

    def scattered(add: ByKind, start: Value, items: Value, kind: str) -> Value:
        return add.scatter_elements(start, indices, items, axis=axis, reduction=kind)

    def filled_like(tensor: Value, item: float) -> Value:
        if is_integer(dtype):
            item = int(np.clip(item, *ends_of(dtype)))
        return site.step.constant(shape=site.known_shape(tensor), value=(item,), dtype=dtype)

    if reduction == "none":
        return scattered(site.last, x, updates, "none")
    if not keeps_first:
        # A neutral item, such as 0 for a sum, takes the place of each item that has updates.
        neutral_items = filled_like(updates, _NEUTRAL[reduction])
        x = scattered(site.step, x, neutral_items, "none")
    if reduction != "mean":
        return scattered(site.last, x, updates, _REDUCTIONS[reduction])
    total = scattered(site.step, x, updates, "add")
    zeros, ones = filled_like(x, 0), filled_like(updates, 1)
    update_count = scattered(site.step, zeros, ones, "add")
    one = site.step.constant(shape=(), value=(1,), dtype=dtype)
    # If the items of `x` do not count, items without updates are divided by 1 instead of 0.
    combine = site.step.add if keeps_first else site.step.max
    return site.last.div(total, combine(update_count, one))


@opsets("ScatterNDUpdate")
def _scatter_nd(
    site: LayerSite,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    reduction: str = word("reduction", *_REDUCTIONS, "sub"),
) -> Value:
    """Put the slices `updates` into `x` at coordinates, or combine `updates` with slices of `x`.

    `reduction` is the way to combine slices, such as "sum". If it is "none", the updates replace
    the slices of `x`.
    """
    if reduction == "sub":
        reduction = "sum"
        updates = site.step.neg(updates)
    return site.last.scatter_nd(x, indices, updates, reduction=_REDUCTIONS[reduction])


@operator("ScatterUpdate")
def _scatter_update(
    site: LayerSite, x: Value, indices: Value, updates: Value, *, axis: int = axis_at(3)
) -> Value:
    """Replace the slices of `x` at `indices` along an axis by `updates`.

    In `updates`, the axes of `indices` are in place of this axis. For example, `x` has shape
    (2, 9, 5), the axis is 1, `indices` has shape (3, 4), and `updates` has shape (2, 3, 4, 5).
    """
    rank = len(x.type.shape)
    indices_rank = len(indices.type.shape)
    updates_rank = rank - 1 + indices_rank
    # The axis is moved to the front of `x`: (9, 2, 5) in the example.
    order = [axis, *range(axis), *range(axis + 1, rank)]
    x_axis_first = site.transposed(x, order)
    # The axes of the indices are moved to the front of `updates`: (3, 4, 2, 5) in the example.
    after_indices = axis + indices_rank
    updates_order = [*range(axis, after_indices), *range(axis), *range(after_indices, updates_rank)]
    updates_indices_first = site.transposed(updates, updates_order)
    coordinates = site.unsqueezed(indices, (indices_rank,))
    result = site.step_or_last(axis == 0).scatter_nd(
        x_axis_first, coordinates, updates_indices_first, reduction="none"
    )
    if axis == 0:
        return result
    return site.last.transpose(result, axes=np.argsort(order).tolist())  # moves the axis back


@opsets("SliceScatter")
def _slice_scatter(
    site: LayerSite,
    x: Value,
    updates: Value,
    *,
    start: list[int] = integers_at(2),
    stop: list[int] = integers_at(3),
    step: list[int] = integers_at(4),
) -> Value:
    """Put `updates` into the region of `x` that Slice returns for the same bounds."""
    shape = site.known_shape()
    axes = site.axes(5) if site.has(5) else list(range(len(start)))
    site.spend(sum(shape[axis] for axis in axes))
    indices_by_axis: list[_AxisIndices] = []
    for axis, first, last, stride in zip(axes, start, stop, step, strict=True):
        indices_by_axis.append((axis, np.arange(shape[axis])[first:last:stride]))
    return _updated(site, x, updates, indices_by_axis)


def _updated(
    site: LayerSite, x: Value, updates: Value, indices_by_axis: Sequence[_AxisIndices]
) -> Value:
    """Put `updates` into `x` at all combinations of the indices along several axes.

    For example, the pairs (0, [1, 2]) and (1, [5]) of axis and indices stand for x[1:3, 5:6].
    """
    (axis, indices), *further_axes = indices_by_axis
    if further_axes:
        # The slices at the indices of the first axis are updated along all other axes.
        slices = site.step.gather(x, derived(indices), axis=axis)
        updates = _updated(site, slices, updates, further_axes)
    # A scatter needs an index for each item of `updates`.
    indices_shape = [1] * len(x.type.shape)
    indices_shape[axis] = len(indices)
    shaped_indices = derived(indices.reshape(indices_shape))
    broadcast_indices = site.step.broadcast(shaped_indices, shape=updates.type.shape)
    return site.last.scatter_elements(x, broadcast_indices, updates, axis=axis, reduction="none")
