"""Chooses the next token from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from nnef_jax.errors import InputError
from nnef_jax.options import require, shown

_Number = Array | np.float32


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from logits. The default is greedy: the token of largest logit.

    Args:
        temperature: the number by which logits are divided before a token is drawn; 0 is
            greedy.
        top_k: the number of tokens of largest logits from which one is drawn; 0 for all tokens.
        top_p: a token is drawn only if the probabilities of all tokens that are more probable
            sum to less than this number; 1 for all tokens (Holtzman et al. 2019, nucleus
            sampling).
        repetition_penalty: the logit of a token that is in the text already is divided by this
            number if the logit is positive, and multiplied by it if the logit is negative
            (Keskar et al. 2019); 1 for none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        require("top_k", self.top_k, int, "a number of tokens")
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

        `seen` (batch, words) tells whether a word is in the text of the row.
        """
        return self.numbers().penalised(logits, seen)

    def choose(self, logits: Array, key: Array) -> Array:
        """Return a token (batch,) for each row of logits (batch, words).

        `key` is a key of `jax.random`. It is used only if the temperature is not 0.
        """
        return self.numbers().choose(logits, key, self.top_k)

    def numbers(self) -> SamplingNumbers:
        """Return the real numbers of this `Sampling`, as arguments of a compiled loop."""
        is_greedy = self.temperature == 0
        return SamplingNumbers(
            temperature=None if is_greedy else np.float32(self.temperature),
            top_p=None if is_greedy or self.top_p == 1 else np.float32(self.top_p),
            repetition_penalty=(
                None if self.repetition_penalty == 1 else np.float32(self.repetition_penalty)
            ),
        )


class SamplingNumbers(NamedTuple):
    """The real numbers of a `Sampling`, each a scalar of float32, or None if it has no effect.

    A loop is compiled for the numbers that are not None, and runs with any values of these.
    """

    temperature: _Number | None  # None: the token of largest logit is chosen
    top_p: _Number | None
    repetition_penalty: _Number | None

    def penalised(self, logits: Array, seen: Array) -> Array:
        """Return logits as `Sampling.penalised` does."""
        if self.repetition_penalty is None:
            return logits
        penalty = jnp.asarray(self.repetition_penalty, logits.dtype)
        lower = jnp.where(logits > 0, logits / penalty, logits * penalty)
        return jnp.where(seen, lower, logits)

    def choose(self, logits: Array, key: Array, top_k: int) -> Array:
        """Return tokens as `Sampling.choose` does."""
        if self.temperature is None:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        logits = logits.astype(jnp.float32) / self.temperature
        if 0 < top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, top_k)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p is not None:
            ordered = -jnp.sort(-logits, axis=-1)
            probabilities = jax.nn.softmax(ordered, axis=-1)
            before = jnp.cumsum(probabilities, axis=-1) - probabilities
            candidates = jnp.where(before < self.top_p, ordered, jnp.inf)
            least = jnp.min(candidates, axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return jax.random.categorical(key, logits, axis=-1).astype(jnp.int32)


GREEDY = Sampling()


def last_logits(logits: Array) -> Array:
    """Return the logits (batch, words) of the last token, from the logits of all tokens.

    The network may return only the logits of the last token, which are returned unchanged.
    """
    return logits if logits.ndim == 2 else logits[:, -1]


def stop_array(stop: Sequence[int]) -> NDArray[np.int32]:
    """Return stop tokens as an argument of a compiled loop.

    The number of items is a power of two, so that a loop is compiled for few numbers of stop
    tokens. The items after the stop tokens are -1, which is no token.
    """
    padded = np.full(1 << max(len(stop) - 1, 0).bit_length(), -1, np.int32)
    padded[: len(stop)] = stop
    return padded
