"""A model's ways into its network: on its own arrays, compiled, or as pure functions of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from lowering.devices import Place
from nnef_jax.errors import InputError
from nnef_jax.execution.compiler import Executable
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.entry import Entry
from nnef_jax.execution.functions import Arrays
from nnef_jax.execution.meshes import is_explicit
from nnef_jax.execution.options import RunOptions, is_watched
from nnef_jax.execution.own_arrays import OwnArrays
from nnef_jax.execution.prepared import Prepared
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.threads import Once
from nnef_jax.network import Network

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache


class Execution:
    """Runs a network: `outputs` of a call, `step` for a cycle and `scan` for many.

    A call of a recurrent network is one cycle from its initial state.
    """

    def __init__(self, own: OwnArrays) -> None:
        definition = self.definition = own.definition
        self.own = own
        self.network = definition.network
        self.functions = definition.functions
        self.compiler = definition.compiler
        self.outputs = EntryPoint(definition.outputs, own)
        self.step = EntryPoint(definition.step, own)
        self.scan = EntryPoint(definition.scan, own)

    def prepare(
        self, params: Arrays, inputs: Sequence[Any], before: Arrays | None = None
    ) -> Prepared:
        """Return parameters with what calls need of them, for a cycle of these types.

        Its state is `before`, by default the initial one.
        """
        functions = self.functions
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
        stored, network = self.own.first_state(), self.network
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

    @classmethod
    def loaded(cls, network: Network, options: RunOptions, cache: DiskCache | None) -> Execution:
        """Return one that runs a network on the data that it has."""
        return cls(OwnArrays.of(Definition(network, options, cache), network.data))

    def of(self, network: Network) -> Execution:
        """Return what runs another network, on the data that it has, in the same way."""
        known = self.definition
        definition = Definition(network, known.options, known.cache, known.layout)
        return Execution(self.own.of(definition, network.data))

    def literal(self) -> Execution:
        """Return one that runs the network on the same arrays as it is written."""
        return self._on_no_mesh(replace(self.definition.options, optimize=False))

    def alone(self) -> Execution:
        """Return one that runs the network on the same arrays, on no mesh."""
        is_alone = self.definition.layout is None
        return self if is_alone else self._on_no_mesh(self.definition.options)

    def _on_no_mesh(self, options: RunOptions) -> Execution:
        known, (params, state) = self.definition, self.own.leaves()
        definition = Definition(replace(known.network, data=known.unread), options, known.cache)
        return Execution(OwnArrays(definition, {**params, **state}))


class EntryPoint:
    """Runs a network in one way.

    A call runs it on the model's own arrays, on the device that states and inputs are committed to.
    It takes these as one flat list, which costs the least.
    """

    def __init__(self, entry: Entry, own: OwnArrays) -> None:
        self._entry = entry
        self.time_axes = entry.time_axes
        self._own = own
        self._made = None if own.is_shared else Once()
        self._executables: dict[tuple[Any, ...], Executable] = {}
        self._known: dict[tuple[Any, ...], Executable] = {}

    def known(self, arguments: tuple[Any, ...]) -> Executable | None:
        """Return the executable for inputs of these types, or None.

        Its inputs need no binding, which takes 30 us with the search for what is compiled.
        """
        try:
            return self._known.get(_types(arguments))
        except (AttributeError, TypeError):  # no arrays of jax
            return None

    def __call__(self, arrays: list[Any]) -> Any:
        """Run the network on the model's own arrays."""
        # The caller compiles, wants nothing compiled, or to know which operation computes a NaN.
        traced = is_watched() or any(isinstance(x, Tracer) for x in arrays)
        place = None if traced else self._own.place(arrays)
        if place is None:
            return self.pure(self._own.parameters(), *self._entry.parted(arrays))
        if is_explicit(place.where):
            own = self._own.parameters(place.where)
            return self.pure(own, *self._entry.parted(arrays))
        executable = self._executable(arrays, place)
        if not self._entry.takes_state and all(isinstance(x, jax.Array) for x in arrays):
            self._known[_types(arrays)] = executable
        return executable(arrays)

    def compiled(self, arrays: list[Any]) -> jax.stages.Compiled:
        """Return what a call of such arrays runs, as jax has it."""
        place = self._own.place(arrays)
        if place is not None and not is_explicit(place.where):
            return self._executable(arrays, place).compiled(arrays)
        state, inputs = self._entry.parted(arrays)
        state = state if self._entry.takes_state else self._own.initial_state()
        own = self._own.parameters(place.where if place else None)
        jitted: Any = self._entry.jitted
        return jitted.lower(own, state, inputs, NOTHING).compile()

    def _executable(self, arrays: list[Any], place: Place) -> Executable:
        key = place, tuple([x.shape for x in arrays])
        executable = self._executables.get(key)
        if executable is None:
            executable = self._entry.executable(self._arrays(place), arrays, place, self._made)
            self._executables[key] = executable
        return executable

    def pure(
        self,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Sequence[Any],
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network as a function of all that it depends on.

        It is compiled as a whole also where the caller compiles nothing. JAX would compile each
        primitive by itself: 236 for ResNet-18, in 15 s, where all of it takes 7. Within a function
        that the caller compiles it is a call, which XLA inlines.
        """
        state = state if self._entry.takes_state else self._own.initial_state()
        arguments = params, state, inputs, probe
        try:
            return self._entry.jitted(*arguments)
        except FloatingPointError as error:
            raw = params.params if isinstance(params, Prepared) else params
            blamed = self._arrays_to_blame(raw, state, inputs)
            for name in blamed:
                error.add_note(f"{name} has one already")
            if self._entry.time_axes and not blamed:
                with jax.disable_jit():  # to jax a scan is one operation, which has no NaN in it
                    self._entry.jitted(*arguments)
            raise

    def _arrays_to_blame(self, params: Arrays, state: Arrays, inputs: Sequence[Any]) -> list[str]:
        """Return which arrays have what jax looks for before the network runs."""
        config: Any = jax.config
        signs = {jnp.isnan: config.jax_debug_nans, jnp.isinf: config.jax_debug_infs}
        names = [value.name for value in self._entry.functions.network.graph.inputs]
        kinds = {"input": dict(zip(names, inputs, strict=True)), "state": state, "params": params}
        return [
            f"{kind} '{name}'"
            for kind, arrays in kinds.items()
            for name, x in arrays.items()
            if not isinstance(x, Tracer)
            and any(sign(x).any() for sign, is_on in signs.items() if is_on)
        ]

    def is_kept(self, arrays: list[Any]) -> bool:
        """Tell whether what a call of such arrays compiles is in the folder."""
        place = self._own.place(arrays)
        return place is not None and self._entry.is_kept(self._arrays(place), arrays, place)

    def _arrays(self, place: Place) -> dict[str, Any]:
        # The initial state is an argument too: no stored data are part of what is compiled.
        own = self._own.parameters(place.where)
        return own if self._entry.takes_state else {**own, **self._own.initial_state(place.where)}

    def probed(self, arrays: list[Any], probe: Probe) -> Any:
        """Run the network on its own parameters, and those that only captured tensors read."""
        entry, (state, inputs) = self._entry, self._entry.parted(arrays)
        items = [jax.ShapeDtypeStruct(x.shape[entry.time_axes :], x.dtype) for x in inputs]
        before = state if entry.takes_state else self._own.initial_state()
        labels = entry.functions.labels(items, probe, before)
        return self.pure(self._own.select(labels), state, inputs, probe)


def _types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return what an executable is found by, given arrays of jax."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    types = [(type(x), x.shape, x.dtype, x.committed and x.sharding) for x in arrays]
    return (default, *types)
