"""The meaning of TfIdfVectorizer, which counts sequences of tokens in rows of tokens."""

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

    `grams` has shape (count, length) and contains the sequences. In a row, the tokens of a sequence
    need not be successive: between each two of them there may be the same number of other tokens,
    from 0 to `skips`.
    """
    row_count, row_length = site.known_shape(x)
    count, length = grams.shape
    total: Any = None
    largest_distance = skips + 1 if length > 1 else 1
    for distance in range(1, largest_distance + 1):
        start_count = row_length - (length - 1) * distance  # positions at which a sequence fits
        if start_count < 1:
            break
        is_gram = _starts_of_grams(site, x, grams, distance, start_count)
        occurrences = site.squeezed(site.total(site.as_integer(is_gram), (1,)), 1)
        total = occurrences if total is None else site.step.add(total, occurrences)
    if total is None:
        return site.as_integer(site.filled(0, "int64", (row_count, count)))
    return total


def _starts_of_grams(
    site: NodeSite, x: Tensor, grams: NDArray[np.int64], distance: int, start_count: int
) -> Any:
    """Tell for the first positions of the rows of x which of the sequences `grams` begin there.

    The result has shape (rows, start_count, count). The tokens of a sequence have the distance
    `distance` from each other in the row.
    """
    count, length = grams.shape
    is_gram: Any = None
    for k in range(length):
        first = k * distance
        items = site.unsqueezed(site.part(x, 1, first, first + start_count), (2,))
        tokens = site.constant(grams[:, k].reshape(1, 1, count), "int64")
        is_token = site.step.eq(items, site.cast(tokens, site.dtype_of(x)))
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

    In the mode "TF", the result is the count of each sequence. In the mode "IDF", it is the weight
    of each sequence that occurs in the row, otherwise 0. In the mode "TFIDF", it is the count
    multiplied by the weight.
    """
    if site.has_attribute("pool_strings"):
        raise InvalidOperation("its tokens are strings, of which there are no arrays in JAX")
    pool = np.array(site.ints("pool_int64s"))
    has_repetitions = len({*columns}) < len(columns)
    if not columns or has_repetitions or min(columns) < 0:
        raise InvalidOperation("'ngram_indexes' must be different numbers from 0")
    site.spend(len(pool) * (max(skips, 0) + 1) + max(columns))
    rank = site.rank()
    if rank == 1:
        x = site.unsqueezed(x, (0,))
    parts: list[Any] = []
    # For each column of the result, the index of its sequence in `parts`, or -1.
    column_count = max(columns) + 1
    order = np.full(column_count, -1)
    pool_count = 0  # the number of shorter sequences in the pool
    part_count = 0  # the number of shorter sequences in `parts`
    # The pool has all sequences of one token, then all sequences of two tokens, and so on. `starts`
    # and `ends` bound the sequences of each length.
    ends = [*starts[1:], len(pool)]
    for length, (start, end) in enumerate(zip(starts, ends, strict=True), start=1):
        grams = pool[start:end].reshape(-1, length)
        count = len(grams)
        is_counted = shortest <= length <= longest
        if is_counted and count > 0:
            parts.append(_counted(site, x, grams, skips))
            gram_columns = list(columns[pool_count : pool_count + count])
            order[gram_columns] = range(part_count, part_count + count)
            part_count += count
        pool_count += count
    if not parts or pool_count != len(columns):
        raise InvalidOperation(f"it has {pool_count} sequences, and {len(columns)} 'ngram_indexes'")
    counts = _ordered(site, parts, order)
    if mode == "IDF":
        counts = site.step.min(counts, 1)
    counts = site.cast(counts, site.computation_dtype("float32"))
    if mode != "TF":
        weights = np.zeros(column_count, np.float32)
        weights[list(columns)] = site.numbers("weights", (1.0,) * len(columns))
        counts = site.step.mul(counts, site.constant(weights, "float32"))
    return counts if rank > 1 else site.squeezed(counts, 0)


def _ordered(site: NodeSite, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
    """Join counts of shape (rows, sequences), and put the sequences into an order.

    `order` has the index of a sequence for each column of the result, or -1 for a column of zeros.
    """
    counts = site.step.concat([site.tensor(part) for part in parts], axis=1)
    # A column of zeros is appended, for the columns of the result without a sequence.
    zero_column = site.shape(counts)[1]
    counts = site.cut_or_padded(counts, 1, zero_column + 1)
    indices = site.constant(np.where(order < 0, zero_column, order), "int64")
    return site.step.gather(counts, indices, axis=1)
