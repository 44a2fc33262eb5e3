"""Plans how the prompts of a batch are read by chunks of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# A chunk: the number of its tokens, whether a row is read (batch,), and the position of the
# chunk's first token in each row (batch,).
Chunk = tuple[int, NDArray[np.bool_], NDArray[np.int32]]


def overlapping(sizes: NDArray[np.int32], chunks: Sequence[int]) -> Iterator[Chunk]:
    """Yield chunks such that each row is read by chunks of one size.

    The last chunk of a row ends with the last token of its prompt, so it may begin within the
    chunk before it. `sizes` has the tokens of each prompt, and `chunks` the numbers of tokens of a
    chunk, the largest first.
    """
    chunk_of_row = np.array([next((x for x in chunks if x <= n), 0) for n in sizes])
    for chunk in chunks:
        is_read = chunk_of_row == chunk
        longest = max(sizes[is_read], default=0)
        for begin in range(0, longest, chunk):
            starts = np.where(is_read, np.minimum(begin, sizes - chunk), 0)
            yield chunk, is_read, starts.astype(np.int32)


def in_turn(sizes: NDArray[np.int32], chunks: Sequence[int]) -> Iterator[Chunk]:
    """Yield chunks that do not overlap: the largest chunks of each prompt first.

    Caches of a window need them: a token that has left a cache cannot be read again. The
    arguments are as in `overlapping`.
    """
    done = np.zeros_like(sizes)
    for chunk in chunks:
        while np.any(is_read := sizes - done >= chunk):
            yield chunk, is_read, done.astype(np.int32)
            done = np.where(is_read, done + chunk, done)
