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
import numpy as np
from jax.core import Tracer
from jax.sharding import Sharding

from lowering import Preparing, Split, Target, named, or_else, prepared, unprepared
from lowering.graph import Graph
from nnef_jax.calls.arguments import array_type
from nnef_jax.errors import NnefError
from nnef_jax.execution import host_profile
from nnef_jax.execution.cache_key import key_of
from nnef_jax.execution.definition import Arrays, Definition
from nnef_jax.execution.entry import Entry, Lists
from nnef_jax.execution.places import (
    Placement,
    computing_at,
    debugs_or_disables_jit,
    default_platform,
    is_traced,
    platform_of,
    trace_settings,
)
from nnef_jax.execution.probe import NOTHING
from nnef_jax.execution.routine import RoutineEntry
from nnef_jax.execution.run_options import RunOptions
from nnef_jax.execution.threads import Once
from nnef_jax.garbage import uncollected

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache


# All candidates of compiler options together are timed for about this many seconds.
_TRIAL_SECONDS = 1.0
_MOST_TRIAL_RUNS = 20  # Each candidate is timed at most this many times.
_AnyEntry = Entry | RoutineEntry


@dataclass(eq=False)
class Store:
    """The compiled and jitted functions of a network, for one set of options.

    Args:
        compiled: the executables. Their keys are made by `Execution`.
        functions: a jitted function for each entry, which takes the parameters as an argument. This
            cache also has the compiler options for each platform.
    """

    compiled: Once
    functions: Once

    def copy_from(self, other: Store) -> None:
        """Copy the contents of another store into this one."""
        _copy_values(other.compiled, self.compiled)
        _copy_values(other.functions, self.functions)


def _copy_values(source: Once, target: Once) -> None:
    """Add the values of one cache to another cache."""
    # Other threads may add values during the loop, so the loop runs over a copy.
    items = [*source.values.items()]
    for key, value in items:
        target.keep(key, value)


Stores = WeakValueDictionary[RunOptions, Store]


class Executables:
    """The executables of a definition, which are compiled or loaded at their first use.

    There is an executable for each entry (kind of call), place (device or sharding) and
    combination of shapes. Executables are loaded from the folder `cache_dir` of the options.

    The option `max_executables` bounds the number of executables in memory. If there are more,
    the least recently used ones are dropped.

    To jax this object is the static part of a model: two objects are equal if their definitions
    are equal. A pickle of this object has no executables.
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

        Objects with equal options share a store. If only `max_executables` differs, the contents
        of this object's store are copied to the store of the result.
        """
        other = Executables(definition, self._stores)
        options = definition.options
        resized_options = replace(self.definition.options, max_executables=options.max_executables)
        differ_at_most_in_size = resized_options == options
        if differ_at_most_in_size and other._store is not self._store:
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
        """Return the jitted function that computes the initial values of states from inputs."""
        compute = self.definition.computed_initial_states
        key = "computed initial states"
        return self._store.functions.get(key, lambda: jax.jit(compute, static_argnums=2))

    def jitted(self, entry: Entry) -> Any:
        """Return the jitted function of an entry. It takes parameters, state, inputs and a probe.

        The function may be called within a trace.
        """
        # If the user turns on jax's search for NaN, jax does not trace a jitted function again. The
        # setting is part of the key, so that the function is made again.
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
        """Return the compiler options for a user's function that calls the network.

        If the network has open extents, the options are chosen for a call with the shapes of
        the network's example.
        """
        definition = self.definition
        layout = definition.layout

        def make_options() -> dict[str, str]:
            """Return the options that suit a call with the shapes of the example."""
            if not definition.has_kernels(platform):
                return {}
            try:
                split = self._split_of_example(platform)
            except NnefError:
                # The network has no example of its open extents.
                return {}
            # The options are for a user's function, and the call is only a part of it.
            is_alone = False
            return split.options(is_alone)

        with named(definition.about):
            options = self._store.functions.get(("options", platform), make_options)
        return options | (layout.compiler_options if layout else {})

    def _split_of_example(self, platform: str) -> Split:
        """Lower a call of the kind `outputs`, for the shapes of the network's example."""
        definition = self.definition
        graph = definition.network.example()
        variables = *graph.parameters, *graph.states
        types = {variable.label: array_type(variable.value) for variable in variables}
        labels = (*definition.labels, *definition.states)
        arrays = {label: types[label] for label in labels}
        inputs = [array_type(value) for value in graph.inputs]
        entry = Entry(definition, "outputs")
        split, _call = self.lower(entry, arrays, (inputs,), definition.target(platform))
        return split

    def jitted_routine(self, entry: RoutineEntry) -> Any:
        """Return a jitted function of parameters and the arguments of a routine.

        The function is used if arrays are divided over a mesh or lie on several devices. It is
        also used if jax's settings forbid the optimisation of a network.
        """

        def make_function() -> Any:
            options = self.options(default_platform())
            run_step = partial(self._run_step, entry.step)
            return jax.jit(entry.in_trace(run_step), compiler_options=options)

        return self._store.functions.get((entry.name, debugs_or_disables_jit()), make_function)

    def _run_step(self, entry: Entry, params: Any, state: Any, inputs: Any) -> Any:
        """Run a step by its jitted function, without edits and captures."""
        return self.jitted(entry)(params, state, inputs, NOTHING)

    def get(
        self,
        entry: _AnyEntry,
        arrays: Arrays,
        arguments: Sequence[Any],
        place: Placement,
        key: Hashable,
        *,
        keeps_values: bool,
    ) -> partial[Any]:
        """Return the executable for calls of an entry, bound to the prepared values of the calls.

        The executable takes the arguments of a call. It is compiled once, even if several
        threads ask for it.

        Args:
            entry: the kind of call.
            arrays: the model's parameters, and also its state if the entry takes no state.
            arguments: the lists of a call, or the arguments of a routine. The executable is
                compiled for their types.
            place: the device or sharding on which the executable runs.
            key: the entry, the place, jax's settings and the types of the arguments.
            keeps_values: whether prepared values are stored on disk.
        """
        # The cache of prepared values has only weak references to the values. This list keeps the
        # values alive until the executable is bound to them.
        live_values: list[Any] = []
        parameters = [*arrays.values()]
        disk = self._disk_for(place)

        def values_of(parts: Preparing) -> tuple[jax.Array, ...]:
            """Compute the prepared values, or read them from disk."""
            compute = None
            if keeps_values and disk is not None:
                compute = partial(disk.computed, parts)
            values = prepared(parts, parameters, place, compute)
            live_values.append(values)
            return values

        def make_executable() -> tuple[Any, Preparing]:
            """Return the executable, and the part of the split that prepares its values."""
            split_and_jit = partial(self._split_and_jit, entry, arrays, arguments, place)
            if disk is not None:
                graph = entry.specialised(arrays, arguments)
                disk_key = self._key(entry, graph, arrays, arguments, place)
                tree = entry.tree(graph, arguments)
                return disk.get(
                    disk_key, place.device, parameters, arguments, tree, split_and_jit, values_of
                )
            parts, run = split_and_jit()
            if not is_traced():
                # The function is compiled here, by one thread. If it were compiled in its first
                # call, several threads might compile it at the same time.
                run.lower(values_of(parts), *arguments).compile()
            return run, parts

        with uncollected(), computing_at(place.device), named(self.definition.about):
            run, parts = self._store.compiled.get(key, make_executable)
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
        target: Target,
    ) -> tuple[Split, Callable[..., Any]]:
        """Lower a call of an entry for a target. Return a split, and the call.

        The returned call is a function of prepared values and `arguments`. Arrays and arguments
        may be types. Nothing is compiled, so the host needs no device of the target.
        """
        definition = self.definition
        labels = [*arrays]
        parameters = [*arrays.values()]
        run_on_lists = entry.of_lists(labels)
        traced: Any = jax.make_jaxpr(run_on_lists, return_shape=True)(parameters, *arguments)
        closed_jaxpr, result_types = traced

        def by_passes() -> tuple[Split, Callable[..., Any]]:
            """Return the split of the program after its passes, and the function of a call."""
            from lowering import Program, differentiable, lower

            program = Program(closed_jaxpr, len(parameters), prepares=False)
            if definition.optimize:
                program = differentiable(program)
            split = lower(program, target)

            def call_split(values: Sequence[jax.Array], *arguments: Sequence[jax.Array]) -> Any:
                results = split.call(values, jax.tree.leaves(arguments))
                return jax.tree.unflatten(jax.tree.structure(result_types), results)

            return split, call_split

        def without_passes() -> tuple[Split, Callable[..., Any]]:
            return unprepared(run_on_lists, len(parameters)), run_on_lists

        return or_else(by_passes, without_passes)

    def _split_and_jit(
        self,
        entry: _AnyEntry,
        arrays: Arrays,
        arguments: Sequence[Any],
        place: Placement,
    ) -> tuple[Split, jax.stages.Wrapped]:
        """Lower a call of an entry. Return the split, and the call as a jitted function.

        The function has compiler options that suit the call. With the option `autotune` the
        compiler options are chosen by trial.
        """
        definition = self.definition
        target = definition.target(
            platform_of(place.device), place.devices, place.compute_capability
        )
        lowered_entry, lists = entry.lowered(arguments)
        split, lowered_call = self.lower(lowered_entry, arrays, lists, target)
        call = entry.around(lowered_call)
        # The compiled function consists of this call only.
        is_alone = True
        options = split.options(is_alone)
        if definition.options.autotune:
            candidates = target.candidates
            if candidates is not None:
                values = prepared(split, [*arrays.values()], place)
                options = _by_trial(call, (values, *arguments), candidates())
        run: Any = _in_trace_only(call, entry.title)
        return split, jax.jit(run, donate_argnums=entry.donated, compiler_options=options)

    def _disk_for(self, place: Placement) -> DiskCache | None:
        """Return the cache on disk, or None for a sharding, whose executables are not stored."""
        return None if isinstance(place.where, Sharding) else self._disk

    def _key(
        self,
        entry: _AnyEntry,
        graph: Graph,
        arrays: Arrays,
        arguments: Sequence[Any],
        place: Placement,
        *,
        measures: bool = True,
    ) -> str:
        """Return the key of an executable in the cache on disk.

        Passes choose kernels by the host's rates, and these choices are part of the key.
        `measures` tells whether the host's rates may be measured.
        """
        definition = self.definition
        device = place.device
        types = [str(jax.typeof(x)) for x in (*arrays.values(), *jax.tree.leaves(arguments))]
        structure = str(jax.tree.structure(arguments))
        choices: dict[str, bool] = {}
        platform = platform_of(device)
        if definition.has_kernels(platform):
            rates = host_profile.rates(
                definition.network.graph, definition.options, platform, measures=measures
            )
            choices = rates.decisions()
        conditions = place.is_committed, entry.name, types, structure, definition.options, choices
        return key_of(graph, device, *conditions)


def key_of_types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return an executable's key, made from the types of `arrays` (arrays of numpy or jax)."""
    default_device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    key: list[Any] = [default_device, trace_settings()]
    for x in arrays:
        if type(x) is np.ndarray:
            key.append((x.shape, x.dtype))
        else:
            # For an uncommitted array the last item is False instead of a sharding.
            key.append((type(x), x.shape, x.dtype, x.committed and x.sharding))
    return tuple(key)


def _by_trial(
    call: Callable[..., object], arguments: Sequence[object], candidates: Sequence[dict[str, str]]
) -> dict[str, str]:
    """Time a call with each set of compiler options in `candidates`, and return the fastest set."""
    compiled_calls: list[Callable[[], object]] = []
    for options in candidates:
        jitted: Any = jax.jit(call, compiler_options=options)
        compiled = jitted.lower(*arguments).compile()
        compiled_calls.append(partial(compiled, *arguments))
    return candidates[fastest(compiled_calls)]


def fastest(runs: Sequence[Callable[[], object]]) -> int:
    """Return the index of the function with the shortest call.

    The functions are called in turn, so that a disturbance of the machine affects all of them.
    """
    # First calls take longer than later ones, so they are not timed.
    for run in runs:
        jax.block_until_ready(run())
    shortest = [math.inf] * len(runs)
    end = time.perf_counter() + _TRIAL_SECONDS
    for _ in range(_MOST_TRIAL_RUNS):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            jax.block_until_ready(run())
            shortest[index] = min(shortest[index], time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return shortest.index(min(shortest))


def _in_trace_only(run: Callable[..., object], name: str) -> Callable[..., object]:
    """Return a function named `name` that calls `run`, but raises RuntimeError outside of a trace.

    When jax searches for a NaN, and under `jax.disable_jit`, jax runs the primitives of a jitted
    function one by one. In these cases the network must run as it is written, because only then
    the network's operations have names.
    """

    def in_trace(*arguments: object) -> object:
        leaves = jax.tree.leaves(arguments)
        has_tracers = any(isinstance(x, Tracer) for x in leaves)
        if leaves and not has_tracers:
            raise RuntimeError(f"{name} is for jax to trace")
        return run(*arguments)

    in_trace.__name__ = name
    return in_trace
