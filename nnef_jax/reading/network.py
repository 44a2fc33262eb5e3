"""Holds a network that was read: its document, its graph for input shapes, and its stored data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import UNKNOWN, Shape, is_known, is_symbolic, show
from lowering.graph import Graph, StateVariable, TensorType, Value
from lowering.ops import rules
from nnef_jax.errors import InputError, SemanticError, UnsupportedError, raise_all
from nnef_jax.formats import KINDS
from nnef_jax.formats.base import ExtentImplied, ExtentNeeded, Frontend, Options
from nnef_jax.limits import Meter
from nnef_jax.reading.document_graph import (
    flatten,
    flatten_and_check,
    has_open_inputs,
    require_no_constant_extents,
    with_implied,
)
from nnef_jax.tensor_spec import TensorSpec, spec_of
from nnef_jax.wording.similar import did_you_mean

# The value of an open extent in an example. It is larger than 1, since an axis of extent 1 may be
# broadcast.
_EXAMPLE = 8

# Unpickled networks, which may be of any format, need the rules of all formats.
for _module, _kinds in KINDS.items():
    rules.add(_module, _kinds)


@dataclass(frozen=True, eq=False)
class Network:
    """A checked document, the options for flattening it, its graph, and the arrays of variables.

    `graph` is the graph for the input shapes in `options.input_shapes`. An input without a shape in
    the options has its declared shape. Open extents in the graph are UNKNOWN; `specialise` returns
    the graph for known shapes.

    `pairs` maps the name of an input to the name of an output. In the next cycle, the input takes
    the value of the output. In the graph, a state variable with the name of the input replaces
    both.
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
    # whether open extents had to be guessed (if the structure of the graph depends on them)
    is_guessed: bool
    _specialised: dict[tuple[Any, ...], Graph] = field(
        default_factory=dict[tuple[Any, ...], Graph], repr=False
    )

    @classmethod
    def build(
        cls, frontend: Frontend, options: Options, pairs: Mapping[str, str], *, data: bool
    ) -> Network:
        """Flatten a document, check its shapes, and return it as a network.

        If `data` is true, the arrays of the document's variables are read. `pairs` is the argument
        `state` of `load`. Raises InputError for shapes and pairs that do not fit the document, and
        NnefError for a broken document.
        """
        errors = [
            *_unknown("input_shapes", options.input_shapes, "input", frontend.inputs),
            *_unknown("input_shapes", options.extents, "open extent", frontend.symbols),
            *_unknown("values", options.values, "input", frontend.inputs),
            *_unknown("state", pairs, "input", frontend.inputs),
            *_unknown("state", pairs.values(), "output", frontend.outputs),
        ]
        raise_all(errors)
        try:
            flattened = flatten_and_check(frontend, options)
        except ExtentImplied as implied:
            # The document allows only one number for one of the open extents. `with_implied` puts
            # this number into the options. Another open extent may be next, so `build` starts anew.
            options = with_implied(frontend, options, implied)
            return cls.build(frontend, options, pairs, data=data)
        stored: Mapping[str, NDArray[Any]] = {}
        if data:
            content = frontend.stored(flattened.graph)
            stored = content.data
            if content.frontend is not frontend:
                # The data decide which tensors are rounded in a run, so the graph is made again.
                frontend = content.frontend
                flattened = flatten_and_check(frontend, options)
        graph, declared, is_guessed = flattened
        paired = with_pairs(graph, pairs)
        stored = {**stored, **_zeros(paired, pairs, frontend)}
        return cls(
            frontend,
            options,
            graph=paired,
            unpaired=graph,
            data=stored,
            pairs=pairs,
            declared=declared,
            is_guessed=is_guessed,
        )

    @cached_property
    def is_open(self) -> bool:
        """Tell whether at least one input has an open extent."""
        return has_open_inputs(self.graph)

    def example(self) -> Graph:
        """Return the graph with 8 in place of each open extent.

        Raises NnefError if the network does not allow 8 as an extent.
        """
        if not self.is_open:
            return self.graph
        shapes: list[Shape] = []
        for value in self.graph.inputs:
            extents = [_EXAMPLE if extent is UNKNOWN else extent for extent in value.type.shape]
            shapes.append(tuple(extents))
        return self.specialise(shapes)

    def specialise(
        self, shapes: Sequence[Shape], state: Mapping[str, Shape] | None = None
    ) -> Graph:
        """Return the graph for inputs of the shapes `shapes`, in order, after checking all shapes.

        `state` maps labels of state variables to shapes. Without `state`, the result is the graph
        of the first cycle. If the shapes do not fit an operation, raises a ShapeError or
        SemanticError that names the operation.
        """
        has_open_states = self.graph.states and self.open_states
        if not self.is_open and not has_open_states:
            return self.graph  # it is the same for all calls
        state_shapes: dict[str, Shape] = {}
        if state:
            for label in self.open_states:
                if label in state:
                    state_shapes[label] = tuple(state[label])
        key = (*shapes, *state_shapes.items())
        if key in self._specialised:
            return self._specialised[key]
        options = self._options_for(shapes, state_shapes)
        extents = chain(*shapes, *state_shapes.values())
        if any(map(is_symbolic, extents)):
            # The graph is not kept, since a symbolic extent belongs to one trace.
            return self._symbolic(options)
        try:
            graph = self._flatten(options)
        except SemanticError as error:
            hints = [error.hint, self._disagreement(shapes)]
            error.hint = "; ".join([hint for hint in hints if hint])
            raise
        require_no_constant_extents(self.declared, graph)
        self._check_variables(graph)
        self._specialised[key] = graph
        return graph

    def _options_for(self, shapes: Sequence[Shape], state_shapes: Mapping[str, Shape]) -> Options:
        """Return options with the shapes of inputs and states.

        `shapes` has the shapes of the inputs in order, and `state_shapes` maps labels of states to
        shapes.
        """
        input_shapes = dict(self.options.input_shapes)
        for value, shape in zip(self.graph.inputs, shapes, strict=True):
            input_shapes[value.name] = shape
        has_all_states = self.computed_state_labels <= state_shapes.keys()
        options = replace(
            self.options,
            input_shapes=input_shapes,
            # Each specialisation has a new budget of steps, because reading has used the old
            # budget.
            meter=Meter(self.options.meter.limits),
            state_shapes=state_shapes,
            starts=not has_all_states,  # In the first cycle, states are computed.
        )
        if self.is_guessed:
            # The graph for other extents may need weights that were folded for the guess.
            return replace(options, labels=self.labels)
        return options

    def _disagreement(self, shapes: Sequence[Shape]) -> str:
        """Return a text about an extent that has two values in `shapes`, or '' if there is none.

        `shapes` are the shapes of the inputs. The text is for example "'batch' is 2 in 'x', 3 in
        'y'".
        """
        # Maps the name of an extent to the first input with this extent, and to its value there.
        first_uses: dict[str, tuple[str, int]] = {}
        for value, shape in zip(self.graph.inputs, shapes, strict=True):
            names = self.extent_names.get(value.name, ())
            for name, extent in zip(names, shape, strict=False):  # There may be no names.
                if not name:
                    continue
                first_input, first_extent = first_uses.setdefault(name, (value.name, extent))
                if extent != first_extent:
                    first_use = f"'{name}' is {first_extent} in '{first_input}'"
                    return f"{first_use}, {extent} in '{value.name}'"
        return ""

    def with_open_batch(self, stored: Callable[[str], NDArray[np.generic]]) -> Network:
        """Return the network for batches of any size: the first axis of each input is open.

        `stored` is a function from a label to the variable's array. Raises NnefError if the
        document fixes the batch. Some documents fix the batch in ways that only `specialise`
        detects.
        """
        shapes: dict[str, list[int | None]] = {}
        for value in self.graph.inputs:
            extents_of_item = value.type.shape[1:]
            shape: list[int | None] = [None]
            shape += [None if extent is UNKNOWN else extent for extent in extents_of_item]
            shapes[value.name] = shape
        meter = Meter(self.options.meter.limits)
        options = replace(self.options, input_shapes=shapes, meter=meter)
        network = Network.build(self.frontend, options, self.pairs, data=False)
        variables = (*network.graph.parameters, *network.graph.states)
        data = {variable.label: stored(variable.label) for variable in variables}
        return replace(network, data=data)

    def _symbolic(self, options: Options) -> Graph:
        """Return the graph for shapes that contain symbolic extents of `jax.export`."""
        symbolic = options.input_shapes
        with_open_extents: dict[str, list[int | None]] = {}
        for name, shape in symbolic.items():
            with_open_extents[name] = [None if is_symbolic(extent) else extent for extent in shape]
        options = replace(options, input_shapes=with_open_extents, symbolic_shapes=symbolic)
        try:
            return self._flatten(options)
        except ExtentNeeded:
            raise UnsupportedError(
                "the structure of the graph depends on an extent that is symbolic",
                hint="export it for known shapes",
            ) from None

    def specs(
        self, values: Sequence[Value], names: Sequence[str] | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the names, shapes and dtypes of inputs or outputs as specs.

        By default the specs have the names of the values. If `names` is passed, they have these
        names.
        """
        if names is None:
            names = [value.name for value in values]
        specs: list[TensorSpec] = []
        for name, value in zip(names, values, strict=True):
            specs.append(spec_of(name, value, self.extent_names.get(name, ())))
        return tuple(specs)

    def shape_of(self, value: Value) -> str:
        """Return the shape of an input for messages, such as `[batch,3,?]`."""
        return show(value.type.shape, self.extent_names.get(value.name, ()))

    @cached_property
    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return a dict from names of inputs and outputs to the names of their extents."""
        return self.frontend.extent_names()

    @cached_property
    def computed_state_labels(self) -> frozenset[str]:
        """Return the labels of state variables whose initial value the network computes."""
        return frozenset(state.label for state in self.graph.states if state.initial is not None)

    @cached_property
    def labels(self) -> frozenset[str]:
        """Return the labels of all parameters and states."""
        variables = (*self.graph.parameters, *self.graph.states)
        return frozenset(variable.label for variable in variables)

    @cached_property
    def open_states(self) -> frozenset[str]:
        """Return the labels of states whose shape or initial value the document leaves open."""
        return self.computed_state_labels.union(self.frontend.state_shapes())

    @cached_property
    def unused(self) -> frozenset[str]:
        """Return the labels of parameters on which neither outputs nor states depend."""
        if self.is_guessed:  # The graph for other extents may read any parameter.
            return frozenset()
        labels: set[str] = set()
        for parameter in self.graph.parameters:
            if parameter.value not in self.graph.needed:
                labels.add(parameter.label)
        return frozenset(labels)

    def _flatten(self, options: Options) -> Graph:
        """Return the graph for some options, with states in place of pairs."""
        return with_pairs(flatten(self.frontend, options), self.pairs)

    def _check_variables(self, graph: Graph) -> None:
        """Raise SemanticError for a variable whose type depends on an open extent.

        `graph` is the graph for some input shapes. A variable is wrong if the network's own graph
        lacks the variable, or has another type for it. The types of open states may differ.
        """
        types: dict[str, TensorType] = {}
        for variable in (*self.graph.parameters, *self.graph.states):
            types[variable.label] = variable.value.type
        for state in graph.states:
            if state.label in self.open_states:
                types[state.label] = state.value.type  # any type is right
        errors: list[SemanticError] = []
        for variable in (*graph.parameters, *graph.states):
            # The type is None if the network's own graph lacks the variable.
            if types.get(variable.label) != variable.value.type:
                message = f"variable '{variable.label}' depends on an open extent of an input"
                hint = f"give the extent by {self.frontend.call_with_extents()}"
                errors.append(SemanticError(message, span=variable.span, hint=hint))
        raise_all(errors)


def _unknown(what: str, names: Iterable[str], kind: str, valid: Sequence[str]) -> list[InputError]:
    """Return an error for each name in `names` that is not in `valid`.

    `what` is the argument of `load` that has the names. `kind` says for the error what the names
    stand for, such as "input".
    """
    choices = f"the graph has no {kind} with a name"
    if valid:
        choices = f"the graph's {kind}s are {', '.join(valid)}"
    errors: list[InputError] = []
    for name in names:
        if name not in valid:
            message = f"{what} names '{name}', {choices}"
            errors.append(InputError(message, hint=did_you_mean(name, valid)))
    return errors


def with_pairs(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """Return a graph in which a state variable replaces each pair (input, output).

    `pairs` maps names of inputs to names of outputs. Raises InputError if the dtypes or the ranks
    of an input and its output differ.
    """
    if not pairs:
        return graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    states: list[StateVariable] = []
    for input_name, output_name in pairs.items():
        input_value = inputs[input_name]
        output_value = outputs[output_name]
        before = input_value.type
        after = output_value.type
        have_equal_ranks = len(before.shape) == len(after.shape)
        if before.dtype != after.dtype or not have_equal_ranks:
            message = f"output '{output_name}' is {after}, it cannot be state '{input_name}'"
            raise InputError(f"{message}, of {before}")
        states.append(StateVariable(input_name, input_value, output_value))
    paired_outputs = set(pairs.values())
    other_inputs = [value for name, value in inputs.items() if name not in pairs]
    other_outputs = {name: outputs[name] for name in outputs if name not in paired_outputs}
    return replace(
        graph,
        inputs=tuple(other_inputs),
        outputs=tuple(other_outputs.values()),
        output_names=tuple(other_outputs),
        states=(*graph.states, *states),
    )


def _zeros(graph: Graph, pairs: Mapping[str, str], frontend: Frontend) -> dict[str, NDArray[Any]]:
    """Return a dict from labels to zeros, for the states that replace an input and an output.

    `graph` has the states, whose labels are the names of the inputs in `pairs`. Raises InputError
    for a state of unknown shape.
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
