"""Makes a network for one step of a language model, with caches of a fixed size as states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering import GraphBuilder, NotPaddableError, PaddedFunction, SymbolValues
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, Shape, is_symbolic
from lowering.graph import Graph, Rule, TensorType, Value
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.probe import NOTHING
from nnef_jax.execution.runnable import execution_of
from nnef_jax.execution.threads import Once
from nnef_jax.formats.base import ExtentNeeded, Frontend, Options, Stored, Written
from nnef_jax.generation.roles import Roles
from nnef_jax.model import Model

LENGTH = "length"  # the label of the state with the number of positions in use
_SYMBOL = "P"
_KIND = "decode"
# Computes a step of one row: takes parameters by label, caches, tokens, context and the number of
# tokens in the caches; returns logits and the next caches.
_RowStep = Callable[..., list[Array]]


@dataclass(frozen=True)
class DecoderStep:
    """A step of a language model on caches of `places` positions. The first positions are in use.

    In the trace of the network, a symbolic extent stands for the number of positions in use. The
    traced network is evaluated on padded caches. Rows of a batch may have different lengths.

    If a token attends only to the last `window` positions, itself included, a cache has only
    `window` - 1 positions. `window` is 0 if a token attends to all positions.
    """

    definition: Definition
    roles: Roles
    places: int
    window: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Traced functions cannot be pickled.
        return DecoderStep, (self.definition, self.roles, self.places, self.window)

    @property
    def cache_places(self) -> int:
        """Return the number of positions of a cache."""
        return min(self.window - 1, self.places) if self.window else self.places

    @cached_property
    def _functions(self) -> Once:
        """Return the store of traced functions. A key is a number of tokens and types of arrays."""
        return Once()

    @cached_property
    def content(self) -> str:
        """Return a text that is different for steps that compute different results.

        The step's operation has the text as an attribute. So the keys of compiled programs differ
        for decoders whose parameters have equal labels and shapes.
        """
        text = repr((self.definition.content, self.roles, self.places, self.window))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def graph(self) -> Graph:
        """Return the graph of the model, with open extents."""
        return self.definition.network.graph

    @cached_property
    def cache_types(self) -> list[TensorType]:
        """Return the types of the padded caches. The extent of the batch is open."""
        types: list[TensorType] = []
        values = {x.name: x for x in self.graph.inputs}
        values |= {state.label: state.value for state in self.graph.states}
        for cache in self.roles.caches:
            type = values[cache.before].type
            shape = list(type.shape)
            shape[0] = UNKNOWN
            shape[cache.axis] = self.cache_places
            types.append(TensorType(tuple(shape), type.dtype))
        return types

    def infer(
        self, tokens: TensorType, length: TensorType, params: list[TensorType],
        caches: list[TensorType], context: list[TensorType], content: str,
    ) -> tuple[TensorType, TensorType, list[TensorType]]:  # fmt: skip
        """Return the types of logits, the next length and the next caches."""
        outputs = dict(zip(self.graph.output_names, self.graph.outputs, strict=True))
        logits = outputs[self.roles.logits].type
        words = logits.shape[-1]
        declared = self.definition.network.frontend.output_shapes().get(self.roles.logits)
        if words is UNKNOWN and declared and declared[-1] is not None:
            words = declared[-1]  # the document declares the number that the graph leaves open
        rows = tokens.shape[0]
        shape = (rows, *(UNKNOWN for _ in logits.shape[1:-1]), words)
        return TensorType(shape, logits.dtype), length, list(caches)

    @cached_property
    def has_buffers(self) -> bool:
        """Tell whether the network writes new keys into caches of a fixed size by itself.

        Such a network returns caches of the size that it took. It counts the positions in use by
        the mask, or takes the number of these positions as an input. Networks with
        onnxruntime-genai's operator GroupQueryAttention or ONNX's TensorScatter are examples.
        """
        roles = self.roles
        takes_length = roles.mask or roles.length or roles.total_length
        if not takes_length:
            return False
        if roles.context:  # the shapes of these inputs are not known here
            return False
        state_caches = {x.label for x in self.graph.states} & {x.before for x in roles.caches}
        if state_caches:  # a shape can be set for inputs only
            return False
        shapes: dict[str, Shape] = {
            roles.tokens: (1, 1),
            roles.mask: (1, self.places),
            roles.positions: (1, 1),
            roles.length: (1,),
            roles.total_length: (1,),
        }
        for cache, type in zip(roles.caches, self.cache_types, strict=True):
            shapes[cache.before] = (1, *type.shape[1:])
        try:
            graph = self.definition.network.specialise([shapes[x.name] for x in self.graph.inputs])
        except (NnefError, ExtentNeeded, KeyError):
            return False
        outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
        lengths = {outputs[x.after].type.shape[x.axis] for x in roles.caches if x.after in outputs}
        return lengths == {self.places}

    def lower(
        self, tokens: Array, length: Array, params: list[Array], caches: list[Array],
        context: list[Array], content: str,
    ) -> tuple[Array, Array, list[Array]]:  # fmt: skip
        """Return logits, the next length (batch,), and the next caches."""
        by_label = dict(zip(sorted(self.definition.labels), params, strict=True))
        rows, count = tokens.shape
        if is_symbolic(count):
            raise InvalidOperation(
                "the number of tokens that a step reads must be known",
                "decoder.model_of(1) is the model for one token of each row",
            )
        # The network computes one row at a time, since rows may have different lengths.
        compute: _RowStep = self._with_buffers
        if not self.has_buffers:
            compute = self._padded(by_label, tokens, caches, context)

        def row(tokens: Array, length: Array, caches: list[Array], context: list[Array]) -> Any:
            batch_of_one = jax.tree.map(lambda x: x[None], (caches, tokens, context))
            logits, *after = compute(by_label, *batch_of_one, length)
            return logits[0], [x[0] for x in after]

        if rows == 1:  # a single row needs no vmap
            first = jax.tree.map(lambda x: x[0], (tokens, length, caches, context))
            logits, after = jax.tree.map(lambda x: x[None], row(*first))
        else:
            logits, after = jax.vmap(row)(tokens, length, caches, context)
        return logits, length + count, after

    def _with_buffers(
        self, params: Mapping[str, Array], caches: list[Array], tokens: Array,
        context: list[Array], length: Array,
    ) -> list[Array]:  # fmt: skip
        """Compute a step of one row by a network that writes into its caches."""
        length_after = length + tokens.shape[1]
        mask = jnp.arange(self.places)[None] < length_after  # (1, places)
        return self.cycle(params, caches, tokens, context, length, mask)

    def _padded(
        self, params: Mapping[str, Array], tokens: Array, caches: Sequence[Array],
        context: Sequence[Array],
    ) -> _RowStep:  # fmt: skip
        """Return the function that computes a step of one row by a network with growing caches."""
        count = tokens.shape[1]
        most = self._most_before(count)
        types = _types((dict(params), list(caches), list(context)))
        shapes = tuple((x.shape, x.dtype) for x in jax.tree.leaves(types))
        grow = self._functions.get((count, shapes), lambda: self._traced(count, *types))
        # The indices of the caches among the arguments of `grow`: the caches follow the parameters.
        # The padding of the caches has finite numbers.
        finite = range(len(params), len(params) + len(caches))

        def compute(
            params: Mapping[str, Array], caches: list[Array], tokens: Array,
            context: list[Array], length: Array,
        ) -> list[Array]:  # fmt: skip
            used = jnp.minimum(length, most)
            symbols = SymbolValues(most={_SYMBOL: most}, counts={_SYMBOL: used})
            try:
                results = grow(symbols, params, caches, tokens, context, length, finite=finite)
            except NotPaddableError as error:
                raise _refusal(error) from None
            logits, *after = results  # usually, a cache now has `count` more positions than before
            most_after = most + count
            for i, (cache, x) in enumerate(zip(self.roles.caches, after, strict=True)):
                if x.shape[cache.axis] != most_after:  # it has the keys of the new tokens only
                    x = _written(caches[i], x, used, most_after, cache.axis)
                after[i] = _last_places(x, used + count, self.cache_places, cache.axis)
            return [logits, *after]

        return compute

    def _traced(
        self, count: int, params: Mapping[str, Any], caches: Sequence[Any], context: Sequence[Any]
    ) -> PaddedFunction:
        """Trace the network for one row of `count` tokens.

        A symbol stands for the number of tokens in the caches.
        """
        constraints = [f"{_SYMBOL} <= {self._most_before(count)}"]
        (used,) = jax.export.symbolic_shape(_SYMBOL, constraints=constraints)
        cache_types: list[jax.ShapeDtypeStruct] = []
        for cache, x in zip(self.roles.caches, caches, strict=True):
            shape: list[Any] = [1, *x.shape[1:]]
            shape[cache.axis] = used
            cache_types.append(jax.ShapeDtypeStruct(shape, x.dtype))
        one_row = [jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for x in context]
        tokens = jax.ShapeDtypeStruct((1, count), self.tokens_dtype)

        def grow(
            params: Any, caches: list[Array], tokens: Array, context: list[Array], length: Array
        ) -> Any:
            mask = jnp.ones((1, used + count), bool)
            return self.cycle(params, caches, tokens, context, length, mask)

        length = jax.ShapeDtypeStruct((), jnp.int32)
        return PaddedFunction(grow, params, cache_types, tokens, one_row, length)

    def _most_before(self, count: int) -> int:
        """Return the largest number of positions in use before `count` tokens are read."""
        return self.cache_places if self.window else self.places - count

    @property
    def tokens_dtype(self) -> str:
        """Return the dtype of token numbers."""
        return self._input(self.roles.tokens).type.dtype

    def _input(self, name: str) -> Value:
        return next(x for x in self.graph.inputs if x.name == name)

    def cycle(
        self, params: Mapping[str, Array], caches: list[Array], tokens: Array,
        context: list[Array], length: Array, mask: Array,
    ) -> list[Array]:  # fmt: skip
        """Compute logits and the next caches of one row by the network.

        Args:
            params: arrays by label.
            caches: arrays without padding.
            tokens: the tokens (1, tokens).
            context: the network's inputs other than tokens.
            length: the number of earlier tokens, which is the position of the first of `tokens`.
            mask: the positions that are attended to, bool (1, positions).
        """
        roles = self.roles
        arrays: dict[str, Any] = {roles.tokens: tokens}
        arrays |= dict(zip(roles.context, context, strict=True))
        state_labels = {state.label for state in self.graph.states}
        state: dict[str, Array] = {}
        for cache, x in zip(roles.caches, caches, strict=True):
            arrays_of_kind = state if cache.before in state_labels else arrays
            arrays_of_kind[cache.before] = x
        if roles.mask:
            arrays[roles.mask] = mask.astype(self._input(roles.mask).type.dtype)
        arrays |= self._positions(length, tokens.shape[1])
        inputs = [arrays[x.name] for x in self.graph.inputs]
        outputs, after, _ = self.definition.cycle(params, state, inputs, NOTHING)
        results = dict(zip(self.graph.output_names, outputs, strict=True)) | after
        return [results[roles.logits], *(results[cache.after] for cache in roles.caches)]

    def _positions(self, length: Array, count: int) -> dict[str, Array]:
        """Return a dict from names to arrays, for those inputs that hold positions or lengths.

        The network reads `count` new tokens, and has read `length` tokens before.
        """
        roles = self.roles
        arrays: dict[str, Array] = {}
        if roles.positions:
            type = self._input(roles.positions).type
            positions = (jnp.arange(count) + length.astype(jnp.int32)).astype(type.dtype)
            arrays[roles.positions] = positions if len(type.shape) == 1 else positions[None]
        for name, number in ((roles.length, length), (roles.total_length, length + count)):
            if name:
                type = self._input(name).type
                shape = (1,) * len(type.shape)  # of a batch of one, or of a scalar
                arrays[name] = jnp.reshape(number.astype(type.dtype), shape)
        return arrays


class DecoderFrontend(Frontend):
    """The front end of a language model with padded caches.

    Inputs are tokens [batch,tokens] and the context. The state has the caches, and the number of
    positions in use [batch].
    """

    def __init__(self, step: DecoderStep) -> None:
        roles = step.roles
        self.step = step
        self.inputs: Sequence[str] = [roles.tokens, *roles.context]
        self.outputs: Sequence[str] = [roles.logits]
        self.describe_as(step.definition.network.frontend)

    def flatten(self, options: Options) -> Graph:
        """Return the graph: one operation that computes a step."""
        step, roles = self.step, self.step.roles
        builder = GraphBuilder(real=options.real, integer=self.integer)

        # The inputs are the tokens and the context.
        inputs = {x.name: x for x in step.graph.inputs}
        shape = options.shape(roles.tokens, (None, None))
        tokens_type = TensorType(shape, inputs[roles.tokens].type.dtype)
        tokens = builder.input(roles.tokens, tokens_type)
        context: list[Value] = []
        for name in roles.context:
            type = inputs[name].type
            declared = [None if n is UNKNOWN else n for n in type.shape]
            context_type = TensorType(options.shape(name, declared), type.dtype)
            context.append(builder.input(name, context_type))

        # The parameters are those of the network. The states are the length and the caches.
        by_label = {p.label: p for p in step.graph.parameters}
        params: list[Value] = []
        for label in sorted(step.definition.labels):
            p = by_label[label]
            params.append(builder.variable(p.value.name, label, p.value.type, p.span))
        batch = shape[:1]
        length = builder.variable(LENGTH, LENGTH, TensorType(batch, "int32"), None)
        caches: list[Value] = []
        for cache, type in zip(roles.caches, step.cache_types, strict=True):
            cache_type = TensorType((*batch, *type.shape[1:]), type.dtype)
            caches.append(builder.variable(cache.before, cache.before, cache_type, None))

        # The operation computes the logits and the next states.
        operands = {
            "tokens": tokens, "length": length, "params": tuple(params), "caches": tuple(caches),
            "context": tuple(context),
        }  # fmt: skip
        attributes = {"content": step.content}
        names_of_arguments = *operands, *attributes
        rule = Rule(_KIND, step.infer, step.lower, names_of_arguments, wants_context=False)
        names = [roles.logits, f"next_{LENGTH}", *(x.after for x in roles.caches)]
        results: Any = builder.operation(_KIND, operands, attributes, names, rule=rule)
        logits, next_length, next_caches = results
        builder.update(length, next_length)
        for cache, next_cache in zip(caches, next_caches, strict=True):
            builder.update(cache, next_cache)
        return builder.graph(step.graph.name, [logits], [roles.logits])

    def stored(self, graph: Graph) -> Stored:
        """Return no data: the decoder takes the arrays of the model."""
        return Stored({}, self)

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        """Raise UnsupportedError: no document expresses a step."""
        hint = "save the model that the decoder was made from"
        raise UnsupportedError("the network of a decoder cannot be saved", hint=hint)

    def state_shapes(self) -> Mapping[str, Sequence[int | None]]:
        """Return a dict from labels to the shapes of caches and length, with an open batch."""
        shapes: dict[str, Sequence[int | None]] = {LENGTH: (None,)}
        for cache, type in zip(self.step.roles.caches, self.step.cache_types, strict=True):
            shapes[cache.before] = [None, *type.shape[1:]]
        return shapes

    def content(self) -> Iterable[object]:
        """Return the content of the model, the roles and the number of positions."""
        network = self.step.definition.network
        return [
            *network.frontend.content(),
            repr((self.step.roles, self.step.places, self.step.window)),
        ]


def _written(cache: Array, new: Array, used: Array, places: int, axis: int) -> Array:
    """Return a cache of `places` positions, with new keys after the `used` positions in use."""
    missing = places - cache.shape[axis]
    widths = [(0, 0)] * cache.ndim
    widths[axis] = (0, missing)
    wide = jnp.pad(cache, widths) if missing > 0 else cache
    return lax.dynamic_update_slice_in_dim(wide, new, used, axis)


def _last_places(cache: Array, used: Array, places: int, axis: int) -> Array:
    """Return the last `places` of the `used` positions of a cache.

    The result has `places` positions along the axis. If `used` is less than `places`, the empty
    positions are at the end.
    """
    if cache.shape[axis] == places:
        return cache
    begin = jnp.maximum(used - places, 0)
    return lax.dynamic_slice_in_dim(cache, begin, places, axis)


def with_tokens(model: Model, name: str, tokens: int) -> Model:
    """Return a decoder's model that reads `tokens` tokens of each row.

    `name` is the name of the input of tokens.
    """
    execution = execution_of(model)
    network = execution.network
    options = replace(network.options, input_shapes={name: (None, tokens)})
    graph = network.frontend.flatten(options)
    labels = [x.label for x in (*graph.parameters, *graph.states)]
    data = {label: execution.arrays.stored(label) for label in labels}
    network = replace(
        network, options=options, graph=graph, declared=graph, data=data, _specialised={}
    )
    return Model(execution.with_network(network))


def _refusal(error: NotPaddableError) -> InvalidOperation:
    """Return the error for an operation that would treat empty places of a cache as tokens."""
    name = error.operation or error.primitive
    return InvalidOperation(
        f"'{name}' cannot read a cache of fixed size: '{error.primitive}' would take empty places "
        "for tokens",
        "the network itself runs with caches that grow: model(...)",
    )


def _types(arrays: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
