"""Beam search: extends several continuations at a time, and returns the most probable one."""

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

_Arrays = Mapping[str, Array]  # maps labels to arrays
# A function of the state and of one token per row (rows,). It returns logits (rows, words) and the
# next state.
_Read = Callable[[State, Array], tuple[Array, State]]


class Hypotheses(NamedTuple):
    """For each prompt, the best continuation that has ended.

    Attributes:
        tokens: the continuations, int32 (batch, steps).
        scores: log-probability / length ** length_penalty (batch,); -inf if no continuation of the
            prompt has ended.
        lengths: the number of tokens of each continuation, the stop token included, int32 (batch,).
    """

    tokens: Array
    scores: Array
    lengths: Array


class _Beams(NamedTuple):
    """The continuations that have not ended: `beams` continuations of each prompt.

    Attributes:
        logits: logits of the next token (batch * beams, words).
        state: the state of the network, with batch * beams rows.
        tokens: the tokens of the continuations (batch, beams, steps).
        scores: the log-probabilities of the continuations (batch, beams).
        ended: the best continuations that have ended.
    """

    logits: Array
    state: State
    tokens: Array
    scores: Array
    ended: Hypotheses


class Ranking(NamedTuple):
    """The arguments that decide which continuations end, and which one is the best."""

    stop: Array | NDArray[np.int32]  # stop tokens, (count,); -1 stands for no token
    length_penalty: Array | np.float32  # the exponent of the length


@dataclass(frozen=True)
class BeamSearch:
    """A routine that searches for the most probable continuation of each prompt.

    Each iteration extends all continuations by all words. The `beams` most probable extensions
    without a stop token go on. At the end, the continuations with a stop token and those that
    still go on are compared by log-probability / length ** length_penalty. The largest quotient
    wins (Wu et al. 2016, section 7, without coverage).

    Args:
        size: the largest number of tokens of a continuation. A program is compiled for each size.
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
            context: the network's inputs other than tokens, with a row for each beam.
        """
        batch = logits.shape[0]

        def repeat(x: Array) -> Array:
            return jnp.repeat(x, self.beams, axis=0)

        def read(state: State, tokens: Array) -> tuple[Array, State]:
            logits, after = step(state, [tokens[:, None], *context])
            return last_logits(logits), after

        tokens = jnp.zeros((batch, self.beams, self.size), jnp.int32)
        # At first all beams of a prompt are equal. Only beam 0 is extended: all other beams have
        # the score -inf.
        scores = jnp.full((batch, self.beams), -jnp.inf).at[:, 0].set(0)
        none_ended = Hypotheses(
            tokens[:, 0], scores=jnp.full(batch, -jnp.inf), lengths=jnp.zeros(batch, jnp.int32)
        )
        repeated_state = jax.tree.map(repeat, dict(state))
        start = _Beams(repeat(logits), repeated_state, tokens, scores, none_ended)
        final = lax.fori_loop(0, count, partial(_extended, read, ranking), start)
        return _better(final.ended, final.tokens, final.scores, count, ranking.length_penalty)

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
        """Return the pytree structure of the result of `run`."""
        return jax.tree.structure(Hypotheses(*range(3)))  # pyright: ignore[reportArgumentType]


def _extended(read: _Read, ranking: Ranking, i: Array, beams: _Beams) -> _Beams:
    """Extend each continuation by one token. `i` is the index of the token after the prompt."""
    batch, count, _ = beams.tokens.shape  # (batch, beams, steps)
    words = beams.logits.shape[-1]
    log_probabilities = jax.nn.log_softmax(beams.logits.astype(jnp.float32), axis=-1)
    totals = beams.scores[..., None] + log_probabilities.reshape(batch, count, words)

    # The best extensions of each prompt are candidates. At most `count` * (stop tokens) extensions
    # end, one for each beam and stop token. So at least `count` candidates go on.
    candidates = min(count * (1 + ranking.stop.size), count * words)
    scores, indices = lax.top_k(totals.reshape(batch, -1), candidates)  # (batch, candidates)
    # A candidate extends the beam `parents` by the word `last_words`.
    parents, last_words = indices // words, indices % words
    tokens = jnp.take_along_axis(beams.tokens, parents[..., None], axis=1)
    token_column = last_words.astype(jnp.int32)[..., None]
    tokens = lax.dynamic_update_slice_in_dim(tokens, token_column, i, axis=2)

    # A candidate with a stop token ends, if it is one of the `count` best candidates. Otherwise it
    # is dropped.
    is_stop = jnp.isin(last_words, ranking.stop)
    is_end = is_stop & (jnp.arange(candidates) < count)[None]
    ended_scores = jnp.where(is_end, scores, -jnp.inf)
    ended = _better(beams.ended, tokens, ended_scores, i + 1, ranking.length_penalty)

    # The `count` best candidates without a stop token go on.
    scores, chosen = lax.top_k(jnp.where(is_stop, -jnp.inf, scores), count)  # (batch, beams)
    tokens = jnp.take_along_axis(tokens, chosen[..., None], axis=1)
    parents = jnp.take_along_axis(parents, chosen, axis=1)
    # The state of beam `b` of prompt `p` is row p * count + b.
    rows = (jnp.arange(batch)[:, None] * count + parents).reshape(-1)
    state = jax.tree.map(lambda x: jnp.take(x, rows, axis=0), dict(beams.state))
    new_tokens = jnp.take_along_axis(last_words, chosen, axis=1).astype(jnp.int32)
    logits, next_state = read(state, new_tokens.reshape(-1))
    return _Beams(logits, next_state, tokens, scores, ended)


def _better(
    ended: Hypotheses, tokens: Array, scores: Array, length: Array, length_penalty: Any
) -> Hypotheses:
    """Return the best ended continuation of each prompt, from `ended` and new continuations.

    Args:
        ended: the best ended continuations up to now.
        tokens: the tokens of the new continuations (batch, count, steps).
        scores: the log-probabilities of the new continuations (batch, count).
        length: the number of tokens of each new continuation.
        length_penalty: the exponent of the length.
    """
    normalized = scores / jnp.asarray(length, jnp.float32) ** length_penalty
    best = jnp.argmax(normalized, axis=1)[:, None]  # (batch, 1)
    best_scores = jnp.take_along_axis(normalized, best, axis=1)[:, 0]
    best_tokens = jnp.take_along_axis(tokens, best[..., None], axis=1)[:, 0]
    is_better = best_scores > ended.scores
    return Hypotheses(
        jnp.where(is_better[:, None], best_tokens, ended.tokens),
        jnp.where(is_better, best_scores, ended.scores),
        jnp.where(is_better, jnp.asarray(length, jnp.int32), ended.lengths),
    )
