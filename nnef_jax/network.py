"""A network that was read: its graph for given input shapes, and its stored data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

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
from nnef_jax.similar import did_you_mean
from nnef_jax.tensor_spec import TensorSpec, spec_of

# Of extents that are open: masks and batches of 1 fit others; 64 has windows in it, and halves.
_GUESSES = (1, 64)
_EXAMPLE = 8  # of an example, which tells axes of a reshaped tensor apart

for _module, _kinds in KINDS.items():  # a pickled network may be of any format
    rules.add(_module, _kinds)


@dataclass(frozen=True, eq=False)
class Network:
    """A checked document with what is needed to flatten it, and its stored data by label.

    `graph` is its graph for the declared input shapes (or those of `options.input_shapes`), in
    which extents that are left open are UNKNOWN; `specialise` gives the one for known shapes.
    `pairs` are the inputs that are its state, each with the output that takes its place in the next
    cycle. Neither is left among the graph's own: the input is a state variable of its name.
    """

    frontend: Frontend
    options: Options
    graph: Graph
    unpaired: Graph  # with the pairs among its inputs and outputs, as the document has them
    data: Mapping[str, NDArray[Any]]
    pairs: Mapping[str, str]
    declared: Graph | None  # for the document's own shapes, where others were asked for
    is_guessed: bool  # whether the structure depends on extents that are open
    _specialised: dict[tuple[Any, ...], Graph] = field(
        default_factory=dict[tuple[Any, ...], Graph], repr=False
    )

    @classmethod
    def build(
        cls, frontend: Frontend, options: Options, pairs: Mapping[str, str], *, data: bool
    ) -> Network:
        """Flatten a document and check its shapes; `data` says whether to read what is stored.

        Raises InputError for shapes and pairs that the document does not take, NnefError.
        """
        raise_all(
            [
                *_unknown("input_shapes", options.input_shapes, "input", frontend.inputs),
                *_unknown("input_shapes", options.extents, "open extent", frontend.symbols),
                *_unknown("values", options.values, "input", frontend.inputs),
                *_unknown("state", pairs, "input", frontend.inputs),
                *_unknown("state", pairs.values(), "output", frontend.outputs),
            ]
        )
        graph, declared, is_guessed = _flatten_and_check(frontend, options)
        stored: Mapping[str, NDArray[Any]] = {}
        if data:
            found = frontend.stored(graph)
            stored = found.data
            if found.frontend is not frontend:
                frontend = found.frontend
                graph, declared, is_guessed = _flatten_and_check(frontend, options)
        unpaired, graph = graph, with_pairs(graph, pairs)
        stored = {**stored, **_zeros(graph, pairs, frontend)}
        return cls(frontend, options, graph, unpaired, stored, pairs, declared, is_guessed)

    @cached_property
    def is_open(self) -> bool:
        """Tell whether extents of inputs are open."""
        return _has_open_inputs(self.graph)

    def example(self) -> Graph:
        """Return a graph whose inputs have no open extents. Raises NnefError where it has none."""
        shapes = [value.type.shape for value in self.graph.inputs]
        closed = [tuple(_EXAMPLE if n is UNKNOWN else n for n in shape) for shape in shapes]
        return self.graph if all(map(is_known, shapes)) else self.specialise(closed)

    def specialise(
        self, shapes: Sequence[Shape], state: Mapping[str, Shape] | None = None
    ) -> Graph:
        """Return the graph for these shapes of the inputs, in order; check all shapes in it.

        `state` has the shapes of the variables by label. Without it the graph is that of a first
        cycle. Raises ShapeError or SemanticError naming the operation that does not take them.
        """
        if not self.is_open and not (self.graph.states and self.changing):
            return self.graph
        before = {x: tuple(state[x]) for x in self.changing if state and x in state}
        key = (*shapes, *before.items())
        if key not in self._specialised:
            names = [value.name for value in self.graph.inputs]
            named = {**self.options.input_shapes, **dict(zip(names, shapes, strict=True))}
            # Each call has a budget of its own: the network itself was read within one.
            meter = Meter(self.options.meter.limits)
            starts = not self.computed_starts <= before.keys()
            options = replace(
                self.options, input_shapes=named, meter=meter, state_shapes=before, starts=starts
            )
            if self.is_guessed:  # other extents may need weights that were folded
                options = replace(options, labels=self.labels)
            if any(is_symbolic(x) for shape in (*shapes, *before.values()) for x in shape):
                return self._symbolic(options)
            try:
                graph = self._flatten(options)
            except SemanticError as error:
                reasons = filter(None, (error.hint, self._disagreement(shapes)))
                error.hint = "; ".join(reasons)
                raise
            _require_no_baked_extents(self.declared, graph)
            self._check_variables(graph)
            self._specialised[key] = graph
        return self._specialised[key]

    def _disagreement(self, shapes: Sequence[Shape]) -> str:
        """Return which named extent differs between inputs of these shapes, '' if none does."""
        seen: dict[str, tuple[str, int]] = {}
        for value, shape in zip(self.graph.inputs, shapes, strict=True):
            names = self.extent_names.get(value.name, ())
            for name, extent in zip(names, shape, strict=False):
                input, other = seen.setdefault(name, (value.name, extent))
                if name and extent != other:
                    return f"'{name}' is {other} in '{input}', {extent} in '{value.name}'"
        return ""

    def opened(self, stored: Callable[[str], Any]) -> Network:
        """Return the network for batches of any size: the inputs' first axes are open.

        Its data are what is `stored` by label. Raises NnefError where the document does not allow
        it; what it wrote down of the declared batch may show only when shapes are known.
        """
        shapes = {
            value.name: [None, *(None if n is UNKNOWN else n for n in value.type.shape[1:])]
            for value in self.graph.inputs
        }
        meter = Meter(self.options.meter.limits)
        options = replace(self.options, input_shapes=shapes, meter=meter)
        found = Network.build(self.frontend, options, self.pairs, data=False)
        labels = [v.label for v in (*found.graph.parameters, *found.graph.states)]
        return replace(found, data={label: stored(label) for label in labels})

    def _symbolic(self, options: Options) -> Graph:
        """Return the graph for shapes in which `jax.export` keeps extents open."""
        symbolic = options.input_shapes
        known = {
            name: [None if is_symbolic(extent) else extent for extent in shape]
            for name, shape in symbolic.items()
        }
        try:
            return self._flatten(replace(options, input_shapes=known, symbolic_shapes=symbolic))
        except ExtentNeeded:
            raise UnsupportedError(
                "the structure of the graph depends on an extent that is symbolic",
                hint="export it for known shapes",
            ) from None

    def specs(
        self, values: Sequence[Value], names: Sequence[str] | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the descriptions of inputs or outputs, which may have other names."""
        names = [value.name for value in values] if names is None else names
        said = self.extent_names
        pairs = zip(names, values, strict=True)
        return tuple(spec_of(name, value, said.get(name, ())) for name, value in pairs)

    def shape_of(self, value: Value) -> str:
        """Return the shape of an input as messages show it: `[batch,3,?]`."""
        return show(value.type.shape, self.extent_names.get(value.name, ()))

    @cached_property
    def extent_names(self) -> Mapping[str, Sequence[str]]:
        """Return the document's names of extents, of inputs and outputs."""
        return self.frontend.extent_names()

    @cached_property
    def computed_starts(self) -> frozenset[str]:
        """Return the labels of variables that start with what the network computes."""
        return frozenset(s.label for s in self.graph.states if s.initial is not None)

    @cached_property
    def labels(self) -> frozenset[str]:
        """Return the labels of all parameters and states."""
        return frozenset(x.label for x in (*self.graph.parameters, *self.graph.states))

    @cached_property
    def changing(self) -> frozenset[str]:
        """Return the labels of variables whose shape or start a document leaves open."""
        return self.computed_starts.union(self.frontend.state_shapes())

    @cached_property
    def unused(self) -> frozenset[str]:
        """Return the labels of parameters that neither outputs nor states depend on."""
        if self.is_guessed:  # with other extents they may
            return frozenset()
        needed = self.graph.needed
        return frozenset(p.label for p in self.graph.parameters if p.value not in needed)

    def _flatten(self, options: Options) -> Graph:
        return with_pairs(_flatten(self.frontend, options), self.pairs)

    def _check_variables(self, graph: Graph) -> None:
        """Refuse variables that were not there, or not of this type, when their data were read."""
        known = {v.label: v.value.type for v in (*self.graph.parameters, *self.graph.states)}
        known.update((v.label, v.value.type) for v in graph.states if v.label in self.changing)
        raise_all(
            [
                SemanticError(
                    f"variable '{variable.label}' depends on an open extent of an input",
                    span=variable.span,
                    hint=f"give the extent by {self.frontend.closing()}",
                )
                for variable in (*graph.parameters, *graph.states)
                if known.get(variable.label) != variable.value.type
            ]
        )


def _flatten(frontend: Frontend, options: Options) -> Graph:
    with uncollected():
        return frontend.flatten(options)


def _flatten_and_check(frontend: Frontend, options: Options) -> tuple[Graph, Graph | None, bool]:
    """Return the graph, that of the document's own shapes, and whether extents are guessed."""
    shapes = options.input_shapes
    declared = None
    if shapes or options.extents:
        with suppress(SemanticError):  # none for its own shapes
            own = replace(options, input_shapes={}, extents={})
            declared, _ = _flatten_or_guess(frontend, own)
    _require_ranks(frontend, declared, shapes)
    graph, is_guessed = _flatten_or_guess(frontend, options)
    if not _has_open_inputs(graph):
        _require_no_baked_extents(declared, graph)
    return graph, declared, is_guessed


def _flatten_or_guess(frontend: Frontend, options: Options) -> tuple[Graph, bool]:
    """Return the graph, and whether extents that are left open had to be guessed for it."""
    try:
        return _flatten(frontend, options), False
    except ExtentNeeded:
        pass
    # The structure depends on an open extent: guess it, to learn the rest.
    states = frontend.state_shapes()
    guesses = [replace(options, open_extent=extent) for extent in _GUESSES]
    if states:  # one of 1 may not go with inputs of 1, as in a mask for past and present
        guesses.insert(1, replace(guesses[0], starts=True))
    refused: list[SemanticError] = []
    for guessed in guesses:
        try:
            guess = _flatten(frontend, guessed)
        except SemanticError as error:
            refused.append(error)
        else:
            shapes = {**frontend.declared_shapes(options), **options.input_shapes}
            return _opened(guess, shapes, states), True
    error = refused[0]
    if any((x.message, x.span) != (error.message, error.span) for x in refused):
        guessed = (
            f"open extents of inputs were taken for {_GUESSES[0]} here, and {_GUESSES[1]} does not "
            f"fit either: give them by {frontend.closing()}"
        )
        error.hint = f"{error.hint}; {guessed}" if error.hint else guessed
    raise error


def _has_open_inputs(graph: Graph) -> bool:
    return not all(is_known(value.type.shape) for value in graph.inputs)


def _unknown(what: str, names: Iterable[str], kind: str, known: Sequence[str]) -> list[InputError]:
    there = f"the graph's {kind}s are {', '.join(known)}"
    there = there if known else f"the graph has no {kind} with a name"
    return [
        InputError(f"{what} names '{name}', {there}", hint=did_you_mean(name, known))
        for name in names
        if name not in known
    ]


def with_pairs(graph: Graph, pairs: Mapping[str, str]) -> Graph:
    """Return the graph with the pairs as its state; InputError where they do not go together."""
    if not pairs:
        return graph
    inputs = {value.name: value for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    kept = {name: value for name, value in outputs.items() if name not in pairs.values()}
    states: list[StateVariable] = []
    for input, output in pairs.items():
        old, new = inputs[input].type, outputs[output].type
        if old.dtype != new.dtype or len(old.shape) != len(new.shape):
            raise InputError(f"output '{output}' is {new}, it cannot be the next '{input}': {old}")
        states.append(StateVariable(input, inputs[input], outputs[output]))
    return replace(
        graph,
        inputs=tuple(value for name, value in inputs.items() if name not in pairs),
        outputs=tuple(kept.values()),
        output_names=tuple(kept),
        states=(*graph.states, *states),
    )


def _zeros(graph: Graph, pairs: Mapping[str, str], frontend: Frontend) -> dict[str, NDArray[Any]]:
    """Return zeros for the states that were inputs."""
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
    """Raise InputError for shapes of another rank than the document's."""
    said = frontend.extent_names()
    raise_all(
        [
            InputError(
                f"input_shapes gives '{value.name}' rank {len(shapes[value.name])}, "
                f"the graph declares {show(value.type.shape, said.get(value.name, ()))}",
                span=frontend.spans().get(value.name),
            )
            for value in (declared.inputs if declared else ())
            if value.name in shapes and len(shapes[value.name]) != len(value.type.shape)
        ]
    )


def _require_no_baked_extents(declared: Graph | None, graph: Graph) -> None:
    """Refuse reshapes that wrote down an extent which `input_shapes` has changed since."""
    if declared is None or len(declared.operations) != len(graph.operations):
        return
    raise_all(
        [
            error
            for old, new in zip(declared.operations, graph.operations, strict=True)
            if old.kind == new.kind == "reshape" and (error := _baked_extent(old, new))
        ]
    )


def _baked_extent(old: Operation, new: Operation) -> ShapeError | None:
    """Return the error for a leading extent that a reshape passes through, but only as declared."""
    old_in, new_in = next(old.reads()).type.shape, next(new.reads()).type.shape
    old_out, new_out = next(old.writes()).type.shape, next(new.writes()).type.shape
    for axis, (a, b) in enumerate(zip(old_in, old_out, strict=False)):
        if a != b:
            break
        if new_in[axis] != a and axis < len(new_out) and new_out[axis] == b:
            return ShapeError(
                f"'reshape' of {show(new_in)} to {show(new_out)} keeps the extent {b} that the "
                f"document's input shapes had at axis {axis}, input_shapes made it {new_in[axis]}",
                span=new.span,
                calls=new.calls,
                hint="write 0 there in the document, which takes the extent of the input",
            )
    return None


def _opened(graph: Graph, shapes: Shapes, states: Shapes) -> Graph:
    """Return the graph with these shapes, and all extents open that were guessed."""
    swapped: dict[Value, Value] = {}
    changing = {s.value: states[s.label] for s in graph.states if s.label in states}
    tensors = chain.from_iterable(operation.writes() for operation in graph.operations)
    for value in dict.fromkeys((*graph.inputs, *tensors, *changing)):
        extents = changing.get(value) or shapes.get(value.name, [None] * len(value.type.shape))
        shape = tuple(UNKNOWN if extent is None else extent for extent in extents)
        swapped[value] = replace(value, type=TensorType(shape, value.type.dtype))

    def swap(operand: Any) -> Any:
        return substituted(operand, swapped)

    return replace(
        graph,
        inputs=swap(graph.inputs),
        outputs=swap(graph.outputs),
        operations=tuple(
            replace(operation.reading(swapped), results=swap(operation.results))
            for operation in graph.operations
        ),
        states=tuple(state.substituted(swapped) for state in graph.states),
        aliases={name: swap(value) for name, value in graph.aliases.items()},
    )
