"""Functions for NonZero, Unique and SparseFillEmptyRows, which compute the sizes of their results.

Each result has the largest possible extent. The places behind its items are padding.
"""

from __future__ import annotations

import numpy as np

from lowering.extents import volume
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import dtype, flag, text
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import integer_at, legacy, opsets


def _true_count(site: LayerSite, x: Value) -> Value:
    """Count the true items of `x`, a tensor of bool. The result has shape (1,)."""
    numbers = site.step.cast(x, dtype=site.integer)
    all_axes = [*range(len(x.type.shape))]
    count = site.step.sum_reduce(numbers, axes=all_axes, normalize=False)
    return site.reshaped(count, (1,))


@opsets("NonZero")
def _non_zero(site: LayerSite, *, type: str = text("output_type", "i64")) -> Value | Constant:
    """Return the indices of the elements of input 0 that are not 0, with shape (rank, elements)."""
    x = site.operand(0)
    if isinstance(x, Constant):
        indices_by_axis = np.nonzero(np.atleast_1d(x.array))
        return Constant(np.stack(indices_by_axis), type, derived=True)
    if not x.type.shape:
        x = site.reshaped(x, (1,))
    site.known_shape(x)  # all extents must be known
    indices = site.cast(site.last.non_zero(x), site.dtype("output_type", "i64"))
    return site.listed(indices, axis=1, count=_true_count(site, site.truths(x)))


def _distinct(site: LayerSite, x: Value, axis: int, *, sorts: bool) -> tuple[Value, ...]:
    """Return the distinct items of `x` along an axis, and four tensors of integers.

    The first tensor has the index of the first occurrence of each distinct item. The second tensor
    has, for each item of `x`, the index of the equal distinct item. The third tensor has the number
    of occurrences of each distinct item. The last tensor is the number of distinct items. If
    `sorts`, the distinct items are sorted.
    """
    site.known_shape(x)  # all extents must be known
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
    """Return the distinct items along an axis, and three tensors of integers.

    The first tensor has the index of the first occurrence of each distinct item. The second tensor
    has, for each item of the input, the index of the equal distinct item. The third tensor has the
    number of occurrences of each distinct item. Input 1 has the axis. Without input 1, the layer
    flattens `x` and returns its distinct elements.
    """
    axis = site.axes(1)[0] if site.has(1) else 0
    if not site.has(1):
        x = site.reshaped(x, (volume(site.known_shape(x)),))
    items, first_indices, inverse, occurrences, count = _distinct(site, x, axis, sorts=sorts)
    count = site.cast(count, site.integer)
    return [
        site.listed(items, axis, count),
        site.listed(site.cast(first_indices, index_dtype), axis=0, count=count),
        site.cast(inverse, index_dtype),
        site.listed(site.cast(occurrences, count_dtype), axis=0, count=count),
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
    """Return the distinct items of a vector, padded by repetitions of the last distinct item.

    If `with_inverse`, the next result has, for each item of the input, the index of the equal
    distinct item. If `with_counts`, the last result has the number of occurrences of each distinct
    item. Indices and numbers have the dtype of `x`.
    """
    items, _, inverse, counts, _ = _distinct(site, x, axis=0, sorts=sorts)
    results = [items]
    if with_inverse:
        results.append(site.cast(inverse, x.type.dtype))
    if with_counts:
        results.append(site.cast(counts, x.type.dtype))
    return results


@opsets("SparseFillEmptyRows")
def _filled_rows(site: LayerSite, values: Value, *, rows: int = integer_at(1)) -> list[Value]:
    """Add an entry with the default value to each empty row of a sparse matrix.

    `rows` is the number of rows, and input 3 is the default value. The first result has the indices
    (row, column) of the entries, and its shape is (entries, 2). The second result has the values of
    the entries. The third result has a bool for each row: whether the row was empty.
    """
    step = site.step
    indices = site.integer_tensor(2)
    count = site.known_shape(values)[0]
    row_indices = site.part(indices, axis=1, first=0, last=1)  # has shape (entries, 1)
    is_in_row = step.eq(row_indices, site.positions(rows, axis=1, rank=2))  # shape (entries, rows)
    entries_by_row = site.count(is_in_row, axis=0)
    is_empty = step.eq(site.reshaped(entries_by_row, (rows,)), 0)
    # A default entry for each row is appended. Then all entries are sorted by row. If a row is not
    # empty, the key of its default entry is `rows`. Such entries come last and are cut off.
    default_keys = step.select(is_empty, site.positions(rows), rows)
    keys = step.concat([site.reshaped(row_indices, (count,)), default_keys], axis=0)
    _, order = step.topk(keys, k=count + rows, axis=0, largest=False)
    entry_count = step.add(_true_count(site, is_empty), count)
    row_column = site.positions(rows, axis=0, rank=2)
    default_indices = site.padded(row_column, {1: (0, 1)})  # pairs (row, 0)
    default_values = step.broadcast(site.reshaped(site.tensor(3), (1,)), shape=(rows,))
    all_indices = step.concat([indices, default_indices], axis=0)
    all_values = step.concat([values, default_values], axis=0)
    sorted_indices = site.listed(step.gather(all_indices, order, axis=0), axis=0, count=entry_count)
    sorted_values = site.listed(step.gather(all_values, order, axis=0), axis=0, count=entry_count)
    return [sorted_indices, sorted_values, is_empty]
