"""Runs a network on a model's own arrays, or on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from lowering.devices import Place, is_traced, on_cpu
from lowering.work import total
from nnef_jax.errors import InputError
from nnef_jax.execution.compiler import compiled
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.functions import Arrays, Entry
from nnef_jax.execution.meshes import is_explicit
from nnef_jax.execution.options import Prepared, RunOptions, is_watched
from nnef_jax.execution.own_arrays import OwnArrays
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.threads import Once
from nnef_jax.network import Network

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache

# Multiply-adds of a call beyond which the kernels for CPUs may gain more than they take to compile:
# on two cores of a Zen 3 they gain 0.04 s in a billion (ResNet-18) to 0.3 s (MobileNetV2), and take
# 4 s and 1 s of processor time.
_LONG = 10_000_000_000


class Execution:
    """Runs a model's network, by an entry of its definition: `outputs`, `step` or `scan`."""

    def __init__(self, own: OwnArrays) -> None:
        definition = self.definition = own.definition
        self.own = own
        self.network = definition.network
        self.functions = definition.functions
        self.compiler = definition.compiler
        self.outputs, self.step, self.scan = definition.outputs, definition.step, definition.scan
        self._made = definition.made if own.is_shared else Once()
        self._jitted = Once()
        self._executables: dict[tuple[Any, ...], partial[Any]] = {}
        self._known: dict[tuple[Any, ...], partial[Any]] = {}

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

    def known(self, inputs: tuple[Any, ...]) -> partial[Any] | None:
        """Return what runs the outputs for a list of inputs of these types, or None.

        They need no binding, which takes 30 us with the search for what is compiled.
        """
        try:
            return self._known.get(_types(inputs))
        except (AttributeError, TypeError):  # no arrays of jax
            return None

    def run(
        self,
        entry: Entry,
        state: Arrays,
        inputs: Sequence[Any],
        params: Arrays | Prepared | None = None,
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network on a state, for entries that take one, and inputs.

        Without `params` it runs on the model's own, on the device that the arrays are committed to.
        A call by itself runs what is compiled and prepared for it. Otherwise the network is a
        function of all that it depends on.
        """
        if params is None and probe is not NOTHING:
            params = self._read(entry, state, inputs, probe)
        if params is not None:
            return self._computed(entry, params, state, inputs, probe)
        arrays = entry.arrays(state, inputs)
        # The caller compiles, wants nothing compiled, or to know which operation computes a NaN.
        traced = any(isinstance(x, Tracer) for x in arrays)
        if traced and is_traced():
            own = self.own
            run = self._jitted.get(entry.name, lambda: entry.on(lambda _: own.parameters()))
            return run(None, self._before(entry, state), inputs, NOTHING)
        place = None if traced or is_watched() else self.own.place(arrays)
        if place is None or is_explicit(place.where):
            own = self.own.parameters(place and place.where)
            return self._computed(entry, own, state, inputs)
        executable = self._executable(entry, arrays, place)
        if not entry.takes_state and all(isinstance(x, jax.Array) for x in arrays):
            self._known[_types(arrays)] = executable
        return executable(*entry.arguments(arrays))

    def compiled(self, entry: Entry, state: Arrays, inputs: Sequence[Any]) -> jax.stages.Compiled:
        """Return what a call of such arrays runs, as jax has it."""
        arrays = entry.arrays(state, inputs)
        place = self.own.place(arrays)
        if place is not None and not is_explicit(place.where):
            return compiled(self._executable(entry, arrays, place), entry.arguments(arrays))
        own = self.own.parameters(place and place.where)
        return entry.jitted.lower(own, self._before(entry, state), inputs, NOTHING).compile()

    def _executable(self, entry: Entry, arrays: Sequence[Any], place: Place) -> partial[Any]:
        key = entry.name, place, tuple([x.shape for x in arrays])
        executable = self._executables.get(key)
        if executable is None:
            own, shared = self._arrays(entry, place), self.own.is_shared
            executable = self._executables[key] = self.compiler.executable(
                entry, own, arrays, place, self._made, is_shared=shared
            )
        return executable

    def for_one_call(self, inputs: list[Any]) -> Execution:
        """Return what answers a single call soonest: the network as it is written, mostly.

        One that is compiled already is faster, and one whose call takes long.
        """
        if not on_cpu():
            return self
        entry, place = self.outputs, self.own.place(inputs)
        own = {} if place is None else self._arrays(entry, place)
        is_kept = place is not None and self.compiler.is_kept(entry, own, inputs, place)
        graph = self.network.specialise([x.shape for x in inputs])
        return self if is_kept or total(graph) > _LONG else self.literal()

    def _arrays(self, entry: Entry, place: Place) -> dict[str, Any]:
        # The initial state is an argument too: no stored data are part of what is compiled.
        own = self.own.parameters(place.where)
        return own if entry.takes_state else {**own, **self.own.initial_state(place.where)}

    def _before(self, entry: Entry, state: Arrays) -> Arrays:
        return state if entry.takes_state else self.own.initial_state()

    def _read(
        self, entry: Entry, state: Arrays, inputs: Sequence[Any], probe: Probe
    ) -> dict[str, Any]:
        """Return the parameters that a run reads, also those that only captured tensors do."""
        items = [jax.ShapeDtypeStruct(x.shape[entry.time_axes :], x.dtype) for x in inputs]
        return self.own.select(self.functions.labels(items, probe, self._before(entry, state)))

    def _computed(
        self,
        entry: Entry,
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
        state = self._before(entry, state)
        arguments = params, state, inputs, probe
        try:
            return entry.jitted(*arguments)
        except FloatingPointError as error:
            raw = params.params if isinstance(params, Prepared) else params
            blamed = self._arrays_to_blame(raw, state, inputs)
            for name in blamed:
                error.add_note(f"{name} has one already")
            if entry.time_axes and not blamed:
                with jax.disable_jit():  # to jax a scan is one operation, which has no NaN in it
                    entry.jitted(*arguments)
            raise

    def _arrays_to_blame(self, params: Arrays, state: Arrays, inputs: Sequence[Any]) -> list[str]:
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


def _types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return what an executable is found by, given arrays of jax."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    types = [(type(x), x.shape, x.dtype, x.committed and x.sharding) for x in arrays]
    return (default, *types)
