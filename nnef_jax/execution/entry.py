"""One way into a network: a call, a step, a scan; and the results that a user gets."""

from __future__ import annotations

import operator
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import jax

from lowering import named
from lowering.graph import Graph
from nnef_jax.execution.definition import Definition, Function, Results
from nnef_jax.execution.over_mesh import over_mesh
from nnef_jax.execution.places import explicit_mesh
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.similar import did_you_mean, listed

Lists = Sequence[Sequence[Any]]  # the arguments of a call: inputs, and states where they are taken


@dataclass(frozen=True, slots=True)
class Entry:
    """Offers one way into a definition as a function of any parameters, states and inputs.

    `outputs` are those of a cycle from the initial state. `map` gives these for many inputs, along
    an axis that comes first. `step` takes a state, and returns the next one beside the outputs. So
    does `scan` for many cycles: inputs have an axis of time first.
    """

    definition: Definition
    name: Literal["outputs", "map", "step", "scan"]

    @property
    def title(self) -> str:
        """Return the name of the function in profiles."""
        graph = self.definition.network.graph
        return graph.name if self.name == "outputs" else f"{graph.name}_{self.name}"

    @property
    def takes_state(self) -> bool:
        """Tell whether it takes a state, and returns the next one."""
        return self.name in ("step", "scan")

    @property
    def time_axes(self) -> int:
        """Return how many axes inputs have before those of a cycle."""
        return int(self.name in ("map", "scan"))

    @property
    def donates(self) -> bool:
        """Tell whether a call takes the memory of states."""
        return self.name == "step" and self.definition.options.donate_state

    @property
    def labels(self) -> list[str]:
        """Return the labels of the states that it takes, in the order of the results, a dict.

        jax pairs what is donated with these one by one, and copies a state that gets another one's
        memory.
        """
        states = self.definition.network.graph.states
        return sorted(s.label for s in states) if self.takes_state else []

    @property
    def function(self) -> Function:
        """Return the function of parameters, state, inputs and a probe."""
        definition = self.definition
        by_name = {"map": definition.items, "scan": definition.cycles}
        return by_name.get(self.name, definition.cycle)

    def jitted(
        self,
        options: dict[str, str] | None = None,
        params_of: Callable[[Any], Any] = lambda params: params,
    ) -> Any:
        """Return a function of parameters, state, inputs and a probe that jax compiles as a whole.

        It computes with what `params_of` makes of the parameters. In a function that a caller
        compiles, what has values there is prepared for its platform.
        """
        definition = self.definition
        compute = partial(definition.compute_in_trace, self.function)

        def run(params: Any, state: Mapping[str, Any], inputs: Sequence[Any], probe: Probe) -> Any:
            arguments = params_of(params), state, inputs, probe
            if definition.layout or explicit_mesh(arguments):
                with named(definition.about):
                    results = over_mesh(compute, definition.layout, self.time_axes, *arguments)
            else:
                results = compute(*arguments)
            return self.result(results, probe)

        run.__name__ = self.title
        return jax.jit(run, compiler_options=options)

    def arguments(self, state: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[list[Any], ...]:
        """Return inputs, and the arrays of a state that is taken, as lists: they cost the least."""
        if not self.takes_state:
            return (list(inputs),)
        return list(inputs), [state[label] for label in self.labels]

    def of_lists(self, labels: Sequence[str]) -> Callable[..., Any]:
        """Return the function of a model's arrays, by these labels, and of `arguments`."""

        def function(arrays: Sequence[Any], inputs: Sequence[Any], states: Any = ()) -> Any:
            named = dict(zip(labels, arrays, strict=True))
            before = {**named, **dict(zip(self.labels, states, strict=True))}
            state = self.definition.state_of(before)
            return self.result(self.function(named, state, list(inputs), NOTHING))

        return function

    def specialised(self, arrays: Mapping[str, Any], arguments: Lists) -> Graph:
        """Return the graph for a model's arrays and `arguments` of such shapes."""
        inputs, *states = arguments
        state = dict(zip(self.labels, *states, strict=True)) if states else arrays
        return self.definition.specialised(state, inputs, self.time_axes)

    def tree(self, graph: Graph) -> Any:
        """Return the tree structure of a result, of a graph for such shapes."""
        outputs, after = [0] * len(graph.outputs), {s.label: 0 for s in graph.states}
        return jax.tree.structure(self.result((outputs, after, {})))

    def result(self, results: Results, probe: Probe = NOTHING) -> Any:
        """Return the results of a call as a user gets them."""
        values, state, shown = results
        if not probe.results:
            return shown
        outputs = results_of(self.definition.network.graph)(values)
        parts = (outputs, state) if self.takes_state else (outputs,)
        parts = (*parts, shown) if probe.capture is not None else parts
        return parts[0] if len(parts) == 1 else parts


def results_of(graph: Graph) -> Callable[..., Any]:
    """Return the function that makes of the list of a graph's outputs what a user gets."""
    names = graph.output_names
    if len(names) == 1:
        return operator.itemgetter(0)
    index = {value: i for i, value in reversed([*enumerate(graph.outputs)])}
    others = {name: index[value] for name, value in graph.aliases.items() if value in index}
    others |= {value.name: i for value, i in index.items()}
    return _type(names, tuple(sorted((x, i) for x, i in others.items() if x not in names)))._make


@cache
def _type(names: tuple[str, ...], others: tuple[tuple[str, int], ...]) -> Any:
    """Return the namedtuple of some names, the same each time, whose instances pickle.

    Items are had by any name too, also by `others` of the same tensors.
    """
    type: Any = namedtuple("Outputs", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    index = {**dict(others), **{name: i for i, name in enumerate(names)}}
    type.__getitem__ = lambda self, key: tuple.__getitem__(self, _position(index, names, key))
    type.__reduce__ = lambda self: (_made, (names, others, tuple(self)))
    type._asdict = lambda self: dict(zip(names, self, strict=True))
    return type


def _made(
    names: tuple[str, ...], others: tuple[tuple[str, int], ...], values: tuple[Any, ...]
) -> Any:
    return _type(names, others)._make(values)


def _position(index: Mapping[str, int], names: tuple[str, ...], key: Any) -> Any:
    if not isinstance(key, str):
        return key
    if key not in index:
        similar = did_you_mean(key, index)
        raise KeyError(f"there is no output '{key}', they are {listed(names)}. {similar}".rstrip())
    return index[key]
