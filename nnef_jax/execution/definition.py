"""Offers a network with its options as pure functions of parameters, states and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp

from lowering import About, Context, Target, named, or_else, trace
from lowering.errors import InvalidComputation
from lowering.extents import shapes_differ, show
from lowering.graph import Graph, Parameter, StateVariable, Value
from nnef_jax.calls.arguments import bind_inputs, bind_variables, declared
from nnef_jax.errors import InputError, UnsupportedError, at_operation
from nnef_jax.execution import host_profile
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.places import debugs_or_disables_jit, default_platform
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.run_options import Prepared, RunOptions
from nnef_jax.limits import Meter
from nnef_jax.reading.network import Network

Arrays = Mapping[str, Any]  # The values are arrays, tracers or types.
Inputs = Sequence[Any]  # The items are arrays, tracers or types, in the order of the graph.
# Results are the outputs in order, a dict from labels to the arrays of the next state, and a dict
# from names to the captured tensors.
Results = tuple[Any, dict[str, Any], dict[str, Any]]
Function = Callable[..., Results]


class Definition:
    """A network, together with the options by which it is run.

    The methods `cycle`, `scanned_cycles` (by `lax.scan`) and `mapped_cycle` (by `jax.vmap`) are
    the network as pure functions. Their arguments are parameters by label, a state by label,
    and inputs in order. `Entry` offers these functions in the form in which users call them.

    `labels` and `states` are the labels of the model's parameters and states. A definition does
    not hold the network's arrays, except `unread`: the parameters that no operation reads. They
    stay on the host. With the option `unused` these parameters belong to the model's
    arrays, and `unread` is empty.

    Definitions compare by content, so equal models share jax's compilation cache. A pickled
    definition contains no compiled code.
    """

    def __init__(self, network: Network, options: RunOptions, layout: Layout | None = None) -> None:
        left_out = frozenset[str]() if options.unused else network.unused
        self.unread: Mapping[str, Any] = {label: network.data[label] for label in left_out}
        # The network without its data does not keep the arrays of the host in memory.
        self.network: Network = replace(network, data={})
        self.options = options
        self.layout = layout
        self.optimize = self._optimize(options)
        labels = [parameter.label for parameter in network.graph.parameters]
        self.labels: tuple[str, ...] = tuple(label for label in labels if label not in left_out)
        computed = network.computed_state_labels
        self.states: tuple[str, ...] = tuple(
            state.label for state in network.graph.states if state.label not in computed
        )

    def with_unread(self, arrays: Mapping[str, Any]) -> Definition:
        """Return the definition with additional unread parameters.

        `arrays` maps labels to these parameters, which no operation reads.
        """
        if not arrays:
            return self
        return self._copy_with(unread={**self.unread, **arrays})

    def with_options(self, options: RunOptions) -> Definition:
        """Return a definition of the network with other options."""
        return self._copy_with(options=options, optimize=self._optimize(options))

    def _copy_with(self, **attributes: object) -> Definition:
        """Return a copy with other values of some attributes."""
        copy = Definition.__new__(Definition)
        copy.__dict__ = self.__dict__ | attributes
        # The cached property `content` depends on the attributes, so it is computed again.
        copy.__dict__.pop("content", None)
        return copy

    def _optimize(self, options: RunOptions) -> bool | Literal["strict"]:
        """Return the option `optimize`, or False if parameters are sharded."""
        has_sharded_params = self.layout is not None and bool(self.layout.specs)
        if has_sharded_params:
            # The passes for CPUs join and transpose weights. If the weights
            # were sharded, shards would have to move between devices.
            return False
        return options.optimize

    def with_layout(self, layout: Layout | None) -> Definition:
        """Return a definition on the mesh of `layout`, or on no mesh if `layout` is None."""
        network = replace(self.network, data=self.unread, _specialised={})
        return Definition(network, self.options, layout)

    def bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], time_axes: int = 0
    ) -> list[Any]:
        """Return the inputs of a call in the order of the graph.

        `args` and `kwargs` are the arguments of the call. The first `time_axes` axes of each
        input count time steps. On a mesh the inputs are put on the mesh. Raises InputError if
        the inputs do not fit the graph.
        """
        if self.layout:
            return self.layout.bind(self.network, args, kwargs, time_axes)
        return bind_inputs(self.network, args, kwargs, leading=time_axes)

    def types(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Any]:
        """Return the types of a call's inputs in the order of the graph.

        The arguments of the call are arrays or types. A call without arguments has inputs of
        the types that the network declares.
        """
        has_arguments = args or kwargs
        inputs = args if has_arguments else declared(self.network)
        return bind_inputs(self.network, inputs, kwargs, abstract=True)

    def check_params(self, params: Any, *, all: bool = False, stored: bool = False) -> Any:
        """Check parameters, and return a dict from labels to the parameters that the network needs.

        Args:
            params: arrays by label, or the result of `prepare`.
            all: whether to return also the parameters in `params` that the network does not
                need.
            stored: whether to leave the parameters on their devices, instead of putting them on
                the mesh.

        If `params` are prepared, the result is prepared too, unless `all` or `stored` is true.
        Raises InputError if the parameters do not fit the graph.
        """
        if isinstance(params, Prepared):
            raw_params = params.checked_for(self).params
            bound = bind_variables("params", raw_params, self.parameters, self.needed_labels)
            drops_prepared_values = all or stored
            return bound if drops_prepared_values else params.with_params(bound)
        bound = bind_variables("params", params, self.parameters, self.needed_labels)
        if not stored and self.layout:
            bound = self.layout.put_params(bound)
        has_unused = len(bound) > len(self.needed_labels)
        if has_unused and not all:
            return {label: bound[label] for label in self.needed_labels}
        return bound

    def check_state(self, state: object, labels: Iterable[str] | None = None) -> dict[str, Any]:
        """Check the arrays of a state, and return them as jax arrays by label.

        The state must have an array for each state variable in `labels`, by default for all
        state variables. Raises InputError if an array is missing or does not fit the graph.
        """
        variables = self.variables
        if labels is not None:
            variables = {label: variables[label] for label in labels}
        bound = bind_variables("state", state, variables, list(variables))
        arrays = {label: bound[label] for label in variables}
        for label, x in arrays.items():
            # `jnp.asarray` takes 1 us, even if it returns a jax.Array unchanged.
            if not isinstance(x, jax.Array):
                arrays[label] = jnp.asarray(x)
        return arrays

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Return all parameters of the graph by label, also parameters that no operation reads."""
        return {parameter.label: parameter for parameter in self.network.graph.parameters}

    @cached_property
    def needed_labels(self) -> list[str]:
        """Return the labels of the parameters on which an output or a state depends."""
        return [label for label in self.parameters if label not in self.network.unused]

    @cached_property
    def variables(self) -> dict[str, StateVariable]:
        """Return the state variables of the graph by label, sorted by label."""
        variables = sorted(self.network.graph.states, key=attrgetter("label"))
        return {variable.label: variable for variable in variables}

    def cycle(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run one cycle, and return the outputs, the next state, and the captured tensors."""
        graph, results = self._graph_and_results(inputs, probe, state)
        if probe.capture:
            self._require_params(params, graph, results)
        arrays = self.tensors(graph, params, state, inputs, results, probe.edited(graph))
        captures: dict[str, Any] = {}
        for name, value in probe.captured(graph).items():
            captures[name] = jnp.asarray(arrays[value])
        if not probe.results:
            return None, {}, captures
        outputs = [jnp.asarray(arrays[value]) for value in graph.outputs]
        next_state = {state.label: jnp.asarray(arrays[state.update]) for state in graph.states}
        return outputs, next_state, captures

    def _require_params(self, params: Arrays, graph: Graph, results: list[Value]) -> None:
        """Raise InputError if `params` lacks a parameter on which captured tensors depend."""
        labels = self._labels_read(graph, results)
        missing = [label for label in labels if label not in params]
        if missing:
            names = ", ".join(map(repr, missing))
            message = f"captures need {names}, which params does not have"
            hint = "after load(..., unused=True) model.params has all parameters of the graph"
            raise InputError(message, hint=hint)

    def scanned_cycles(
        self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe
    ) -> Results:
        """Run a cycle for each index of the inputs' first axis, by `lax.scan`.

        A cycle takes the state that the previous cycle returned. Returns the outputs, the last
        state and the captured tensors. Outputs and captured tensors have a new first axis, the
        axis of the cycles.
        """
        self._require_constant_shapes(state, inputs)

        def run_cycle(state: Arrays, inputs: Inputs) -> tuple[dict[str, Any], Any]:
            outputs, next_state, captures = self.cycle(params, state, inputs, probe)
            return next_state, (outputs, captures)

        last_state, (outputs, captures) = jax.lax.scan(run_cycle, dict(state), list(inputs))
        return outputs, last_state, captures

    def mapped_cycle(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run a cycle for each index of the inputs' first axis, by `jax.vmap`.

        All cycles start from the state `state`.
        """

        def cycle_on(inputs: Inputs) -> Results:
            return self.cycle(params, state, inputs, probe)

        return jax.vmap(cycle_on)(list(inputs))

    def labels_read(self, inputs: Inputs, probe: Probe, state: Arrays) -> list[str]:
        """Return the labels of the parameters that a run reads for its results and captures."""
        graph, results = self._graph_and_results(inputs, probe, state)
        return self._labels_read(graph, results)

    def _labels_read(self, graph: Graph, results: list[Value]) -> list[str]:
        """Return the labels of the parameters on which tensors of a graph depend."""
        needed = graph.dependencies(results)
        return [parameter.label for parameter in graph.parameters if parameter.value in needed]

    def _require_constant_shapes(self, state: Arrays, inputs: Inputs) -> None:
        """Raise InputError if the shape of a state variable would change in a cycle."""
        if not self.network.open_states:
            return
        graph = self.specialised(state, inputs, time_axes=1)
        for variable in graph.states:
            before = tuple(state[variable.label].shape)
            after = variable.update.type.shape
            if shapes_differ(before, after):
                shapes = f"{show(before)} before a cycle and {show(after)} after it"
                message = f"state '{variable.label}' has shape {shapes}"
                hint = "call step in a loop, or keep a window of it in a lax.scan of your own"
                raise InputError(f"{message}: in a scan its shape must not change", hint=hint)

    def computed_initial_states(
        self, params: Arrays, state: Arrays, graph: Graph, inputs: Arrays
    ) -> dict[str, Any]:
        """Return a dict from labels of states to initial values that the graph computes.

        `inputs` maps names to arrays. The initial values depend on these inputs of the first cycle.
        """
        initial_values = {
            variable.label: variable.initial
            for variable in graph.states
            if variable.initial is not None
        }
        input_arrays = [inputs.get(value.name) for value in graph.inputs]
        arrays = self.tensors(graph, params, state, input_arrays, list(initial_values.values()))
        return {label: jnp.asarray(arrays[value]) for label, value in initial_values.items()}

    def tensors(self, graph: Graph, *arguments: Any) -> dict[Value, Any]:
        """Compute tensors of a graph by `lowering.trace`, which takes `arguments` too.

        If the computation is invalid, the error names the line of the document.
        """
        options = self.options
        meter = Meter(self.network.options.meter.limits)
        context = Context(
            precision=options.precision,
            # The meter limits the values that are computed while the network is traced.
            fold=meter.fold,
            straight_through=options.straight_through,
            refusal=partial(at_operation, family=UnsupportedError),
        )
        try:
            return trace(graph, context, *arguments)
        except InvalidComputation as error:
            raise at_operation(error) from None

    def _graph_and_results(
        self, inputs: Inputs, probe: Probe, state: Arrays
    ) -> tuple[Graph, list[Value]]:
        """Return the graph for the shapes of inputs and state, and the tensors to compute.

        The tensors are the outputs, the next states and the captured tensors. The probe may leave
        the outputs and the next states out.
        """
        graph = self.specialised(state, inputs)
        tensors: list[Value] = []
        if probe.results:
            tensors += graph.outputs
            tensors += [state.update for state in graph.states]
        tensors += probe.captured(graph).values()
        return graph, tensors

    def specialised(self, state: Arrays, inputs: Inputs, time_axes: int = 0) -> Graph:
        """Return the network's graph for the shapes of a state and of inputs.

        The first `time_axes` axes of the inputs, which count time steps, are left out.
        """
        state_shapes = {label: tuple(x.shape) for label, x in state.items()}
        input_shapes = [tuple(x.shape[time_axes:]) for x in inputs]
        return self.network.specialise(input_shapes, state_shapes)

    def compute_in_trace(
        self,
        function: Function,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Inputs,
        probe: Probe,
    ) -> Results:
        """Compute `function` within a trace of jax. The trace's platform may be unknown yet.

        `function` is a method of this object, such as `cycle`. If passes are in use, the function
        becomes one primitive. jax lowers the primitive when the platform is known, and the passes
        rewrite it then.
        """
        raw_params = params
        preparation = None
        if isinstance(params, Prepared):
            raw_params = params.params
            # Prepared values are valid only for the network without edits and captures.
            has_edits_or_captures = probe.edits or probe.capture
            if not has_edits_or_captures:
                preparation = params.values.get(function.__name__)
        arguments = raw_params, self.state_of(state), list(map(jnp.asarray, inputs)), probe
        # The passes for CPUs choose kernels by these rates (speeds of a machine). If jax's default
        # device is a CPU, the host's rates are used. Otherwise the package's own rates are used.
        rates = host_profile.rates(self.network.graph, self.options, default_platform())
        about = self.about._replace(rates=rates)

        def rewritten() -> Results:
            from lowering import network

            return network(function, preparation, about)(*arguments)

        def as_written() -> Results:
            return function(*arguments)

        # A run that only captures tensors computes the network as it is written, without passes. If
        # jax looks for a NaN, there are no passes either, because without passes each primitive has
        # the name of its operation.
        is_rewritten = self.optimize and probe.results and not debugs_or_disables_jit()
        with named(about):
            if is_rewritten:
                return or_else(rewritten, as_written)
            return as_written()

    @property
    def about(self) -> About:
        """Return the network's name for warnings, and whether a pass that fails is an error."""
        is_strict = self.options.optimize == "strict"
        return About(self.network.graph.name, is_strict, is_open=self.network.is_open)

    def has_kernels(self, platform: str) -> bool:
        """Tell whether the network is optimised and the platform has kernels."""
        return bool(self.optimize) and platform == "cpu"

    def target(
        self, platform: str, devices: int = 1, compute_capability: float | None = None
    ) -> Target:
        """Return the target for which calls are lowered.

        `devices` is the number of devices. `compute_capability` is that of GPUs of CUDA, or None
        if it is unknown. If the network is not optimised, or the passes cannot be imported, the
        target has no passes.
        """
        from lowering import target_of

        without_passes = Target(platform, ())
        if not self.optimize:
            return without_passes
        rates = host_profile.rates(self.network.graph, self.options, platform)

        def with_passes() -> Target:
            target = target_of(platform, devices, rates, is_open=self.network.is_open)
            return replace(target, compute_capability=compute_capability)

        # The modules of the passes import what a later jax may lack.
        with named(self.about):
            return or_else(with_passes, lambda: without_passes)

    def preparation(
        self, platform: str, function: Function, params: Arrays, state: Arrays, inputs: Inputs
    ) -> Any:
        """Compute prepared values from the parameters, for calls of a function on a platform.

        Returns None if nothing is prepared, for example if the platform has no kernels. Raises
        the errors that the function would raise.
        """
        if not self.optimize:
            return None
        arguments = params, self.state_of(state), list(inputs)

        def by_passes() -> Any:
            from lowering import preparation

            return preparation(self.target(platform), function, *arguments, NOTHING)

        def without_values() -> None:
            # `eval_shape` computes no arrays, but raises the errors that the function would raise.
            jax.eval_shape(partial(function, probe=NOTHING), *arguments)

        with named(self.about):
            return or_else(by_passes, without_values)

    def state_of(self, state: Arrays) -> dict[str, Any]:
        """Select the arrays of the network's states from `state`, a dict from labels to arrays."""
        labels = [variable.label for variable in self.network.graph.states]
        return {label: state[label] for label in labels if label in state}

    def __reduce__(self) -> tuple[Any, ...]:
        # Devices cannot be pickled, so the layout is left out. An unpickled definition is on no
        # mesh.
        network = replace(self.network, data=self.unread, _specialised={})
        return Definition, (network, self.options)

    def __eq__(self, other: object) -> bool:
        """Tell whether two definitions have equal content, even if they are from two files."""
        return self is other or (isinstance(other, Definition) and self.content == other.content)

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        # If two tree structures differ, jax shows this text in its error.
        return f"<{', '.join([self.network.graph.name, *self.differences])}>"

    @property
    def differences(self) -> list[str]:
        """Return phrases for the mesh, if there is one, and for each option that is not default."""
        phrases: list[str] = []
        if self.layout:
            axes = [f"{name}={size}" for name, size in self.layout.mesh.shape.items()]
            phrases.append(f"on a mesh {', '.join(axes)}")
        default = RunOptions()
        for field in fields(self.options):
            value = getattr(self.options, field.name)
            if value != getattr(default, field.name):
                phrases.append(f"{field.name}={value!r:.40}")
        return phrases

    @cached_property
    def content(self) -> tuple[object, ...]:
        """Return the tuple by which definitions are compared.

        The tuple starts with a digest of the network. It then has the objects of the network for
        which there is no digest, and finally the options and the layout.
        """
        from nnef_jax.execution.cache_key import content_of

        return (*content_of(self.network, self.unread), self.options, self.layout)
