"""Meanings of layers with sequences and segments: CTC decoding, beams, bags of embeddings."""

from __future__ import annotations

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.operators.attributes import dtype, flag, one_of, word
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import (
    integer_at,
    legacy,
    operator,
    opsets,
)


@opsets("CTCGreedyDecoderSeqLen")
def _greedy_decoder(
    site: LayerSite,
    x: Value,
    *,
    merges: bool = flag("merge_repeated", True),
    class_dtype: str = dtype("classes_index_type", "i32"),
    count_dtype: str = dtype("sequence_length_type", "i32"),
) -> list[Value]:
    """Return the classes of each sequence's best path without blanks, and the number of classes.

    The classes have shape (batch, time) and are padded with -1. If `merges`, equal classes at
    successive time steps become one. The blank is the class in input 2, or the last class if input
    2 is left out.
    """
    step = site.step
    _, steps, classes = site.known_shape()
    best = step.squeeze(step.argmax_reduce(x, axes=(2,)), axes=(2,))
    best = site.cast(best, site.integer)
    lengths = site.unsqueezed(site.integer_tensor(1), (1,))
    times = site.positions(steps, 1, 2)
    blank = site.integers(2)[0] if site.has(2) else classes - 1
    is_in_path = step.and_(step.ne(best, blank), step.lt(times, lengths))
    if merges:
        previous = site.part(site.padded(best, {1: (1, 0)}, -1.0), 1, 0, steps)
        is_in_path = step.and_(is_in_path, step.ne(best, previous))
    # The classes of the path come first, in order of time.
    sort_keys = step.select(is_in_path, times, steps)
    _, order = step.topk(sort_keys, k=steps, axis=1, largest=False)
    packed = step.gather_elements(best, order, axis=1)
    count = site.count(is_in_path, 1)
    path = site.last.select(step.lt(times, count), packed, -1)
    count = site.last.squeeze(count, axes=(1,))
    return [site.cast(path, class_dtype), site.cast(count, count_dtype)]


@operator("GatherTree")
def _gather_tree(site: LayerSite) -> Value:
    """Return the tokens of beams, traced back from the last step of each beam.

    The tokens have shape (steps, batch, beams).
    """
    steps, parents, lengths, end = (site.integer_tensor(i) for i in range(4))
    tokens = site.step.gather_tree(steps, parents, lengths, site.reshaped(end, ()))
    dtype = site.dtype_of(0)
    if dtype == tokens.type.dtype:
        return site.last.copy(tokens)
    return site.last.cast(tokens, dtype=dtype)


# Bags of embeddings; sums and maxima of segments


def _table_rows(site: LayerSite, weights: int | None = None, indices: Value | None = None) -> Value:
    """Gather rows of input 0 at `indices`; multiply each row by a weight if the layer has weights.

    The default for `indices` is input 1. `weights` is the index of the input that has the weights.
    """
    factors = site.tensor(weights) if weights is not None and site.has(weights) else None
    rows = site.step.gather(site.tensor(0), indices or site.integer_tensor(1), axis=0)
    if factors is None:
        return rows
    return site.step.mul(rows, _with_rank(site, factors, len(rows.type.shape)))


def _with_rank(site: LayerSite, x: Value, rank: int) -> Value:
    """Append axes of extent 1 to a tensor, up to the rank `rank`."""
    return site.unsqueezed(x, range(len(x.type.shape), rank))


def _counts(site: LayerSite, segments: Value, count: int, dtype: str = "") -> Value:
    """Count the items of each segment. The result has shape (count,).

    `segments` has the index of a segment for each item, and `count` is the number of segments.
    """
    is_member = site.step.eq(site.positions(count, 0, 2), site.unsqueezed(segments, (0,)))
    return site.step.squeeze(site.count(is_member, 1, dtype), axes=(1,))


def _are_empty(site: LayerSite, segments: Value, count: int, rank: int) -> Value:
    """Return a tensor of bool that tells for each of `count` segments whether it has no items.

    `segments` has the index of a segment for each item. The result has shape (count, 1, ...) and
    the rank `rank`.
    """
    is_empty = site.step.eq(_counts(site, segments, count), 0)
    return _with_rank(site, is_empty, rank)


def _bags(
    site: LayerSite,
    rows: Value,
    segments: Value,
    count: int,
    reduction: str,
    default: int | None = None,
) -> Value:
    """Sum the rows of each segment, and divide the sums if `reduction` says so.

    `segments` has the index of a segment for each row, and `count` is the number of segments. If
    `reduction` is "mean", a sum is divided by the number of its rows. If it is "sqrtn", the sum is
    divided by the root of this number.

    The input with the index `default` has the index of a row of the table, which replaces the sum
    of a segment without rows. If the input is missing, or if the index is -1, the sum is zeros.
    """
    dtype = rows.type.dtype
    cells = rows.type.shape[1:]
    start = site.filled(0, dtype, (count, *cells))
    total = site.step.scatter_nd(start, site.unsqueezed(segments, (1,)), rows, reduction="add")
    if reduction != "sum":
        sizes = _counts(site, segments, count, dtype)
        sizes = site.step.max(sizes, site.filled(1, dtype, (1,)))
        if reduction == "sqrtn":
            sizes = site.step.sqrt(sizes)
        total = site.step.div(total, _with_rank(site, sizes, 1 + len(cells)))
    if default is None or not site.has(default):
        return site.last.copy(total)
    row_index = site.operand(default)
    if isinstance(row_index, Constant) and row_index.array.ravel().tolist() == [-1]:
        return site.last.copy(total)
    index = site.reshaped(site.integer_tensor(default), (1,))
    row = site.step.gather(site.tensor(0), index, axis=0)
    is_empty = _are_empty(site, segments, count, 1 + len(cells))
    return site.last.select(is_empty, row, total)


_REDUCTION = word("reduction", "sum", "mean")


@operator("EmbeddingBagOffsetsSum")
@opsets("EmbeddingBagOffsets")
def _offset_bags(site: LayerSite, *, reduction: str = _REDUCTION) -> Value:
    """Sum or average rows of a table for each bag.

    Input 1 has the indices of the rows of all bags, one bag after the other. Input 2 has the
    position in this list at which each bag starts.
    """
    step = site.step
    indices = site.integer_tensor(1)
    offsets = site.integer_tensor(2)
    positions = site.positions(site.known_shape(indices)[0], 0, 2)
    is_in_or_after = step.ge(positions, site.unsqueezed(offsets, (0,)))
    started_bags = site.count(is_in_or_after, 1)
    segments = step.sub(step.squeeze(started_bags, axes=(1,)), 1)
    count = site.known_shape(offsets)[0]
    return _bags(site, _table_rows(site, 4, indices), segments, count, reduction, 3)


@operator("EmbeddingBagPackedSum")
@opsets("EmbeddingBagPacked")
def _packed_bags(site: LayerSite, *, reduction: str = _REDUCTION) -> Value:
    """Sum or average rows of a table for each bag.

    Input 1 has shape (bags, rows), and contains the indices of the rows of each bag.
    """
    rows = _table_rows(site, 2)
    if reduction == "mean":
        total = site.step.mean_reduce(rows, axes=(1,))
    else:
        total = site.step.sum_reduce(rows, axes=(1,), normalize=False)
    return site.last.squeeze(total, axes=(1,))


@operator("EmbeddingSegmentsSum")
def _segments(site: LayerSite, *, count: int = integer_at(3)) -> Value:
    """Sum rows of a table for each of `count` segments.

    Input 1 has the indices of the rows, and input 2 has the index of a segment for each of them.
    """
    return _bags(site, _table_rows(site, 5), site.integer_tensor(2), count, "sum", 4)


@opsets("SegmentMax")
def _segment_max(
    site: LayerSite, x: Value, *, fill: str = one_of("fill_mode", "zero", "lowest")
) -> Value:
    """Return the maximum over the rows of each segment.

    An empty segment has zeros if `fill` is "zero", otherwise the smallest number of the dtype.
    """
    segments = site.operand(1)
    if site.has(2):
        count = site.integers(2)[0]
    elif isinstance(segments, Constant):
        count = int(segments.array.max(initial=-1)) + 1
    else:
        message = "the number of segments depends on values: give it as input 2"
        raise InvalidOperation(message)
    dtype = x.type.dtype
    cells = x.type.shape[1:]
    least, _ = ends_of(dtype)
    start = site.filled(float(least), dtype, (count, *cells))
    indices = site.integer_tensor(1)
    most = site.step.scatter_nd(start, site.unsqueezed(indices, (1,)), x, reduction="max")
    if fill == "lowest":
        return site.last.copy(most)
    rank = 1 + len(cells)
    is_empty = _are_empty(site, indices, count, rank)
    return site.last.select(is_empty, site.filled(0, dtype, (1,) * rank), most)


@legacy("SparseSegmentSum", reduction="sum")
@legacy("SparseSegmentMean", reduction="mean")
@legacy("SparseSegmentSqrtN", reduction="sqrtn")
def _sparse_segments(site: LayerSite, *, reduction: str) -> Value:
    """Sum rows of a table for each segment, and divide the sums if `reduction` says so.

    If `reduction` is "sum", the sums are not divided. If it is "mean", they are divided by the
    number of rows, and if "sqrtn", by the root of this number.
    """
    count = site.declared[0] if site.declared else 0
    return _bags(site, _table_rows(site), site.integer_tensor(2), count, reduction)


@legacy("SparseToDense")
def _sparse_to_dense(site: LayerSite) -> Value:
    """Return a tensor with values at indices, and a default elsewhere.

    Input 0 has the indices, of shape (items, axes), and input 2 has the values.
    """
    values = site.tensor(2)
    shape = site.declared
    default = site.tensor(3) if site.has(3) else site.filled(0, values.type.dtype)
    start = site.step.broadcast(site.reshaped(default, (1,) * len(shape)), shape=shape)
    return site.last.scatter_nd(start, site.integer_tensor(0), values, reduction="none")
