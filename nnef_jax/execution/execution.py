"""Runs a network on a model's own arrays, which are on the devices that compute with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding

from lowering import devices
from lowering.multiply_adds import total
from nnef_jax.call_arguments import bind_variables
from nnef_jax.errors import InputError
from nnef_jax.execution import forks
from nnef_jax.execution.compiler import compiled
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.functions import Arrays, Entry, Inputs
from nnef_jax.execution.meshes import Layout, is_explicit
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.run_options import Prepared, RunOptions, is_watched
from nnef_jax.execution.threads import Once
from nnef_jax.network import Network
from nnef_jax.storage import files

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache

# Multiply-adds of a call beyond which the kernels for CPUs may gain more than they take to compile:
# on two cores they gain 0.04 s in a billion (ResNet-18) to 0.3 s (MobileNetV2), and take
# 4 s and 1 s of processor time.
_LONG = 10_000_000_000

_Where = devices.Device | Sharding
Leaves = tuple[Any, Any]  # parameters and initial state by label


class Execution:
    """Runs a model's network on its `own` arrays: `outputs` of a call, `step`, or `scan`."""

    def __init__(self, own: OwnArrays) -> None:
        definition = self.definition = own.definition
        self.own = own
        self.network = definition.network
        self.functions = definition.functions
        self.compiler = definition.compiler
        self.bind, self.types = definition.bind, definition.types
        self.check_params, self.check_state = definition.check_params, definition.check_state
        self.outputs, self.step, self.scan = definition.outputs, definition.step, definition.scan
        self._made = definition.made if own.is_shared else Once()
        self._within = Once()  # for functions that a caller compiles, by entry
        self._executables: dict[tuple[Any, ...], partial[Any]] = {}
        self._known: dict[tuple[Any, ...], partial[Any]] = {}

    @classmethod
    def loaded(cls, network: Network, options: RunOptions, cache: DiskCache | None) -> Execution:
        """Return one that runs a network on the data that it has."""
        return cls(OwnArrays.of(Definition(network, options, cache), network.data))

    def of(self, network: Network) -> Execution:
        """Return the execution of another network on its own data, with these options."""
        known = self.definition
        definition = Definition(network, known.options, known.cache, known.layout)
        return Execution(self.own.of(definition, network.data))

    def literal(self) -> Execution:
        """Return an execution on the same arrays without passes, and without a mesh."""
        return self._with(replace(self.definition.options, optimize=False))

    def alone(self) -> Execution:
        """Return an execution on the same arrays, without a mesh."""
        return self if self.definition.layout is None else self._with(self.definition.options)

    def _with(self, options: RunOptions) -> Execution:
        known, (params, state) = self.definition, self.own.leaves()
        definition = Definition(replace(known.network, data=known.unread), options, known.cache)
        arrays = GivenArrays if self.own.are_traced else OwnArrays
        return Execution(arrays.of(definition, {**params, **state}))

    def for_one_call(self, inputs: Inputs) -> Execution:
        """Return the execution that answers a single call soonest: mostly the network as written.

        One that is compiled already is faster, and one whose call takes long.
        """
        if not devices.on_cpu():
            return self
        entry, place = self.outputs, self.own.place(inputs)
        if place is not None:
            arguments = entry.arguments({}, inputs)
            if self.compiler.is_kept(entry, self._arrays(entry, place), arguments, place):
                return self
        graph = self.network.specialise([x.shape for x in inputs])
        return self if total(graph) > _LONG else self.literal()

    def known(self, inputs: tuple[Any, ...]) -> partial[Any] | None:
        """Return the executable of the outputs for inputs of these types, or None.

        They need no binding, which takes up to 30 us with the search for what is compiled.
        """
        if forks.is_without_threads:
            return None  # `run` says why
        try:
            return self._known.get(_types(inputs))
        except (AttributeError, TypeError):  # no arrays
            return None

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: Arrays,
        params: Arrays | Prepared | None = None,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run a call of the network, or a first cycle, on inputs by position and by name."""
        return self.run(self.outputs, {}, self.bind(args, kwargs), params, probe)

    def run(
        self,
        entry: Entry,
        state: Arrays,
        inputs: Inputs,
        params: Arrays | Prepared | None = None,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network on a state, if the entry takes one, and inputs.

        Without `params` it runs on the model's own, on the device that the arrays are committed to:
        a call by itself is what is compiled, applied to what is prepared for it. Otherwise it is a
        function of all that it depends on.
        """
        forks.require_threads()
        if params is None and probe is not NOTHING:
            params = self._read(entry, state, inputs, probe)
        if params is not None:
            return self._computed(entry, params, state, inputs, probe)
        arguments = entry.arguments(state, inputs)
        arrays = [*chain(*arguments)]
        if any(isinstance(x, Tracer) for x in arrays):
            place = None
            if devices.is_traced() and not self.own.are_traced:
                return self._inside(entry, state, inputs)
        else:  # the user may want nothing compiled, or to know which operation computes a NaN
            place = None if is_watched() else self.own.place(arrays)
        if place is None or is_explicit(place.where):
            own = self.own.for_calls(place and place.where)
            return self._computed(entry, own, state, inputs)
        executable = self._executable(entry, arguments, arrays, place)
        if not entry.takes_state and all(
            isinstance(x, jax.Array) or type(x) is np.ndarray for x in arrays
        ):
            self._known[_types(arrays)] = executable
        try:
            return executable(*arguments)
        except ValueError:  # inside a function that jax compiles others may have no options
            if not devices.is_traced():
                raise
            return self._inside(entry, state, inputs)

    def _inside(self, entry: Entry, state: Arrays, inputs: Inputs) -> Any:
        """Run an entry in a function that the caller compiles, parameters prepared for that."""
        own = self.own.for_calls
        run = self._within.get(entry.name, lambda: entry.on(lambda _: own()))
        return run(None, self._before(entry, state), inputs, NOTHING)

    def compiled(self, entry: Entry, state: Arrays, inputs: Inputs) -> jax.stages.Compiled:
        """Return the compiled program of a call with such arrays, as jax has it."""
        arguments = entry.arguments(state, inputs)
        arrays = [*chain(*arguments)]
        place = self.own.place(arrays)
        if place is not None and not is_explicit(place.where):
            return compiled(self._executable(entry, arguments, arrays, place), arguments)
        own = self.own.for_calls(place and place.where)
        return entry.alone.lower(own, self._before(entry, state), inputs, NOTHING).compile()

    def _executable(
        self, entry: Entry, arguments: Sequence[list[Any]], arrays: list[Any], place: devices.Place
    ) -> partial[Any]:
        key = entry.name, place, tuple([x.shape for x in arrays])
        executable = self._executables.get(key)
        if executable is None:
            own, is_shared = self._arrays(entry, place), self.own.is_shared
            executable = self._executables[key] = self.compiler.executable(
                entry, own, arguments, place, self._made, is_shared=is_shared
            )
        return executable

    def _arrays(self, entry: Entry, place: devices.Place) -> dict[str, Any]:
        # The initial state is an argument too: no stored data are part of what is compiled.
        own = self.own.parameters(place.where)
        return own if entry.takes_state else {**own, **self.own.initial_state(place.where)}

    def _before(self, entry: Entry, state: Arrays) -> Arrays:
        return state if entry.takes_state else self.own.initial_state()

    def _read(self, entry: Entry, state: Arrays, inputs: Inputs, probe: Probe) -> dict[str, Any]:
        """Return the parameters that a run reads, also those that only captured tensors do."""
        items = [jax.ShapeDtypeStruct(x.shape[entry.time_axes :], x.dtype) for x in inputs]
        return self.own.select(self.functions.labels(items, probe, self._before(entry, state)))

    def _computed(
        self,
        entry: Entry,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Inputs,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network as a function of all that it depends on.

        It is compiled as a whole also where the caller compiles nothing. JAX would compile each
        primitive by itself: 236 for ResNet-18, in 15 s, where all of it takes 7. Within a function
        that the caller compiles it is a call, which XLA inlines.
        """
        state = self._before(entry, state)
        arguments = params, state, inputs, probe
        run = entry.jitted
        if entry.alone is not run and not devices.is_traced():  # asking leaves a trace
            run = entry.alone
        try:
            return run(*arguments)
        except FloatingPointError as error:
            raw = params.params if isinstance(params, Prepared) else params
            blamed = self._arrays_to_blame(raw, state, inputs)
            for name in blamed:
                error.add_note(f"{name} has one already")
            if entry.time_axes and not blamed:
                with jax.disable_jit():  # to jax a scan is one operation, which has no NaN in it
                    entry.jitted(*arguments)
            raise

    def _arrays_to_blame(self, params: Arrays, state: Arrays, inputs: Inputs) -> list[str]:
        """Return which arrays have what jax looks for before the network runs."""
        config: Any = jax.config
        signs = {jnp.isnan: config.jax_debug_nans, jnp.isinf: config.jax_debug_infs}
        names = [value.name for value in self.network.graph.inputs]
        kinds = {"input": dict(zip(names, inputs, strict=True)), "state": state, "params": params}
        return [
            f"{kind} '{name}'"
            for kind, arrays in kinds.items()
            for name, x in arrays.items()
            if not isinstance(x, Tracer)
            and any(sign(x).any() for sign, is_on in signs.items() if is_on)
        ]

    def prepare(self, params: Arrays, inputs: Inputs, before: Arrays | None = None) -> Prepared:
        """Return parameters, and beside them the prepared values of a cycle of these types.

        Its state is `before`, by default the initial one.
        """
        forks.require_threads()
        functions, layout = self.functions, self.definition.layout
        if layout and layout.divisions:
            return Prepared(params, layout.divided(params), self.definition)
        state = before
        if state is None:
            state = self.own.initial_state() if self.network.graph.states else {}
        found = {"cycle": functions.prepared(functions.cycle, params, state, inputs)}
        # How many cycles there are makes no difference.
        if state and inputs and not self.network.changing:
            several = [jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in inputs]
            found["scan"] = functions.prepared(functions.scan, params, state, several)
        return Prepared(params, found, self.definition)

    def first_state(self, inputs: Callable[[], Sequence[Any]]) -> dict[str, jax.Array]:
        """Return the state before a first cycle, whose inputs or their types are asked for.

        Raises InputError where a variable starts with what is computed of one that is a type.
        """
        stored, network = dict(self.own.initial_state()), self.network
        if self.definition.options.donate_state:  # a step takes its memory for the next one
            stored = {label: jnp.array(x, copy=True) for label, x in stored.items()}
        if not network.computed_starts:
            return stored
        given = inputs()
        graph = network.specialise([x.shape for x in given])
        needed = graph.dependencies(s.initial for s in graph.states if s.initial is not None)
        named = {v.name: x for v, x in zip(graph.inputs, given, strict=True) if v in needed}
        for name, x in named.items():
            if isinstance(x, jax.ShapeDtypeStruct):
                raise InputError(
                    f"the state starts with what the network computes of input '{name}'",
                    hint="give the inputs of the first cycle: model.init_state(x)",
                )
        computed = self.definition.initial(self.own.parameters(), stored, graph, named)
        return {s.label: {**stored, **computed}[s.label] for s in graph.states}


def _types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return the key of the executable for arrays of numpy or jax."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    types = [
        (x.shape, x.dtype)
        if type(x) is np.ndarray
        else (type(x), x.shape, x.dtype, x.committed and x.sharding)
        for x in arrays
    ]
    return (default, *types)


class OwnArrays:
    """The stored data of a network, put on a device when something there asks for them.

    The host's own are let go then. A device that comes later is given those of the first.
    """

    is_shared = False  # whether what is compiled for them is for other arrays of the network too
    are_traced: Any = False

    def __init__(self, definition: Definition, leaves: Leaves) -> None:
        self.definition = definition
        self._leaves = leaves  # of numpy, of jax once they are put
        self._placed = Once()

    def __reduce__(self) -> tuple[Any, ...]:
        params, state = leaves = _on_host(self._leaves)
        arrays = *params.values(), *state.values()
        is_stored = all(isinstance(x, np.ndarray) for x in arrays)
        return OwnArrays if is_stored else GivenArrays, (self.definition, leaves)

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnArrays:
        return type(self)(self.definition, _copied(self._leaves, memo))

    @classmethod
    def of(cls, definition: Definition, data: Arrays) -> OwnArrays:
        """Return a definition's arrays, taken from data by label."""
        parts = definition.labels, definition.states
        params, state = ({label: data[label] for label in labels} for labels in parts)
        return cls(definition, (params, state))

    def leaves(self) -> Leaves:
        """Return the parameters and the initial state as they are, on the default device."""
        return self.parameters(), self.initial_state()

    def parameters(self, where: _Where | None = None) -> dict[str, jax.Array]:
        """Return the parameters on the device, which is the default one if none is given."""
        return self._at(where, 0)

    def for_calls(self, where: _Where | None = None) -> dict[str, jax.Array] | Prepared:
        """Return the parameters as a function of them takes them: prepared if that spares moves."""
        return self.parameters(where)

    def initial_state(self, where: _Where | None = None) -> dict[str, jax.Array]:
        """Return the stored values of the variables that the graph updates, on the device."""
        return self._at(where, 1)

    def select(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return some parameters by label, as numpy arrays where nothing reads them."""
        parameters = {**self.definition.unread, **self.parameters()}
        return {label: parameters[label] for label in labels}

    def stored(self, label: str) -> Any:
        """Return the array of a variable where it is: numpy's until it is put on a device."""
        params, state = self._leaves
        return {**self.definition.unread, **params, **state}[label]

    def over(self, layout: Layout) -> GivenArrays:
        """Return the same arrays on a mesh: each part goes from the host to its devices alone."""
        definition, (params, state) = self.definition, self._leaves
        shapes = [value.type.shape for value in definition.network.graph.inputs]
        placed = layout.put_params(params), layout.put_state(state, shapes)
        return GivenArrays(definition.over(layout), placed)

    def place(self, arrays: Sequence[Any]) -> devices.Place | None:
        """Return where jax computes with these inputs, None where that is for jax to find."""
        return devices.place_of(arrays)

    def _at(self, where: _Where | None, part: int) -> dict[str, jax.Array]:
        where = devices.default_device() if where is None else where

        def put() -> dict[str, jax.Array]:
            found = _put(self._leaves[part], where)
            self._leaves[part].update(found)
            return found

        return self._placed.get((where, part), put)


class GivenArrays(OwnArrays):
    """Holds the arrays given to a model: they stay where they are, on whatever devices.

    They may be traced, and as leaves of a tree anything at all: they are checked when they are
    first computed with.
    """

    is_shared = True

    def leaves(self) -> Leaves:
        """Return the given arrays."""
        return self._leaves

    def for_calls(self, where: _Where | None = None) -> dict[str, jax.Array] | Prepared:
        """Return the parameters as a function of them takes them: prepared if that spares moves."""
        own, layout = self.parameters(where), self.definition.layout
        if self.are_traced or layout is None or not layout.divisions:
            return own
        with jax.ensure_compile_time_eval():  # they are kept
            divided = self._placed.get("divided", lambda: layout.divided(own))
        return Prepared(own, divided, self.definition)

    def place(self, arrays: Sequence[Any]) -> devices.Place | None:
        """Return where jax computes with these inputs, None where that is for jax to find."""
        if self.are_traced:
            return None
        if layout := self.definition.layout:
            return layout.place
        own = self._own_place
        if own is None or not own.is_committed:
            return own and devices.place_of(arrays)
        others = {x.sharding for x in arrays if isinstance(x, jax.Array) and x.committed}
        return own if all(x.device_set == {own.where} for x in others) else None

    @cached_property
    def are_traced(self) -> bool:
        """Tell whether some are arrays of a function that jax traces."""
        return any(isinstance(x, Tracer) for x in self._all.values())

    @cached_property
    def _own_place(self) -> devices.Place | None:
        if self.are_traced:
            return None
        arrays = list(self._all.values())
        homes = {device for x in arrays if x.committed for device in x.sharding.device_set}
        return devices.place_of(arrays) if len(homes) < 2 else None

    @cached_property
    def _all(self) -> dict[str, Any]:
        """Return all of them by label. Raises InputError for what does not fit the graph."""
        definition, (params, state) = self.definition, self._leaves
        bound = bind_variables("params", params, definition.parameters, definition.labels)
        bound |= bind_variables("state", state, definition.variables, definition.states)
        return {label: _array(x) for label, x in bound.items()}

    def _at(self, where: _Where | None, part: int) -> dict[str, Any]:
        labels = (self.definition.labels, self.definition.states)[part]
        found, own = {label: self._all[label] for label in labels}, self._own_place
        if where is None or own is None or own.is_committed:
            return found
        return self._placed.get((where, part), lambda: _put(found, where))


def _put(stored: Arrays, where: _Where) -> dict[str, jax.Array]:
    """Put arrays on a device without committing them to it, so that results follow the inputs.

    A CPU takes those at addresses that suit it as they are, mapped files too: 102 MB in 0.02 s
    instead of 0.6 s.
    """
    replicated = where if isinstance(where, NamedSharding) else None
    # They are kept, so that they must be arrays also within a function that is traced.
    with jax.ensure_compile_time_eval(), devices.computing_at(where):
        arrays = jax.device_put([np.asarray(x) for x in stored.values()], replicated)
    for x in stored.values():
        if isinstance(x, np.ndarray):
            files.release(x)
    return dict(zip(stored, arrays, strict=True))


def _on_host(tree: Any) -> Any:
    """Return a tree of numpy's arrays for jax's. Raises InputError for what has no values here."""

    def stored(x: Any) -> Any:
        if isinstance(x, Tracer):
            message = "a model of traced arrays has no values to pickle"
            raise InputError(message, hint="pickle outside of jax.jit and the like")
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            message = "a model whose arrays are partly on other hosts cannot be pickled"
            hint = "with_params(multihost_utils.process_allgather(params, tiled=True)) is whole"
            raise InputError(message, hint=hint)
        return np.asarray(x) if isinstance(x, jax.Array) else x

    return jax.tree.map(stored, tree)


def _copied(tree: Any, memo: dict[int, Any]) -> Any:
    def copied(x: Any) -> Any:
        return jnp.array(x, copy=True) if isinstance(x, jax.Array) else deepcopy(x, memo)

    return jax.tree.map(copied, tree)


def _array(x: Any) -> Any:
    """Return an array of jax, whose dtype is no weak one: else what is compiled would differ."""
    if isinstance(x, Tracer):
        return x
    with jax.ensure_compile_time_eval():
        x = x if isinstance(x, jax.Array) else jax.device_put(x)
        return jnp.asarray(x, x.dtype) if x.weak_type else x
