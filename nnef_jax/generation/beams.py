"""Beam search: generates the most probable continuation among several that are kept at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from nnef_jax.calls.arguments import State
from nnef_jax.execution.routine import Step
from nnef_jax.generation.token_sampling import last_logits

_Arrays = Mapping[str, Array]  # by label
# A function of the state and a token of each row (rows,). It returns logits (rows, words) and the
# next state.
_Read = Callable[[State, Array], tuple[Array, State]]


class Hypotheses(NamedTuple):
    """The best continuation of each prompt that has ended.

    Attributes:
        tokens: the continuation, int32 (batch, steps).
        scores: its log-probability divided by a power of its length (batch,); -inf without one.
        lengths: the number of its tokens, its stop token included, int32 (batch,).
    """

    tokens: Array
    scores: Array
    lengths: Array


class _Beams(NamedTuple):
    """The continuations that go on; their rows in the state are those of a batch of batch * beams.

    Attributes:
        logits: logits of the next token (batch * beams, words).
        state: the state of the network.
        tokens: the tokens of the continuations (batch, beams, steps).
        scores: their log-probabilities (batch, beams).
        ended: the best continuations that have ended.
    """

    logits: Array
    state: State
    tokens: Array
    scores: Array
    ended: Hypotheses


class Ranking(NamedTuple):
    """The arguments that decide which continuations end, and which one is the best."""

    stop: Array | NDArray[np.int32]  # stop tokens, (count,); -1 is none
    length_penalty: Array | np.float32  # the exponent of the length


@dataclass(frozen=True)
class BeamSearch:
    """A routine that searches for the most probable continuation of each prompt.

    In each iteration all continuations are extended by all words, and the `beams` most probable
    ones that do not end with a stop token go on. The result has the largest log-probability
    divided by length ** length_penalty, among continuations that have ended with a stop token and
    those that have all tokens (Wu et al. 2016, section 7, without coverage).

    Args:
        size: the most tokens of a continuation for which a program has room.
        beams: the number of continuations of each prompt.
    """

    size: int
    beams: int
    title: str = field(default="search", init=False)
    donates: tuple[int, ...] = field(default=(), init=False)

    def run(
        self, step: Step, logits: Array, state: _Arrays, ranking: Ranking, count: Array,
        context: Sequence[Array],
    ) -> Hypotheses:  # fmt: skip
        """Return the best continuation of each prompt.

        Args:
            step: reads a token of each beam.
            logits: the logits after each prompt (batch, words).
            state: the state after the prompts.
            ranking: which continuations end, and which one is the best.
            count: the largest number of tokens, at most `size`.
            context: the network's inputs after the tokens, with a row for each beam.
        """
        batch = logits.shape[0]

        def repeat(x: Array) -> Array:
            return jnp.repeat(x, self.beams, axis=0)

        def read(state: State, tokens: Array) -> tuple[Array, State]:
            logits, after = step(state, [tokens[:, None], *context])
            return last_logits(logits), after

        tokens = jnp.zeros((batch, self.beams, self.size), jnp.int32)
        # All beams of a prompt are equal at first, so that only one may be extended.
        scores = jnp.full((batch, self.beams), -jnp.inf).at[:, 0].set(0)
        ended = Hypotheses(tokens[:, 0], jnp.full(batch, -jnp.inf), jnp.zeros(batch, jnp.int32))
        repeated_state = jax.tree.map(repeat, dict(state))
        start = _Beams(repeat(logits), repeated_state, tokens, scores, ended)
        last = lax.fori_loop(0, count, partial(_extended, read, ranking), start)
        return _better(last.ended, last.tokens, last.scores, count, ranking.length_penalty)

    def step_arguments(
        self, logits: Array, state: _Arrays, ranking: Ranking, count: Array,
        context: Sequence[Array],
    ) -> tuple[Mapping[str, Any], Sequence[Any]]:  # fmt: skip
        """Return the types of the arguments of a step, which reads one token of each beam."""
        rows = logits.shape[0] * self.beams
        states: dict[str, Any] = {}
        for label, x in state.items():
            states[label] = jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype)
        return states, [jax.ShapeDtypeStruct((rows, 1), jnp.int32), *context]

    def tree(self, *_: object) -> Any:
        """Return the structure of the result."""
        return jax.tree.structure(Hypotheses(*range(3)))  # pyright: ignore[reportArgumentType]


def _extended(read: _Read, ranking: Ranking, i: Array, beams: _Beams) -> _Beams:
    """Extend each continuation by token `i`."""
    batch, count, _ = beams.tokens.shape
    words = beams.logits.shape[-1]
    log_probabilities = jax.nn.log_softmax(beams.logits.astype(jnp.float32), axis=-1)
    totals = beams.scores[..., None] + log_probabilities.reshape(batch, count, words)
    # Each continuation ends with each of the stop tokens at most once. So at least `count` of
    # count * (1 + stop tokens) candidates go on.
    candidates = min(count * (1 + ranking.stop.size), count * words)
    scores, indices = lax.top_k(totals.reshape(batch, -1), candidates)
    parents, words_of_candidates = indices // words, indices % words
    tokens = jnp.take_along_axis(beams.tokens, parents[..., None], axis=1)
    token_column = words_of_candidates.astype(jnp.int32)[..., None]
    tokens = lax.dynamic_update_slice_in_dim(tokens, token_column, i, axis=2)
    is_stop = jnp.isin(words_of_candidates, ranking.stop)
    # A stop token counts only among the best candidates, as many as there are beams.
    is_end = is_stop & (jnp.arange(candidates) < count)[None]
    ended_scores = jnp.where(is_end, scores, -jnp.inf)
    ended = _better(beams.ended, tokens, ended_scores, i + 1, ranking.length_penalty)
    scores, chosen = lax.top_k(jnp.where(is_stop, -jnp.inf, scores), count)
    tokens = jnp.take_along_axis(tokens, chosen[..., None], axis=1)
    parents = jnp.take_along_axis(parents, chosen, axis=1)
    rows = (jnp.arange(batch)[:, None] * count + parents).reshape(-1)
    state = jax.tree.map(lambda x: jnp.take(x, rows, axis=0), dict(beams.state))
    last_tokens = jnp.take_along_axis(words_of_candidates, chosen, axis=1).astype(jnp.int32)
    logits, next_state = read(state, last_tokens.reshape(-1))
    return _Beams(logits, next_state, tokens, scores, ended)


def _better(
    ended: Hypotheses, tokens: Array, scores: Array, length: Array, length_penalty: Any
) -> Hypotheses:
    """Return the better of the ended continuations and of others of one length.

    `tokens` are (batch, count, steps), and `scores` (batch, count) their log-probabilities.
    """
    normalized = scores / jnp.asarray(length, jnp.float32) ** length_penalty
    best = jnp.argmax(normalized, axis=1)[:, None]
    best_scores = jnp.take_along_axis(normalized, best, axis=1)[:, 0]
    best_tokens = jnp.take_along_axis(tokens, best[..., None], axis=1)[:, 0]
    is_better = best_scores > ended.scores
    return Hypotheses(
        jnp.where(is_better[:, None], best_tokens, ended.tokens),
        jnp.where(is_better, best_scores, ended.scores),
        jnp.where(is_better, jnp.asarray(length, jnp.int32), ended.lengths),
    )
