"""Items by index: what is gathered, put where indices say, searched for, counted.

Results with as many items as values say are of the largest length there can be, padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic, volume
from lowering.graph import Value, is_float, is_integer
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets


@opsets("Gather")
def _gather(site: LayerSite) -> Value:
    rank, axis, dims = len(site.shape()), site.axes(2)[0], site.int("batch_dims", 0)
    indices = len(site.shape(1))
    if not rank:
        return site.tensor(0)
    x, places = site.tensor(0), site.indices(1)
    if dims == 0:
        return site.last.gather(x, places, axis=axis)
    dims = dims + indices if dims < 0 else dims
    return site.last.gather_in_batches(x, places, axis=axis, batch_dims=dims)


@legacy("Gather")
def _legacy_gather(site: LayerSite) -> Value:
    """Gather by whole numbers: the catalogue has indices first, files have them second."""
    axis = site.int("axis", 0)

    def result(data: int, indices: int) -> tuple[int, ...]:
        shape = site.shape(data)
        if not -len(shape) <= axis < len(shape):
            return ()
        at = axis % len(shape)
        return (*shape[:at], *site.shape(indices), *shape[at + 1 :])

    first = result(0, 1) == site.declared or result(1, 0) != site.declared
    data, indices = (0, 1) if first else (1, 0)
    axis = site.axis(axis, len(site.shape(data)))
    return site.last.gather(site.tensor(data), site.indices(indices), axis=axis)


@opsets("GatherND")
def _gather_nd(site: LayerSite) -> Value:
    dims = site.int("batch_dims", 0)
    joins = dims > 1 and site.layer.opset == "opset5"  # the batches
    found = site.step_or_last(not joins).gather_nd(*site.first(2), batch_dims=dims)
    return site.flattened(found, 0, dims - 1) if joins else found


@operator("OneHot")
def _one_hot(site: LayerSite) -> Value:
    """Put a value at indices along a new axis, another elsewhere; both may be computed."""
    is_legacy, step = site.net.is_legacy, site.step
    indices = site.indices(0)
    depth = site.int("depth") if is_legacy else site.integers(1)[0]
    rank = len(indices.type.shape) + 1
    axis = site.axis(site.int("axis", -1), rank)
    modes = ("ignore_negative", "normalize")
    ignores = site.choice("negative_indices_mode", *modes, default=modes[0]) == modes[0]
    if ignores and not isinstance(site.operand(0), Constant):  # they name nothing
        below = step.lt(indices, site.beside(indices, 0))
        behind = step.constant(shape=(), value=(depth,), dtype=indices.type.dtype)
        indices = step.select(below, behind, indices)
    if is_legacy:
        values, dtype = [site.number("on_value", 1), site.number("off_value", 0)], site.real
    else:
        dtype = site.dtype_of(2)
        known = not any(isinstance(site.operand(i), Value) for i in (2, 3))
        values = [site.scalar(i) for i in (2, 3)] if known else []
    if values:
        values = [float(rounding.saturated(x, dtype)) if is_float(dtype) else x for x in values]
        given = {"axis": axis, "depth": depth, "on_value": values[0], "off_value": values[1]}
        hot = site.step_or_last(dtype == "float32").one_hot(indices, **given)
        return hot if dtype == "float32" else site.last.cast(hot, dtype=dtype)
    hot = step.one_hot(indices, axis=axis, depth=depth, on_value=1.0, off_value=0.0)
    on, off = (site.reshaped(site.tensor(i), (1,) * rank) for i in (2, 3))
    return site.last.select(step.ne(hot, 0.0), on, off)


@operator("Range")
def _range(site: LayerSite) -> Constant | Value:
    start, stop, step = (site.known(i).reshape(-1).tolist()[0] for i in range(3))
    operand = site.operand(0)
    type = operand.type if isinstance(operand, Constant) else "f32"
    if "output_type" in site.layer.attributes:
        type = element_type(site.text("output_type"))
    if step == 0:
        raise InvalidOperation("the step of a range is 0")
    if any(map(is_symbolic, (start, stop, step))):
        return site.last.range(start=start, end=stop, step=step, dtype=computed(type, site.real))
    if abs((stop - start) / step) > site.graph.options.meter.limits.array_items:
        raise InvalidOperation("the range has too many items")
    found = np.arange(start, stop, step)
    return Constant(found.astype(np.int64 if type[0] in "iu" else np.float32), type, derived=True)


@operator("Bucketize")
def _bucketize(site: LayerSite, x: Value, edges: Value) -> Value:
    """Return between which boundaries items lie."""
    beyond = "gt" if site.flag("with_right_bound", True) else "ge"
    rank = len(x.type.shape)
    x = site.unsqueezed(x, (rank,))
    edges = site.step.unsqueeze(site.cast(edges, x.type.dtype), axes=[*range(rank)])
    found = site.count(getattr(site.step, beyond)(x, edges), rank, "int32")
    return site.last.squeeze(found, axes=(rank,))


@opsets("SearchSorted")
def _search_sorted(site: LayerSite, edges: Value, x: Value) -> Value:
    """Return how many items of a sorted last axis are below each value, or not above it."""
    rank = len(x.type.shape)
    if len(edges.type.shape) == 1:
        edges = site.step.unsqueeze(edges, axes=[*range(rank - 1)])
    edges, x = site.unsqueezed(edges, (rank - 1,)), site.unsqueezed(x, (rank,))
    below = getattr(site.step, "le" if site.flag("right_mode") else "lt")(edges, x)
    found = site.count(below, rank, site.dtype("output_type", "i64"))
    return site.last.squeeze(found, axes=(rank,))


_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}
_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "min": np.inf, "max": -np.inf}


@opsets("ScatterElementsUpdate")
def _scatter_elements(site: LayerSite, x: Value, indices: Value, updates: Value) -> Value:
    """Put single items at indices along an axis, joined with what is there if so asked."""
    axis, dtype = site.axes(3)[0], x.type.dtype
    reduction = site.choice("reduction", *_REDUCTIONS, "mean", default="none")
    keeps_first = site.flag("use_init_val", True)

    def scattered(steps: ByKind, start: Value, items: Value, how: str) -> Value:
        return steps.scatter_elements(start, indices, items, axis=axis, reduction=how)

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
    count = getattr(site.step, "add" if keeps_first else "max")(count, one)
    return site.last.div(total, count)


@opsets("ScatterNDUpdate")
def _scatter_nd(site: LayerSite) -> Value:
    """Put slices at coordinates, joined with what is there if so asked."""
    reduction = site.choice("reduction", *_REDUCTIONS, "sub", default="none")
    x, indices, updates = site.first(3)
    if reduction == "sub":
        reduction, updates = "sum", site.step.neg(updates)
    return site.last.scatter_nd(x, indices, updates, reduction=_REDUCTIONS[reduction])


@operator("ScatterUpdate")
def _scatter_update(site: LayerSite, x: Value, indices: Value, updates: Value) -> Value:
    """Put slices at indices along an axis."""
    axis = site.axes(3)[0]
    rank, count = len(x.type.shape), len(indices.type.shape)
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved = site.transposed(x, order)
    back = [*range(axis, axis + count), *range(axis), *range(axis + count, rank - 1 + count)]
    changes = site.transposed(updates, back)
    places = site.unsqueezed(indices, (count,))
    found = site.step_or_last(axis == 0).scatter_nd(moved, places, changes, reduction="none")
    return found if axis == 0 else site.last.transpose(found, axes=np.argsort(order).tolist())


@opsets("SliceScatter")
def _slice_scatter(site: LayerSite) -> Value:
    """Put updates where `Slice` would take items from."""
    start, stop, step = (site.integers(i) for i in (2, 3, 4))
    shape = site.known_shape()
    axes = site.axes(5) if site.has(5) else list(range(len(start)))
    site.spend(sum(shape[a] for a in axes))
    bounds = zip(axes, start, stop, step, strict=True)
    places = [(a, np.arange(shape[a])[b:e:s]) for a, b, e, s in bounds]
    return _placed(site, site.tensor(0), site.tensor(1), places)


def _placed(
    site: LayerSite, x: Value, updates: Value, places: Sequence[tuple[int, np.ndarray[Any, Any]]]
) -> Value:
    """Put updates at places along axes, one axis after the other."""
    (axis, at), *rest = places
    indices = derived(at)
    if rest:
        part = site.step.gather(x, indices, axis=axis)
        updates = _placed(site, part, updates, rest)
    shape = [1] * len(x.type.shape)
    shape[axis] = len(at)
    along = site.step.broadcast(derived(at.reshape(shape)), shape=updates.type.shape)
    return site.last.scatter_elements(x, along, updates, axis=axis, reduction="none")


# As many items as values say


def _noted(site: LayerSite, x: Value, axis: int, items: Value) -> Value:
    site.graph.counts[x] = Count(axis, items)
    return x


def _total(site: LayerSite, x: Value) -> Value:
    """Return how often a condition is true, [1]."""
    numbers = site.step.cast(x, dtype=site.integer)
    axes = [*range(len(x.type.shape))]
    return site.reshaped(site.step.sum_reduce(numbers, axes=axes, normalize=False), (1,))


@opsets("NonZero")
def _non_zero(site: LayerSite) -> Value | Constant:
    """Return the places of items that are not 0, an axis of the input in each row."""
    known, type = site.operand(0), site.text("output_type", "i64")
    if isinstance(known, Constant):
        return Constant(np.stack(np.nonzero(np.atleast_1d(known.array))), type, derived=True)
    x = known if known.type.shape else site.reshaped(known, (1,))
    site.known_shape(x)
    found = site.cast(site.last.non_zero(x), site.dtype("output_type", "i64"))
    return _noted(site, found, 1, _total(site, site.truths(x)))


def _distinct(site: LayerSite, x: Value, axis: int, *, sorts: bool) -> tuple[Value, ...]:
    site.known_shape(x)
    return site.last.unique(x, axis=axis, sorts=sorts)


@opsets("Unique")
def _unique(site: LayerSite) -> list[Value]:
    """Return the distinct items, with first places, inverse indices and counts."""
    x, axis = site.tensor(0), 0
    if site.has(1):
        axis = site.axes(1)[0]
    else:
        x = site.reshaped(x, (volume(site.known_shape(x)),))
    items, first, inverse, often, count = _distinct(site, x, axis, sorts=site.flag("sorted", True))
    index, number = site.dtype("index_element_type", "i64"), site.dtype("count_element_type", "i64")
    count = site.cast(count, site.integer)
    return [
        _noted(site, items, axis, count),
        _noted(site, site.cast(first, index), 0, count),
        site.cast(inverse, index),
        _noted(site, site.cast(often, number), 0, count),
    ]


@legacy("Unique")
def _legacy_unique(site: LayerSite, x: Value) -> list[Value]:
    """Return distinct items, behind them the last again, and what is asked for, as real numbers."""
    items, _, inverse, often, _ = _distinct(site, x, 0, sorts=site.flag("sorted"))
    asked = [("return_inverse", inverse), ("return_counts", often)]
    return [items, *(site.cast(found, x.type.dtype) for name, found in asked if site.flag(name))]


@opsets("SparseFillEmptyRows")
def _filled_rows(site: LayerSite) -> list[Value]:
    """Return a sparse matrix in which each row has an item: a default one where there was none."""
    step = site.step
    values, indices = site.tensor(0), site.whole(2)
    rows, count = site.integers(1)[0], site.known_shape(values)[0]
    row = site.part(indices, 1, 0, 1)  # [items,1]
    sizes = site.count(step.eq(row, site.places(rows, 1, 2)), 0)
    is_empty = step.eq(site.reshaped(sizes, (rows,)), 0)
    # Candidates are all items, then one for each row; those left out get a key behind all rows.
    keys = step.select(is_empty, site.places(rows), rows)
    keys = step.concat([site.reshaped(row, (count,)), keys], axis=0)
    order = step.topk(keys, k=count + rows, axis=0, largest=False)[1]
    total = step.add(_total(site, is_empty), count)
    added = site.padded(site.places(rows, 0, 2), {1: (0, 1)})
    defaults = step.broadcast(site.reshaped(site.tensor(3), (1,)), shape=(rows,))
    joined = [step.concat(parts, axis=0) for parts in ([indices, added], [values, defaults])]
    moved = [site.last.gather(x, order, axis=0) for x in joined]
    return [*(_noted(site, x, 0, total) for x in moved), is_empty]
