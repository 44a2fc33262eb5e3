"""A network as pure functions of parameters, state and inputs."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from lowering.cpu import optimised
from lowering.errors import InvalidComputation
from lowering.extents import is_symbolic
from lowering.graph import Graph, Value
from lowering.trace import Context, trace
from nnef_jax.errors import SemanticError
from nnef_jax.execution.options import RunOptions
from nnef_jax.limits import FOLDED_PER_STEP, Meter
from nnef_jax.network import Network

Arrays = Mapping[str, Any]
Inputs = Sequence[Any]
# Of parameters, state and inputs: the outputs, and the next state.
Function = Callable[..., tuple[Any, dict[str, Any]]]


class Functions:
    """The functions of a network; those that are `optimized` are traced for `lowering.cpu`."""

    def __init__(self, network: Network, options: RunOptions) -> None:
        self.network = network
        self._options = options

    def values(
        self,
        graph: Graph,
        params: Arrays,
        state: Arrays,
        inputs: Inputs,
        *,
        optimized: bool = False,
        wanted: Iterable[Value] | None = None,
    ) -> dict[Value, Any]:
        """Return the tensors that results, or the `wanted` ones, depend on."""
        meter = Meter(self.network.options.meter.limits)

        def fold(items: int) -> None:
            meter.spend(items // FOLDED_PER_STEP, "folding constants")

        context = Context(self._options.precision, optimized, fold)
        try:
            return trace(graph, context, params, state, inputs, wanted)
        except InvalidComputation as error:
            where = error.operation
            raise SemanticError(
                error.message, span=where.span, calls=where.calls, hint=error.hint
            ) from None

    def cycle(
        self, params: Arrays, state: Arrays, inputs: Inputs, *, optimized: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """Return the outputs of one cycle, and the state after it."""
        graph = self.network.specialise([tuple(x.shape) for x in inputs])
        values = self.values(graph, params, state, inputs, optimized=optimized)
        outputs = [jnp.asarray(values[output]) for output in graph.outputs]
        return self.packed(outputs), {s.label: jnp.asarray(values[s.update]) for s in graph.states}

    def scan(
        self, params: Arrays, state: Arrays, inputs: Inputs, *, optimized: bool = False
    ) -> tuple[Any, dict[str, Any]]:
        """Run as many cycles as the inputs have items along their first axis, by `lax.scan`."""

        def body(state: Arrays, inputs: list[Any]) -> tuple[dict[str, Any], Any]:
            outputs, state = self.cycle(params, state, inputs, optimized=optimized)
            return state, outputs

        state, outputs = jax.lax.scan(body, dict(state), list(inputs))
        return outputs, state

    def compute(
        self, function: Function, params: Arrays, state: Arrays, inputs: Inputs, in_chunks: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Compute `cycle` or `scan` in the way that suits the default device.

        `in_chunks` takes a large batch a few items at a time, which makes derivatives slow.
        """
        state = {s.label: state[s.label] for s in self.network.graph.states}
        inputs = [jnp.asarray(x) for x in inputs]
        # What is exported for any shape is for any platform; kernels for CPUs need items.
        extents = [extent for x in inputs for extent in x.shape]
        if any(is_symbolic(n) or n == 0 for n in extents) or not self._options.for_cpu:
            return function(params, state, inputs)
        optimal = optimised(
            lambda known, free: function(known, *free, optimized=True), in_chunks=in_chunks
        )
        return optimal(params, (state, inputs))

    def packed(self, outputs: Sequence[Any]) -> Any:
        """Return what a user gets: the only output, or a namedtuple of several."""
        return outputs[0] if len(outputs) == 1 else self._output_type(*outputs)

    @cached_property
    def _output_type(self) -> Callable[..., Any]:
        names = self.network.graph.output_names
        return namedtuple("Outputs", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
