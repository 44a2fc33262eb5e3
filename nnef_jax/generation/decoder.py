"""Decodes text by a language model: reads prompts, and generates tokens one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, device_put, lax
from numpy.typing import ArrayLike, NDArray

from lowering.extents import UNKNOWN
from nnef_jax.calls.arguments import Params, State
from nnef_jax.errors import InputError
from nnef_jax.execution.run_options import Prepared
from nnef_jax.execution.runnable import execution_of
from nnef_jax.generation.beams import BeamSearch, Ranking
from nnef_jax.generation.decoder_network import LENGTH, with_tokens
from nnef_jax.generation.prompts import (
    checked_lengths,
    checked_tokens,
    in_turn,
    last_tokens,
    lengths_by_loop,
    overlapping,
    require_rows,
    require_words,
    shape_of_prompts,
    tokens_at,
    where_read,
    words_of,
)
from nnef_jax.generation.roles import Roles
from nnef_jax.generation.token_loop import LoopState, Prompts, TokenChoice, TokenLoop
from nnef_jax.generation.token_sampling import (
    GREEDY,
    Sampling,
    last_logits,
    new_key,
    require_normal,
    stop_array,
    stop_tokens,
)
from nnef_jax.model import Model
from nnef_jax.options import require

# The numbers of tokens that are read at once. Three programs read prompts of any length.
CHUNKS = (256, 16, 1)
_LONGEST_IN_LOOP = CHUNKS[1] - 1  # the compiled loop reads up to this many tokens of a prompt
_BLOCK = 64  # the most tokens that one run of the compiled loop generates
_Context = Mapping[str, ArrayLike]  # maps names to the inputs that all tokens share


class Generated(NamedTuple):
    """The tokens that a decoder has generated, and the number of tokens of each row.

    Attributes:
        tokens: the tokens, int32 (batch, steps). A row that has stopped repeats its stop token.
        lengths: the number of tokens of each row, int32 (batch,). The stop token counts.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]


class _Request(NamedTuple):
    """The arguments of `Decoder.generate` after they have been checked."""

    prompts: NDArray[np.int32]  # (batch, tokens)
    lengths: NDArray[np.int32]  # (batch,)
    steps: int
    sample: Sampling
    key: Array
    stop: tuple[int, ...]
    params: Params | None
    context: _Context


@dataclass(frozen=True)
class Decoder:
    """A language model with caches of a fixed size, made by `nnef_jax.decoder`.

    `prefill`, `step` and `log_probabilities` are pure functions of parameters, for programs of
    your own. `generate` and `stream` run compiled loops over `step`.

    Attributes:
        model: the network of a step. The states of the network are the caches, and the number of
            tokens in the caches. `model` is a `Model` as any other: it can be sharded, and
            `nnef_jax.cost` estimates the cost of a step.
        roles: the roles of the network's inputs and outputs.
        places: the largest number of tokens that a text can have.
        window: the number of positions to which a token attends, itself included. The caches hold
            only the last `window` - 1 positions. 0 if the caches hold all positions.
    """

    model: Model
    roles: Roles
    places: int
    window: int = 0

    def __repr__(self) -> str:
        return f"decoder of '{self.model.graph.name}', {self.places} places\n{self.roles}"

    def with_model(self, model: Model) -> Decoder:
        """Return a decoder like this one, for another model of the same network.

        `model` is made from `self.model`: it may be sharded, or have trained parameters. Raises
        InputError if its caches have other shapes.
        """
        require("model", model, Model, "a nnef_jax.Model")
        shapes, expected = (
            {x.label: x.value.type.shape for x in y.graph.states} for y in (model, self.model)
        )
        if shapes != expected:
            raise InputError(f"the model's states have the shapes {shapes}, not {expected}")
        return Decoder(model, self.roles, self.places, self.window)

    def model_of(self, tokens: int = 1) -> Model:
        """Return the model of a step that reads `tokens` tokens of each row.

        It is `self.model` with a known number of tokens, as `export` needs it:

        >>> decoder.model_of(1).export("step.npz", entry="step")
        """
        require("tokens", tokens, int, "a number of tokens")
        if not 1 <= tokens < self.places:
            raise InputError(f"tokens must be 1 to {self.places - 1}, they are {tokens}")
        return with_tokens(self.model, self.roles.tokens, tokens)

    def init_state(self, batch: int = 1) -> dict[str, Array]:
        """Return the state before the first token: a dict from labels to caches and lengths.

        The caches are empty, and the lengths are 0. `batch` is the number of rows.
        """
        require("batch", batch, int, "a number of rows")
        if batch < 0:
            raise InputError(f"batch must be at least 0, it is {batch}")
        state: dict[str, Array] = {}
        for variable in self.model.graph.states:
            type = variable.value.type
            state[variable.label] = jnp.zeros((batch, *type.shape[1:]), type.dtype)
        layout = execution_of(self.model).definition.layout
        shape_of_tokens = (batch, 1)
        return layout.put_state(state, [shape_of_tokens]) if layout else state

    def step(
        self,
        params: Params | Prepared | None,
        state: State,
        tokens: ArrayLike,
        **context: ArrayLike,
    ) -> tuple[Array, dict[str, Array]]:
        """Read one token of each row. Return the logits (batch, words), and the next state.

        Args:
            params: arrays by label, or None for the model's parameters.
            state: the state before the token.
            tokens: token numbers (batch,).
            context: maps names to the network's inputs other than tokens.

        If the cache of a row is full, the step overwrites the last tokens of the row. `generate`
        does not let this happen.
        """
        logits, state = self._read(params, state, jnp.asarray(tokens)[:, None], context)
        return last_logits(logits), state

    def _read(
        self, params: Params | Prepared | None, state: State, tokens: ArrayLike, context: _Context
    ) -> tuple[Array, dict[str, Array]]:
        """Read several tokens of each row. Return the network's logits, and the next state.

        `tokens` has the shape (batch, tokens). The network may return only the logits of the
        last token.
        """
        arrays: Any = state
        if isinstance(arrays, Mapping):  # otherwise the model raises an error
            require_rows(np.shape(tokens)[0], {**arrays, **context})
        inputs: dict[str, Any] = {self.roles.tokens: tokens, **context}
        return self.model.step(state, params=params, **inputs)

    def prefill(
        self,
        params: Params | Prepared | None,
        tokens: ArrayLike,
        lengths: ArrayLike | None = None,
        **context: ArrayLike,
    ) -> tuple[Array, dict[str, Array]]:
        """Read prompts. Return the logits (batch, words) after each prompt, and the state.

        A prompt is read by chunks of 256, 16 or 1 tokens, so that three programs read prompts
        of all lengths. The last chunk ends with the last token of the prompt, so it may overlap
        the chunk before it. A token in two chunks is read twice, with equal results.

        Args:
            params: arrays by label, or None for the model's parameters.
            tokens: token numbers (batch, tokens).
            lengths: the number of tokens in each prompt (batch,); by default all tokens of a
                row belong to its prompt. The numbers must be known when the function is traced.
            context: maps names to the network's inputs other than tokens.

        Raises InputError for an empty prompt, or a prompt that is longer than the caches.
        """
        rows, width = shape_of_prompts(tokens)
        sizes = self._lengths(lengths, rows, width)
        return self._read_prompts(params, tokens, sizes, context)

    def _read_prompts(
        self, params: Params | Prepared | None, tokens: ArrayLike, sizes: NDArray[np.int32],
        context: _Context,
    ) -> tuple[Array, dict[str, Array]]:  # fmt: skip
        """Read the first `sizes` tokens of each row by chunks, as `prefill` does.

        A row of size 0 is not read. At least one size must be positive.
        """
        state: Any = self.init_state(len(sizes))
        logits: Any = None
        # With a window, no token can be read twice: the first reading drops old tokens from the
        # caches.
        chunks_of = in_turn if self.window else overlapping
        donates = execution_of(self.model).definition.options.donate_state
        for chunk, is_read, starts in chunks_of(sizes, self._chunks()):
            part = tokens_at(tokens, starts[:, None] + np.arange(chunk))
            # A step overwrites donated states, but rows that are not read keep their states.
            is_copied = donates and not is_read.all()
            before = jax.tree.map(jnp.copy, state) if is_copied else state
            before = {**before, LENGTH: starts}
            chunk_logits, after = self._read(params, before, part, context)
            state = where_read(is_read, after, state)
            last = last_logits(chunk_logits)
            logits = last if logits is None else where_read(is_read, last, logits)
        return logits, {**state, LENGTH: device_put(sizes)}

    def _chunks(self) -> Sequence[int]:
        """Return the numbers of tokens that may be read at once, the largest first."""
        shape_of_tokens = self.model.inputs[0].shape
        fixed = shape_of_tokens[1]
        if fixed is not None:  # the network reads this number of tokens only
            return [fixed]
        return [x for x in CHUNKS if x < self.places]

    def _lengths(self, lengths: ArrayLike | None, rows: int, width: int) -> NDArray[np.int32]:
        """Return the lengths of `rows` prompts, as `checked_lengths` does."""
        return checked_lengths(lengths, rows, width, fewest=self._chunks()[-1], most=self.places)

    def log_probabilities(
        self, params: Params | Prepared | None, tokens: ArrayLike, **context: ArrayLike
    ) -> Array:
        """Return the log-probability of each token, except the first, given the tokens before it.

        `tokens` has the shape (batch, tokens). The result has the shape (batch, tokens - 1). The
        function is differentiable by `params`: the negative mean of the result is the loss of
        training.
        """
        array = jnp.asarray(tokens)
        rows, width = shape_of_prompts(array)
        if width == 1:
            raise InputError(
                "the first token of a row has no log-probability, and there is no other"
            )
        self._lengths(None, rows, width)  # checks the length of the rows
        state = self.init_state(rows)
        # The logits after each token score the next token, so the last token is not read.
        read_tokens, scored_tokens = array[:, :-1], array[:, 1:]
        logits, _ = self._read(params, state, read_tokens, context)
        has_only_last = logits.ndim < 3 or logits.shape[1] != width - 1
        if has_only_last:  # so the network reads one token at a time

            def turn(state: Any, token: Array) -> tuple[Any, Array]:
                logits, state = self.step(params, state, token, **context)
                return state, logits

            _, logits_by_token = lax.scan(turn, state, read_tokens.T)  # (tokens, batch, words)
            logits = jnp.moveaxis(logits_by_token, 0, 1)
        scores = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        return jnp.take_along_axis(scores, scored_tokens[..., None], axis=-1)[..., 0]

    def generate(
        self,
        tokens: ArrayLike,
        steps: int,
        *,
        lengths: ArrayLike | None = None,
        sample: Sampling = GREEDY,
        key: Array | int = 0,
        stop: int | Sequence[int] = (),
        params: Params | None = None,
        **context: ArrayLike,
    ) -> Generated:
        """Generate tokens that continue prompts.

        Args:
            tokens: prompts, (batch, tokens), or (tokens,) for one prompt.
            steps: the number of tokens to generate.
            lengths: the number of tokens in each prompt (batch,); by default all tokens of a
                row belong to its prompt.
            sample: how a token is chosen; by default it is the token with the largest logit.
            key: a key of `jax.random`, or the seed of a key.
            stop: one token or several; a row ends after one of these tokens.
            params: arrays by label; by default the model's parameters.
            context: maps names to the network's inputs other than tokens.

        Raises InputError if the prompts and `steps` tokens do not fit into the caches.

        >>> decoder = nnef_jax.decoder(nnef_jax.load("net.nnef.tgz"))
        >>> decoder.generate([1, 15043], 20).tokens
        """
        request = self._request(tokens, steps, lengths, sample, key, stop, params, context)
        generated = np.concatenate([*self._blocks(request, _BLOCK)], axis=1)
        missing = steps - generated.shape[1]  # more than 0 if all rows have stopped
        last_token = generated[:, -1:]
        generated = np.concatenate([generated, np.repeat(last_token, missing, axis=1)], axis=1)
        is_stop = np.isin(generated, request.stop)
        first_stop = is_stop.argmax(axis=1)  # 0 for a row without a stop token
        counts = np.where(is_stop.any(axis=1), first_stop + 1, steps)
        return Generated(generated, counts.astype(np.int32))

    def stream(
        self,
        tokens: ArrayLike,
        steps: int,
        *,
        lengths: ArrayLike | None = None,
        sample: Sampling = GREEDY,
        key: Array | int = 0,
        stop: int | Sequence[int] = (),
        params: Params | None = None,
        **context: ArrayLike,
    ) -> Iterator[NDArray[np.int32]]:
        """Yield the tokens that `generate` returns, as soon as they are generated.

        Each array, int32 (batch,), has one token of each row. The last one is that with which all
        rows have stopped. The arguments are as in `generate`.
        """
        request = self._request(tokens, steps, lengths, sample, key, stop, params, context)
        return (block[:, 0] for block in self._blocks(request, 1))

    def search(
        self,
        tokens: ArrayLike,
        steps: int,
        *,
        beams: int = 4,
        lengths: ArrayLike | None = None,
        stop: int | Sequence[int] = (),
        length_penalty: float = 1.0,
        **context: ArrayLike,
    ) -> Generated:
        """Return the most probable continuation of each prompt, by a beam search.

        Args:
            tokens: prompts, (batch, tokens), or (tokens,) for one prompt.
            steps: the largest number of tokens to generate.
            beams: the number of continuations that are extended at a time.
            lengths: the number of tokens in each prompt (batch,); by default all tokens of a
                row belong to its prompt.
            stop: one token or several; a continuation ends after one of them.
            length_penalty: log-probabilities are divided by length ** `length_penalty`.
            context: maps names to the network's inputs other than tokens.

        Raises InputError if the prompts and `steps` tokens do not fit into the caches.
        """
        require("beams", beams, int, "a number of continuations")
        require_normal("length_penalty", length_penalty)
        if beams < 1:
            raise InputError(f"beams must be at least 1, it is {beams}")
        request = self._request(
            tokens, steps, lengths, sample=GREEDY, key=0, stop=stop, params=None, context=context
        )
        # Each size is compiled, so `steps` is rounded up to a power of two, and to at least 64.
        size = max(_BLOCK, 1 << (request.steps - 1).bit_length())
        ranking = Ranking(stop_array(request.stop), np.float32(length_penalty))
        repeated = {name: np.repeat(x, beams, axis=0) for name, x in context.items()}
        beam_context = self._bound_context(repeated, len(request.prompts) * beams)
        logits, state = self.prefill(None, request.prompts, request.lengths, **context)
        require_words(request.prompts, logits.shape[-1])  # now the number of words is known
        execution = execution_of(self.model)
        search = BeamSearch(size, beams)
        best = execution.run_routine(search, logits, state, ranking, np.int32(steps), beam_context)
        counts = np.asarray(best.lengths)
        best_tokens = np.asarray(best.tokens)[:, :steps]
        # A continuation that has ended repeats its last token up to `steps` tokens.
        last_token = np.take_along_axis(best_tokens, counts[:, None] - 1, axis=1)
        is_token = np.arange(steps) < counts[:, None]
        return Generated(np.where(is_token, best_tokens, last_token), counts)

    def _request(
        self, tokens: ArrayLike, steps: int, lengths: ArrayLike | None, sample: Sampling,
        key: Array | int, stop: int | Sequence[int], params: Params | None, context: _Context,
    ) -> _Request:  # fmt: skip
        """Check the arguments of `generate`, and return them as a `_Request`.

        Raises InputError or TypeError for a wrong argument.
        """
        require("steps", steps, int | np.integer, "a number of tokens")
        steps = int(steps)
        if steps < 1:
            raise InputError(f"steps must be at least 1, they are {steps}")
        require("sample", sample, Sampling, "a nnef_jax.generation.Sampling")
        prompts = checked_tokens(tokens)
        require_words(prompts, self.model.graph.outputs[0].type.shape[-1])
        prompts = prompts.astype(np.int32)
        require_rows(len(prompts), context)
        sizes = self._lengths(lengths, *prompts.shape)
        needed_places = max(sizes) + steps - 1  # the last token is not read
        if needed_places > self.places:
            raise InputError(
                f"a prompt of {max(sizes)} tokens and {steps} further ones need {needed_places} "
                f"places, the caches have {self.places}",
                hint="decoder(..., places=...) sets their number",
            )
        stops = stop_tokens(stop)
        # The loop takes over the memory of its arguments.
        return _Request(prompts, sizes, steps, sample, new_key(key), stops, params, context)

    def _blocks(self, request: _Request, size: int) -> Iterator[NDArray[np.int32]]:
        """Read the prompts of a request, and yield the generated tokens in blocks.

        A block has the shape (batch, tokens), with at most `size` tokens of each row.
        """
        if request.params is not None:  # a routine runs with the parameters of its model
            decoder = self.with_model(self.model.with_params(request.params))
            yield from decoder._blocks(request._replace(params=None), size)
            return
        context = self._bound_context(request.context, len(request.prompts))
        state, prompts = self._start(request)
        loop = TokenLoop(size, rolls=self.window > 0)
        choice = TokenChoice(request.sample.numbers(), stop_array(request.stop))
        execution = execution_of(self.model)
        for begin in range(0, request.steps, size):
            count = min(size, request.steps - begin)
            tokens, state = execution.run_routine(
                loop, state, prompts, choice, np.int32(count), context
            )
            yield np.asarray(tokens)[:, :count]
            if np.asarray(state.is_done).all():
                return
            # Only the first block reads prompts.
            prompts = prompts._replace(lengths=jnp.zeros_like(prompts.lengths))

    def _bound_context(self, context: _Context, rows: int) -> list[Any]:
        """Return the network's inputs other than tokens, in the order in which a step takes them.

        The inputs are for `rows` rows. Raises InputError if an input is missing or does not fit its
        declaration.
        """
        tokens = np.zeros((rows, 1), np.int32)
        inputs: dict[str, Any] = {self.roles.tokens: tokens, **context}
        _, *bound_context = execution_of(self.model).bind((), inputs)
        return bound_context

    def _start(self, request: _Request) -> tuple[LoopState, Prompts]:
        """Return the loop's state before its first token, and the prompts that the loop reads.

        The beginning of each prompt is read here, by chunks. The loop reads the
        rest of the prompt.
        """
        lengths = request.lengths
        rows = len(lengths)
        type = self.model.graph.outputs[0].type
        if type.shape[-1] is UNKNOWN:
            # The loop starts with logits, whose shape is known only after a chunk has been read.
            by_loop = np.zeros_like(lengths)
        else:
            by_loop = lengths_by_loop(lengths, self._chunks(), overlaps=self.window == 0)
        logits: Any = None
        if np.all(by_loop == lengths):
            logits = device_put(np.zeros((rows, type.shape[-1]), type.dtype))
            state = self.init_state(rows)
        else:
            sizes = lengths - by_loop
            logits, state = self._read_prompts(None, request.prompts, sizes, request.context)
        words = logits.shape[-1]
        require_words(request.prompts, words)
        # `jnp.zeros` and `jnp.asarray` would compile programs for each number of rows.
        start = LoopState(
            logits,
            state,
            request.key,
            seen=device_put(words_of(request.prompts, lengths, words)),
            last=device_put(np.zeros(rows, np.int32)),
            is_done=device_put(np.zeros(rows, bool)),
        )
        tokens = last_tokens(request.prompts, lengths, by_loop, _LONGEST_IN_LOOP)
        return start, Prompts(device_put(tokens), device_put(by_loop))
