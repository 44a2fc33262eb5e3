"""Runs a definition on a model's arrays by cached executables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from lowering import total
from nnef_jax.calls.arguments import array_type
from nnef_jax.execution import forks
from nnef_jax.execution.arrays import Arrays, Leaves
from nnef_jax.execution.definition import Definition, Inputs
from nnef_jax.execution.entry import Entry, results_of
from nnef_jax.execution.executables import Executables, key_of_types
from nnef_jax.execution.finite import not_finite
from nnef_jax.execution.meshes import Layout
from nnef_jax.execution.places import (
    Placement,
    debugs_or_disables_jit,
    default_platform,
    is_explicit,
    is_traced,
    trace_settings,
)
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.routine import Routine, RoutineEntry
from nnef_jax.execution.run_options import Params, Prepared, RunOptions
from nnef_jax.execution.threads import Once
from nnef_jax.reading.network import Network

# In a call of at least this many multiply-adds, kernels for CPUs gain more time than their
# compilation costs. On two cores the kernels gain from 0.04 s (ResNet-18) to 0.3 s (MobileNetV2) in
# a billion multiply-adds. Their compilation takes 4 s (ResNet-18) and 1 s (MobileNetV2) of
# processor time.
_MULTIPLY_ADDS_WORTH_COMPILING = 10_000_000_000

ByLabel = Mapping[str, Any]  # arrays, tracers or types


class Execution:
    """Runs a network on the arrays of a model. Executables are compiled once and cached."""

    def __init__(self, executables: Executables, arrays: Arrays) -> None:
        definition = arrays.definition
        self.definition: Definition = definition
        self.arrays = arrays
        self.executables: Executables = executables.with_unread_of(definition)
        self.network: Network = definition.network
        self.bind: Callable[..., list[Any]] = definition.bind
        self.types: Callable[..., list[Any]] = definition.types
        self.check_params: Callable[..., Any] = definition.check_params
        self.check_state: Callable[..., dict[str, Any]] = definition.check_state
        # Functions for use in a caller's trace. A key has the name of the entry, and the result of
        # `debugs_or_disables_jit`.
        self._in_trace = Once()
        # Bound executables. Each has a key: the entry, the device or sharding, jax's settings, and
        # the types of the arguments. An executable of the entry `outputs` has a second key, which
        # `key_of_types` computes faster.
        self._recent = Once(definition.options.max_executables)

    @property
    def outputs(self) -> Entry:
        """Return the kind of call that computes one cycle from the initial state."""
        return Entry(self.definition, "outputs")

    @property
    def map(self) -> Entry:
        """Return the kind of call that computes a cycle for each index of the inputs' first axis.

        Each cycle starts from the initial state.
        """
        return Entry(self.definition, "map")

    @property
    def step(self) -> Entry:
        """Return the kind of call that computes one cycle from a state.

        The call returns the outputs and the next state.
        """
        return Entry(self.definition, "step")

    @property
    def scan(self) -> Entry:
        """Return the kind of call that computes successive cycles from a state.

        The first axis of the inputs is time.
        """
        return Entry(self.definition, "scan")

    @cached_property
    def packed(self) -> Callable[..., Any]:
        """Return the function that packs the list of outputs into the result of a call.

        The result is an array if there is one output, and otherwise a namedtuple.
        """
        return results_of(self.network.graph)

    @classmethod
    def of(cls, arrays: Arrays) -> Execution:
        """Return an execution on the given arrays, with an empty cache of executables."""
        return cls(Executables(arrays.definition), arrays)

    @classmethod
    def loaded(cls, network: Network, options: RunOptions) -> Execution:
        """Return an execution of a network on the arrays that were read with the network."""
        return cls.of(Arrays.of(Definition(network, options), network.data))

    @classmethod
    def abstract(cls, network: Network, options: RunOptions) -> Execution:
        """Return an execution of a network that has only the types of its arrays."""
        variables = *network.graph.parameters, *network.graph.states
        types = {variable.label: array_type(variable.value) for variable in variables}
        definition = Definition(replace(network, data=types), options)
        return cls.of(Arrays.of(definition, types, from_user=True))

    def with_leaves(
        self, leaves: Leaves, unread: ByLabel | None = None, *, state_from_user: bool = False
    ) -> Execution:
        """Return an execution on other parameters and states, with the same cached executables.

        `leaves` are the parameters and the initial state. `unread` has additional parameters,
        which no operation reads. `state_from_user` tells whether a user passed the state.
        """
        definition = self.definition.with_unread(unread or {})
        from_user = state_from_user or self.arrays.state_from_user
        return Execution(self.executables, Arrays(definition, leaves, state_from_user=from_user))

    def with_network(self, network: Network) -> Execution:
        """Return an execution of another network, on the arrays of that network.

        The options and the mesh of this execution stay in use.
        """
        before = self.definition
        definition = Definition(network, before.options, before.layout)
        return self._on_data(definition, network.data, from_user=self.arrays.from_user)

    def with_layout(self, layout: Layout) -> Execution:
        """Return an execution of the network on a mesh. The arrays are put on the mesh."""
        return Execution.of(self.arrays.with_layout(layout))

    def with_options(self, options: RunOptions) -> Execution:
        """Return an execution of the network on these arrays, with other options."""
        definition = self.definition.with_options(options)
        return Execution(
            self.executables.with_definition(definition), self.arrays.with_definition(definition)
        )

    def without_passes(self) -> Execution:
        """Return an execution of the network on these arrays, without passes and without a mesh."""
        return self.without_mesh().with_options(replace(self.definition.options, optimize=False))

    def without_mesh(self) -> Execution:
        """Return an execution of the network on these arrays, without a mesh."""
        if self.definition.layout is None:
            return self
        params, state = self.arrays.leaves()
        definition = self.definition.with_layout(None)
        # Arrays from the mesh are treated like arrays from a file, so that calls put them on one
        # device. Tracers stay where they are.
        return self._on_data(definition, {**params, **state}, from_user=self.arrays.are_traced)

    def _on_data(self, definition: Definition, data: ByLabel, *, from_user: bool) -> Execution:
        state_from_user = self.arrays.state_from_user
        arrays = Arrays.of(definition, data, from_user=from_user, state_from_user=state_from_user)
        return Execution.of(arrays)

    def for_one_call(self, inputs: Inputs) -> Execution:
        """Return the execution that takes the least time for a single call, compilation included.

        The choice is between this execution and an execution without passes. On a CPU, an
        execution without passes normally takes less time, since it compiles faster. This
        execution takes less time if its executable is on disk, or if the call takes long.
        """
        if default_platform() != "cpu":
            return self  # only CPUs have kernels, whose compilation takes long
        entry = self.outputs
        place = self.arrays.place(inputs)
        if place is not None:
            arguments = entry.arguments({}, inputs)
            arrays = self._arrays_read(entry, place)
            if self.executables.is_on_disk(entry, arrays, arguments, place):
                return self
        graph = self.network.specialise([x.shape for x in inputs])
        if total(graph) > _MULTIPLY_ADDS_WORTH_COMPILING:
            return self
        return self.without_passes()

    def executable_for(self, inputs: tuple[object, ...]) -> partial[Any] | None:
        """Return the executable of an earlier call with inputs of the same types, or None.

        The earlier call must be of the kind `outputs`. The inputs then need no check. The check
        and the choice of an executable would take up to 30 us.
        """
        if forks.is_without_threads:
            return None  # `run` raises the error for this case.
        recent = self._recent.values
        try:
            key = key_of_types(inputs)
            executable = recent.get(key)
            # An executable of a call has two keys. If there are only two keys, the order of use
            # need not be updated.
            has_several_executables = len(recent) > 2
            if executable is not None and has_several_executables:
                recent.move_to_end(key)
            return executable
        except (AttributeError, TypeError, KeyError):
            # An input is not an array, or another thread has removed the executable.
            return None

    def call(
        self,
        args: tuple[object, ...],
        kwargs: ByLabel,
        params: Params | None = None,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run one cycle from the initial state, on inputs that are passed by position and by name.

        `args` and `kwargs` are the arguments of the user's call. `params` replace the model's
        parameters.
        """
        return self.run(self.outputs, {}, self.bind(args, kwargs), params, probe)

    def run(
        self,
        entry: Entry,
        state: ByLabel,
        inputs: Inputs,
        params: Params | None = None,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network on inputs, and also on a state if the entry takes a state.

        If `params` is None, the network runs on the model's parameters, on the device to which
        the arrays are committed. A call outside of traces, without `params` and without a
        probe, runs an executable that is bound to prepared values. Any other call runs a jitted
        function of parameters, state and inputs.
        """
        if forks.is_without_threads:
            forks.refuse()
        if params is None and probe is not NOTHING:
            params = self._params_for_captures(entry, state, inputs, probe)
        if params is not None:
            return self._run_jitted(entry, params, state, inputs, probe)
        arguments = entry.arguments(state, inputs)
        arrays = [*chain(*arguments)]
        place = self._place(arrays)
        if place is None or is_explicit(place.where):
            has_tracers = any(isinstance(x, Tracer) for x in arrays)
            if has_tracers and self._is_in_callers_trace():
                return self._run_in_trace(entry, state, inputs)
            where = None if place is None else place.where
            params = self.arrays.params_for_traced_calls(where)
            return self._run_jitted(entry, params, state, inputs)
        executable = self._executable(entry, arguments, place)
        if not entry.takes_state:
            # The next call with these types gets the executable from `executable_for`.
            are_arrays = all(isinstance(x, jax.Array) or type(x) is np.ndarray for x in arrays)
            if are_arrays:
                self._recent.keep(key_of_types(arrays), executable)
        try:
            return executable(*arguments)
        except ValueError:
            # Within a trace, jax refuses functions that have compiler options.
            if not is_traced():
                raise
            return self._run_in_trace(entry, state, inputs)

    def run_routine(self, routine: Routine, *arguments: Any) -> Any:
        """Run a routine, a function of many steps, as one program. Return its result.

        `arguments` are pytrees of arrays. As in `run`, an executable is bound to prepared values,
        unless jax must decide where the arrays are.
        """
        if forks.is_without_threads:
            forks.refuse()
        entry = RoutineEntry(self.definition, routine)
        place = self._place(jax.tree.leaves(arguments))
        if place is None or is_explicit(place.where):
            params = self.arrays.params_for_traced_calls(None if place is None else place.where)
            return self.executables.jitted_routine(entry)(params, *arguments)
        return self._executable(entry, arguments, place)(*arguments)

    def _is_in_callers_trace(self) -> bool:
        """Tell whether jax is tracing, and none of the model's arrays is a tracer.

        In this case the arrays are constants of the function that jax traces.
        """
        return is_traced() and not self.arrays.are_traced

    def _run_in_trace(self, entry: Entry, state: ByLabel, inputs: Inputs) -> Any:
        """Run the network in the trace of the caller.

        Parameters are prepared for the platform for which the trace is lowered.
        """
        params_for_traced_calls = self.arrays.params_for_traced_calls

        def make_jitted() -> Any:
            # The call below passes None as the parameters. `params_of` replaces None by the model's
            # parameters.
            return entry.jitted(params_of=lambda _: params_for_traced_calls())

        run = self._in_trace.get((entry.name, debugs_or_disables_jit()), make_jitted)
        return run(None, self._state_before(entry, state), inputs, NOTHING)

    def compiled(self, entry: Entry, state: ByLabel, inputs: Inputs) -> jax.stages.Compiled:
        """Return the compiled program of a call with arrays like `state` and `inputs`."""
        arguments = entry.arguments(state, inputs)
        place = self._place([*chain(*arguments)])
        if place is None or is_explicit(place.where):
            where = None if place is None else place.where
            params = self.arrays.params_for_traced_calls(where)
            function = self.executables.jitted_for_mesh(entry)
            state_before = self._state_before(entry, state)
            return function.lower(params, state_before, inputs, NOTHING).compile()
        executable = self._executable(entry, arguments, place)
        bound: Any = executable.func
        if isinstance(bound, jax.stages.Compiled):
            return bound
        # `bound` is a jitted function that has run. Its program is in jax's cache, so this compiles
        # nothing.
        return bound.lower(*executable.args, *arguments).compile()

    def program(
        self,
        entry: Entry,
        inputs: Inputs,
        platform: str,
        state_rows: int = 0,
        compute_capability: float | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the function that a call runs on a platform, and the types of its arguments.

        The host needs no device of the platform, because the model's arrays and `inputs` may be
        types. On a mesh the returned types have shardings. The function may be jitted or exported.
        The state is for a batch of `state_rows` items. If `state_rows` is 0, the state has the
        extents of the model's state. `compute_capability` is that of GPUs of CUDA, or None if it
        is unknown.
        """
        params, state = self.arrays.types()
        layout = self.definition.layout
        if state_rows:
            state = entry.state_types(state, state_rows, inputs)
        if layout:
            inputs = layout.typed(self.network.graph.inputs, inputs, entry.time_axes)
        may_prepare = layout is None or layout.place is not None
        if may_prepare:
            arrays = params if entry.takes_state else params | state
            arguments = entry.arguments(state, inputs)
            devices = layout.mesh.size if layout else 1
            target = self.definition.target(platform, devices, compute_capability)
            parts, call = self.executables.lower(entry, arrays, arguments, target)
            value_types = jax.eval_shape(parts.prepare, [*arrays.values()])
            if layout and layout.place:
                replicated = layout.place.where
                value_types = [type.update(sharding=replicated) for type in value_types]
            return call, (value_types, *arguments)
        # No values are prepared, since parameters are sharded or the mesh has Explicit axes. For
        # tensor parallelism the divided parameters are passed too.
        params_and_divided: Params = params
        if layout and layout.divisions:
            params_and_divided = Prepared(params, layout.divided_types(params), self.definition)
        return partial(_without_probe, entry.jitted()), (params_and_divided, state, list(inputs))

    def _place(self, arrays: Inputs) -> Placement | None:
        """Return the device or sharding on which jax computes a call, or None if jax decides.

        `arrays` are the inputs and the state of the call. jax decides if arrays are traced, if
        the user disabled compilation, or if jax looks for the operation that computes a NaN.
        """
        if debugs_or_disables_jit() or any(isinstance(x, Tracer) for x in arrays):
            return None
        return self.arrays.place(arrays)

    def _executable(
        self, entry: Entry | RoutineEntry, arguments: Sequence[Any], place: Placement
    ) -> partial[Any]:
        """Return the executable for the types of a call's arguments, bound to prepared values."""
        # The structure of the arguments of a routine is not determined by the leaves, because an
        # argument may be None.
        leaves, structure = jax.tree.flatten(arguments)
        types = tuple([(x.shape, x.dtype) for x in leaves])
        key = entry.name, place, trace_settings(), structure, types
        executable = self._recent.values.get(key)
        if executable is None:
            arrays = self._arrays_read(entry, place)
            # Values that are prepared from a user's parameters are not stored on disk.
            are_from_file = not self.arrays.from_user
            executable = self.executables.get(
                entry, arrays, arguments, place, key, keeps_values=are_from_file
            )
        return self._recent.keep(key, executable)

    def _arrays_read(self, entry: Entry | RoutineEntry, place: Placement) -> dict[str, Any]:
        """Return the arrays that calls of an entry read, by label. The arrays are at `place`."""
        params = self.arrays.parameters(place.where)
        if entry.takes_state:
            return params
        # The initial state is an argument of the executable too, so that no executable contains
        # data of the network.
        return params | self.arrays.initial_state(place.where)

    def _state_before(self, entry: Entry, state: ByLabel) -> ByLabel:
        """Return the state from which a call starts: `state`, or else the initial state."""
        return state if entry.takes_state else self.arrays.initial_state()

    def _params_for_captures(
        self, entry: Entry, state: ByLabel, inputs: Inputs, probe: Probe
    ) -> dict[str, Any]:
        """Return the parameters that a run reads for its results and captured tensors."""
        types_of_one_cycle: list[jax.ShapeDtypeStruct] = []
        for x in inputs:
            shape = x.shape[entry.time_axes :]
            types_of_one_cycle.append(jax.ShapeDtypeStruct(shape, x.dtype))
        state_before = self._state_before(entry, state)
        labels = self.definition.labels_read(types_of_one_cycle, probe, state_before)
        return self.arrays.select(labels)

    def _run_jitted(
        self,
        entry: Entry,
        params: Params,
        state: ByLabel,
        inputs: Inputs,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network as one jitted function of parameters, state, inputs and probe.

        Without jit, jax would compile each primitive separately. For ResNet-18 it would compile 236
        primitives in 15 s, whereas the network as a whole takes 7 s. Within a caller's trace the
        function becomes a call, which XLA inlines.
        """
        state_before = self._state_before(entry, state)
        arguments = params, state_before, inputs, probe
        run = self.executables.jitted(entry)
        run_on_mesh = self.executables.jitted_for_mesh(entry)
        if run_on_mesh is not run:
            # A function with options of the compiler cannot be in a trace, or be differentiated.
            # `is_traced` adds an equation to a trace, so it is called only here.
            has_tracers = any(isinstance(x, Tracer) for x in jax.tree.leaves(arguments))
            if not has_tracers and not is_traced():
                run = run_on_mesh
        try:
            return run(*arguments)
        except FloatingPointError as error:
            unprepared = params.params if isinstance(params, Prepared) else params
            names = [value.name for value in self.network.graph.inputs]
            by_name = dict(zip(names, inputs, strict=True))
            culprits = not_finite(input=by_name, state=state_before, params=unprepared)
            for name in culprits:
                error.add_note(f"{name} has one before the network runs")
            has_loop = entry.time_axes > 0
            if has_loop and not culprits:
                # Without jit jax looks for the NaN inside the loop too, and raises a better error.
                with jax.disable_jit():
                    self.executables.jitted(entry)(*arguments)
            raise

    def prepare(self, params: ByLabel, inputs: Inputs, state: ByLabel | None = None) -> Prepared:
        """Return the parameters, together with values that depend on parameters only.

        The values are prepared for a cycle on inputs with the types of `inputs`. `state` is the
        state before the cycle, by default the initial state.
        """
        if forks.is_without_threads:
            forks.refuse()
        definition = self.definition
        layout = definition.layout
        if layout and layout.divisions:
            return Prepared(params, layout.divided(params), definition)
        if state is None:
            state = self.arrays.initial_state() if self.network.graph.states else {}
        functions = {definition.cycle: inputs}
        can_scan = state and inputs and not self.network.open_states
        if can_scan:
            # Prepared values do not depend on the number of cycles. Any number will do, such as 2.
            two_cycles = [jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in inputs]
            functions[definition.scanned_cycles] = two_cycles
        platform = default_platform()
        values: dict[str, Any] = {}
        for function, function_inputs in functions.items():
            values[function.__name__] = definition.preparation(
                platform, function, params, state, function_inputs
            )
        return Prepared(params, values, definition)


def _without_probe(run: Callable[..., Any], *arguments: Any) -> Any:
    """Call `run`, a function of params, state, inputs and a probe, with an empty probe."""
    return run(*arguments, NOTHING)
