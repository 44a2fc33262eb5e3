"""Functions for layers with sequences and segments: CTC decoding, beams, bags of embeddings."""

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
    """Return the path of the best classes of each sequence, and the number of classes in each path.

    `x` has the scores of the classes, with shape (batch, time, classes). Blanks are left out of the
    paths. If `merges`, equal classes at successive time steps become one. The paths have shape
    (batch, time) and are padded with -1. The blank is the class in input 2, or the last class if
    input 2 is left out.
    """
    step = site.step
    _, steps, classes = site.known_shape()
    best_classes = step.squeeze(step.argmax_reduce(x, axes=(2,)), axes=(2,))
    best_classes = site.cast(best_classes, site.integer)
    lengths = site.unsqueezed(site.integer_tensor(1), (1,))  # shape (batch, 1)
    times = site.positions(steps, axis=1, rank=2)  # shape (1, time)
    blank = site.integers(2)[0] if site.has(2) else classes - 1
    is_in_path = step.and_(step.ne(best_classes, blank), step.lt(times, lengths))
    if merges:
        # The first time step has no previous class. Instead it gets -1, which differs from all
        # classes.
        shifted = site.padded(best_classes, {1: (1, 0)}, value=-1.0)
        previous = site.part(shifted, axis=1, first=0, last=steps)
        is_in_path = step.and_(is_in_path, step.ne(best_classes, previous))
    # The classes of the path are moved to the front, in the order of time. A class that is not in
    # the path has the number of time steps as its key, so that it comes last.
    sort_keys = step.select(is_in_path, times, steps)
    _, order = step.topk(sort_keys, k=steps, axis=1, largest=False)
    sorted_classes = step.gather_elements(best_classes, order, axis=1)
    counts = site.count(is_in_path, axis=1)  # shape (batch, 1)
    paths = site.last.select(step.lt(times, counts), sorted_classes, -1)
    counts = site.last.squeeze(counts, axes=(1,))
    return [site.cast(paths, class_dtype), site.cast(counts, count_dtype)]


@operator("GatherTree")
def _gather_tree(site: LayerSite) -> Value:
    """Trace beams back from their last step, and return the tokens of each beam.

    The tokens have shape (steps, batch, beams). Input 0 has the token of each beam at each step.
    Each beam continues a beam of the previous step. Input 1 has the index of this previous beam.
    Input 2 has the number of steps of each sequence, and input 3 is the token that ends a beam.
    """
    step_tokens, parents, lengths, end = (site.integer_tensor(i) for i in range(4))
    tokens = site.step.gather_tree(step_tokens, parents, lengths, site.reshaped(end, ()))
    dtype = site.dtype_of(0)
    if dtype == tokens.type.dtype:
        return site.last.copy(tokens)
    return site.last.cast(tokens, dtype=dtype)


# Bags of embeddings; sums and maxima of segments


def _table_rows(
    site: LayerSite, weights_input: int | None = None, indices: Value | None = None
) -> Value:
    """Gather rows of input 0 at `indices`. Multiply each row by its weight if there are weights.

    The default for `indices` is input 1. `weights_input` is the index of the input that has the
    weights, or None if the layer has no such input.
    """
    weights: Value | None = None
    if weights_input is not None and site.has(weights_input):
        weights = site.tensor(weights_input)
    table = site.tensor(0)
    if indices is None:
        indices = site.integer_tensor(1)
    rows = site.step.gather(table, indices, axis=0)
    if weights is None:
        return rows
    return site.step.mul(rows, _with_rank(site, weights, len(rows.type.shape)))


def _with_rank(site: LayerSite, x: Value, rank: int) -> Value:
    """Append axes of extent 1 to a tensor, up to the rank `rank`."""
    return site.unsqueezed(x, range(len(x.type.shape), rank))


def _item_counts(site: LayerSite, segments: Value, count: int, dtype: str = "") -> Value:
    """Count the items of each segment. The result has shape (count,).

    `segments` has the index of a segment for each item, and `count` is the number of segments.
    """
    segment_column = site.positions(count, axis=0, rank=2)  # shape (count, 1)
    item_row = site.unsqueezed(segments, (0,))  # shape (1, items)
    is_member = site.step.eq(segment_column, item_row)
    return site.step.squeeze(site.count(is_member, axis=1, dtype=dtype), axes=(1,))


def _are_empty(site: LayerSite, segments: Value, count: int, rank: int) -> Value:
    """Tell for each of `count` segments whether it has no items, as a tensor of bool.

    `segments` has the index of a segment for each item. The result has shape (count, 1, ...) and
    `rank` axes.
    """
    is_empty = site.step.eq(_item_counts(site, segments, count), 0)
    return _with_rank(site, is_empty, rank)


def _bags(
    site: LayerSite,
    rows: Value,
    segments: Value,
    count: int,
    reduction: str,
    default_input: int | None = None,
) -> Value:
    """Reduce the rows of each segment by `_sums`, and replace the results of empty segments.

    `segments` has the index of a segment for each row, and `count` is the number of segments. Input
    `default_input` is the index of a row of input 0, the table. This row is the result of each
    empty segment. Without the input, or if the index is -1, the result of an empty segment is
    zeros.
    """
    sums = _sums(site, rows, segments, count, reduction)
    if default_input is None or not site.has(default_input):
        return site.last.copy(sums)
    default_index = site.operand(default_input)
    if isinstance(default_index, Constant):
        has_default = default_index.array.ravel().tolist() != [-1]
        if not has_default:
            return site.last.copy(sums)
    index = site.reshaped(site.integer_tensor(default_input), (1,))
    default_row = site.step.gather(site.tensor(0), index, axis=0)
    is_empty = _are_empty(site, segments, count, rank=len(rows.type.shape))
    return site.last.select(is_empty, default_row, sums)


def _sums(site: LayerSite, rows: Value, segments: Value, count: int, reduction: str) -> Value:
    """Sum the rows of each segment, and divide the sums as `reduction` demands.

    If `reduction` is "mean", each sum is divided by the number of rows in the segment. If
    `reduction` is "sqrtn", each sum is divided by the root of this number. If `reduction` is "sum",
    the sums are not divided.
    """
    dtype = rows.type.dtype
    row_shape = rows.type.shape[1:]
    zeros = site.filled(0, dtype, (count, *row_shape))
    sums = site.step.scatter_nd(zeros, site.unsqueezed(segments, (1,)), rows, reduction="add")
    if reduction == "sum":
        return sums
    row_counts = _item_counts(site, segments, count, dtype)
    divisors = site.step.max(row_counts, site.filled(1, dtype, (1,)))
    if reduction == "sqrtn":
        divisors = site.step.sqrt(divisors)
    return site.step.div(sums, _with_rank(site, divisors, len(rows.type.shape)))


_REDUCTION = word("reduction", "sum", "mean")


@operator("EmbeddingBagOffsetsSum")
@opsets("EmbeddingBagOffsets")
def _offset_bags(site: LayerSite, *, reduction: str = _REDUCTION) -> Value:
    """Sum or average rows of a table for each bag.

    Input 1 is a list of the rows' indices, one bag after the other. Input 2 has a number for each
    bag: the position in this list at which the bag starts.
    """
    step = site.step
    indices = site.integer_tensor(1)
    offsets = site.integer_tensor(2)
    # A row belongs to the last bag that starts at or before the position of the row.
    positions = site.positions(site.known_shape(indices)[0], axis=0, rank=2)
    has_started = step.ge(positions, site.unsqueezed(offsets, (0,)))  # shape (rows, bags)
    started_bags = site.count(has_started, axis=1)
    segments = step.sub(step.squeeze(started_bags, axes=(1,)), 1)
    count = site.known_shape(offsets)[0]
    rows = _table_rows(site, weights_input=4, indices=indices)
    return _bags(site, rows, segments, count, reduction, default_input=3)


@operator("EmbeddingBagPackedSum")
@opsets("EmbeddingBagPacked")
def _packed_bags(site: LayerSite, *, reduction: str = _REDUCTION) -> Value:
    """Sum or average rows of a table for each bag.

    Input 1 has shape (bags, rows), and contains the indices of the rows of each bag.
    """
    rows = _table_rows(site, weights_input=2)
    if reduction == "mean":
        total = site.step.mean_reduce(rows, axes=(1,))
    else:
        total = site.step.sum_reduce(rows, axes=(1,), normalize=False)
    return site.last.squeeze(total, axes=(1,))


@operator("EmbeddingSegmentsSum")
def _segments(site: LayerSite, *, count: int = integer_at(3)) -> Value:
    """Sum rows of a table for each of `count` segments.

    Input 1 has the indices of the rows, and input 2 has the index of the segment of each row.
    """
    rows = _table_rows(site, weights_input=5)
    segments = site.integer_tensor(2)
    return _bags(site, rows, segments, count, reduction="sum", default_input=4)


@opsets("SegmentMax")
def _segment_max(
    site: LayerSite, x: Value, *, fill: str = one_of("fill_mode", "zero", "lowest")
) -> Value:
    """Return the maximum over the rows of each segment.

    The result of an empty segment is zeros if `fill` is "zero". If `fill` is "lowest", the result
    is the smallest number of the dtype.
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
    row_shape = x.type.shape[1:]
    least, _ = ends_of(dtype)
    start = site.filled(float(least), dtype, (count, *row_shape))
    indices = site.integer_tensor(1)
    maxima = site.step.scatter_nd(start, site.unsqueezed(indices, (1,)), x, reduction="max")
    if fill == "lowest":
        return site.last.copy(maxima)  # empty segments keep the initial value
    rank = len(x.type.shape)
    is_empty = _are_empty(site, indices, count, rank)
    return site.last.select(is_empty, site.filled(0, dtype, (1,) * rank), maxima)


@legacy("SparseSegmentSum", reduction="sum")
@legacy("SparseSegmentMean", reduction="mean")
@legacy("SparseSegmentSqrtN", reduction="sqrtn")
def _sparse_segments(site: LayerSite, *, reduction: str) -> Value:
    """Sum rows of a table for each segment. `_sums` explains how `reduction` divides the sums.

    Input 1 has the indices of the rows, and input 2 has the index of the segment of each row.
    """
    count = site.declared[0] if site.declared else 0
    rows = _table_rows(site)
    segments = site.integer_tensor(2)
    return _bags(site, rows, segments, count, reduction)


@legacy("SparseToDense")
def _sparse_to_dense(site: LayerSite) -> Value:
    """Return a tensor with values at indices, and a default elsewhere.

    Input 0 has the indices, of shape (items, axes). Input 2 has the values, and input 3 has the
    default. Without input 3, the default is 0.
    """
    values = site.tensor(2)
    shape = site.declared
    default = site.tensor(3) if site.has(3) else site.filled(0, values.type.dtype)
    default = site.reshaped(default, (1,) * len(shape))
    start = site.step.broadcast(default, shape=shape)
    return site.last.scatter_nd(start, site.integer_tensor(0), values, reduction="none")
