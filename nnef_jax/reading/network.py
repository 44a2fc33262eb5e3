"""Holds a network that was read: its document, its graph for input shapes, and its stored data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowering.extents import UNKNOWN, Shape, is_known, is_symbolic, show
from lowering.graph import Graph, Operation, StateVariable, TensorType, Value, substituted
from lowering.ops import rules
from nnef_jax.errors import InputError, SemanticError, ShapeError, UnsupportedError, raise_all
from nnef_jax.formats import KINDS
from nnef_jax.formats.base import ExtentNeeded, Frontend, Options, Shapes
from nnef_jax.garbage import uncollected
from nnef_jax.limits import Meter
from nnef_jax.tensor_spec import TensorSpec, spec_of
from nnef_jax.wording.similar import did_you_mean

# Extents to try in place of open extents. The first is 1, because masks and batches of extent 1
# broadcast with any other extent. The second is 64, because it is large enough for windows and can
# be halved several times.
_GUESSES = (1, 64)
# The value of an open extent in an example. It is larger than 1, since axes of 1 are ambiguous.
_EXAMPLE = 8

# Unpickled networks, which may be of any format, need the rules of all formats.
for _module, _kinds in KINDS.items():
    rules.add(_module, _kinds)


@dataclass(frozen=True, eq=False)
class Network:
    """A checked document, the options for flattening it, its graph, and its data by label.

    `graph` is the graph for the input shapes in `options.input_shapes`. An input that is not there
    has its declared shape. Open extents in the graph are UNKNOWN; `specialise` returns the graph
    for known shapes.

    `pairs` maps inputs that are states to the outputs that update them. The graph has a state
    variable in place of each such input and its output. The variable has the name of the input.
    """

    frontend: Frontend
    options: Options
    graph: Graph
    # the document's graph, in which both members of each pair are still an input and an output
    unpaired: Graph
    data: Mapping[str, NDArray[Any]]
    pairs: Mapping[str, str]
    # the graph for the document's own shapes, if the options have other shapes
    declared: Graph | None
    # whether the structure of the graph depends on open extents, and is that for a guess
    is_guessed: bool
    _specialised: dict[tuple[Any, ...], Graph] = field(
        default_factory=dict[tuple[Any, ...], Graph], repr=False
    )

    @classmethod
    def build(
        cls, frontend: Frontend, options: Options, pairs: Mapping[str, str], *, data: bool
    ) -> Network:
        """Flatten a document and check its shapes. If `data`, read the arrays of its variables.

        `pairs` is the argument `state` of `load`. Raises InputError for shapes and pairs that do
        not fit the document, and NnefError for a broken document.
        """
        errors = [
            *_unknown("input_shapes", options.input_shapes, "input", frontend.inputs),
            *_unknown("input_shapes", options.extents, "open extent", frontend.symbols),
            *_unknown("values", options.values, "input", frontend.inputs),
            *_unknown("state", pairs, "input", frontend.inputs),
            *_unknown("state", pairs.values(), "output", frontend.outputs),
        ]
        raise_all(errors)
        flattened = _flatten_and_check(frontend, options)
        stored: Mapping[str, NDArray[Any]] = {}
        if data:
            content = frontend.stored(flattened.graph)
            stored = content.data
            if content.frontend is not frontend:
                frontend = content.frontend
                flattened = _flatten_and_check(frontend, options)
        graph, declared, is_guessed = flattened
        paired = with_pairs(graph, pairs)
        stored = {**stored, **_zeros(paired, pairs, frontend)}
        return cls(frontend, options, paired, graph, stored, pairs, declared, is_guessed)

    @cached_property
    def is_open(self) -> bool:
        """Tell whether at least one input has an open extent."""
        return _has_open_inputs(self.graph)

    def example(self) -> Graph:
        """Return the graph with 8 in place of each open extent.

        Raises NnefError if the network does not allow 8 as an extent.
        """
        if not self.is_open:
            return self.graph
        shapes: list[Shape] = []
        for value in self.graph.inputs:
            shapes.append(
                tuple(_EXAMPLE if extent is UNKNOWN else extent for extent in value.type.shape)
            )
        return self.specialise(shapes)

    def specialise(
        self, shapes: Sequence[Shape], state: Mapping[str, Shape] | None = None
    ) -> Graph:
        """Return the graph for inputs of the shapes `shapes`, in order, after checking all shapes.

        `state` has the shapes of state variables by label. Without `state`, the result is the graph
        of the first cycle. If the shapes do not fit an operation, raises a ShapeError or
        SemanticError that names the operation.
        """
        has_open_states = self.graph.states and self.open_states
        if not self.is_open and not has_open_states:
            return self.graph
        state = state or {}
        state_shapes = {label: tuple(state[label]) for label in self.open_states if label in state}
        key = (*shapes, *state_shapes.items())
        if key in self._specialised:
            return self._specialised[key]
        options = self._options_for(shapes, state_shapes)
        extents = chain(*shapes, *state_shapes.values())
        if any(map(is_symbolic, extents)):
            return self._symbolic(options)
        try:
            graph = self._flatten(options)
        except SemanticError as error:
            reasons = filter(None, (error.hint, self._disagreement(shapes)))
            error.hint = "; ".join(reasons)
            raise
        _require_no_constant_extents(self.declared, graph)
        self._check_variables(graph)
        self._specialised[key] = graph
        return graph

    def _options_for(self, shapes: Sequence[Shape], state_shapes: Mapping[str, Shape]) -> Options:
        """Return the options for shapes of the inputs, in order, and of states, by label."""
        names = [value.name for value in self.graph.inputs]
        is_first_cycle = not self.computed_state_labels <= state_shapes.keys()
        options = replace(
            self.options,
            input_shapes={**self.options.input_shapes, **dict(zip(names, shapes, strict=True))},
            # Each specialisation has a new budget, because reading the network has used up its own.
            meter=Meter(self.options.meter.limits),
            state_shapes=state_shapes,
            starts=is_first_cycle,
        )
        # The graph for other extents may need weights that were folded in the graph for the guess.
        return replace(options, labels=self.labels) if self.is_guessed else options

    def _disagreement(self, shapes: Sequence[Shape]) -> str:
        """Return a sentence on a named extent that has different values in `shapes`, or ''.

        An example is "'batch' is 2 in 'x', 3 in 'y'".
        """
        first_uses: dict[str, tuple[str, int]] = {}
        for value, shape in zip(self.graph.inputs, shapes, strict=True):
            names = self.extent_names.get(value.name, ())
            for name, extent in zip(names, shape, strict=False):  # There may be no names.
                input, first_extent = first_uses.setdefault(name, (value.name, extent))
                if name and extent != first_extent:
                    return f"'{name}' is {first_extent} in '{input}', {extent} in '{value.name}'"
        return ""

    def with_open_batch(self, stored: Callable[[str], NDArray[np.generic]]) -> Network:
        """Return the network for batches of any size: the first axis of each input is open.

        `stored` is a function from a label to the variable's array. Raises NnefError if the
        document fixes the batch. Some documents fix the batch in ways that only `specialise`
        detects.
        """
        shapes: dict[str, list[int | None]] = {}
        for value in self.graph.inputs:
            item_shape = value.type.shape[1:]
            shapes[value.name] = [
                None,
                *(None if extent is UNKNOWN else extent for extent in item_shape),
            ]
        meter = Meter(self.options.meter.limits)
        options = replace(self.options, input_shapes=shapes, meter=meter)
        network = Network.build(self.frontend, options, self.pairs, data=False)
        labels = [variable.label for variable in (*network.graph.parameters, *network.graph.states)]
        return replace(network, data={label: stored(label) for label in labels})

    def _symbolic(self, options: Options) -> Graph:
        """Return the graph for shapes that contain symbolic extents of `jax.export`."""
        symbolic = options.input_shapes
        numeric: dict[str, list[int | None]] = {}
        for name, shape in symbolic.items():
            numeric[name] = [None if is_symbolic(extent) else extent for extent in shape]
        try:
            return self._flatten(replace(options, input_shapes=numeric, symbolic_shapes=symbolic))
        except ExtentNeeded:
            raise UnsupportedError(
                "the structure of the graph depends on an extent that is symbolic",
                hint="export it for known shapes",
            ) from None

    def specs(
        self, values: Sequence[Value], names: Sequence[str] | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the names, shapes and dtypes of inputs or outputs as specs.

        `names`, if passed, replace the names of the values.
        """
        names = [value.name for value in values] if names is None else names
        extents = self.extent_names
        pairs = zip(names, values, strict=True)
        return tuple(spec_of(name, value, extents.get(name, ())) for name, value in pairs)

    def shape_of(self, value: Value) -> str:
        """Return the shape of an input for messages, such as `[batch,3,?]`."""
        return show(value.type.shape, self.extent_names.get(value.name, ()))

    @cached_property
    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return the names that the document gives to extents, by input and output."""
        return self.frontend.extent_names()

    @cached_property
    def computed_state_labels(self) -> frozenset[str]:
        """Return the labels of state variables whose initial value the network computes."""
        return frozenset(state.label for state in self.graph.states if state.initial is not None)

    @cached_property
    def labels(self) -> frozenset[str]:
        """Return the labels of all parameters and states."""
        return frozenset(x.label for x in (*self.graph.parameters, *self.graph.states))

    @cached_property
    def open_states(self) -> frozenset[str]:
        """Return the labels of states whose shape or initial value the document leaves open."""
        return self.computed_state_labels.union(self.frontend.state_shapes())

    @cached_property
    def unused(self) -> frozenset[str]:
        """Return the labels of parameters on which neither outputs nor states depend."""
        if self.is_guessed:  # The graph for other extents may read any parameter.
            return frozenset()
        needed = self.graph.needed
        return frozenset(
            parameter.label for parameter in self.graph.parameters if parameter.value not in needed
        )

    def _flatten(self, options: Options) -> Graph:
        return with_pairs(_flatten(self.frontend, options), self.pairs)

    def _check_variables(self, graph: Graph) -> None:
        """Raise SemanticError for a variable whose type depends on an open extent.

        `graph` is the graph for some input shapes. A variable is wrong if the network's own graph
        lacks it, or has another type for it.
        """
        types = {
            variable.label: variable.value.type
            for variable in (*self.graph.parameters, *self.graph.states)
        }
        types.update(
            (state.label, state.value.type)
            for state in graph.states
            if state.label in self.open_states
        )
        errors: list[SemanticError] = []
        for variable in (*graph.parameters, *graph.states):
            if types.get(variable.label) != variable.value.type:
                message = f"variable '{variable.label}' depends on an open extent of an input"
                hint = f"give the extent by {self.frontend.call_with_extents()}"
                errors.append(SemanticError(message, span=variable.span, hint=hint))
        raise_all(errors)


def _flatten(frontend: Frontend, options: Options) -> Graph:
    with uncollected():
        return frontend.flatten(options)


class _Flattened(NamedTuple):
    """A graph, the graph for the document's own shapes, and whether extents are guessed.

    `declared` is None if the options have no other shapes than the document.
    """

    graph: Graph
    declared: Graph | None
    is_guessed: bool


def _flatten_and_check(frontend: Frontend, options: Options) -> _Flattened:
    """Return the graph for the options, after checking `input_shapes` in the options."""
    shapes = options.input_shapes
    declared = None
    if shapes or options.extents:
        with suppress(SemanticError):  # The document's own shapes may be wrong.
            original = replace(options, input_shapes={}, extents={})
            declared, _ = _flatten_or_guess(frontend, original)
    _require_ranks(frontend, declared, shapes)
    graph, is_guessed = _flatten_or_guess(frontend, options)
    if not _has_open_inputs(graph):
        _require_no_constant_extents(declared, graph)
    return _Flattened(graph, declared, is_guessed)


def _flatten_or_guess(frontend: Frontend, options: Options) -> tuple[Graph, bool]:
    """Return the graph for the options, and whether its open extents had to be guessed."""
    try:
        return _flatten(frontend, options), False
    except ExtentNeeded:
        pass
    # The structure depends on an open extent. The graph for a guess still has the right names and
    # ranks.
    states = frontend.state_shapes()
    guesses = [replace(options, open_extent=extent) for extent in _GUESSES]
    if states:
        # A mask may cover both a state and an input, and then an extent of 1 does not fit the mask,
        # the state and the input at once. A first cycle is tried as well, because its state is
        # shorter.
        guesses.insert(1, replace(guesses[0], starts=True))
    errors: list[SemanticError] = []
    for guess in guesses:
        try:
            graph = _flatten(frontend, guess)
        except SemanticError as error:
            errors.append(error)
        else:
            shapes = {**frontend.declared_shapes(options), **options.input_shapes}
            return _with_open_extents(graph, shapes, states), True
    first_error = errors[0]
    distinct_errors = {(error.message, error.span) for error in errors}
    if len(distinct_errors) > 1:
        hint = (
            f"this error is for open extents of {_GUESSES[0]}, and {_GUESSES[1]} does not fit "
            f"either: give them by {frontend.call_with_extents()}"
        )
        first_error.hint = f"{first_error.hint}; {hint}" if first_error.hint else hint
    raise first_error


def _has_open_inputs(graph: Graph) -> bool:
    return not all(is_known(value.type.shape) for value in graph.inputs)


def _unknown(what: str, names: Iterable[str], kind: str, valid: Sequence[str]) -> list[InputError]:
    """Return an error for each of the names that is not in `valid`.

    `what` is the argument of `load` with the names, and `kind` is the kind of things that they
    name.
    """
    choices = f"the graph has no {kind} with a name"
    if valid:
        choices = f"the graph's {kind}s are {', '.join(valid)}"
    return [
        InputError(f"{what} names '{name}', {choices}", hint=did_you_mean(name, valid))
        for name in names
        if name not in valid
    ]


def with_pairs(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """Return a graph that has a state variable in place of each pair of an input and an output.

    Raises InputError if the dtypes or the ranks of an input and its output differ.
    """
    if not pairs:
        return graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    remaining = {name: value for name, value in outputs.items() if name not in pairs.values()}
    states: list[StateVariable] = []
    for input, output in pairs.items():
        before = inputs[input].type
        after = outputs[output].type
        has_same_rank = len(before.shape) == len(after.shape)
        if before.dtype != after.dtype or not has_same_rank:
            message = f"output '{output}' is {after}, it cannot be state '{input}', of {before}"
            raise InputError(message)
        states.append(StateVariable(input, inputs[input], outputs[output]))
    return replace(
        graph,
        inputs=tuple(value for name, value in inputs.items() if name not in pairs),
        outputs=tuple(remaining.values()),
        output_names=tuple(remaining),
        states=(*graph.states, *states),
    )


def _zeros(graph: Graph, pairs: Mapping[str, str], frontend: Frontend) -> dict[str, NDArray[Any]]:
    """Return arrays of zeros for the states that replace an input and an output of the document.

    The result is by label. Raises InputError for a state of unknown shape.
    """
    types = {state.label: state.value.type for state in graph.states if state.label in pairs}
    for label, type in types.items():
        if not is_known(type.shape):
            raise InputError(
                f"the shape of state '{label}' is not known, it is {show(type.shape)}",
                span=frontend.spans().get(label),
                hint="give it by load(..., input_shapes=...)",
            )
    return {label: np.zeros(type.shape, type.dtype) for label, type in types.items()}


def _require_ranks(frontend: Frontend, declared: Graph | None, shapes: Shapes) -> None:
    """Raise InputError for shapes whose rank differs from the rank in the document."""
    if declared is None:
        return
    extent_names = frontend.extent_names()
    errors: list[InputError] = []
    for value in declared.inputs:
        name = value.name
        if name in shapes and len(shapes[name]) != len(value.type.shape):
            shape = show(value.type.shape, extent_names.get(name, ()))
            rank = len(shapes[name])
            message = f"input_shapes gives '{name}' rank {rank}, the graph declares {shape}"
            errors.append(InputError(message, span=frontend.spans().get(name)))
    raise_all(errors)


def _require_no_constant_extents(declared: Graph | None, graph: Graph) -> None:
    """Raise ShapeError if `input_shapes` changes an extent that is a constant in a reshape.

    `declared` is the graph for the document's own shapes, and `graph` is the graph for the new
    ones.
    """
    if declared is None or len(declared.operations) != len(graph.operations):
        return
    errors: list[ShapeError] = []
    for original, changed in zip(declared.operations, graph.operations, strict=True):
        if original.kind == changed.kind == "reshape":
            error = _constant_extent(original, changed)
            if error is not None:
                errors.append(error)
    raise_all(errors)


def _constant_extent(original: Operation, changed: Operation) -> ShapeError | None:
    """Return the error for a reshape that has a declared extent as a constant, or None.

    `original` is the reshape for the document's own shapes. In `changed`, the input has another
    extent at some axis, but the output still has the declared extent there.
    """
    original_input = next(original.reads()).type.shape
    original_output = next(original.writes()).type.shape
    input = next(changed.reads()).type.shape
    output = next(changed.writes()).type.shape
    pairs = zip(original_input, original_output, strict=False)  # A reshape may change the rank.
    for axis, (extent, output_extent) in enumerate(pairs):
        if extent != output_extent:
            break
        is_constant = axis < len(output) and output[axis] == extent
        if is_constant and input[axis] != extent:
            return ShapeError(
                f"'reshape' of {show(input)} to {show(output)} keeps the extent {extent} that the "
                f"document's input shapes had at axis {axis}, input_shapes made it {input[axis]}",
                span=changed.span,
                calls=changed.calls,
                hint="write 0 there in the document, which takes the extent of the input",
            )
    return None


def _with_open_extents(graph: Graph, shapes: Shapes, states: Shapes) -> Graph:
    """Return a graph in which all extents are open, except the extents of inputs and states.

    Inputs have the shapes `shapes` if they are there, and states have the shapes `states`.
    """
    opened: dict[Value, Value] = {}
    state_shapes = {
        state.value: states[state.label] for state in graph.states if state.label in states
    }
    tensors = chain.from_iterable(operation.writes() for operation in graph.operations)
    for value in dict.fromkeys((*graph.inputs, *tensors, *state_shapes)):
        extents = state_shapes.get(value)
        if not extents:
            extents = shapes.get(value.name, [None] * len(value.type.shape))
        shape = tuple(UNKNOWN if extent is None else extent for extent in extents)
        opened[value] = replace(value, type=TensorType(shape, value.type.dtype))

    def with_opened(operation: Operation) -> Operation:
        results: Any = substituted(operation.results, opened)
        return replace(operation.reading(opened), results=results)

    return replace(
        graph,
        inputs=tuple(opened[value] for value in graph.inputs),
        outputs=tuple(opened.get(value, value) for value in graph.outputs),
        operations=tuple(map(with_opened, graph.operations)),
        states=tuple(state.substituted(opened) for state in graph.states),
        aliases={name: opened.get(value, value) for name, value in graph.aliases.items()},
    )
