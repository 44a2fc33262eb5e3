"""Decodes text by a language model: reads prompts, and generates tokens one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike, NDArray

from nnef_jax.calls.arguments import Params, State
from nnef_jax.errors import InputError
from nnef_jax.execution.run_options import Prepared
from nnef_jax.generation.beams import Hypotheses, search
from nnef_jax.generation.decoder_network import LENGTH
from nnef_jax.generation.roles import Roles
from nnef_jax.generation.token_sampling import GREEDY, Sampling
from nnef_jax.model import Model
from nnef_jax.options import require, shown

# Numbers of tokens by which prompts are read: prompts of any length need three programs.
CHUNKS = (256, 16, 1)
_BLOCK = 64  # the most tokens that one run of the compiled loop generates
_Context = Mapping[str, ArrayLike]  # inputs that are the same for all tokens, by name


class Generated(NamedTuple):
    """The tokens that a decoder has generated, and their numbers.

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


class _LoopState(NamedTuple):
    """The values that one iteration of the loop over generated tokens hands to the next."""

    logits: Array  # of the next token, (batch, words)
    state: State
    key: Array
    seen: Array  # whether a word is in the text, (batch, words)
    last: Array  # the last generated token, (batch,)
    is_done: Array  # whether a row has stopped, (batch,)


@dataclass(frozen=True)
class Decoder:
    """A language model with caches of a fixed size, made by `nnef_jax.decoder`.

    `prefill`, `step` and `log_probabilities` are pure functions of parameters, for programs of
    your own. `generate` and `stream` run compiled loops over `step`.

    Attributes:
        model: the network of a step, whose states are the caches and the number of tokens in
            them. It is a `Model` as any other: it can be sharded, and `nnef_jax.cost` estimates
            it.
        roles: the roles of the network's inputs and outputs.
        places: the largest number of tokens whose keys and values a cache can hold.
    """

    model: Model
    roles: Roles
    places: int
    _cache: dict[Any, Any] = field(default_factory=dict[Any, Any], compare=False, repr=False)

    def __repr__(self) -> str:
        return f"decoder of '{self.model.graph.name}', {self.places} places\n{self.roles}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder, (self.model, self.roles, self.places)  # compiled loops do not pickle

    def with_model(self, model: Model) -> Decoder:
        """Return the decoder for another model, which was made from `self.model`.

        The other model may be sharded, or have trained parameters.
        """
        require("model", model, Model, "a nnef_jax.Model")
        return Decoder(model, self.roles, self.places)

    def init_state(self, batch: int = 1) -> dict[str, Array]:
        """Return the state before the first token, by label: empty caches, and lengths of 0.

        `batch` is the number of rows.
        """
        require("batch", batch, int, "a number of rows")
        state: dict[str, Array] = {}
        for variable in self.model.graph.states:
            type = variable.value.type
            state[variable.label] = jnp.zeros((batch, *type.shape[1:]), type.dtype)
        return state

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
            context: the network's further inputs, by name.

        A row whose cache is full overwrites its last tokens. `generate` does not let this
        happen.
        """
        logits, state = self._read(params, state, jnp.asarray(tokens)[:, None], context)
        return _last(logits), state

    def _read(
        self, params: Params | Prepared | None, state: State, tokens: ArrayLike, context: _Context
    ) -> tuple[Array, dict[str, Array]]:
        """Read several tokens of each row. Return the network's logits, and the next state.

        `tokens` has the shape (batch, tokens). The network may return only the logits of the
        last token.
        """
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
        of all lengths. The last chunk ends with the last token of the prompt. A token that is
        in two chunks is read twice, with equal results.

        Args:
            params: arrays by label, or None for the model's parameters.
            tokens: token numbers (batch, tokens).
            lengths: the number of tokens in each prompt (batch,); by default all tokens of a
                row belong to its prompt. The numbers must be known when the function is traced.
            context: the network's further inputs, by name.

        Raises InputError for an empty prompt, or a prompt that is longer than the caches.
        """
        rows, width = np.shape(tokens)
        sizes = self._lengths(lengths, rows, width)
        chunks = self._chunks()
        chunk_of_row = np.array([next(x for x in chunks if x <= n) for n in sizes])
        state: Any = self.init_state(rows)
        logits: Any = None
        for chunk in chunks:
            is_read = chunk_of_row == chunk
            longest = max(sizes[is_read], default=0)
            for begin in range(0, longest, chunk):
                starts = np.where(is_read, np.minimum(begin, sizes - chunk), 0).astype(np.int32)
                part = _taken(tokens, starts[:, None] + np.arange(chunk))
                before = {**state, LENGTH: starts}
                chunk_logits, after = self._read(params, before, part, context)
                state = _chosen(is_read, after, state)
                last = _last(chunk_logits)
                logits = last if logits is None else _chosen(is_read, last, logits)
        return logits, {**state, LENGTH: jnp.asarray(sizes)}

    def _chunks(self) -> Sequence[int]:
        """Return the numbers of tokens that may be read at once, the largest first.

        If the network has a fixed number of tokens, it is the only one.
        """
        shape = self.model.inputs[0].shape
        fixed = shape[1]
        return [fixed] if fixed is not None else [x for x in CHUNKS if x <= self.places]

    def _lengths(self, lengths: ArrayLike | None, rows: int, width: int) -> NDArray[np.int32]:
        """Return the lengths of `rows` prompts. Raises InputError if they do not fit.

        They must lie between 1 and `width`, and not exceed the places of the caches. If
        `lengths` is None, each length is `width`.
        """
        sizes = np.full(rows, width) if lengths is None else np.asarray(lengths)
        if sizes.shape != (rows,) or not np.all((sizes >= 1) & (sizes <= width)):
            message = f"lengths must be {rows} numbers from 1 to {width}, they are {shown(lengths)}"
            raise InputError(message if width else "a prompt is empty")
        if max(sizes) > self.places:
            message = f"a prompt has {max(sizes)} tokens, the caches have {self.places} places"
            raise InputError(message, hint="decoder(..., places=...) sets their number")
        return sizes.astype(np.int32)

    def log_probabilities(
        self, params: Params | Prepared | None, tokens: ArrayLike, **context: ArrayLike
    ) -> Array:
        """Return the log-probability of each token, except the first, given the tokens before it.

        `tokens` has the shape (batch, tokens), and the result has the shape (batch, tokens -
        1). The function is differentiable by `params`: the negative mean of its result is the
        loss of training.
        """
        array = jnp.asarray(tokens)
        rows, width = array.shape
        self._lengths(None, rows, width)
        state = self.init_state(rows)
        logits, _ = self._read(params, state, array[:, :-1], context)
        if logits.ndim < 3 or logits.shape[1] != width - 1:  # only logits of the last token

            def turn(state: Any, token: Array) -> tuple[Any, Array]:
                logits, state = self.step(params, state, token, **context)
                return state, logits

            logits = jnp.moveaxis(lax.scan(turn, state, array[:, :-1].T)[1], 0, 1)
        scores = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        return jnp.take_along_axis(scores, array[:, 1:, None], axis=-1)[..., 0]

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
            context: the network's further inputs, by name.

        Raises InputError if the prompts and `steps` tokens do not fit into the caches.

        >>> decoder = nnef_jax.decoder(nnef_jax.load("net.nnef.tgz"))
        >>> decoder.generate([1, 15043], 20).tokens
        """
        request = self._request(tokens, steps, lengths, sample, key, stop, params, context)
        generated = np.concatenate([*self._blocks(request, _BLOCK)], axis=1)
        missing = steps - generated.shape[1]  # if all rows have stopped
        generated = np.concatenate([generated, np.repeat(generated[:, -1:], missing, 1)], axis=1)
        is_stop = np.isin(generated, request.stop)
        counts = np.where(is_stop.any(axis=1), is_stop.argmax(axis=1) + 1, steps)
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

        Each array, int32 (batch,), has one token of each row. The arguments are as in
        `generate`.
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
        """Return the most probable continuation of each prompt that a beam search visits.

        Args:
            tokens: prompts, (batch, tokens), or (tokens,) for one prompt.
            steps: the largest number of tokens to generate.
            beams: the number of continuations that are extended at a time.
            lengths: the number of tokens in each prompt (batch,); by default all.
            stop: one token or several; a continuation ends after one of them.
            length_penalty: the exponent of the length, by which log-probabilities are divided.
            context: the network's further inputs, by name.

        Raises InputError if the prompts and `steps` tokens do not fit into the caches.
        """
        require("beams", beams, int, "a number of continuations")
        if beams < 1:
            raise InputError(f"beams must be at least 1, it is {beams}")
        request = self._request(tokens, steps, lengths, GREEDY, 0, stop, None, context)
        prompts, sizes, stops = request.prompts, request.lengths, request.stop
        rows = len(prompts) * beams
        repeated = {name: np.repeat(x, beams, axis=0) for name, x in context.items()}
        logits, state = self.prefill(None, prompts, sizes, **context)
        key = "search", steps, beams, stops, length_penalty
        if key not in self._cache:

            def run(params: Any, logits: Array, state: State, context: _Context) -> Hypotheses:
                def step(state: State, tokens: Array) -> tuple[Array, State]:
                    return self.step(params, state, tokens, **context)

                return search(
                    step, logits, state, steps=steps, beams=beams, stop=stops,
                    length_penalty=length_penalty,
                )  # fmt: skip

            self._cache[key] = self.model.jit(run)
        prepared = self._prepared(None, rows, repeated)
        best = self._cache[key](prepared, logits, state, repeated)
        ends = np.asarray(best.lengths)
        best_tokens = np.asarray(best.tokens)
        last = np.take_along_axis(best_tokens, ends[:, None] - 1, axis=1)
        is_token = np.arange(steps) < ends[:, None]
        return Generated(np.where(is_token, best_tokens, last), ends)

    def _request(
        self, tokens: ArrayLike, steps: int, lengths: ArrayLike | None, sample: Sampling,
        key: Array | int, stop: int | Sequence[int], params: Params | None, context: _Context,
    ) -> _Request:  # fmt: skip
        """Check the arguments of `generate`, and return them as a `_Request`.

        Raises InputError or TypeError for a wrong argument.
        """
        require("steps", steps, int, "a number of tokens")
        require("sample", sample, Sampling, "a nnef_jax.generation.Sampling")
        prompts = _checked_tokens(tokens)
        sizes = self._lengths(lengths, *prompts.shape)
        needed_places = max(sizes) + steps - 1  # the last token is not read
        if steps < 1 or needed_places > self.places:
            raise InputError(
                f"a prompt of {max(sizes)} tokens and {steps} further ones need {needed_places} "
                f"places, the caches have {self.places}",
                hint="decoder(..., places=...) sets their number",
            )
        stops = (stop,) if isinstance(stop, int) else tuple(stop)
        start = jax.random.key(key) if isinstance(key, int) else key
        return _Request(prompts, sizes, steps, sample, start, stops, params, context)

    def _blocks(self, request: _Request, size: int) -> Iterator[NDArray[np.int32]]:
        """Read the prompts of a request, and yield the generated tokens in blocks.

        A block has the shape (batch, tokens), with at most `size` tokens of each row.
        """
        context = dict(request.context)
        prompts, lengths = request.prompts, request.lengths
        rows = len(prompts)
        logits, state = self.prefill(request.params, prompts, lengths, **context)
        words = logits.shape[-1]
        if prompts.max() >= words:
            raise InputError(f"token {prompts.max()} of a prompt is none of the {words} words")
        seen = np.zeros((rows, words), bool)
        for row, length in enumerate(lengths):
            seen[row, prompts[row, :length]] = True
        last = jnp.zeros(rows, jnp.int32)
        carry = _LoopState(logits, state, request.key, jnp.asarray(seen), last, last > 0)
        prepared = self._prepared(request.params, rows, context)
        run = self._compiled_loop(size, request.sample, request.stop)
        for begin in range(0, request.steps, size):
            count = min(size, request.steps - begin)
            tokens, carry = run(prepared, carry, np.int32(count), context)
            yield np.asarray(tokens)[:, :count]
            if np.all(carry.is_done):
                return

    def _prepared(self, params: Params | None, rows: int, context: _Context) -> Prepared:
        """Return parameters prepared for steps of this many rows. Those of the model are kept."""

        def prepare(params: Params) -> Prepared:
            tokens = np.zeros((rows, 1), np.int32)
            inputs: dict[str, Any] = {self.roles.tokens: tokens, **context}
            return self.model.prepare(params, state=self.init_state(rows), **inputs)

        if params is not None:
            return prepare(params)
        shapes = tuple((name, np.shape(x)) for name, x in sorted(context.items()))
        key = "prepared", rows, shapes
        if key not in self._cache:
            self._cache[key] = prepare(self.model.params)
        return self._cache[key]

    def _compiled_loop(self, size: int, sample: Sampling, stop: tuple[int, ...]) -> Any:
        key = size, sample, stop
        if key not in self._cache:
            self._cache[key] = self.model.jit(partial(self._run_loop, size, sample, stop))
        return self._cache[key]

    def _run_loop(
        self, size: int, sample: Sampling, stop: tuple[int, ...], params: Params | Prepared,
        start: _LoopState, count: Array, context: _Context,
    ) -> tuple[Array, _LoopState]:  # fmt: skip
        """Generate `count` tokens of each row. Return them (batch, size), and the loop's state.

        `start` is the state of the loop before the first of these tokens. Tokens after the
        first `count` repeat the last one.
        """
        rows = start.last.shape[0]

        def has_more(values: tuple[Array, Array, _LoopState]) -> Array:
            i, _, loop = values
            return (i < count) & ~jnp.all(loop.is_done)

        def generate_token(
            values: tuple[Array, Array, _LoopState],
        ) -> tuple[Array, Array, _LoopState]:
            i, tokens, loop = values
            key, drawn = jax.random.split(loop.key)
            chosen = sample.choose(sample.penalised(loop.logits, loop.seen), drawn)
            token = jnp.where(loop.is_done, loop.last, chosen)
            is_done = loop.is_done | jnp.isin(token, jnp.asarray(stop, jnp.int32))
            seen = loop.seen.at[jnp.arange(rows), token].set(True)
            logits, state = self.step(params, loop.state, token, **context)
            tokens = lax.dynamic_update_slice_in_dim(tokens, token[:, None], i, 1)
            return i + 1, tokens, _LoopState(logits, state, key, seen, token, is_done)

        empty = jnp.zeros((rows, size), jnp.int32)
        end, tokens, loop = lax.while_loop(has_more, generate_token, (jnp.int32(0), empty, start))
        is_generated = jnp.arange(size) < end
        return jnp.where(is_generated, tokens, loop.last[:, None]), loop


def _checked_tokens(tokens: ArrayLike) -> NDArray[np.int32]:
    """Return prompts as (batch, tokens). Raises InputError for anything but token numbers."""
    array = np.atleast_2d(np.asarray(tokens))
    if array.size == 0:
        raise InputError("a prompt is empty")
    if array.ndim != 2 or array.dtype.kind not in "iu" or array.min() < 0:
        expected = "token numbers, (batch, tokens) or (tokens,)"
        raise InputError(f"tokens must be {expected}, they are {shown(tokens)}")
    return array.astype(np.int32)


def _taken(tokens: ArrayLike, positions: NDArray[np.int64]) -> Any:
    """Return the tokens (batch, chunk) at the positions (batch, chunk) of each row.

    Tokens in a numpy array or list give a numpy array.
    """
    if isinstance(tokens, Array):
        return jnp.take_along_axis(tokens, positions, axis=1, mode="clip")
    array = np.asarray(tokens)
    return np.take_along_axis(array, np.minimum(positions, array.shape[1] - 1), axis=1)


def _chosen(is_read: NDArray[np.bool_], after: Any, before: Any) -> Any:
    """Return trees of arrays that have `after` in rows where `is_read` is true, else `before`."""
    if is_read.all():
        return after

    def select(x: Array, y: Array) -> Array:
        return jnp.where(is_read.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return jax.tree.map(select, after, before)


def _last(logits: Array) -> Array:
    """Return the logits (batch, words) of the last token, from the logits of all tokens.

    The network may return only the logits of the last token, which are returned unchanged.
    """
    return logits if logits.ndim == 2 else logits[:, -1]
