"""The compiled loop that reads a short prompt and generates tokens, one step after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from nnef_jax.execution.routine import Step
from nnef_jax.generation.decoder_network import LENGTH
from nnef_jax.generation.token_sampling import SamplingNumbers, last_logits


class LoopState(NamedTuple):
    """The values that an iteration of the loop over tokens hands to the next iteration."""

    logits: Array  # of the next token, (batch, words)
    state: Mapping[str, Array]  # maps labels to arrays
    key: Array
    seen: Array  # whether a word is in the text, (batch, words)
    last: Array  # the last generated token, (batch,)
    is_done: Array  # whether a row has stopped, (batch,)


class TokenChoice(NamedTuple):
    """The arguments that decide how tokens are chosen, and when a row stops."""

    numbers: SamplingNumbers
    stop: Array | NDArray[np.int32]  # a row stops after these, (count,); -1 is no token


class Prompts(NamedTuple):
    """The prompts for the loop to read before it generates. A row may have no prompt.

    Each prompt stands at the end of its row. All rows then begin to generate in the same iteration.
    """

    tokens: Array  # int32 (batch, width)
    lengths: Array  # int32 (batch,)


_Values = tuple[Array, Array, LoopState]  # the iteration, the generated tokens, the loop's state


@dataclass(frozen=True)
class TokenLoop:
    """A routine that reads prompts token by token, and then generates tokens.

    Args:
        size: the most tokens that a run generates.
        rolls: whether a full cache drops its first position when a token is added.
    """

    size: int
    rolls: bool = False
    title: str = field(default="generate", init=False)
    # A run takes over the memory of argument 0, the loop's state. Otherwise a run would copy the
    # caches.
    donates: tuple[int, ...] = field(default=(0,), init=False)

    def run(
        self, step: Step, start: LoopState, prompts: Prompts, choice: TokenChoice, count: Array,
        context: Sequence[Array],
    ) -> tuple[Array, LoopState]:  # fmt: skip
        """Generate `count` tokens of each row. Return the tokens (batch, size), and the state.

        Args:
            step: reads a token of each row.
            start: the state of the loop before the first token.
            prompts: the prompts to read first.
            choice: how tokens are chosen, and when a row stops.
            count: the number of tokens to generate, at most `size`. The items of the result after
                `count` repeat the last token.
            context: the network's inputs other than tokens.
        """
        rows = start.last.shape[0]
        # Iteration `i` reads column `i` of the prompts. From iteration `width` on, tokens are
        # generated. The loop leaves out the first columns, in which no row has a prompt.
        width = prompts.tokens.shape[1]
        first = width - jnp.max(prompts.lengths, initial=0)
        end = width + count

        def has_more(values: _Values) -> Array:
            i, _, loop = values
            return (i < end) & ~jnp.all(loop.is_done)

        def turn(values: _Values) -> _Values:
            i, tokens, loop = values
            is_prompt = i < width

            # Take the next token of each row from the prompt, or choose it by the logits.
            next_key, draw_key = jax.random.split(loop.key)
            # The key stays the same while prompts are read, so draws do not depend on the prompt.
            key = jnp.where(is_prompt, loop.key, next_key)
            prompt_token = lax.dynamic_index_in_dim(prompts.tokens, i, axis=1, keepdims=False)
            next_token = self._chosen(loop, choice.numbers, draw_key)
            token = jnp.where(is_prompt, prompt_token, next_token)

            # Read the token. A row whose prompt begins later reads a token too, but keeps its state
            # and logits.
            is_read = i >= width - prompts.lengths
            logits, after = step(loop.state, [token[:, None], *context])
            logits = last_logits(logits)
            after = self._unless_read(is_read, loop.state, after)
            logits = jnp.where(is_read[:, None], logits, loop.logits)

            # Note the token.
            is_stop = jnp.isin(token, choice.stop) & ~is_prompt
            index = jnp.arange(rows), token
            seen = loop.seen.at[index].set(loop.seen[index] | is_read)
            last = jnp.where(is_prompt, loop.last, token)
            # Tokens of prompts are written to column 0. The first generated token replaces them.
            column = jnp.maximum(i - width, 0)
            tokens = lax.dynamic_update_slice_in_dim(tokens, token[:, None], column, axis=1)
            is_done = loop.is_done | is_stop
            return i + 1, tokens, LoopState(logits, after, key, seen, last, is_done)

        empty = jnp.zeros((rows, self.size), jnp.int32)
        i, tokens, loop = lax.while_loop(has_more, turn, (first, empty, start))
        generated_count = i - width
        is_generated = jnp.arange(self.size) < generated_count
        return jnp.where(is_generated, tokens, loop.last[:, None]), loop

    def _unless_read(
        self, is_read: Array, before: Mapping[str, Array], after: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the state `after` a step, with the rows of `before` where `is_read` is false.

        If caches do not roll, only the number of positions in use is taken from `before`. The next
        token then overwrites the cached keys and values of the token that was not to be read.
        """
        state = dict(after)
        for label in after if self.rolls else [LENGTH]:
            is_read_row = is_read.reshape(-1, *[1] * (after[label].ndim - 1))
            state[label] = jnp.where(is_read_row, after[label], before[label])
        return state

    def _chosen(self, loop: LoopState, numbers: SamplingNumbers, key: Array) -> Array:
        """Return the next token of each row (batch,). A row that is done repeats its last token."""
        token = numbers.choose(numbers.penalised(loop.logits, loop.seen), key)
        return jnp.where(loop.is_done, loop.last, token)

    def step_arguments(
        self, start: LoopState, prompts: Prompts, choice: TokenChoice, count: Array,
        context: Sequence[Array],
    ) -> tuple[Mapping[str, Any], Sequence[Any]]:  # fmt: skip
        """Return the types of the arguments of a step, which reads one token of each row."""
        tokens = jax.ShapeDtypeStruct((start.last.shape[0], 1), jnp.int32)
        return start.state, [tokens, *context]

    def tree(self, start: LoopState, *_: object) -> Any:
        """Return the pytree structure of the result of `run`."""
        return jax.tree.structure((0, start))
