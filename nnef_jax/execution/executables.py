"""Compiles a definition's entries, and caches the executables in memory and on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import jax
from jax.core import Tracer
from jax.sharding import Sharding

from lowering import Preparing, Split, named, or_else, prepared, unprepared
from lowering.graph import Graph
from nnef_jax.calls.arguments import array_type
from nnef_jax.errors import NnefError
from nnef_jax.execution import host_profile
from nnef_jax.execution.cache_key import key_of
from nnef_jax.execution.definition import Arrays, Definition
from nnef_jax.execution.entry import Entry, Lists
from nnef_jax.execution.places import Placement, computing_at, debugs_or_disables_jit, is_traced
from nnef_jax.execution.run_options import RunOptions
from nnef_jax.execution.threads import Once
from nnef_jax.garbage import uncollected

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache


_TIME = 1.0  # seconds for timing all candidates of compiler options
_RUNS = 20  # timed runs of a candidate, at most


@dataclass(eq=False)
class Store:
    """The compiled and jitted functions of a network, for one set of options.

    Args:
        compiled: the executables. The key of an executable has the entry, the place and the
            shapes.
        functions: functions that are jitted for any parameters, by entry. This cache also has
            the compiler options, by platform.
    """

    compiled: Once
    functions: Once

    def copy_from(self, other: Store) -> None:
        """Copy the contents of another store into this one."""
        _copy_values(other.compiled, self.compiled)
        _copy_values(other.functions, self.functions)


def _copy_values(source: Once, target: Once) -> None:
    for key, value in [*source.values.items()]:  # a list, since other threads may add values
        target.keep(key, value)


Stores = WeakValueDictionary[RunOptions, Store]


class Executables:
    """The executables of a definition, which are compiled or loaded at their first use.

    There is an executable for each entry, place and combination of shapes. Executables are
    loaded from the folder `cache_dir` of the options.

    The option `max_executables` bounds the number of executables in memory, of which the least
    recently used ones are dropped. To jax this object is the static part of a model: two
    objects are equal if their definitions are equal, and a pickle has no executables.
    """

    def __init__(self, definition: Definition, stores: Stores | None = None) -> None:
        self.definition = definition
        self._disk: DiskCache | None = None
        if definition.options.cache_dir is not None:
            from nnef_jax.execution.disk_cache import DiskCache

            self._disk = DiskCache(definition.options.cache_dir)
        self._stores: Stores = WeakValueDictionary() if stores is None else stores
        store = Store(Once(definition.options.max_executables), Once())
        self._store = self._stores.setdefault(definition.options, store)

    def __reduce__(self) -> tuple[Any, ...]:
        return Executables, (self.definition,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Executables) and self.definition == other.definition

    def __hash__(self) -> int:
        return hash(self.definition)

    def __repr__(self) -> str:
        return repr(self.definition)

    def with_definition(self, definition: Definition) -> Executables:
        """Return the executables for a definition of the same network with other options.

        Objects with equal options share a store. If only `max_executables` differs, the
        contents of this object's store are copied to the other store.
        """
        other = Executables(definition, self._stores)
        options = definition.options
        resized = replace(self.definition.options, max_executables=options.max_executables)
        if other._store is not self._store and resized == options:
            other._store.copy_from(self._store)
        return other

    def with_unread_of(self, definition: Definition) -> Executables:
        """Return these executables for a definition that differs only in its unread arrays.

        Unread arrays are parameters that no operation reads.
        """
        if definition is self.definition:
            return self
        other = Executables.__new__(Executables)
        other.__dict__ = self.__dict__ | {"definition": definition}
        return other

    @property
    def computed_initial_states(self) -> Any:
        """Return the jitted function that computes initial values of states from inputs."""
        compute = self.definition.computed_initial_states
        key = "computed initial states"
        return self._store.functions.get(key, lambda: jax.jit(compute, static_argnums=2))

    def jitted(self, entry: Entry) -> Any:
        """Return a jitted function of parameters, state, inputs and a probe for one kind of call.

        It may be called within a trace.
        """
        # The setting is part of the key, because jax does not trace a function again when the user
        # turns on the search for NaN.
        return self._store.functions.get(
            (entry.name, debugs_or_disables_jit()), lambda: entry.jitted()
        )

    def jitted_for_mesh(self, entry: Entry) -> Any:
        """Return the function that `jitted` returns, with compiler options for the mesh.

        jax refuses a function with such options within a trace.
        """
        layout = self.definition.layout
        options = layout.compiler_options if layout else None
        if not options:
            return self.jitted(entry)
        return self._store.functions.get((entry.name, "mesh"), lambda: entry.jitted(options))

    def options(self, platform: str) -> dict[str, str]:
        """Return the compiler options for a function of a user that calls the network.

        They are chosen for a call with the shapes of the network's example, if the network has
        open extents.
        """
        definition = self.definition
        layout = definition.layout

        def make_options() -> dict[str, str]:
            if not definition.has_kernels(platform):
                return {}
            try:
                graph = definition.network.example()
                variables = *graph.parameters, *graph.states
                types = {x.label: array_type(x.value) for x in variables}
                arrays = {label: types[label] for label in (*definition.labels, *definition.states)}
                inputs = [array_type(value) for value in graph.inputs]
                parts, _ = self.lower(Entry(definition, "outputs"), arrays, (inputs,), platform)
            except NnefError:  # The network has no example of its open extents.
                return {}
            return parts.options(False)

        with named(definition.about):
            options = self._store.functions.get(("options", platform), make_options)
        return options | (layout.compiler_options if layout else {})

    def get(
        self,
        entry: Entry,
        arrays: Arrays,
        arguments: Lists,
        place: Placement,
        key: Hashable,
        *,
        keeps_values: bool,
    ) -> partial[Any]:
        """Return the executable for a kind of call, bound to prepared values of a model's arrays.

        The executable takes the lists of a call. It is compiled once, even if several threads
        ask for it.

        Args:
            entry: the kind of call.
            arrays: the model's parameters, and also its state if the entry takes no state.
            arguments: the lists of a call. The executable is compiled for their types.
            place: the device or sharding on which the executable runs.
            key: the entry, the place and the shapes.
            keeps_values: whether prepared values are stored on disk.
        """
        # This list keeps the values alive, because the cache of prepared values has only weak
        # references.
        live_values: list[Any] = []
        parameters = [*arrays.values()]

        def values_of(parts: Preparing) -> tuple[jax.Array, ...]:
            disk = self._disk_for(place) if keeps_values else None
            by_disk = None if disk is None else partial(disk.computed, parts)
            values = prepared(parts, parameters, place, by_disk)
            live_values.append(values)
            return values

        def make() -> tuple[Any, Preparing]:
            split_and_jit = partial(self._split_and_jit, entry, arrays, arguments, place)
            disk = self._disk_for(place)
            if disk is not None:
                graph = entry.specialised(arrays, arguments)
                name = self._key(entry, graph, arrays, arguments, place)
                tree = entry.tree(graph)
                return disk.get(
                    name, place.device, parameters, arguments, tree, split_and_jit, values_of
                )
            parts, run = split_and_jit()
            if not is_traced():
                # Compile now. Otherwise several threads would each compile the function in their
                # first calls.
                run.lower(values_of(parts), *arguments).compile()
            return run, parts

        with uncollected(), computing_at(place.device), named(self.definition.about):
            run, parts = self._store.compiled.get(key, make)
            return partial(run, values_of(parts))

    def is_on_disk(self, entry: Entry, arrays: Arrays, arguments: Lists, place: Placement) -> bool:
        """Tell whether the cache folder has the executable for a call with these arrays."""
        disk = self._disk_for(place)
        if disk is None:
            return False
        graph = entry.specialised(arrays, arguments)
        return disk.has(self._key(entry, graph, arrays, arguments, place, measures=False))

    def lower(
        self,
        entry: Entry,
        arrays: Arrays,
        arguments: Lists,
        platform: str,
        devices: int = 1,
    ) -> tuple[Split, Callable[..., Any]]:
        """Lower a kind of call for devices of a platform. Return the split, and a function.

        The function computes the call from prepared values and `arguments`. Arrays and
        arguments may be types. Nothing is compiled, so the host needs no such device.
        """
        definition = self.definition
        function = entry.of_lists([*arrays])
        parameters = [*arrays.values()]
        pair: Any = jax.make_jaxpr(function, return_shape=True)(parameters, *arguments)
        closed, shapes = pair

        def by_passes() -> tuple[Split, Callable[..., Any]]:
            from lowering import Program, differentiable, lower

            program = Program(closed, len(parameters), prepares=False)
            if definition.optimize:
                program = differentiable(program)
            parts = lower(program, definition.target(platform, devices))

            def call(values: Sequence[jax.Array], *arguments: Sequence[jax.Array]) -> Any:
                results = parts.call(values, jax.tree.leaves(arguments))
                return jax.tree.unflatten(jax.tree.structure(shapes), results)

            return parts, call

        def without_passes() -> tuple[Split, Callable[..., Any]]:
            return unprepared(function, len(parameters)), function

        return or_else(by_passes, without_passes)

    def _split_and_jit(
        self,
        entry: Entry,
        arrays: Arrays,
        arguments: Lists,
        place: Placement,
    ) -> tuple[Split, jax.stages.Wrapped]:
        """Lower a kind of call. Return the split, and the call as a jitted function.

        The function has suitable compiler options. With the option `autotune` they are found by
        trial.
        """
        definition = self.definition
        platform = place.device.platform
        parts, call = self.lower(entry, arrays, arguments, platform, place.devices)
        options = parts.options(True)
        candidates = None
        if definition.options.autotune:
            candidates = definition.target(platform).candidates
        if candidates is not None:
            values = prepared(parts, [*arrays.values()], place)
            options = _by_trial(call, (values, *arguments), candidates())
        position_of_states = 2
        donated = (position_of_states,) if entry.donates else ()
        run: Any = _in_trace_only(call, entry.title)
        return parts, jax.jit(run, donate_argnums=donated, compiler_options=options)

    def _disk_for(self, place: Placement) -> DiskCache | None:
        return None if isinstance(place.where, Sharding) else self._disk

    def _key(
        self,
        entry: Entry,
        graph: Graph,
        arrays: Arrays,
        arguments: Lists,
        place: Placement,
        *,
        measures: bool = True,
    ) -> str:
        definition = self.definition
        device = place.device
        types = [str(jax.typeof(x)) for x in (*arrays.values(), *jax.tree.leaves(arguments))]
        choices: dict[str, bool] = {}
        if definition.has_kernels(device.platform):
            rates = host_profile.rates(
                definition.network.graph, definition.options, device.platform, measures=measures
            )
            choices = rates.decisions()
        return key_of(
            graph, device, place.is_committed, entry.name, types, definition.options, choices
        )


def _by_trial(
    call: Callable[..., object], arguments: Sequence[object], candidates: Sequence[dict[str, str]]
) -> dict[str, str]:
    """Time a call with each set of compiler options in `candidates`, and return the fastest set."""

    def compiled(options: dict[str, str]) -> Callable[[], object]:
        run: Any = jax.jit(call, compiler_options=options)
        return partial(run.lower(*arguments).compile(), *arguments)

    return candidates[fastest(list(map(compiled, candidates)))]


def fastest(runs: Sequence[Callable[[], object]]) -> int:
    """Return the index of the function that has the shortest call.

    The functions are called in turn, so that a disturbance of the machine affects all of them.
    """
    for run in runs:
        jax.block_until_ready(run())
    shortest = [math.inf] * len(runs)
    end = time.perf_counter() + _TIME
    for _ in range(_RUNS):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            jax.block_until_ready(run())
            shortest[index] = min(shortest[index], time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return shortest.index(min(shortest))


def _in_trace_only(run: Callable[..., object], name: str) -> Callable[..., object]:
    """Return a function that calls `run`, but raises RuntimeError outside of a trace.

    It has the name `name`. When jax searches for a NaN, and under `jax.disable_jit`, jax runs
    the primitives of a jitted function one by one. In these cases the network must run as it is
    written, because only then its operations have names.
    """

    def in_trace(*arguments: object) -> object:
        leaves = jax.tree.leaves(arguments)
        if leaves and not any(isinstance(x, Tracer) for x in leaves):
            raise RuntimeError(f"{name} is for jax to trace")
        return run(*arguments)

    in_trace.__name__ = name
    return in_trace
