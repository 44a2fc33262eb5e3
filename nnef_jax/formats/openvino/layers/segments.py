"""Rows of a table joined by segment: bags of embeddings, sums and maxima of segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.site import Site


def _integers(site: Site, i: int) -> Value:
    """Return an input that holds whole numbers, which old files store as real ones."""
    return site.cast(site.tensor(i), site.graph.builder.integer)


def _rows(site: Site, table: Value, indices: Value, weights: Value | None) -> Value:
    rows = site.insert("gather", {"input": table, "indices": indices}, axis=0)
    if weights is None:
        return rows
    rest = tuple(range(len(weights.type.shape), len(rows.type.shape)))
    return site.insert("mul", {"x": rows, "y": _widened(site, weights, rest)})


def _widened(site: Site, x: Value, axes: tuple[int, ...]) -> Value:
    return site.insert("unsqueeze", {"input": x}, axes=axes) if axes else x


def _filled(site: Site, shape: tuple[int, ...], item: float, dtype: str) -> Value:
    items = (item if is_float(dtype) else int(item),)
    return site.insert("constant", {}, shape=shape, value=items, dtype=dtype)


def _scattered(site: Site, rows: Value, segments: Value, start: Value, reduction: str) -> Value:
    indices = _widened(site, segments, (1,))
    given = {"input": start, "indices": indices, "updates": rows}
    return site.insert("scatter_nd", given, reduction=reduction)


def _counts(site: Site, segments: Value, count: int, dtype: str) -> Value:
    """Return how many items each segment has."""
    places = site.places(count, 0, 2)
    is_in = site.insert("eq", {"x": places, "y": _widened(site, segments, (0,))})
    ones = site.insert("cast", {"input": is_in}, dtype=dtype)
    total = site.insert("sum_reduce", {"input": ones}, axes=(1,), normalize=False)
    return site.insert("squeeze", {"input": total}, axes=(1,))


def _bags(
    site: Site, rows: Value, segments: Value, count: int, default: int | None, over: str
) -> Value:
    """Sum the rows of each segment, over their number ("mean") or its root ("sqrtn").

    A segment without any is the row of the table that the input `default` names, else zeros.
    """
    dtype, cells = rows.type.dtype, rows.type.shape[1:]
    start = _filled(site, (count, *cells), 0, dtype)
    total = _scattered(site, rows, segments, start, "add")
    rest = tuple(range(1, 1 + len(cells)))
    if over != "sum":
        sizes = _counts(site, segments, count, dtype)
        sizes = site.insert("max", {"x": sizes, "y": _filled(site, (1,), 1, dtype)})
        sizes = sizes if over == "mean" else site.insert("sqrt", {"x": sizes})
        total = site.insert("div", {"x": total, "y": _widened(site, sizes, rest)})
    if default is None or not site.has(default) or _is_none(site, default):
        return site.emit("copy", {"x": total})
    index = site.reshaped(_integers(site, default), (1,))
    row = site.insert("gather", {"input": site.tensor(0), "indices": index}, axis=0)
    integer = site.graph.builder.integer
    is_empty = site.insert("eq", {"x": _counts(site, segments, count, integer), "y": 0})
    is_empty = _widened(site, is_empty, rest)
    choices = {"condition": is_empty, "true_value": row, "false_value": total}
    return site.emit("select", choices)


def _is_none(site: Site, i: int) -> bool:
    operand = site.operand(i)
    return isinstance(operand, Constant) and operand.array.reshape(-1).tolist() == [-1]


def _reduction(site: Site) -> str:
    return site.choice("reduction", "sum", "mean", default="sum")


@everywhere("EmbeddingBagOffsetsSum")
@opsets("EmbeddingBagOffsets")
def _offset_bags(site: Site) -> Value:
    """Sum rows of a table by index; bags begin at offsets in the indices."""
    indices, offsets = _integers(site, 1), _integers(site, 2)
    places = site.places(site.known_shape(indices)[0], 0, 2)
    begun = site.insert("ge", {"x": places, "y": _widened(site, offsets, (0,))})
    ones = site.insert("cast", {"input": begun}, dtype=site.graph.builder.integer)
    ordinal = site.insert("sum_reduce", {"input": ones}, axes=(1,), normalize=False)
    segments = site.insert(
        "sub", {"x": site.insert("squeeze", {"input": ordinal}, axes=(1,)), "y": 1}
    )
    weights = site.tensor(4) if site.has(4) else None
    rows = _rows(site, site.tensor(0), indices, weights)
    return _bags(site, rows, segments, site.known_shape(offsets)[0], 3, _reduction(site))


@everywhere("EmbeddingBagPackedSum")
@opsets("EmbeddingBagPacked")
def _packed_bags(site: Site) -> Value:
    """Sum rows of a table by index, [bags,rows]."""
    weights = site.tensor(2) if site.has(2) else None
    rows = _rows(site, site.tensor(0), _integers(site, 1), weights)
    kind, given = (
        ("mean_reduce", {}) if _reduction(site) == "mean" else ("sum_reduce", {"normalize": False})
    )
    total = site.insert(kind, {"input": rows}, axes=(1,), **given)
    return site.emit("squeeze", {"input": total}, axes=(1,))


@everywhere("EmbeddingSegmentsSum")
def _embedding_segments(site: Site) -> Value:
    """Sum rows of a table by index; each index is of a segment."""
    weights = site.tensor(5) if site.has(5) else None
    rows = _rows(site, site.tensor(0), _integers(site, 1), weights)
    return _bags(site, rows, _integers(site, 2), site.integers(3)[0], 4, "sum")


@opsets("SegmentMax")
def _segment_max(site: Site) -> Value:
    """Return the greatest items of each segment; one without any has zeros, or the least item."""
    x, segments = site.tensor(0), site.operand(1)
    if site.has(2):
        count = site.integers(2)[0]
    elif isinstance(segments, Constant):
        count = int(segments.array.max(initial=-1)) + 1
    else:
        raise InvalidOperation(
            "how many segments there are depends on values, input 2 does not say it"
        )
    dtype, cells = x.type.dtype, x.type.shape[1:]
    least = float(np.finfo(np.float32).min) if is_float(dtype) else int(np.iinfo(dtype).min)
    start = _filled(site, (count, *cells), least, dtype)
    places = _integers(site, 1)
    found = _scattered(site, x, places, start, "max")
    if site.choice("fill_mode", "zero", "lowest") == "lowest":
        return site.emit("copy", {"x": found})
    integer = site.graph.builder.integer
    is_empty = site.insert("eq", {"x": _counts(site, places, count, integer), "y": 0})
    choices = {
        "condition": _widened(site, is_empty, tuple(range(1, 1 + len(cells)))),
        "true_value": _filled(site, (1,) * (1 + len(cells)), 0, dtype),
        "false_value": found,
    }
    return site.emit("select", choices)


@legacy("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")
def _sparse_segments(site: Site) -> Value:
    """Sum rows of a table by index and segment, over their number or its root if so called."""
    rows = _rows(site, site.tensor(0), _integers(site, 1), None)
    count = (site.layer.outputs[0].shape or (0,))[0]
    over = site.layer.kind.removeprefix("sparsesegment")
    return _bags(site, rows, _integers(site, 2), count, None, over)


@legacy("SparseToDense")
def _sparse_to_dense(site: Site) -> Value:
    """Return a tensor of a default with values at indices [items,axes]."""
    values = site.tensor(2)
    shape = tuple(site.layer.outputs[0].shape or ())
    default: Any = site.tensor(3) if site.has(3) else _filled(site, (), 0, values.type.dtype)
    one = site.reshaped(default, (1,) * len(shape))
    start = site.insert("broadcast", {"input": one}, shape=shape)
    given = {"input": start, "indices": _integers(site, 0), "updates": values}
    return site.emit("scatter_nd", given, reduction="none")
