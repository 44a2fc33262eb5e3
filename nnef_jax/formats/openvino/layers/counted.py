"""Results with as many items as values say: of the largest length there can be, padded."""

from __future__ import annotations

import numpy as np

from lowering.extents import volume
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.flat_graph import Count
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site


def _noted(site: Site, x: Value, axis: int, items: Value) -> Value:
    site.graph.counts[x] = Count(axis, items)
    return x


def _holds(site: Site, x: Value) -> Value:
    """Return which items are not 0, as integers."""
    if x.type.dtype != "bool":
        x = site.insert("ne", {"x": x, "y": 0.0 if is_float(x.type.dtype) else 0})
    return site.insert("cast", {"input": x}, dtype=site.graph.builder.integer)


def _total(site: Site, x: Value) -> Value:
    """Return the sum of all items, [1]."""
    axes = tuple(range(len(x.type.shape)))
    total = site.insert("sum_reduce", {"input": x}, axes=axes, normalize=False)
    return site.reshaped(total, (1,))


@opsets("NonZero")
def _non_zero(site: Site) -> Value | Constant:
    """Return the places of items that are not 0, an axis of the input in each row."""
    known, type = site.operand(0), site.text("output_type", "i64")
    if isinstance(known, Constant):
        return Constant(np.stack(np.nonzero(np.atleast_1d(known.array))), type, derived=True)
    x = known if known.type.shape else site.reshaped(known, (1,))
    site.known_shape(x)
    found = site.emit("non_zero", {"input": x})
    return _noted(
        site, site.cast(found, site.dtype("output_type", "i64")), 1, _total(site, _holds(site, x))
    )


def _distinct(site: Site, x: Value, axis: int, *, sorts: bool) -> tuple[Value, ...]:
    site.known_shape(x)
    return site.emit("unique", {"input": x}, axis=axis, sorts=sorts)


@opsets("Unique")
def _unique(site: Site) -> list[Value]:
    """Return distinct items, their first places, which one each item is, and how often each is."""
    x, axis = site.tensor(0), 0
    if site.has(1):
        axis = site.axis(site.integers(1)[0])
    else:
        x = site.reshaped(x, (volume(site.known_shape(x)),))
    items, first, inverse, often, count = _distinct(site, x, axis, sorts=site.flag("sorted", True))
    index, number = site.dtype("index_element_type", "i64"), site.dtype("count_element_type", "i64")
    count = site.cast(count, site.graph.builder.integer)
    return [
        _noted(site, items, axis, count),
        _noted(site, site.cast(first, index), 0, count),
        site.cast(inverse, index),
        _noted(site, site.cast(often, number), 0, count),
    ]


@legacy("Unique")
def _legacy_unique(site: Site) -> list[Value]:
    """Return distinct items, behind them the last again, and what is asked for, as real numbers."""
    x = site.tensor(0)
    items, _, inverse, often, _ = _distinct(site, x, 0, sorts=site.flag("sorted"))
    asked = [("return_inverse", inverse), ("return_counts", often)]
    return [items, *(site.cast(found, x.type.dtype) for name, found in asked if site.flag(name))]


@opsets("SparseFillEmptyRows")
def _filled_rows(site: Site) -> list[Value]:
    """Return a sparse matrix in which each row has an item: a default one where there was none."""
    integer = site.graph.builder.integer
    values, indices = site.tensor(0), site.cast(site.tensor(2), integer)
    rows, count = site.integers(1)[0], site.known_shape(values)[0]
    window = {"axes": (1,), "begin": (0,), "end": (1,), "stride": (1,)}
    row = site.insert("slice", {"input": indices}, **window)  # [items,1]
    numbers = site.places(rows, 1, 2)
    is_in = site.insert(
        "cast", {"input": site.insert("eq", {"x": row, "y": numbers})}, dtype=integer
    )
    sizes = site.insert("sum_reduce", {"input": is_in}, axes=(0,), normalize=False)
    is_empty = site.insert("eq", {"x": site.reshaped(sizes, (rows,)), "y": 0})
    # Candidates are all items, then one for each row; those left out get a key behind all rows.
    keys = site.insert(
        "select",
        {"condition": is_empty, "true_value": site.places(rows), "false_value": rows},
    )
    keys = site.insert("concat", {"values": [site.reshaped(row, (count,)), keys]}, axis=0)
    ordered = site.insert("topk", {"input": keys}, k=count + rows, axis=0, largest=False)
    total = _total(site, site.insert("cast", {"input": is_empty}, dtype=integer))
    total = site.insert("add", {"x": total, "y": count})
    around = ((0, 0), (0, 1))
    added = site.insert(
        "pad", {"input": site.places(rows, 0, 2)}, padding=around, border="constant", value=0.0
    )
    defaults = site.insert(
        "broadcast", {"input": site.reshaped(site.tensor(3), (1,))}, shape=(rows,)
    )
    found: list[Value] = []
    for parts in ([indices, added], [values, defaults]):
        whole = site.insert("concat", {"values": parts}, axis=0)
        moved = site.emit("gather", {"input": whole, "indices": ordered[1]}, axis=0)
        found.append(_noted(site, moved, 0, total))
    return [*found, is_empty]
