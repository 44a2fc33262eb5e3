"""Meanings of layers with indices: gather, scatter, one-hot, range, search, and nonzero items.

If the number of items of a result depends on values, the result is padded to the largest length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic, volume
from lowering.graph import Value, is_float, is_integer
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.operators.attributes import dtype, flag, integer, number, text, word
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


@opsets("Gather")
def _gather(
    site: LayerSite, x: Value, *, axis: int = axis_at(2), dims: int = integer("batch_dims", 0)
) -> Value:
    if not x.type.shape:
        return x
    indices = site.indices(1)
    if dims == 0:
        return site.last.gather(x, indices, axis=axis)
    if dims < 0:
        dims += site.rank(1)
    return site.last.gather_in_batches(x, indices, axis=axis, batch_dims=dims)


@legacy("Gather")
def _legacy_gather(site: LayerSite, *, axis: int = integer("axis", 0)) -> Value:
    """Gather items along an axis at indices.

    Input 1 has the indices in most files, but input 0 has them in the catalogue of layers. The
    layer takes the input with which the result has the declared shape.
    """

    def result_shape(data: int, indices: int) -> tuple[int, ...]:
        shape = site.shape(data)
        has_axis = -len(shape) <= axis < len(shape)
        if not has_axis:
            return ()
        k = axis % len(shape)
        return (*shape[:k], *site.shape(indices), *shape[k + 1 :])

    fits_data_first = result_shape(0, 1) == site.declared
    fits_indices_first = result_shape(1, 0) == site.declared
    are_indices_first = fits_indices_first and not fits_data_first
    data, indices = (1, 0) if are_indices_first else (0, 1)
    axis = site.axis(axis, len(site.shape(data)))
    return site.last.gather(site.tensor(data), site.indices(indices), axis=axis)


@opsets("GatherND")
def _gather_nd(
    site: LayerSite, x: Value, indices: Value, *, dims: int = integer("batch_dims", 0)
) -> Value:
    # Operation set 5 joins the batch axes of the result.
    joins = dims > 1 and site.layer.opset == "opset5"
    slices = site.step_or_last(not joins).gather_nd(x, indices, batch_dims=dims)
    return site.flattened(slices, 0, dims - 1) if joins else slices


_NEW_AXIS: dict[str, Any] = {
    "axis": integer("axis", -1),
    "negative": word("negative_indices_mode", "ignore_negative", "normalize"),
}


def _one_hot_result(
    site: LayerSite, indices: Value, values: Sequence[float], dtype: str, **attributes: int
) -> Value:
    """Add a one-hot of indices along a new axis, in a dtype, as the last operation of the layer.

    `values` is the pair (off, on): the result has `on` at the indices and `off` elsewhere.
    `attributes` are the axis and its extent, `depth`.
    """
    if is_float(dtype):
        values = [float(rounding.saturated(x, dtype)) for x in values]
    off, on = values
    is_last = dtype == "float32"
    hot = site.step_or_last(is_last).one_hot(indices, on_value=on, off_value=off, **attributes)
    return hot if is_last else site.last.cast(hot, dtype=dtype)


def _non_negative_indices(site: LayerSite, depth: int, negative: str) -> Value:
    """Return input 0, the indices of a one-hot, without negative indices that the layer ignores.

    If `negative` is "normalize", negative indices count from the end and are kept. Otherwise the
    layer ignores negative indices. Each of them becomes `depth`, which is outside the result.
    """
    step = site.step
    indices = site.indices(0)
    if negative == "normalize" or isinstance(site.operand(0), Constant):
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
    indices = _non_negative_indices(site, depth, negative)
    axis = site.axis(axis, site.rank() + 1)
    return _one_hot_result(site, indices, (off, on), site.real, axis=axis, depth=depth)


@opsets("OneHot", **_NEW_AXIS)
def _one_hot(site: LayerSite, *, depth: int = integer_at(1), axis: int, negative: str) -> Value:
    """Put the value of input 2 at indices along a new axis, and the value of input 3 elsewhere."""
    step = site.step
    indices = _non_negative_indices(site, depth, negative)
    rank = site.rank() + 1
    axis = site.axis(axis, rank)
    has_known_values = isinstance(site.operand(2), Constant) and isinstance(
        site.operand(3), Constant
    )
    if has_known_values:
        values = site.scalar(3), site.scalar(2)
        return _one_hot_result(site, indices, values, site.dtype_of(2), axis=axis, depth=depth)
    hot = step.one_hot(indices, axis=axis, depth=depth, on_value=1.0, off_value=0.0)
    on, off = (site.reshaped(site.tensor(i), [1] * rank) for i in (2, 3))
    return site.last.select(step.ne(hot, 0.0), on, off)


@operator("Range")
def _range(site: LayerSite) -> Constant | Value:
    start, stop, step = (site.known(i).reshape(-1).tolist()[0] for i in range(3))
    operand = site.operand(0)
    type = operand.type if isinstance(operand, Constant) else "f32"
    if site.has_attribute("output_type"):
        type = element_type(site.text("output_type"))
    if step == 0:
        raise InvalidOperation("the step of a range must not be 0")
    if any(map(is_symbolic, (start, stop, step))):
        return site.last.range(
            start=start, end=stop, step=step, dtype=computation_dtype(type, site.real)
        )
    if abs((stop - start) / step) > site.graph.options.meter.limits.array_items:
        raise InvalidOperation("the range has too many items")
    dtype = np.int64 if type[0] in "iu" else np.float32
    items = np.arange(start, stop, step).astype(dtype)
    return Constant(items, type, derived=True)


@operator("Bucketize")
def _bucketize(
    site: LayerSite, x: Value, edges: Value, *, has_right: bool = flag("with_right_bound", True)
) -> Value:
    """Return the index of the bucket of each item.

    A bucket includes its right edge if `has_right`, otherwise its left edge.
    """
    rank = len(x.type.shape)
    x = site.unsqueezed(x, (rank,))
    edges = site.step.unsqueeze(site.cast(edges, x.type.dtype), axes=[*range(rank)])
    compare = site.step.gt if has_right else site.step.ge
    is_beyond = compare(x, edges)
    return site.last.squeeze(site.count(is_beyond, rank, "int32"), axes=(rank,))


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

    If `right`, an edge that equals the item counts too. `edges` are sorted along the last axis.
    """
    rank = len(x.type.shape)
    if len(edges.type.shape) == 1:
        edges = site.step.unsqueeze(edges, axes=[*range(rank - 1)])
    edges = site.unsqueezed(edges, (rank - 1,))
    x = site.unsqueezed(x, (rank,))
    compare = site.step.le if right else site.step.lt
    is_below = compare(edges, x)
    return site.last.squeeze(site.count(is_below, rank, dtype), axes=(rank,))


_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}
_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "min": np.inf, "max": -np.inf}


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
    """Put `updates` into `x` at indices along an axis, or combine them with the items of `x`.

    `reduction` says how they are combined, such as "sum"; with "none", updates replace items. If
    not `keeps_first`, the items of `x` at the indices do not take part.
    """
    dtype = x.type.dtype

    def scattered(add: ByKind, start: Value, items: Value, kind: str) -> Value:
        return add.scatter_elements(start, indices, items, axis=axis, reduction=kind)

    def filled(item: float, like: Value = updates) -> Value:
        if is_integer(dtype):
            item = int(np.clip(item, *ends_of(dtype)))
        shape = site.known_shape(like)
        return site.step.constant(shape=shape, value=(item,), dtype=dtype)

    if reduction == "none":
        return scattered(site.last, x, updates, "none")
    if not keeps_first:
        x = scattered(site.step, x, filled(_NEUTRAL[reduction]), "none")
    if reduction != "mean":
        return scattered(site.last, x, updates, _REDUCTIONS[reduction])
    total = scattered(site.step, x, updates, "add")
    count = scattered(site.step, filled(0, x), filled(1), "add")
    one = site.step.constant(shape=(), value=(1,), dtype=dtype)
    count = site.step.add(count, one) if keeps_first else site.step.max(count, one)
    return site.last.div(total, count)


@opsets("ScatterNDUpdate")
def _scatter_nd(
    site: LayerSite,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    reduction: str = word("reduction", *_REDUCTIONS, "sub"),
) -> Value:
    """Put slices into `x` at coordinates, or combine them with the slices that are there.

    `updates` are the slices. `reduction` says how they are combined, such as "sum"; with "none",
    they replace the slices of `x`.
    """
    if reduction == "sub":
        reduction = "sum"
        updates = site.step.neg(updates)
    return site.last.scatter_nd(x, indices, updates, reduction=_REDUCTIONS[reduction])


@operator("ScatterUpdate")
def _scatter_update(
    site: LayerSite, x: Value, indices: Value, updates: Value, *, axis: int = axis_at(3)
) -> Value:
    """Replace the slices of `x` at `indices` along an axis by `updates`."""
    rank = len(x.type.shape)
    count = len(indices.type.shape)
    # The axis is moved to the front of x. In the updates, the axes of the indices, which replace
    # this axis, are moved to the front.
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved = site.transposed(x, order)
    indices_first = [
        *range(axis, axis + count), *range(axis), *range(axis + count, rank - 1 + count)
    ]  # fmt: skip
    changes = site.transposed(updates, indices_first)
    coordinates = site.unsqueezed(indices, (count,))
    result = site.step_or_last(axis == 0).scatter_nd(moved, coordinates, changes, reduction="none")
    if axis == 0:
        return result
    inverse_order = np.argsort(order).tolist()
    return site.last.transpose(result, axes=inverse_order)


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
    """Put `updates` into the region of `x` that the layer Slice would return for these bounds."""
    shape = site.known_shape()
    axes = site.axes(5) if site.has(5) else list(range(len(start)))
    site.spend(sum(shape[axis] for axis in axes))
    indices: list[tuple[int, NDArray[np.int64]]] = []
    for axis, first, last, stride in zip(axes, start, stop, step, strict=True):
        indices.append((axis, np.arange(shape[axis])[first:last:stride]))
    return _updated(site, x, updates, indices)


def _updated(
    site: LayerSite, x: Value, updates: Value, indices: Sequence[tuple[int, NDArray[np.int64]]]
) -> Value:
    """Put `updates` into `x` at the product of indices along several axes.

    `indices` has pairs of an axis and the indices along this axis.
    """
    (axis, items), *inner = indices
    if inner:
        part = site.step.gather(x, derived(items), axis=axis)
        updates = _updated(site, part, updates, inner)
    shape = [1] * len(x.type.shape)
    shape[axis] = len(items)
    along = site.step.broadcast(derived(items.reshape(shape)), shape=updates.type.shape)
    return site.last.scatter_elements(x, along, updates, axis=axis, reduction="none")


# Results whose number of items depends on values


def _noted(site: LayerSite, x: Value, axis: int, items: Value) -> Value:
    """Note the number of items along the padded axis of `x`, and return `x`.

    `items` is the number, as a tensor of shape (1,). The items after them are padding.
    """
    site.graph.counts[x] = Count(axis, items)
    return x


def _total(site: LayerSite, x: Value) -> Value:
    """Count the true items of a tensor. The result has shape (1,)."""
    numbers = site.step.cast(x, dtype=site.integer)
    axes = [*range(len(x.type.shape))]
    return site.reshaped(site.step.sum_reduce(numbers, axes=axes, normalize=False), (1,))


@opsets("NonZero")
def _non_zero(site: LayerSite, *, type: str = text("output_type", "i64")) -> Value | Constant:
    """Return the indices of the elements of input 0 that are not 0, with shape (rank, elements)."""
    x = site.operand(0)
    if isinstance(x, Constant):
        return Constant(np.stack(np.nonzero(np.atleast_1d(x.array))), type, derived=True)
    if not x.type.shape:
        x = site.reshaped(x, (1,))
    site.known_shape(x)
    indices = site.cast(site.last.non_zero(x), site.dtype("output_type", "i64"))
    return _noted(site, indices, 1, _total(site, site.truths(x)))


def _distinct(site: LayerSite, x: Value, axis: int, *, sorts: bool) -> tuple[Value, ...]:
    site.known_shape(x)
    return site.last.unique(x, axis=axis, sorts=sorts)


@opsets("Unique")
def _unique(
    site: LayerSite,
    x: Value,
    *,
    sorts: bool = flag("sorted", True),
    index_dtype: str = dtype("index_element_type", "i64"),
    count_dtype: str = dtype("count_element_type", "i64"),
) -> list[Value]:
    """Return the distinct items along an axis, or of the flat input, and three tensors of integers.

    The first tensor has the index of the first occurrence of each distinct item. The second tensor
    has, for each item of the input, the index of the equal distinct item. The third tensor has the
    number of occurrences of each distinct item.
    """
    axis = 0
    if site.has(1):
        axis = site.axes(1)[0]
    else:
        x = site.reshaped(x, (volume(site.known_shape(x)),))
    items, first, inverse, counts, number = _distinct(site, x, axis, sorts=sorts)
    number = site.cast(number, site.integer)
    return [
        _noted(site, items, axis, number),
        _noted(site, site.cast(first, index_dtype), 0, number),
        site.cast(inverse, index_dtype),
        _noted(site, site.cast(counts, count_dtype), 0, number),
    ]


@legacy("Unique")
def _legacy_unique(
    site: LayerSite,
    x: Value,
    *,
    sorts: bool = flag("sorted"),
    with_inverse: bool = flag("return_inverse"),
    with_counts: bool = flag("return_counts"),
) -> list[Value]:
    """Return the distinct items of a vector, padded by repeats of the last distinct item.

    If `with_inverse`, the next result has the index of the distinct item for each item of the
    input. If `with_counts`, the last result has the number of occurrences of each distinct item.
    Both results are real numbers.
    """
    items, _, inverse, counts, _ = _distinct(site, x, 0, sorts=sorts)
    results = [items]
    if with_inverse:
        results.append(site.cast(inverse, x.type.dtype))
    if with_counts:
        results.append(site.cast(counts, x.type.dtype))
    return results


@opsets("SparseFillEmptyRows")
def _filled_rows(site: LayerSite, values: Value, *, rows: int = integer_at(1)) -> list[Value]:
    """Add an entry with the default value to each row of a sparse matrix that has no entries.

    `rows` is the number of rows. The results are the indices of the entries, of shape (entries, 2),
    the values of the entries, of shape (entries,), and a bool for each row that tells whether the
    row was empty.
    """
    step = site.step
    indices = site.integer_tensor(2)
    count = site.known_shape(values)[0]
    row = site.part(indices, 1, 0, 1)  # of shape (items, 1)
    sizes = site.count(step.eq(row, site.positions(rows, 1, 2)), 0)
    is_empty = step.eq(site.reshaped(sizes, (rows,)), 0)
    # All items, and a default for each row, are sorted by row. A default that is not needed gets
    # the key `rows`, so that it comes last.
    keys = step.select(is_empty, site.positions(rows), rows)
    keys = step.concat([site.reshaped(row, (count,)), keys], axis=0)
    _, order = step.topk(keys, k=count + rows, axis=0, largest=False)
    total = step.add(_total(site, is_empty), count)
    added = site.padded(site.positions(rows, 0, 2), {1: (0, 1)})
    defaults = step.broadcast(site.reshaped(site.tensor(3), (1,)), shape=(rows,))
    indices = step.concat([indices, added], axis=0)
    values = step.concat([values, defaults], axis=0)
    moved = [site.last.gather(x, order, axis=0) for x in (indices, values)]
    return [*(_noted(site, x, 0, total) for x in moved), is_empty]
