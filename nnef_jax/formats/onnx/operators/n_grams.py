"""The function for TfIdfVectorizer, which counts sequences of tokens in rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from nnef_jax.flattening.operators.attributes import integer, integers, one_of
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


def _counted(site: NodeSite, x: Tensor, grams: NDArray[np.int64], skips: int) -> Any:
    """Count sequences of tokens in the rows of x; return the counts, of shape (rows, count).

    `grams` has shape (count, length) and contains the sequences. A sequence also occurs in a row if
    there are equal gaps between its tokens. A gap has up to `skips` tokens. For example, if `skips`
    is 1, the sequence 5, 7 occurs twice in the row 5, 7, 7.
    """
    row_count, row_length = site.known_shape(x)
    count, length = grams.shape
    total: Any = None
    # The distance between neighbours of a sequence is the gap plus 1. A single token has no gaps.
    largest_distance = skips + 1 if length > 1 else 1
    for distance in range(1, largest_distance + 1):
        start_count = row_length - (length - 1) * distance  # positions where a sequence can start
        if start_count < 1:
            break
        # `is_gram` has shape (rows, start_count, count).
        is_gram = _starts_of_grams(site, x, grams, distance, start_count)
        occurrences = site.squeezed(site.total(site.as_integer(is_gram), (1,)), 1)
        total = occurrences if total is None else site.step.add(total, occurrences)
    if total is None:  # No sequence fits into a row.
        return site.as_integer(site.filled(0, "int64", (row_count, count)))
    return total


def _starts_of_grams(
    site: NodeSite, x: Tensor, grams: NDArray[np.int64], distance: int, start_count: int
) -> Any:
    """Tell which sequences begin at each of the first `start_count` positions of each row of x.

    `grams` has shape (count, length) and contains the sequences. In a row, the tokens of a sequence
    are `distance` positions apart. The result is of bool and has shape (rows, start_count, count).
    """
    count, length = grams.shape
    is_gram: Any = None
    for k in range(length):
        # Token k of a sequence that begins at position p is at position p + k * distance.
        first = k * distance
        tokens_of_rows = site.part(x, axis=1, first=first, last=first + start_count)
        tokens_of_rows = site.unsqueezed(tokens_of_rows, (2,))
        tokens_of_grams = site.constant(grams[:, k].reshape(1, 1, count), "int64")
        is_token = site.step.eq(tokens_of_rows, site.cast(tokens_of_grams, site.dtype_of(x)))
        is_gram = is_token if is_gram is None else site.step.and_(is_gram, is_token)
    return is_gram


@operator("TfIdfVectorizer")
def _tf_idf_vectorizer(
    site: NodeSite,
    x: Tensor,
    *,
    mode: str = one_of("mode", "TF", "IDF", "TFIDF"),
    shortest: int = integer("min_gram_length"),
    longest: int = integer("max_gram_length"),
    skips: int = integer("max_skip_count"),
    starts: Sequence[int] = integers("ngram_counts"),
    columns: Sequence[int] = integers("ngram_indexes"),
) -> Any:
    """Count sequences of tokens in each row of x; return the counts or weights of the sequences.

    The attribute `pool_int64s` has all sequences of one token, then all sequences of two tokens,
    and so on. `starts` has the start of each of these parts. `columns` has the index of a column of
    the result for each sequence. Only sequences of `shortest` to `longest` tokens are counted.
    Tokens between the tokens of a sequence may be skipped; see `_counted`.

    In the mode "TF", the result is the count of each sequence. In the mode "IDF", it is the weight
    of each sequence that occurs in the row, and 0 for all other sequences. In the mode "TFIDF", it
    is the count multiplied by the weight.
    """
    if site.has_attribute("pool_strings"):
        raise InvalidOperation("its tokens are strings, of which there are no arrays in JAX")
    pool = np.array(site.ints("pool_int64s"))
    has_repetitions = len({*columns}) < len(columns)
    if not columns or has_repetitions or min(columns) < 0:
        raise InvalidOperation("'ngram_indexes' must be different numbers from 0")
    site.spend(len(pool) * (max(skips, 0) + 1) + max(columns))
    rank = site.rank()
    if rank == 1:  # to (1, tokens)
        x = site.unsqueezed(x, (0,))
    # The pool has a list of sequences for each length.
    ends = [*starts[1:], len(pool)]
    grams_by_length: list[NDArray[np.int64]] = []
    for length, (start, end) in enumerate(zip(starts, ends, strict=True), start=1):
        grams_by_length.append(pool[start:end].reshape(-1, length))
    lengths = range(shortest, longest + 1)
    result = _counts(site, x, grams_by_length, columns, lengths, skips)
    if mode == "IDF":
        result = site.step.min(result, 1)
    result = site.cast(result, site.computation_dtype("float32"))
    if mode != "TF":
        weights = np.zeros(max(columns) + 1, np.float32)
        weights[list(columns)] = site.numbers("weights", (1.0,) * len(columns))
        result = site.step.mul(result, site.constant(weights, "float32"))
    return result if rank > 1 else site.squeezed(result, 0)


def _counts(
    site: NodeSite, x: Tensor, grams_by_length: Sequence[NDArray[np.int64]],
    columns: Sequence[int], lengths: range, skips: int,
) -> Any:  # fmt: skip
    """Count sequences of tokens in the rows of x; return the counts, of shape (rows, columns).

    `grams_by_length` has the sequences of 1 token, the sequences of 2 tokens, and so on. `columns`
    has the index of a column of the result for each sequence. Only sequences whose length is in
    `lengths` are counted. All other columns are 0. `skips` is as for `_counted`.
    """
    counts_by_length: list[Any] = []
    # For each column of the result, the index of its sequence among the counted sequences, or -1.
    order = np.full(max(columns) + 1, -1)
    shorter_count = 0  # the number of sequences shorter than `length`
    counted_count = 0  # the number of counted sequences shorter than `length`
    for length, grams in enumerate(grams_by_length, start=1):
        count = len(grams)
        if length in lengths and count > 0:
            counts_by_length.append(_counted(site, x, grams, skips))
            gram_columns = list(columns[shorter_count : shorter_count + count])
            order[gram_columns] = range(counted_count, counted_count + count)
            counted_count += count
        shorter_count += count
    if not counts_by_length or shorter_count != len(columns):
        raise InvalidOperation(
            f"it has {shorter_count} sequences, and {len(columns)} 'ngram_indexes'"
        )
    return _ordered(site, counts_by_length, order)


def _ordered(site: NodeSite, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
    """Join counts of shape (rows, sequences), and put the sequences into an order.

    `order` has the index of a sequence for each column of the result, or -1 for a column of zeros.
    """
    counts = site.step.concat([site.tensor(part) for part in parts], axis=1)
    # A column of zeros is appended, for the columns of the result without a sequence.
    zero_column = site.shape(counts)[1]
    with_zeros = site.cut_or_padded(counts, axis=1, size=zero_column + 1)
    indices = site.constant(np.where(order < 0, zero_column, order), "int64")
    return site.step.gather(with_zeros, indices, axis=1)
