"""Runs a function of many steps of a network, such as a loop over tokens, as one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from lowering.graph import Graph
from nnef_jax.execution.definition import Arrays, Definition
from nnef_jax.execution.entry import Entry, Lists

# A step is a function that runs one cycle. A step takes a state (a dict from labels to arrays)
# and inputs in the order of the graph. A step returns the outputs in the form that a user
# gets, and the next state.
Step = Callable[[Mapping[str, Any], Sequence[Any]], tuple[Any, dict[str, Any]]]


class Routine(Protocol):
    """A function that calls steps of a network, to be compiled as one program.

    The functions `run`, `step_arguments` and `tree` take the same arguments, which are pytrees of
    arrays. The `repr` of a routine is part of the keys of caches, so it must contain all settings
    that change the program.
    """

    @property
    def title(self) -> str:
        """Return the name of the routine in profiles."""
        ...

    @property
    def donates(self) -> tuple[int, ...]:
        """Return the positions of arguments whose memory the result may use."""
        ...

    @property
    def run(self) -> Callable[..., Any]:
        """Return the function to compile, which takes a `Step` and the arguments.

        The function returns a pytree.
        """
        ...

    @property
    def step_arguments(self) -> Callable[..., tuple[Mapping[str, Any], Sequence[Any]]]:
        """Return a function that returns the types of the state and of the inputs of a step."""
        ...

    @property
    def tree(self) -> Callable[..., Any]:
        """Return a function that returns jax's tree structure of the result."""
        ...


@dataclass(frozen=True, slots=True)
class RoutineEntry:
    """A routine as a kind of call, which `Executables` compiles and caches like an `Entry`.

    The passes rewrite a single step. The routine is traced around the rewritten step.
    """

    definition: Definition
    routine: Routine

    @property
    def name(self) -> str:
        """Return the text that identifies the routine and its settings in keys of caches."""
        return repr(self.routine)

    @property
    def title(self) -> str:
        """Return the name that calls have in profiles, such as "net_generate"."""
        return f"{self.definition.network.graph.name}_{self.routine.title}"

    @property
    def takes_state(self) -> bool:
        """Return True: the state is among the routine's arguments."""
        return True

    @property
    def donated(self) -> tuple[int, ...]:
        """Return the positions of the donated arguments, after the prepared values."""
        # Argument 0 is the list of prepared values, so the routine's arguments begin at 1.
        return tuple(1 + i for i in self.routine.donates)

    @property
    def step(self) -> Entry:
        """Return the kind of call that the routine repeats."""
        return Entry(self.definition, "step")

    def lowered(self, arguments: Sequence[Any]) -> tuple[Entry, Lists]:
        """Return the entry of a step, and the types of its arguments. Passes rewrite the step.

        `arguments` are the arguments of the routine.
        """
        state, inputs = self.routine.step_arguments(*arguments)
        values = self.definition.network.graph.inputs
        types = [
            jax.ShapeDtypeStruct(x.shape, value.type.dtype)
            for x, value in zip(inputs, values, strict=True)
        ]
        return self.step, self.step.arguments(state, types)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the routine as a function of prepared values and the routine's arguments.

        `call` is a step as a function of prepared values, the list of inputs and the list of
        states.
        """

        def run_routine(values: Sequence[Any], *arguments: Any) -> Any:
            def step(state: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
                return call(values, *self.step.arguments(state, self._converted(inputs)))

            return self.routine.run(step, *arguments)

        return run_routine

    def in_trace(self, run_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the routine as a function of parameters and the routine's arguments.

        The function is for a caller's trace. `run_step` is a jitted step, a function of
        parameters, state and inputs.
        """

        def run_routine(params: Any, *arguments: Any) -> Any:
            def step(state: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
                return run_step(params, dict(state), self._converted(inputs))

            return self.routine.run(step, *arguments)

        run_routine.__name__ = self.title
        return run_routine

    def _converted(self, inputs: Sequence[Any]) -> list[Any]:
        """Convert the inputs of a step to the dtypes of the graph's inputs."""
        values = self.definition.network.graph.inputs
        return [jnp.asarray(x, v.type.dtype) for x, v in zip(inputs, values, strict=True)]

    def specialised(self, arrays: Arrays, arguments: Sequence[Any]) -> Graph:
        """Return the network's graph for the shapes of a step."""
        step, lists = self.lowered(arguments)
        return step.specialised(arrays, lists)

    def tree(self, graph: Graph, arguments: Sequence[Any]) -> Any:
        """Return jax's tree structure of the result."""
        return self.routine.tree(*arguments)
