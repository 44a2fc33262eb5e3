"""A way into a network, for any arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Sharding

from lowering.devices import Place, is_traced
from nnef_jax.execution.compiler import Compiler, Executable
from nnef_jax.execution.functions import Arrays, Function, Functions, Results
from nnef_jax.execution.meshes import Layout, over_mesh
from nnef_jax.execution.options import Program, title
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.threads import Once


class Entry:
    """Computes and compiles one way of running a network, for all models of it.

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
        self.functions = functions
        self.compiler = compiler
        self._layout = layout
        self._traced = partial(functions.traced, function)
        self._function = function
        states = functions.network.graph.states
        self.takes_state = takes_state
        # In the order of the results, a dict: jax pairs what is donated with these one by one, and
        # copies a state that gets another one's memory.
        self._labels = tuple(sorted(state.label for state in states)) if takes_state else ()
        self.time_axes = time_axes
        self._donated = len(self._labels) if donates else 0
        self._shared = Once()
        self.jitted = self._jitted()  # one for all threads

    def _jitted(self) -> Callable[..., Any]:
        """Return the network as a jitted function of parameters, state, inputs and probe."""

        def run(params: Arrays, state: Arrays, inputs: Sequence[Any], probe: Probe) -> Any:
            compute = over_mesh(self._traced, self.time_axes, self._layout)
            return self._results(compute(params, state, inputs, probe), probe)

        run.__name__ = title(self.functions.network.graph, self._name)
        return jax.jit(run)

    def executable(
        self,
        own: Mapping[str, jax.Array],
        arrays: Sequence[Any],
        place: Place,
        made: Once | None,
    ) -> Executable:
        """Return the network compiled for a place and for arrays of a call, once for all threads.

        It is kept among what is `made` for a model. Without that it is for all models, whatever
        their `own` arrays are.
        """
        values, is_shared = list(own.values()), made is None
        made = self._shared if made is None else made
        shapes = tuple([x.shape for x in arrays])
        first: list[Executable] = []  # with these arrays prepared

        def make() -> Executable:
            # Over several devices the batch is divided already: a loop would gather it first.
            alone = not isinstance(place.where, Sharding)
            program = self._program(list(own), values, arrays, alone=alone)
            executable = self.compiler.compile(program, place, is_shared=is_shared)
            first.append(executable)
            return executable.on(None) if is_shared else executable

        # A jitted function is the same whether or not its arguments are committed. What jax
        # compiles of it is not, and is compiled here, since jax would do it for each thread.
        where = place if self.compiler.keeps else place.where
        executable: Executable = made.get((where, shapes), make)
        if is_shared:
            executable = first[0] if first else executable.on(values)
        if not is_traced():
            made.get(("run", place, shapes), lambda: executable.compiled(arrays))
        return executable

    def is_kept(self, own: Mapping[str, jax.Array], arrays: Sequence[Any], place: Place) -> bool:
        """Tell whether what would be compiled for these is in the folder."""
        program = self._program(list(own), list(own.values()), arrays, alone=True)
        return self.compiler.is_kept(program, place)

    def _program(
        self, labels: list[str], own: list[jax.Array], arrays: Sequence[Any], *, alone: bool
    ) -> Program:
        def function(own: Sequence[Any], arrays: Sequence[Any]) -> Any:
            named = dict(zip(labels, own, strict=True))
            state, inputs = self.parted(arrays)
            state = self.functions.own(named | state)
            return self._results(self._function(named, state, list(inputs), NOTHING))

        functions, (state, inputs) = self.functions, self.parted(arrays)
        state = state or dict(zip(labels, own, strict=True))
        before = {label: tuple(x.shape) for label, x in state.items()}
        graph = functions.network.specialise([x.shape[self.time_axes :] for x in inputs], before)
        outputs = functions.packed([0] * len(graph.outputs))
        result = self._results((outputs, {state.label: 0 for state in graph.states}, {}))
        tree = jax.tree.structure(result)
        return Program(self._name, graph, function, tree, own, arrays, alone, self._donated)

    def parted(self, arrays: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        """Return the state by label, and the inputs."""
        count = len(self._labels)
        return dict(zip(self._labels, arrays[:count], strict=True)), arrays[count:]

    def _results(self, results: Results, probe: Probe = NOTHING) -> Any:
        outputs, state, shown = results
        if not probe.results:
            return shown
        found = (outputs, state) if self.takes_state else (outputs,)
        found = (*found, shown) if probe.capture else found
        return found[0] if len(found) == 1 else found
