"""The network as pure functions of parameters, state and inputs, and their compiled forms."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from lowering.extents import Shape
from lowering.graph import Graph, Value
from lowering.prepare import split
from lowering.registry import Registry
from lowering.trace import Context, trace
from nnef_jax.network import Network

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Executable:
    """A function compiled for given input shapes, with the parameters laid out for it once.

    It takes state and inputs as one flat list: that costs the least at each call.
    """

    run: Callable[[tuple[Any, ...], list[Any]], Any]
    prepared: tuple[Any, ...]

    def __call__(self, arrays: list[Any]) -> Any:
        """Run it."""
        return self.run(self.prepared, arrays)


class Execution:
    """Traces and compiles a network; keeps what it compiled by the shapes of the inputs."""

    def __init__(self, network: Network, registry: Registry, context: Context) -> None:
        self.network = network
        self._registry = registry
        self._context = context
        self._executables: dict[tuple[str, tuple[Shape, ...]], Executable] = {}

    @property
    def graph(self) -> Graph:
        """The graph before a call; `graph_for` gives the one for known shapes."""
        return self.network.graph

    def graph_for(self, inputs: Sequence[Any]) -> Graph:
        """The graph for inputs of these shapes."""
        return self.network.specialise([tuple(x.shape) for x in inputs])

    @cached_property
    def parameters(self) -> dict[str, jax.Array]:
        """The network's own parameters on the device."""
        return {p.label: jnp.array(self.network.data[p.label]) for p in self.graph.parameters}

    @cached_property
    def initial_state(self) -> dict[str, jax.Array]:
        """The stored values of the variables that the graph updates, on the device."""
        return {s.label: jnp.array(self.network.data[s.label]) for s in self.graph.states}

    def values(
        self, graph: Graph, params: Arrays, state: Arrays, inputs: Sequence[Any]
    ) -> dict[Value, Any]:
        """Every tensor of the graph."""
        return trace(graph, self._registry, self._context, params, state, inputs)

    def outputs(self, params: Arrays, inputs: Sequence[Any]) -> Any:
        """What a call returns; a recurrent network runs one cycle from its initial state."""
        return self.cycle(params, self.initial_state, inputs)[0]

    def cycle(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The outputs of one cycle, and the state after it."""
        graph = self.graph_for(inputs)
        values = self.values(graph, params, state, inputs)
        outputs = [jnp.asarray(values[output]) for output in graph.outputs]
        packed = outputs[0] if len(outputs) == 1 else self._output_type(*outputs)
        return packed, {s.label: jnp.asarray(values[s.update]) for s in graph.states}

    def scan(
        self, params: Arrays, state: Arrays, inputs: Sequence[Any]
    ) -> tuple[Any, dict[str, Any]]:
        """As many cycles as the inputs have items along their first axis, by `lax.scan`."""

        def body(state: Arrays, inputs: list[Any]) -> tuple[dict[str, Any], Any]:
            outputs, state = self.cycle(params, state, inputs)
            return dict(state), outputs

        state, outputs = jax.lax.scan(body, dict(state), list(inputs))
        return outputs, dict(state)

    @cached_property
    def _output_type(self) -> Callable[..., Any]:
        return namedtuple("Outputs", self.graph.output_names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]

    # Compiled forms

    def compiled_outputs(self, inputs: list[jax.Array]) -> Executable:
        """`outputs` on the network's own parameters, for inputs of these shapes."""
        shapes = tuple(x.shape for x in inputs)
        found = self._executables.get(("outputs", shapes))
        return found or self._compile("outputs", shapes, lambda p, x: self.outputs(p, x), inputs)

    def compiled_recurrence(
        self, kind: str, state: list[jax.Array], inputs: list[jax.Array]
    ) -> Executable:
        """`cycle` or `scan` on the network's own parameters, of the state's arrays and inputs."""
        shapes = tuple(x.shape for x in inputs)
        function = {"cycle": self.cycle, "scan": self.scan}[kind]
        labels = [s.label for s in self.graph.states]

        def flat(params: Arrays, arrays: Sequence[Any]) -> Any:
            count = len(labels)
            return function(params, dict(zip(labels, arrays[:count], strict=True)), arrays[count:])

        found = self._executables.get((kind, shapes))
        return found or self._compile(kind, shapes, flat, [*state, *inputs])

    def _compile(
        self,
        kind: str,
        shapes: tuple[Shape, ...],
        function: Callable[[Arrays, Sequence[Any]], Any],
        arrays: Sequence[jax.Array],
    ) -> Executable:
        labels = list(self.parameters)
        values = list(self.parameters.values())

        def flat(params: Sequence[Any], arrays: Sequence[Any]) -> Any:
            return function(dict(zip(labels, params, strict=True)), arrays)

        halves = split(flat, values, list(arrays))
        executable = Executable(halves.run, halves.prepare(values))
        self._executables[kind, shapes] = executable
        return executable
