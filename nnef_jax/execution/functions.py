"""A network as pure functions of parameters, state and inputs, and the ways into it."""

from __future__ import annotations

import operator
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from lowering.errors import InvalidComputation
from lowering.extents import shapes_differ, show
from lowering.fallback import About, named, or_else
from lowering.graph import Graph, Value
from lowering.trace import Context, trace
from nnef_jax.errors import InputError, NnefError, SemanticError, UnsupportedError
from nnef_jax.execution.host_profile import Host
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.over_mesh import over_mesh
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.run_options import Prepared, RunOptions, is_watched
from nnef_jax.execution.threads import Once
from nnef_jax.limits import Meter
from nnef_jax.network import Network
from nnef_jax.similar import did_you_mean, listed

Arrays = Mapping[str, Any]
Inputs = Sequence[Any]
# The outputs, the next state, and what is captured.
Results = tuple[Any, dict[str, Any], dict[str, Any]]
Function = Callable[..., Results]


class Functions:
    """Computes a network: one cycle of it, or many."""

    def __init__(self, network: Network, options: RunOptions, host: Host) -> None:
        self.network = network
        self.options = options
        self._host = host

    @property
    def about(self) -> About:
        """Return the name, the strictness and the profile by which the network is rewritten."""
        is_strict = self.options.optimize == "strict"
        return About(self.network.graph.name, is_strict, self._host.profile())

    def cycle(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run one cycle."""
        graph, wanted = self._wanted(inputs, probe, state)
        if missing := [n for n in self._read(graph, wanted) if n not in params]:
            hint = "load(..., unused=True) has those that outputs do not need in model.params"
            raise InputError(f"captures need {', '.join(map(repr, missing))} of params", hint=hint)
        values = self.tensors(graph, params, state, inputs, wanted, probe.edited(graph))
        shown = {n: jnp.asarray(values[value]) for n, value in probe.captured(graph).items()}
        if not probe.results:
            return None, {}, shown
        outputs = [jnp.asarray(values[output]) for output in graph.outputs]
        after = {s.label: jnp.asarray(values[s.update]) for s in graph.states}
        return self.packed(outputs), after, shown

    def scan(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run as many cycles as the inputs have items along their first axis, by `lax.scan`."""

        self._require_kept_shapes(state, inputs)

        def body(state: Arrays, inputs: list[Any]) -> tuple[dict[str, Any], Any]:
            outputs, state, shown = self.cycle(params, state, inputs, probe)
            return state, (outputs, shown)

        state, (outputs, shown) = jax.lax.scan(body, dict(state), list(inputs))
        return outputs, state, shown

    def map(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run a cycle for each item along the inputs' first axis, all from the same state."""
        return jax.vmap(lambda items: self.cycle(params, state, items, probe))(list(inputs))

    def labels(self, inputs: Inputs, probe: Probe, state: Arrays) -> list[str]:
        """Return the labels of the parameters that a run of these inputs reads."""
        return self._read(*self._wanted(inputs, probe, state))

    def _read(self, graph: Graph, wanted: list[Value]) -> list[str]:
        needed = graph.dependencies(wanted)
        return [p.label for p in graph.parameters if p.value in needed]

    def _require_kept_shapes(self, state: Arrays, inputs: Inputs) -> None:
        """Raise InputError for a variable whose shape is another one after a cycle."""
        if not self.network.changing:
            return
        graph = self.specialised(state, inputs, 1)
        for variable in graph.states:
            shape, found = tuple(state[variable.label].shape), variable.update.type.shape
            if shapes_differ(shape, found):
                raise InputError(
                    f"state '{variable.label}' has shape {show(shape)} before a cycle and "
                    f"{show(found)} after it, in a scan it keeps its shape",
                    hint="call step in a loop, or keep a window of it in a lax.scan of your own",
                )

    def initial(
        self, params: Arrays, state: Arrays, graph: Graph, inputs: Arrays
    ) -> dict[str, Any]:
        """Compute the initial values of variables, given inputs of a first cycle by name."""
        wanted = [s.initial for s in graph.states if s.initial is not None]
        given = [inputs.get(value.name) for value in graph.inputs]
        values = self.tensors(graph, params, state, given, wanted)
        found = {s.label: values[s.initial] for s in graph.states if s.initial is not None}
        return {label: jnp.asarray(x) for label, x in found.items()}

    def tensors(self, graph: Graph, *given: Any) -> dict[Value, Any]:
        """Return the result of `lowering.trace.trace`; errors have their place in the document."""
        options, meter = self.options, Meter(self.network.options.meter.limits)
        through, refusal = options.straight_through, partial(_located, UnsupportedError)
        context = Context(options.precision, meter.fold, through, refusal)
        try:
            return trace(graph, context, *given)
        except InvalidComputation as error:
            raise _located(SemanticError, error) from None

    def _wanted(self, inputs: Inputs, probe: Probe, state: Arrays) -> tuple[Graph, list[Value]]:
        graph = self.specialised(state, inputs)
        results = [*graph.outputs, *(s.update for s in graph.states)] if probe.results else []
        return graph, [*results, *probe.captured(graph).values()]

    def specialised(self, state: Arrays, inputs: Inputs, time_axes: int = 0) -> Graph:
        """Return the graph for a state and inputs of such shapes, these after axes of time."""
        before = {label: tuple(x.shape) for label, x in state.items()}
        return self.network.specialise([tuple(x.shape[time_axes:]) for x in inputs], before)

    def traced(
        self,
        function: Function,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Inputs,
        probe: Probe,
    ) -> Results:
        """Compute `cycle` or `scan` in a trace, which may be lowered for any platform."""
        raw, found = params, None
        if isinstance(params, Prepared):
            raw = params.params
            found = None if probe.edits or probe.capture else params.found.get(function.__name__)
        arguments = raw, self.own(state), list(map(jnp.asarray, inputs)), probe

        about = self.about

        def chosen() -> Results:
            from lowering.emit import network

            return network(function, found, about)(*arguments)

        def as_written() -> Results:
            return function(*arguments)

        # Tensors alone are as the network is written. So is it where operations have values, which
        # edits see, or where jax looks for the one that computes a NaN.
        rewritten = self.options.optimize and probe.results and not is_watched()
        with named(about):
            return or_else(chosen, as_written) if rewritten else as_written()

    def prepared(self, function: Function, params: Arrays, state: Arrays, inputs: Inputs) -> Any:
        """Return parameters prepared for the default device; None if it has no kernels."""
        if not self.options.for_cpu:
            return None

        arguments = params, self.own(state), list(inputs)

        def found() -> Any:
            from lowering.emit import prepared

            return prepared(function, *arguments, NOTHING)

        def nothing() -> None:
            jax.eval_shape(partial(function, probe=NOTHING), *arguments)  # for errors of its own

        with named(self.about):
            return or_else(found, nothing)

    def own(self, state: Arrays) -> dict[str, Any]:
        """Return the arrays of the network's states."""
        return {s.label: state[s.label] for s in self.network.graph.states if s.label in state}

    @cached_property
    def packed(self) -> Callable[..., Any]:
        """Return the function from outputs to a call's result: the only output, or a namedtuple."""
        return results_of(self.network.graph)


class Entry:
    """Offers one way into a network as a function of any parameters, states and inputs.

    `outputs` are those of a cycle from the initial state. `map` gives these for many inputs, along
    an axis that comes first. `step` takes a state, and returns the next one beside the outputs. So
    does `scan` for many cycles: inputs have an axis of time first.
    """

    def __init__(
        self,
        functions: Functions,
        layout: Layout | None,
        name: Literal["outputs", "map", "step", "scan"],
    ) -> None:
        graph = functions.network.graph
        self.functions = functions
        self.name = name  # in a cache of compiled functions
        self.title = graph.name if name == "outputs" else f"{graph.name}_{name}"  # in profiles
        self.takes_state = name in ("step", "scan")
        self.time_axes = int(name in ("map", "scan"))
        self.donates = name == "step" and functions.options.donate_state  # the memory of states
        # In the order of the results, a dict: jax pairs what is donated with these one by one, and
        # copies a state that gets another one's memory.
        self._labels = sorted(s.label for s in graph.states) if self.takes_state else []
        by_name = {"map": functions.map, "scan": functions.scan}
        self._function = by_name.get(name, functions.cycle)
        self._compute = over_mesh(partial(functions.traced, self._function), self.time_axes, layout)
        # Within functions that a caller compiles none may have options.
        self._options = layout.compiler_options if layout else None
        self._made = Once()  # for all threads

    @property
    def jitted(self) -> Any:
        """Return the function that jax compiles, of parameters, a state, inputs and a probe."""
        return self._made.get("jitted", lambda: self.on(lambda params: params))

    @property
    def alone(self) -> Any:
        """Return the same with the options of a mesh, for where no caller compiles it."""
        if not self._options:
            return self.jitted
        return self._made.get("alone", lambda: self.on(lambda params: params, self._options))

    def on(self, known: Callable[[Any], Any], options: dict[str, str] | None = None) -> Any:
        """Return a jitted function of parameters, state, inputs and a probe.

        What is `known` of the parameters where it is traced is what it computes with. In a function
        that a caller compiles, values that are known then are prepared for its platform.
        """

        def run(params: Any, state: Arrays, inputs: Inputs, probe: Probe) -> Any:
            return self._results(self._compute(known(params), state, inputs, probe), probe)

        run.__name__ = self.title
        return jax.jit(run, compiler_options=options)

    def arguments(self, state: Arrays, inputs: Inputs) -> tuple[list[Any], ...]:
        """Return inputs, and the arrays of a state that is taken, as lists: they cost the least."""
        if not self.takes_state:
            return (list(inputs),)
        return list(inputs), [state[label] for label in self._labels]

    def of_lists(self, labels: Sequence[str]) -> Callable[..., Any]:
        """Return the function of a network's own arrays, by these labels, and of `arguments`."""

        def function(own: Inputs, inputs: Inputs, states: Inputs = ()) -> Any:
            named = dict(zip(labels, own, strict=True))
            state = self.functions.own({**named, **self._state(states)})
            return self._results(self._function(named, state, list(inputs), NOTHING))

        return function

    def specialised(self, own: Arrays, inputs: Inputs, states: Inputs = ()) -> Graph:
        """Return the graph for own arrays and `arguments` of such shapes."""
        state = self._state(states) or own
        return self.functions.specialised(state, inputs, self.time_axes)

    def result(self, graph: Graph) -> Any:
        """Return the tree structure of what is returned."""
        outputs = self.functions.packed([0] * len(graph.outputs))
        return jax.tree.structure(self._results((outputs, {s.label: 0 for s in graph.states}, {})))

    def _state(self, states: Inputs) -> dict[str, Any]:
        return dict(zip(self._labels, states, strict=True))

    def _results(self, results: Results, probe: Probe = NOTHING) -> Any:
        outputs, state, shown = results
        if not probe.results:
            return shown
        found = (outputs, state) if self.takes_state else (outputs,)
        found = (*found, shown) if probe.capture is not None else found
        return found[0] if len(found) == 1 else found


def results_of(graph: Graph) -> Callable[..., Any]:
    """Return the function that makes of the list of a graph's outputs what a user gets."""
    names = graph.output_names
    if len(names) == 1:
        return operator.itemgetter(0)
    index = {value: i for i, value in reversed([*enumerate(graph.outputs)])}
    others = {name: index[value] for name, value in graph.aliases.items() if value in index}
    others |= {value.name: i for value, i in index.items()}
    return _type(names, tuple(sorted((x, i) for x, i in others.items() if x not in names)))._make


@cache
def _type(names: tuple[str, ...], others: tuple[tuple[str, int], ...]) -> Any:
    """Return the namedtuple of some names, the same each time, whose instances pickle.

    Items are had by any name too, also by `others` of the same tensors.
    """
    type: Any = namedtuple("Outputs", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    index = {**dict(others), **{name: i for i, name in enumerate(names)}}
    type.__getitem__ = lambda self, key: tuple.__getitem__(self, _position(index, names, key))
    type.__reduce__ = lambda self: (_made, (names, others, tuple(self)))
    type._asdict = lambda self: dict(zip(names, self, strict=True))
    return type


def _made(
    names: tuple[str, ...], others: tuple[tuple[str, int], ...], values: tuple[Any, ...]
) -> Any:
    return _type(names, others)._make(values)


def _position(index: Mapping[str, int], names: tuple[str, ...], key: Any) -> Any:
    if not isinstance(key, str):
        return key
    if key not in index:
        similar = did_you_mean(key, index)
        raise KeyError(f"there is no output '{key}', they are {listed(names)}. {similar}".rstrip())
    return index[key]


def _located(family: type[NnefError], error: InvalidComputation) -> NnefError:
    """Return the error of an operation, with its place in the document."""
    where = error.operation
    return family(error.message, span=where.span, calls=where.calls, hint=error.hint)
