"""A network as pure functions of parameters, state and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from lowering.errors import InvalidComputation
from lowering.extents import shapes_differ, show
from lowering.fallback import About, named, or_else
from lowering.graph import Graph, Value
from lowering.trace import Context, trace
from nnef_jax.errors import InputError, SemanticError
from nnef_jax.execution.options import RunOptions, is_watched
from nnef_jax.execution.prepared import Prepared
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.results import results_of
from nnef_jax.limits import Meter
from nnef_jax.network import Network

Arrays = Mapping[str, Any]
Inputs = Sequence[Any]
# The outputs, the next state, and what is captured.
Results = tuple[Any, dict[str, Any], dict[str, Any]]
Function = Callable[..., Results]


class Functions:
    """The functions of a network."""

    def __init__(self, network: Network, options: RunOptions) -> None:
        self.network = network
        self.about = About(network.graph.name, options.optimize == "strict")
        self._options = options

    def cycle(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run one cycle."""
        graph, wanted = self._wanted(inputs, probe, state)
        if missing := [n for n in self._read(graph, wanted) if n not in params]:
            hint = "load(..., unused=True) has those that outputs do not need in model.params"
            raise InputError(f"captures need {', '.join(map(repr, missing))} of params", hint=hint)
        values = self._trace(graph, params, state, inputs, wanted, probe.edited(graph))
        shown = {n: jnp.asarray(values[value]) for n, value in probe.captured(graph).items()}
        if not probe.results:
            return None, {}, shown
        outputs = [jnp.asarray(values[output]) for output in graph.outputs]
        after = {s.label: jnp.asarray(values[s.update]) for s in graph.states}
        return self.packed(outputs), after, shown

    def scan(self, params: Arrays, state: Arrays, inputs: Inputs, probe: Probe) -> Results:
        """Run as many cycles as the inputs have items along their first axis, by `lax.scan`."""

        self._require_kept_shapes(state, inputs)

        def body(state: Arrays, inputs: list[Any]) -> tuple[dict[str, Any], Any]:
            outputs, state, shown = self.cycle(params, state, inputs, probe)
            return state, (outputs, shown)

        state, (outputs, shown) = jax.lax.scan(body, dict(state), list(inputs))
        return outputs, state, shown

    def labels(self, inputs: Inputs, probe: Probe, state: Arrays) -> list[str]:
        """Return the labels of the parameters that a run of these inputs reads."""
        return self._read(*self._wanted(inputs, probe, state))

    def _read(self, graph: Graph, wanted: list[Value]) -> list[str]:
        needed = graph.dependencies(wanted)
        return [p.label for p in graph.parameters if p.value in needed]

    def _require_kept_shapes(self, state: Arrays, inputs: Inputs) -> None:
        """Raise InputError for a variable whose shape is another one after a cycle."""
        if not self.network.changing:
            return
        before = {label: tuple(x.shape) for label, x in state.items()}
        graph = self.network.specialise([tuple(x.shape[1:]) for x in inputs], before)
        for variable in graph.states:
            shape, found = before[variable.label], variable.update.type.shape
            if shapes_differ(shape, found):
                raise InputError(
                    f"state '{variable.label}' has shape {show(shape)} before a cycle and "
                    f"{show(found)} after it, in a scan it keeps its shape",
                    hint="call step in a loop, or keep a window of it in a lax.scan of your own",
                )

    def initial(
        self, params: Arrays, state: Arrays, graph: Graph, inputs: Arrays
    ) -> dict[str, Any]:
        """Compute what variables start with, given inputs of a first cycle by name."""
        wanted = [s.initial for s in graph.states if s.initial is not None]
        given = [inputs.get(value.name) for value in graph.inputs]
        values = self._trace(graph, params, state, given, wanted)
        found = {s.label: values[s.initial] for s in graph.states if s.initial is not None}
        return {label: jnp.asarray(x) for label, x in found.items()}

    def _trace(self, graph: Graph, *given: Any) -> dict[Value, Any]:
        """Return what `lowering.trace.trace` does; its errors have their place in the document."""
        options, meter = self._options, Meter(self.network.options.meter.limits)
        context = Context(options.precision, meter.fold, options.straight_through)
        try:
            return trace(graph, context, *given)
        except InvalidComputation as error:
            where = error.operation
            raise SemanticError(
                error.message, span=where.span, calls=where.calls, hint=error.hint
            ) from None

    def _wanted(self, inputs: Inputs, probe: Probe, state: Arrays) -> tuple[Graph, list[Value]]:
        before = {label: tuple(x.shape) for label, x in state.items()}
        graph = self.network.specialise([tuple(x.shape) for x in inputs], before)
        results = [*graph.outputs, *(s.update for s in graph.states)] if probe.results else []
        return graph, [*results, *probe.captured(graph).values()]

    def traced(
        self,
        function: Function,
        params: Arrays | Prepared,
        state: Arrays,
        inputs: Inputs,
        probe: Probe,
    ) -> Results:
        """Compute `cycle` or `scan` in a trace, which may be lowered for any platform."""
        raw, found = params, None
        if isinstance(params, Prepared):
            raw = params.params
            found = None if probe.edits or probe.capture else params.found.get(function.__name__)
        arguments = raw, self.own(state), list(map(jnp.asarray, inputs)), probe

        def chosen() -> Results:
            from lowering.emit import network

            return network(function, found, self.about)(*arguments)

        def as_written() -> Results:
            return function(*arguments)

        # Tensors alone are as the network is written. So is it where operations have values, which
        # edits see, or where jax looks for the one that computes a NaN.
        rewritten = self._options.optimize and probe.results and not is_watched()
        with named(self.about):
            return or_else(chosen, as_written) if rewritten else as_written()

    def prepared(self, function: Function, params: Arrays, state: Arrays, inputs: Inputs) -> Any:
        """Return what kernels for the default device need of parameters; None if nothing."""
        if not self._options.for_cpu:
            return None

        arguments = params, self.own(state), list(inputs)

        def found() -> Any:
            from lowering.emit import prepared

            return prepared(function, *arguments, NOTHING)

        def nothing() -> None:
            jax.eval_shape(partial(function, probe=NOTHING), *arguments)  # for errors of its own

        with named(self.about):
            return or_else(found, nothing)

    def own(self, state: Arrays) -> dict[str, Any]:
        """Return the arrays of the network's states."""
        return {s.label: state[s.label] for s in self.network.graph.states if s.label in state}

    @cached_property
    def packed(self) -> Callable[..., Any]:
        """Return what makes of outputs what a user gets: the only one, or a namedtuple."""
        return results_of(self.network.graph)
