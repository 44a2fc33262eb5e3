"""A way into a network: on a model's own arrays, compiled, or as a pure function of others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import Sharding

from lowering.devices import Place, is_traced
from nnef_jax.execution.compiler import Compiler, Executable, Job, title
from nnef_jax.execution.functions import Arrays, Function, Functions, Results
from nnef_jax.execution.meshes import Layout, is_explicit, over_mesh
from nnef_jax.execution.options import is_watched
from nnef_jax.execution.prepared import Prepared
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.threads import Once

if TYPE_CHECKING:
    from nnef_jax.execution.own_arrays import OwnArrays


class Entry:
    """Runs and compiles a network in one way, for all models of it.

    A call runs it on a model's own arrays, on the device that states and inputs are committed to.
    It takes these as one flat list, which costs the least.

    Args:
        layout: how arrays are laid out over a mesh, if they are.
        name: its name in a cache of compiled functions, and in profiles.
        function: `cycle` or `scan` of the functions.
        takes_state: whether arrays for the states come before the inputs, and the next state is
            returned beside the outputs. Otherwise it starts from the initial state.
        time_axes: axes of each input before those that the graph declares.
        donates: whether it takes the memory of the states for the next ones.
    """

    def __init__(
        self,
        functions: Functions,
        compiler: Compiler,
        layout: Layout | None,
        name: str,
        function: Function,
        *,
        takes_state: bool = True,
        time_axes: int = 0,
        donates: bool = False,
    ) -> None:
        self._name = name
        self._functions = functions
        self._compiler = compiler
        self._layout = layout
        self._function = function
        states = functions.network.graph.states
        self._takes_state = takes_state
        # In the order of the results, a dict: jax pairs what is donated with these one by one, and
        # copies a state that gets another one's memory.
        self._labels = tuple(sorted(state.label for state in states)) if takes_state else ()
        self.time_axes = time_axes
        self._donated = len(self._labels) if donates else 0
        self._shared = Once()  # executables for any arrays of the network
        self._jitted = self._pure()  # one for all threads

    def _pure(self) -> Any:
        """Return the network as a jitted function of parameters, state, inputs and probe."""
        traced = partial(self._functions.traced, self._function)

        def run(params: Arrays, state: Arrays, inputs: Sequence[Any], probe: Probe) -> Any:
            compute = over_mesh(traced, self.time_axes, self._layout)
            return self._results(compute(params, state, inputs, probe), probe)

        run.__name__ = title(self._functions.network.graph, self._name)
        return jax.jit(run)

    def known(self, own: OwnArrays, arguments: tuple[Any, ...]) -> Executable | None:
        """Return the executable for inputs of these types, or None.

        Its inputs need no binding, which takes 30 us with the search for what is compiled.
        """
        try:
            return own.known.get(_types(arguments))
        except (AttributeError, TypeError):  # no arrays of jax
            return None

    def __call__(self, own: OwnArrays, arrays: list[Any]) -> Any:
        """Run the network on the model's own arrays."""
        # The caller compiles, wants nothing compiled, or to know which operation computes a NaN.
        traced = is_watched() or any(isinstance(x, Tracer) for x in arrays)
        place = None if traced else own.place(arrays)
        if place is None or is_explicit(place.where):
            state, inputs = self.parted(arrays)
            params = self._own(own, state, inputs) if place is None else own.parameters(place.where)
            return self.pure(own, params, state, inputs)
        executable = self._executable(own, arrays, place)
        if not self._takes_state and all(isinstance(x, jax.Array) for x in arrays):
            own.known[_types(arrays)] = executable
        return executable(arrays)

    def _own(self, own: OwnArrays, state: Arrays, inputs: Sequence[Any]) -> Arrays | Prepared:
        """Return a model's parameters for a trace, prepared once for inputs of these shapes."""
        params = own.parameters()
        state = state if self._takes_state else own.initial_state()
        if is_watched() or not own.can_prepare:
            return params
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*state.values(), *inputs)]
        before, given = dict(zip(state, types, strict=False)), types[len(state) :]
        name = self._function.__name__

        def made() -> Prepared:
            found = self._functions.prepared(self._function, params, before, given)
            return Prepared(params, {name: found}, own.definition)

        return own.made.get((name, str(types)), made)

    def compiled(self, own: OwnArrays, arrays: list[Any]) -> jax.stages.Compiled:
        """Return what a call of such arrays runs, as jax has it."""
        place = own.place(arrays)
        if place is not None and not is_explicit(place.where):
            return self._executable(own, arrays, place).compiled(arrays)
        state, inputs = self.parted(arrays)
        state = state if self._takes_state else own.initial_state()
        params = own.parameters(place.where if place else None)
        return self._jitted.lower(params, state, inputs, NOTHING).compile()

    def pure(
        self,
        own: OwnArrays,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Sequence[Any],
        probe: Probe = NOTHING,
    ) -> Any:
        """Run the network as a function of all that it depends on, but for the initial state.

        It is compiled as a whole also where the caller compiles nothing. JAX would compile each
        primitive by itself: 236 for ResNet-18, in 15 s, where all of it takes 7. Within a function
        that the caller compiles it is a call, which XLA inlines.
        """
        state = state if self._takes_state else own.initial_state()
        arguments = params, state, inputs, probe
        try:
            return self._jitted(*arguments)
        except FloatingPointError as error:
            raw = params.params if isinstance(params, Prepared) else params
            blamed = self._arrays_to_blame(raw, state, inputs)
            for name in blamed:
                error.add_note(f"{name} has one already")
            if self.time_axes and not blamed:
                with jax.disable_jit():  # to jax a scan is one operation, which has no NaN in it
                    self._jitted(*arguments)
            raise

    def _arrays_to_blame(self, params: Arrays, state: Arrays, inputs: Sequence[Any]) -> list[str]:
        """Return which arrays have what jax looks for before the network runs."""
        config: Any = jax.config
        signs = {jnp.isnan: config.jax_debug_nans, jnp.isinf: config.jax_debug_infs}
        names = [value.name for value in self._functions.network.graph.inputs]
        kinds = {"input": dict(zip(names, inputs, strict=True)), "state": state, "params": params}
        return [
            f"{kind} '{name}'"
            for kind, arrays in kinds.items()
            for name, x in arrays.items()
            if not isinstance(x, Tracer)
            and any(sign(x).any() for sign, is_on in signs.items() if is_on)
        ]

    def probed(self, own: OwnArrays, arrays: list[Any], probe: Probe) -> Any:
        """Run the network on its own parameters, and those that only captured tensors read."""
        state, inputs = self.parted(arrays)
        items = [jax.ShapeDtypeStruct(x.shape[self.time_axes :], x.dtype) for x in inputs]
        before = state if self._takes_state else own.initial_state()
        labels = self._functions.labels(items, probe, before)
        return self.pure(own, own.select(labels), state, inputs, probe)

    def is_kept(self, own: OwnArrays, arrays: list[Any]) -> bool:
        """Tell whether what a call of such arrays compiles is in the folder."""
        place = own.place(arrays)
        return place is not None and self._compiler.is_kept(self._job(own, arrays, place), place)

    def _executable(self, own: OwnArrays, arrays: Sequence[Any], place: Place) -> Executable:
        """Return the network compiled for a place and for arrays of a call, once for all threads.

        It is kept for a model, or for all models where their arrays are given.
        """
        shapes = tuple([x.shape for x in arrays])
        key = self._name, place, shapes
        if key in own.executables:
            return own.executables[key]
        made = self._shared if own.is_shared else own.made
        first: list[Executable] = []  # with these arrays prepared

        def make() -> Executable:
            job = self._job(own, arrays, place)
            executable = self._compiler.compile(job, place, is_shared=own.is_shared)
            first.append(executable)
            return executable.on(None) if own.is_shared else executable

        # A jitted function is the same whether or not its arguments are committed. What jax
        # compiles of it is not, and is compiled here, since jax would do it for each thread.
        where = place if self._compiler.keeps else place.where
        executable: Executable = made.get((self._name, where, shapes), make)
        if own.is_shared:
            values = list(self._arrays(own, place).values())
            executable = first[0] if first else executable.on(values)
        if not is_traced():
            made.get(("run", *key), lambda: executable.compiled(arrays))
        return own.executables.setdefault(key, executable)

    def _arrays(self, own: OwnArrays, place: Place) -> dict[str, Any]:
        # The initial state is an argument too: no stored data are part of what is compiled.
        params = own.parameters(place.where)
        return params if self._takes_state else {**params, **own.initial_state(place.where)}

    def _job(self, own: OwnArrays, arrays: Sequence[Any], place: Place) -> Job:
        named = self._arrays(own, place)
        labels, functions = list(named), self._functions

        def function(own: Sequence[Any], arrays: Sequence[Any]) -> Any:
            named = dict(zip(labels, own, strict=True))
            state, inputs = self.parted(arrays)
            state = functions.own(named | state)
            return self._results(self._function(named, state, list(inputs), NOTHING))

        state, inputs = self.parted(arrays)
        before = {label: tuple(x.shape) for label, x in (state or named).items()}
        graph = functions.network.specialise([x.shape[self.time_axes :] for x in inputs], before)
        outputs = functions.packed([0] * len(graph.outputs))
        result = self._results((outputs, {state.label: 0 for state in graph.states}, {}))
        # Over several devices the batch is divided already: a loop would gather it first.
        is_alone = not isinstance(place.where, Sharding)
        tree, values = jax.tree.structure(result), list(named.values())
        return Job(self._name, graph, function, tree, values, arrays, is_alone, self._donated)

    def parted(self, arrays: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
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
