"""Chooses the next token from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from nnef_jax.errors import InputError
from nnef_jax.options import require, shown

_TINY = float(np.finfo(np.float32).tiny)
_LARGE = float(np.finfo(np.float32).max)
_Number = Array | np.float32 | np.int32


def require_normal(name: str, value: object) -> None:
    """Raise TypeError or InputError unless an argument is 0 or a normal number of float32."""
    require(name, value, int | float | np.integer | np.floating, "a number")
    number: Any = value
    magnitude = abs(float(number))
    # XLA treats smaller numbers as 0. A comparison with NaN is false.
    if magnitude != 0 and not _TINY <= magnitude <= _LARGE:
        raise InputError(f"{name} must be a normal number of 32 bits, it is {value}")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from logits. The default is greedy: the token of largest logit.

    Args:
        temperature: the number by which logits are divided before a token is drawn; 0 is
            greedy.
        top_k: a token is drawn only if its logit is one of the `top_k` largest, or equal to one of
            them; 0 for all tokens.
        top_p: a token is drawn only if all more probable tokens together have a probability below
            `top_p`; 1 for all tokens (nucleus sampling, Holtzman et al. 2019).
        repetition_penalty: changes the logits of tokens that are in the text already. A positive
            logit is divided by this number, and a negative logit multiplied by it (Keskar et al.
            2019); 1 for no penalty.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        require("top_k", self.top_k, int | np.integer, "a number of tokens")
        for name in ("temperature", "top_p", "repetition_penalty"):
            require_normal(name, getattr(self, name))
        for name, holds, expected in (
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_k", self.top_k >= 0, "a number of tokens"),
            ("top_p", 0 < self.top_p <= 1, "more than 0 and at most 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "more than 0"),
        ):
            if not holds:
                message = f"{name} must be {expected}, it is {shown(getattr(self, name))}"
                raise InputError(message)

    def penalised(self, logits: Array, seen: Array) -> Array:
        """Return logits (batch, words) with the repetition penalty where `seen` is true.

        `seen` (batch, words) is true for the words in the text of each row.
        """
        return self.numbers().penalised(logits, seen)

    def choose(self, logits: Array, key: Array) -> Array:
        """Return a token (batch,) for each row of logits (batch, words).

        `key` is a key of `jax.random`. It is used only if the temperature is not 0.
        """
        return self.numbers().choose(logits, key)

    def numbers(self) -> SamplingNumbers:
        """Return the numbers of this `Sampling`, as arguments of a compiled loop."""
        is_greedy = self.temperature == 0
        top_k = min(self.top_k, np.iinfo(np.int32).max)
        return SamplingNumbers(
            temperature=None if is_greedy else np.float32(self.temperature),
            top_k=None if is_greedy or top_k == 0 else np.int32(top_k),
            top_p=None if is_greedy or self.top_p == 1 else np.float32(self.top_p),
            repetition_penalty=(
                None if self.repetition_penalty == 1 else np.float32(self.repetition_penalty)
            ),
        )


class SamplingNumbers(NamedTuple):
    """The numbers of a `Sampling`: scalars of 32 bits, or None for a number without effect.

    A loop is compiled for the set of numbers that are not None. The loop runs with any values of
    these numbers.
    """

    temperature: _Number | None  # None: the token of largest logit is chosen
    top_k: _Number | None
    top_p: _Number | None
    repetition_penalty: _Number | None

    def penalised(self, logits: Array, seen: Array) -> Array:
        """Return logits as `Sampling.penalised` does. With a penalty they have at least 32 bits."""
        if self.repetition_penalty is None:
            return logits
        if logits.dtype.itemsize < 4:  # 16 bits would round the penalty: bfloat16 rounds 1.003 to 1
            logits = logits.astype(jnp.float32)
        penalty = jnp.asarray(self.repetition_penalty, logits.dtype)
        lower = jnp.where(logits > 0, logits / penalty, logits * penalty)
        return jnp.where(seen, lower, logits)

    def choose(self, logits: Array, key: Array) -> Array:
        """Return tokens as `Sampling.choose` does."""
        if self.temperature is None:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        logits = logits.astype(jnp.float32)
        # The largest logit becomes 0. Otherwise several logits may be infinity after the division.
        logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / self.temperature
        if self.top_k is not None:
            counts = jnp.ones_like(logits, jnp.int32)
            logits = jnp.where(has_less_above(logits, counts, self.top_k), logits, -jnp.inf)
        if self.top_p is not None:
            probabilities = jax.nn.softmax(logits, axis=-1)
            logits = jnp.where(has_less_above(logits, probabilities, self.top_p), logits, -jnp.inf)
        return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


def has_less_above(logits: Array, weights: Array, limit: _Number) -> Array:
    """Return whether the words with larger logits than a word weigh less than `limit` together.

    `logits` are float32 (batch, words), at most 0. `weights` (batch, words) are at least 0.

    The least of these logits is determined by a binary search. A sort would take 39 ms instead of
    2 ms on a CPU for 1 x 151,936 words, and jax could not store the program.
    """
    # The bits of positive numbers, read as integers, are in the order of the numbers.
    ranks = lax.bitcast_convert_type(jnp.abs(logits), jnp.int32)  # the largest logit has the least

    def with_bit(last_rank: Array, bit: Array) -> tuple[Array, None]:
        """Set a bit of the last rank, if all lower ranks weigh less than `limit`."""
        larger = last_rank | bit
        weight = jnp.sum(weights, axis=-1, keepdims=True, where=ranks < larger, dtype=weights.dtype)
        return jnp.where(weight < limit, larger, last_rank), None

    first_rank = jnp.zeros((*logits.shape[:-1], 1), jnp.int32)
    bits = jnp.asarray(1 << np.arange(30, -1, -1), jnp.int32)
    last_rank, _ = lax.scan(with_bit, first_rank, bits)
    return ranks <= last_rank


GREEDY = Sampling()


def new_key(key: Array | int) -> Array:
    """Return a copy of a key, or a key for a seed. The memory of the result may be donated.

    Raises InputError for anything else.
    """
    try:
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return jax.random.key(key)
        jax.eval_shape(jax.random.split, key)
    except (TypeError, ValueError, OverflowError):
        expected = "a seed of at most 64 bits, or one key of jax.random"
        raise InputError(f"key must be {expected}, it is {shown(key)}") from None
    return jnp.copy(key)


def last_logits(logits: Array) -> Array:
    """Return the logits (batch, words) of the last token, from logits (batch, tokens, words).

    Logits (batch, words) are of the last token already, so they are returned unchanged.
    """
    return logits if logits.ndim == 2 else logits[:, -1]


def stop_tokens(stop: int | Sequence[int]) -> tuple[int, ...]:
    """Return the stop tokens in ascending order, without negative and too large numbers.

    Raises InputError for anything but integers.
    """
    # Numbers of more than 64 bits are objects for numpy.
    stops = np.atleast_1d(np.asarray(stop, object)).ravel().tolist()
    if not all(isinstance(x, int | np.integer) and not isinstance(x, bool) for x in stops):
        raise InputError(f"stop must be token numbers, it is {shown(stop)}")
    tokens = {int(x) for x in stops}
    return tuple(sorted(x for x in tokens if 0 <= x <= np.iinfo(np.int32).max))


def stop_array(stop: Sequence[int]) -> NDArray[np.int32]:
    """Return stop tokens as an argument of a compiled loop.

    The array is padded to a power of two, since a loop is compiled for each length. The padding is
    -1, which is no token: 3 stop tokens have one item of padding.
    """
    size = 1 << max(len(stop) - 1, 0).bit_length()  # the least power of two that is enough
    padded = np.full(size, -1, np.int32)
    padded[: len(stop)] = stop
    return padded
