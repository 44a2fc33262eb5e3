"""The ways into a network: on its own parameters, compiled, or as pure functions of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer
from jax.sharding import Sharding

from lowering.devices import Place, place_of
from nnef_jax.execution.compiler import Compiler, Executable
from nnef_jax.execution.functions import Arrays, Function, Functions, Results
from nnef_jax.execution.meshes import automatic, is_explicit
from nnef_jax.execution.options import Program, RunOptions
from nnef_jax.execution.own_arrays import OwnArrays
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.network import Network

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache


class Execution:
    """Runs a network: `outputs` of a call, `step` for a cycle and `scan` for many.

    A call of a recurrent network is one cycle from its initial state.
    """

    def __init__(self, network: Network, options: RunOptions, cache: DiskCache | None) -> None:
        self.own = OwnArrays(network, options)
        network = self.network = self.own.network
        self._options, self._cache = options, cache
        self.functions = Functions(network, options)
        self.compiler = Compiler(options, self.own, cache)
        cycle, scan = self.functions.cycle, self.functions.scan
        self.outputs = EntryPoint(self, "outputs", cycle, takes_state=False)
        self.step = EntryPoint(self, "step", cycle, donates=options.donate_state)
        self.scan = EntryPoint(self, "scan", scan, time_axes=1)

    def of(self, network: Network) -> Execution:
        """Return what runs another network in the same way."""
        return Execution(network, self._options, self._cache)


class EntryPoint:
    """Runs a network in one way.

    A call runs it on its own parameters, on the device that states and inputs are committed to. It
    takes these as one flat list, which costs the least.

    Args:
        name: its name in a cache of compiled functions, and in profiles.
        function: `cycle` or `scan` of the functions.
        takes_state: whether arrays for the states come before the inputs, and the next state is
            returned beside the outputs. Otherwise it starts from the initial state.
        time_axes: axes of each input before those that the graph declares.
        donates: whether it takes the memory of the states for the next ones.
    """

    def __init__(
        self,
        execution: Execution,
        name: str,
        function: Function,
        *,
        takes_state: bool = True,
        time_axes: int = 0,
        donates: bool = False,
    ) -> None:
        self._name = name
        self._execution = execution
        self._compute = partial(execution.functions.compute, function)
        states = execution.network.graph.states
        self._takes_state = takes_state
        self._labels = tuple(state.label for state in states) if takes_state else ()
        self._time_axes = time_axes
        self._donated = len(self._labels) if donates else 0
        # Items of a batch may follow one another where nobody asks for derivatives.
        self._in_chunks = not (states or time_axes)
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
        """Run the network on its own parameters."""
        # The caller compiles, or wants nothing compiled.
        disabled: bool = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
        if disabled or any(isinstance(x, Tracer) for x in arrays):
            return self.pure(self._execution.own.parameters(), *self._parted(arrays))
        place = place_of(arrays)
        if is_explicit(place.where):
            own = self._execution.own.parameters(place.where)
            return self.pure(own, *self._parted(arrays))
        # Jitted functions are the same whether or not their arguments are committed.
        where = place if self._execution.compiler.keeps else place.where
        key = where, tuple([x.shape for x in arrays])
        executable = self._executables.get(key)
        if executable is None:
            executable = self._executables[key] = self._compiled(arrays, place)
        if not self._takes_state and all(isinstance(x, jax.Array) for x in arrays):
            self._known[_types(arrays)] = executable
        return executable(arrays)

    def pure(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any], probe: Probe = NOTHING
    ) -> Any:
        """Run the network as a function of all that it depends on.

        It is compiled as a whole also where the caller compiles nothing. JAX would compile each
        primitive by itself: 236 for ResNet-18, in 15 s, where all of it takes 7. Within a function
        that the caller compiles it is a call, which XLA inlines.
        """
        state = state if self._takes_state else self._execution.own.initial_state()
        return self._jitted(params, state, inputs, probe)

    def probed(self, arrays: list[Any], probe: Probe) -> Any:
        """Run the network on its own parameters, and those that only captured tensors read."""
        own, (state, inputs) = self._execution.own, self._parted(arrays)
        items = [jax.ShapeDtypeStruct(x.shape[self._time_axes :], x.dtype) for x in inputs]
        labels = self._execution.functions.labels(items, probe)
        return self.pure(own.select(labels), state, inputs, probe)

    @cached_property
    def _jitted(self) -> Any:
        def run(params: Arrays, state: Arrays, inputs: Sequence[Any], probe: Probe) -> Any:
            compute = automatic(self._compute, self._time_axes)
            return self._results(compute(params, state, inputs, probe), probe)

        run.__name__ = self._name
        return jax.jit(run)

    def _compiled(self, arrays: list[Any], place: Place) -> Executable:
        # The initial state is an argument too: no stored data are part of what is compiled.
        execution = self._execution
        own = execution.own.parameters(place.where)
        if not self._takes_state:
            own = {**own, **execution.own.initial_state(place.where)}
        labels = list(own)
        # Over several devices the batch is divided already: a loop would gather it first.
        in_chunks = self._in_chunks and not isinstance(place.where, Sharding)

        def function(own: Sequence[Any], arrays: Sequence[Any]) -> Any:
            named = dict(zip(labels, own, strict=True))
            state, inputs = self._parted(arrays)
            found = self._compute(named, named | state, inputs, in_chunks=in_chunks)
            return self._results(found)

        _, inputs = self._parted(arrays)
        graph = execution.network.specialise([x.shape[self._time_axes :] for x in inputs])
        outputs = execution.functions.packed([0] * len(graph.outputs))
        result = self._results((outputs, {state.label: 0 for state in graph.states}, {}))
        tree, values = jax.tree.structure(result), list(own.values())
        program = Program(self._name, graph, function, tree, values, arrays, self._donated)
        return execution.compiler.compile(program, place)

    def _parted(self, arrays: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        """Return the state by label, and the inputs."""
        count = len(self._labels)
        return dict(zip(self._labels, arrays[:count], strict=True)), arrays[count:]

    def _results(self, results: Results, probe: Probe = NOTHING) -> Any:
        outputs, state, shown = results
        if not probe.results:
            return shown
        found = (outputs, state) if self._takes_state else (outputs,)
        found = (*found, shown) if probe.capture else found
        return found[0] if len(found) == 1 else found


def _types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return what an executable is found by, given arrays of jax."""
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    types = [(type(x), x.shape, x.dtype, x.committed and x.sharding) for x in arrays]
    return (default, *types)
