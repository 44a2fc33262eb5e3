"""Results with as many items as values say: of the largest length there can be, padded."""

from __future__ import annotations

import numpy as np

from lowering.extents import volume
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.flat_graph import Count
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import legacy, opsets


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
    """Return distinct items, their first places, which one each item is, and how often each is."""
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
def _legacy_unique(site: LayerSite) -> list[Value]:
    """Return distinct items, behind them the last again, and what is asked for, as real numbers."""
    x = site.tensor(0)
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
    found: list[Value] = []
    for parts in ([indices, added], [values, defaults]):
        moved = site.last.gather(step.concat(parts, axis=0), order, axis=0)
        found.append(_noted(site, moved, 0, total))
    return [*found, is_empty]
