"""Checks prompts, plans how a batch is read by chunks, and takes the tokens of the chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import ArrayLike, NDArray

from lowering.extents import UNKNOWN
from nnef_jax.errors import InputError
from nnef_jax.options import shown

# A chunk: the number of its tokens, whether a row is read (batch,), and the position of the
# chunk's first token in each row (batch,).
Chunk = tuple[int, NDArray[np.bool_], NDArray[np.int32]]


def overlapping(sizes: NDArray[np.int32], chunks: Sequence[int]) -> Iterator[Chunk]:
    """Yield chunks such that each row is read by chunks of one size.

    The last chunk of a row ends with the last token of the prompt, so it may overlap the chunk
    before it. A prompt of 40 tokens has chunks of 16 tokens that begin at 0, 16 and 24.

    Args:
        sizes: the number of tokens of each prompt.
        chunks: the numbers of tokens that a chunk may have, the largest first.
    """
    chunk_of_row = np.array([next((x for x in chunks if x <= size), 0) for size in sizes])
    for chunk in chunks:
        is_read = chunk_of_row == chunk
        longest = max(sizes[is_read], default=0)
        for begin in range(0, longest, chunk):
            starts = np.where(is_read, np.minimum(begin, sizes - chunk), 0)
            yield chunk, is_read, starts.astype(np.int32)


def in_turn(sizes: NDArray[np.int32], chunks: Sequence[int]) -> Iterator[Chunk]:
    """Yield chunks that do not overlap: the largest chunks of each prompt first.

    Caches of a window need such chunks: a token that has left a cache cannot be read again. A
    prompt of 40 tokens has two chunks of 16 tokens, and eight of 1. The arguments are as in
    `overlapping`.
    """
    starts = np.zeros_like(sizes)
    for chunk in chunks:
        while np.any(is_read := sizes - starts >= chunk):
            yield chunk, is_read, starts.astype(np.int32)
            starts = np.where(is_read, starts + chunk, starts)


def lengths_by_loop(
    sizes: NDArray[np.int32], chunks: Sequence[int], *, overlaps: bool
) -> NDArray[np.int32]:
    """Return, for each prompt, the number of tokens that `TokenLoop` reads.

    These are the last tokens of the prompt. The loop reads single tokens, in place of chunks of 1.
    If chunks of 16 overlap, only prompts of less than 16 tokens need chunks of 1. If chunks do not
    overlap, a prompt of 40 tokens leaves the last 8 tokens to the loop.
    """
    least = min((x for x in chunks if x > 1), default=1)
    return np.where(sizes < least, sizes, 0) if overlaps else sizes % least


def last_tokens(
    prompts: NDArray[np.int32], lengths: NDArray[np.int32], counts: NDArray[np.int32], width: int
) -> NDArray[np.int32]:
    """Return the last `counts` tokens of each prompt, at the end of rows of `width` tokens.

    Of a prompt [5, 6, 7, 8], the last 2 tokens in a width of 4 are [0, 0, 7, 8].
    """
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        if count > 0:
            tokens[row, -count:] = prompts[row, length - count : length]
    return tokens


def words_of(
    prompts: NDArray[np.int32], lengths: NDArray[np.int32], words: int
) -> NDArray[np.bool_]:
    """Return whether each of `words` words is in each prompt, (batch, words)."""
    is_in_prompt = np.zeros((len(prompts), words), bool)
    for row, length in enumerate(lengths):
        is_in_prompt[row, prompts[row, :length]] = True
    return is_in_prompt


def tokens_at(tokens: ArrayLike, positions: NDArray[np.int64]) -> Any:
    """Return the tokens (batch, chunk) at the positions (batch, chunk) of each row.

    A position after the end of a row gives the row's last token. The result is a jax array if
    `tokens` is one, and a numpy array otherwise.
    """
    if isinstance(tokens, Array):
        return jnp.take_along_axis(tokens, positions, axis=1, mode="clip")
    array = np.asarray(tokens)
    return np.take_along_axis(array, np.minimum(positions, array.shape[1] - 1), axis=1)


def where_read(is_read: NDArray[np.bool_], after: Any, before: Any) -> Any:
    """Return the rows of `after` where `is_read` is true, and the rows of `before` elsewhere.

    `after` and `before` are pytrees of arrays. The first axis of each array counts the rows.
    """
    if is_read.all():
        return after

    def select(x: Array, y: Array) -> Array:
        return jnp.where(is_read.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(select, after, before)


def shape_of_prompts(tokens: ArrayLike) -> tuple[int, int]:
    """Return the shape (batch, tokens) of prompts. Raises InputError if it is another one."""
    shape = np.shape(tokens)
    if len(shape) != 2:
        raise InputError(f"tokens must have the shape (batch, tokens), they have {shape}")
    return shape


def require_concrete(name: str, array: object) -> None:
    """Raise InputError if an argument is traced, so that its values are not known."""
    if isinstance(array, Tracer):
        message = f"{name} must be known when a function is traced"
        raise InputError(message, hint="pass them from outside of jax.jit, jax.vmap and jax.grad")


def checked_tokens(tokens: ArrayLike) -> NDArray[Any]:
    """Return prompts as an array (batch, tokens). Raises InputError unless they are tokens."""
    require_concrete("tokens", tokens)
    try:
        array = np.atleast_2d(np.asarray(tokens))
    except ValueError as error:  # rows of different lengths
        hint = "pad the rows, and pass the numbers of their tokens as lengths"
        raise InputError(f"tokens are no array: {error}", hint=hint) from None
    if array.size == 0:
        raise InputError("a prompt is empty")
    if array.ndim != 2 or array.dtype.kind not in "iu" or array.min() < 0:
        expected = "token numbers, (batch, tokens) or (tokens,)"
        raise InputError(f"tokens must be {expected}, they are {shown(tokens)}")
    return array


def checked_lengths(
    lengths: ArrayLike | None, rows: int, width: int, *, fewest: int, most: int
) -> NDArray[np.int32]:
    """Return the lengths of `rows` prompts. If `lengths` is None, each length is `width`.

    Raises InputError unless each length is a number from 1 to `width`, at least `fewest`, the least
    number of tokens that the network reads at a time, and at most `most`, the places of the caches.
    """
    require_concrete("lengths", lengths)
    sizes = np.full(rows, width) if lengths is None else np.asarray(lengths)
    are_integers = sizes.dtype.kind in "iu"
    is_in_range = sizes.shape == (rows,) and np.all((sizes >= 1) & (sizes <= width))
    if not (are_integers and is_in_range):
        message = f"lengths must be {rows} numbers from 1 to {width}, they are {shown(lengths)}"
        raise InputError(message if width else "a prompt is empty")
    if max(sizes) > most:
        message = f"a prompt has {max(sizes)} tokens, the caches have {most} places"
        raise InputError(message, hint="decoder(..., places=...) sets their number")
    if min(sizes) < fewest:
        message = f"a prompt has {min(sizes)} tokens, the network reads {fewest} at a time"
        raise InputError(message)
    return sizes.astype(np.int32)


def require_rows(rows: int, arrays: Mapping[str, ArrayLike]) -> None:
    """Raise InputError unless the first axis of each array counts `rows` rows."""
    for name, array in arrays.items():
        shape = np.shape(array)
        if shape and shape[0] != rows:
            raise InputError(f"'{name}' has {shape[0]} rows, the tokens have {rows}")


def require_words(prompts: NDArray[Any], words: int) -> None:
    """Raise InputError if a prompt has a token that is not from 0 to `words` - 1.

    `words` may be UNKNOWN before the logits are computed. Then all numbers in int32 are tokens.
    """
    most = np.iinfo(np.int32).max if words is UNKNOWN else words - 1
    highest = prompts.max()
    if highest > most:
        message = f"a prompt has the token {highest}, the network has tokens 0 to {most}"
        raise InputError(message)
