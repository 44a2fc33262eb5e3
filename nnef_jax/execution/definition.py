"""What is run: a network, the options, and its functions of any parameters, states and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import filterfalse
from operator import attrgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp

from lowering import About, Context, Target, named, or_else, trace
from lowering.extents import shapes_differ, show
from lowering.graph import Graph, Parameter, StateVariable, Value
from nnef_jax.call_arguments import bind_inputs, bind_variables, declared
from nnef_jax.errors import InputError, UnsupportedError, at_operation, computing
from nnef_jax.execution import host_profile
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.places import default_platform, is_watched
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.run_options import Prepared, RunOptions
from nnef_jax.limits import Meter
from nnef_jax.network import Network

Arrays = Mapping[str, Any]
Inputs = Sequence[Any]
# The outputs in order, the next state, and what is captured.
Results = tuple[Any, dict[str, Any], dict[str, Any]]
Function = Callable[..., Results]


class Definition:
    """What is run: a network, and how.

    It has the network as pure functions of parameters by label, state by label and inputs in order:
    `cycle`, `cycles` by `lax.scan`, `items` by `jax.vmap`; `entry` has them as users call them.
    `labels` and `states` name the arrays of a model. The network's data are left out, but for the
    parameters that nothing reads: they are `unread` and stay on the host, if options do not say
    that a model has them too.

    It is compared by content, so that what jax compiles for a model is for all equal ones.
    """

    def __init__(self, network: Network, options: RunOptions, layout: Layout | None = None) -> None:
        left_out = frozenset[str]() if options.unused else network.unused
        self.unread: Mapping[str, Any] = {x: network.data[x] for x in left_out}
        self.network = network = replace(network, data={})  # which would keep what is on the host
        self.options = options
        self.layout = layout
        self.optimize = self._optimize(options)
        parameters = [p for p in network.graph.parameters if p.label not in left_out]
        self.labels = tuple(p.label for p in parameters)
        computed = network.computed_starts
        self.states = tuple(s.label for s in network.graph.states if s.label not in computed)

    def with_unread(self, arrays: Mapping[str, Any]) -> Definition:
        """Return the same with other arrays that nothing reads."""
        if not arrays:
            return self
        return self._with(unread={**self.unread, **arrays})

    def with_options(self, options: RunOptions) -> Definition:
        """Return the same, run in another way."""
        return self._with(options=options, optimize=self._optimize(options))

    def _with(self, **attributes: Any) -> Definition:
        other = Definition.__new__(Definition)
        other.__dict__ = self.__dict__ | attributes
        other.__dict__.pop("content", None)
        return other

    def _optimize(self, options: RunOptions) -> bool | Literal["strict"]:
        # Kernels for CPUs join and transpose weights. Sharded ones would move between devices.
        return False if self.layout and self.layout.specs else options.optimize

    def over(self, layout: Layout | None) -> Definition:
        """Return the same on a mesh, or on none."""
        network = replace(self.network, data=self.unread, _specialised={})
        return Definition(network, self.options, layout)

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], time_axes: int = 0
    ) -> list[Any]:
        """Return the inputs of a call in graph order, on the mesh if there is one.

        Raises InputError as `bind_inputs` does.
        """
        if self.layout:
            return self.layout.bind(self.network, args, kwargs, time_axes)
        return bind_inputs(self.network, args, kwargs, leading=time_axes)

    def types(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the types of inputs, given arrays or types, or those that are declared."""
        inputs = args if args or kwargs else declared(self.network)
        return bind_inputs(self.network, inputs, kwargs, abstract=True)

    def check_params(self, params: Any, *, all: bool = False, stored: bool = False) -> Any:
        """Check parameters, and place on devices those that the network needs, or `all` of them."""
        is_prepared = isinstance(params, Prepared)
        raw = params.of(self).params if is_prepared else params
        bound = bind_variables("params", raw, self.parameters, self.needed)
        if is_prepared:
            return bound if all or stored else params.on(bound)
        if not stored and self.layout:
            bound = self.layout.put_params(bound)
        unused = len(bound) - len(self.needed)
        return {x: bound[x] for x in self.needed} if unused and not all else bound

    def check_state(self, state: Any, labels: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the arrays of all state variables, or of those of some labels."""
        variables = self.variables
        states = {x: variables[x] for x in (variables if labels is None else labels)}
        bound = bind_variables("state", state, states, list(states))
        arrays = ((label, bound[label]) for label in states)  # jnp.asarray takes 1 us of any array
        return {n: x if isinstance(x, jax.Array) else jnp.asarray(x) for n, x in arrays}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the graph by label, those that nothing reads among them."""
        return {parameter.label: parameter for parameter in self.network.graph.parameters}

    @cached_property
    def needed(self) -> list[str]:
        """Return the labels of the parameters that outputs or states depend on."""
        return [label for label in self.parameters if label not in self.network.unused]

    @cached_property
    def variables(self) -> dict[str, StateVariable]:
        """Return the state variables of the graph by label, sorted."""
        return {x.label: x for x in sorted(self.network.graph.states, key=lambda x: x.label)}

    def cycle(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run one cycle."""
        graph, wanted = self._wanted(inputs, probe, state)
        read = self._read(graph, wanted) if probe.capture else ()
        if missing := [*filterfalse(params.__contains__, read)]:
            hint = "load(..., unused=True) has those that outputs do not need in model.params"
            raise InputError(f"captures need {', '.join(map(repr, missing))} of params", hint=hint)
        values = self.tensors(graph, params, state, inputs, wanted, probe.edited(graph))
        shown = {n: jnp.asarray(values[value]) for n, value in probe.captured(graph).items()}
        if not probe.results:
            return None, {}, shown
        outputs = list(map(jnp.asarray, map(values.__getitem__, graph.outputs)))
        after = {s.label: jnp.asarray(values[s.update]) for s in graph.states}
        return outputs, after, shown

    def cycles(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run as many cycles as the inputs have items along their first axis, by `lax.scan`."""

        self._require_kept_shapes(state, inputs)

        def body(state: Arrays, inputs: list[Any]) -> tuple[dict[str, Any], Any]:
            outputs, state, shown = self.cycle(params, state, inputs, probe)
            return state, (outputs, shown)

        state, (outputs, shown) = jax.lax.scan(body, dict(state), list(inputs))
        return outputs, state, shown

    def items(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run a cycle for each item along the inputs' first axis, all from the same state."""
        return jax.vmap(lambda items: self.cycle(params, state, items, probe))(list(inputs))

    def labels_read(self, inputs: Inputs, probe: Probe, state: Arrays) -> list[str]:
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
            shape, after = tuple(state[variable.label].shape), variable.update.type.shape
            if shapes_differ(shape, after):
                raise InputError(
                    f"state '{variable.label}' has shape {show(shape)} before a cycle and "
                    f"{show(after)} after it, in a scan it keeps its shape",
                    hint="call step in a loop, or keep a window of it in a lax.scan of your own",
                )

    def starts(self, params: Arrays, state: Arrays, graph: Graph, inputs: Arrays) -> dict[str, Any]:
        """Compute the initial values of variables, given inputs of a first cycle by name."""
        wanted = [s.initial for s in graph.states if s.initial is not None]
        arrays = [inputs.get(value.name) for value in graph.inputs]
        values = self.tensors(graph, params, state, arrays, wanted)
        starts = {s.label: values[s.initial] for s in graph.states if s.initial is not None}
        return {label: jnp.asarray(x) for label, x in starts.items()}

    def tensors(self, graph: Graph, *arguments: Any) -> dict[Value, Any]:
        """Return the result of `lowering.trace`; errors have their place in the document."""
        options, meter = self.options, Meter(self.network.options.meter.limits)
        through, refusal = options.straight_through, partial(at_operation, family=UnsupportedError)
        context = Context(options.precision, meter.fold, through, refusal)
        with computing():
            return trace(graph, context, *arguments)

    def _wanted(self, inputs: Inputs, probe: Probe, state: Arrays) -> tuple[Graph, list[Value]]:
        graph = self.specialised(state, inputs)
        updates = map(attrgetter("update"), graph.states)
        results = [*graph.outputs, *updates] if probe.results else []
        return graph, [*results, *probe.captured(graph).values()]

    def specialised(self, state: Arrays, inputs: Inputs, time_axes: int = 0) -> Graph:
        """Return the graph for a state and inputs of such shapes, these after axes of time."""
        before = {label: tuple(x.shape) for label, x in state.items()}
        return self.network.specialise([tuple(x.shape[time_axes:]) for x in inputs], before)

    def compute_in_trace(
        self,
        function: Function,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Inputs,
        probe: Probe,
    ) -> Results:
        """Compute a function in a trace, which may be lowered for any platform."""
        raw, preparation = params, None
        if isinstance(params, Prepared):
            raw = params.params
            if not (probe.edits or probe.capture):
                preparation = params.values.get(function.__name__)
        arguments = raw, self.state_of(state), list(map(jnp.asarray, inputs)), probe
        # Kernels for CPUs are chosen by the rates of this one, if jax computes on it.
        rates = host_profile.rates(self.network.graph, self.options, default_platform())
        about = self.about._replace(rates=rates)

        def rewritten() -> Results:
            from lowering import network

            return network(function, preparation, about)(*arguments)

        def as_written() -> Results:
            return function(*arguments)

        # Tensors alone are as the network is written. So is it where operations have values, which
        # edits see, or where jax looks for the one that computes a NaN.
        is_rewritten = self.optimize and probe.results and not is_watched()
        with named(about):
            return or_else(rewritten, as_written) if is_rewritten else as_written()

    @property
    def about(self) -> About:
        """Return how the network is rewritten: its name, and whether what fails is an error."""
        is_strict, is_open = self.options.optimize == "strict", self.network.is_open
        return About(self.network.graph.name, is_strict, is_open=is_open)

    def has_kernels(self, platform: str) -> bool:
        """Tell whether layouts and kernels are chosen for a platform."""
        return bool(self.optimize) and platform == "cpu"

    def target(self, platform: str, devices: int = 1) -> Target:
        """Return the target that the network is lowered for on devices of a platform."""
        from lowering import target_of

        if not self.optimize:
            return Target(platform, ())
        rates = host_profile.rates(self.network.graph, self.options, platform)
        return target_of(platform, devices, rates, is_open=self.network.is_open)

    def preparation(
        self, platform: str, function: Function, params: Arrays, state: Arrays, inputs: Inputs
    ) -> Any:
        """Prepare parameters for a function on a platform; return None if it has no kernels."""
        if not self.optimize:
            return None

        arguments = params, self.state_of(state), list(inputs)

        def by_passes() -> Any:
            from lowering import preparation

            return preparation(self.target(platform), function, *arguments, NOTHING)

        def nothing() -> None:
            jax.eval_shape(partial(function, probe=NOTHING), *arguments)  # for errors of its own

        with named(self.about):
            return or_else(by_passes, nothing)

    def state_of(self, state: Arrays) -> dict[str, Any]:
        """Return the arrays of the network's states, among those by label."""
        return {s.label: state[s.label] for s in self.network.graph.states if s.label in state}

    def __reduce__(self) -> tuple[Any, ...]:
        # Devices do not pickle: what comes of a model on a mesh is on none.
        network = replace(self.network, data=self.unread, _specialised={})
        return Definition, (network, self.options)

    def __eq__(self, other: object) -> bool:
        """Tell whether models of both on the same arrays are the same, wherever they are from."""
        return self is other or (isinstance(other, Definition) and self.content == other.content)

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        return f"<{self.network.graph.name}>"  # a part of the repr of a tree

    @cached_property
    def content(self) -> tuple[object, ...]:
        """Return the content for comparison: a digest, and objects."""
        from nnef_jax.execution.cache_key import content_of

        return (*content_of(self.network, self.unread), self.options, self.layout)
