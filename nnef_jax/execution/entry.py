"""Offers a network as a function for one kind of call. The function returns the user's result."""

from __future__ import annotations

import operator
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import jax

from lowering import named
from lowering.graph import Graph, Value
from nnef_jax.execution.definition import Arrays, Definition, Function, Inputs, Results
from nnef_jax.execution.over_mesh import over_mesh
from nnef_jax.execution.places import explicit_mesh
from nnef_jax.execution.probe import NOTHING, Probe
from nnef_jax.execution.run_options import Params
from nnef_jax.wording.similar import did_you_mean, listed

# The first list has the inputs of a call. If the entry takes a state, a second list has the arrays
# of the state.
Lists = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A network as a function of parameters, state and inputs, for one kind of call.

    The field `name` is the kind of call:

    - "outputs" computes one cycle from the initial state.
    - "map" computes, for each index of the inputs' first axis, one cycle from the initial state.
    - "step" computes one cycle from the state that the call passes, and returns the outputs and
      the next state.
    - "scan" computes many steps one after the other. The first axis of its inputs is time.
    """

    definition: Definition
    name: Literal["outputs", "map", "step", "scan"]

    @property
    def title(self) -> str:
        """Return the name that calls of this kind have in profiles, such as "net" or "net_step"."""
        graph = self.definition.network.graph
        return graph.name if self.name == "outputs" else f"{graph.name}_{self.name}"

    @property
    def takes_state(self) -> bool:
        """Tell whether a call passes a state, and gets the next state."""
        return self.name in ("step", "scan")

    @property
    def time_axes(self) -> int:
        """Return the number of leading axes of the inputs that count cycles.

        The number is 1 for "map" and "scan", whose inputs have one axis more than the network's
        inputs. Otherwise it is 0.
        """
        return 1 if self.name in ("map", "scan") else 0

    @property
    def donated(self) -> tuple[int, ...]:
        """Return the positions of arguments whose memory the results may use.

        A step may write the next state into the memory of the passed state.
        """
        position_of_state = 2  # after the prepared values and the inputs
        donates_state = self.name == "step" and self.definition.options.donate_state
        return (position_of_state,) if donates_state else ()

    @property
    def labels(self) -> list[str]:
        """Return the labels of the states that a call passes, sorted as jax sorts a dict.

        jax matches donated buffers to results by their position. A mismatch would cost a copy.
        """
        if not self.takes_state:
            return []
        return sorted(state.label for state in self.definition.network.graph.states)

    @property
    def function(self) -> Function:
        """Return the method of `Definition` that computes calls of this kind.

        It is a function of parameters, state, inputs and a probe.
        """
        match self.name:
            case "map":
                return self.definition.mapped_cycle
            case "scan":
                return self.definition.scanned_cycles
            case "outputs" | "step":
                return self.definition.cycle

    def jitted(
        self,
        options: dict[str, str] | None = None,
        params_of: Callable[[Params], Params] = lambda params: params,
    ) -> Any:
        """Return a jitted function of parameters, state, inputs and a probe.

        `options` are the compiler's options. The network runs on `params_of(parameters)`. If the
        jitted function is called within a caller's trace, parameters that are not tracers are
        prepared for the trace's platform.
        """
        definition = self.definition
        compute = partial(definition.compute_in_trace, self.function)

        def call(params: Params, state: Arrays, inputs: Inputs, probe: Probe) -> Any:
            arguments = params_of(params), state, inputs, probe
            if definition.layout or explicit_mesh(arguments):
                with named(definition.about):
                    results = over_mesh(compute, definition.layout, self.time_axes, *arguments)
            else:
                results = compute(*arguments)
            return self.result(results, probe)

        # jax shows the name of the function in profiles.
        call.__name__ = self.title
        return jax.jit(call, compiler_options=options)

    def arguments(self, state: Arrays, inputs: Inputs) -> tuple[list[Any], ...]:
        """Return the arguments that follow the prepared values of an executable, as lists.

        The first list has the inputs. If the call passes a state, a second list has the arrays
        of the state. jax flattens lists faster than other trees.
        """
        if not self.takes_state:
            return (list(inputs),)
        return list(inputs), [state[label] for label in self.labels]

    def state_types(self, state: Arrays, rows: int, inputs: Inputs) -> dict[str, Any]:
        """Return the types of a state's arrays by label, for a batch of `rows` items.

        `state` is a state for a batch of any size, as arrays or types. On a mesh the returned
        types have the shardings for a call with `inputs`.
        """
        layout = self.definition.layout
        types: dict[str, Any] = {}
        for label, x in state.items():
            shape = (rows, *x.shape[1:])
            sharding = None
            if layout:
                extent = layout.extent([x.shape for x in inputs], self.time_axes)
                sharding = layout.of_state(label, extent, shape)
            types[label] = jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)
        return types

    def of_lists(self, labels: Sequence[str]) -> Callable[..., Any]:
        """Return a function that computes a call from lists of arrays.

        The first list has the model's arrays with the labels `labels`. It is followed by the
        lists that the method `arguments` returns.
        """

        def run_on_lists(arrays: Inputs, inputs: Inputs, states: Inputs = ()) -> Any:
            # If calls pass no state, the arrays of the initial state are among `arrays`.
            params = dict(zip(labels, arrays, strict=True))
            passed_state = dict(zip(self.labels, states, strict=True))
            state = self.definition.state_of({**params, **passed_state})
            return self.result(self.function(params, state, list(inputs), NOTHING))

        return run_on_lists

    def specialised(self, arrays: Arrays, arguments: Lists) -> Graph:
        """Return the network's graph for the shapes of a model's arrays and of a call's lists.

        `arguments` has the lists that the method `arguments` returns.
        """
        state = arrays
        if self.takes_state:
            inputs, states = arguments
            state = dict(zip(self.labels, states, strict=True))
        else:
            (inputs,) = arguments
        return self.definition.specialised(state, inputs, time_axes=self.time_axes)

    def lowered(self, arguments: Lists) -> tuple[Entry, Lists]:
        """Return the entry whose call the passes rewrite, and the arguments of this call.

        The result is this entry and `arguments`. The same method of `RoutineEntry` returns the
        entry of a step, because the passes rewrite one step of a routine.
        """
        return self, arguments

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to compile. `call` is the call that passes have rewritten.

        The function is `call` itself. The same method of `RoutineEntry` returns a function that
        repeats `call`.
        """
        return call

    def tree(self, graph: Graph, arguments: Lists) -> Any:
        """Return jax's tree structure of the result of a call with these arguments.

        `graph` must be the network's graph for the shapes of the call.
        """
        # A number stands for each array, since any leaf gives the same structure.
        outputs = [0] * len(graph.outputs)
        next_state = {state.label: 0 for state in graph.states}
        return jax.tree.structure(self.result((outputs, next_state, {})))

    def result(self, results: Results, probe: Probe = NOTHING) -> Any:
        """Pack the results of a call into the object that a user gets.

        The object is a tuple of the outputs, the next state and the captured tensors. The next
        state is left out if the call takes no state, and the captured tensors if the user asked
        for none. If only the outputs are left, they are returned without a tuple.
        """
        outputs, next_state, captures = results
        if not probe.results:
            return captures  # the user asked only for captured tensors
        parts: list[Any] = [results_of(self.definition.network.graph)(outputs)]
        if self.takes_state:
            parts.append(next_state)
        if probe.capture is not None:
            parts.append(captures)
        return parts[0] if len(parts) == 1 else tuple(parts)


def results_of(graph: Graph) -> Callable[..., Any]:
    """Return a function that packs the list of outputs into the result of a call.

    The result is an array if there is one output, and otherwise a namedtuple.
    """
    names = graph.output_names
    if len(names) == 1:
        return operator.itemgetter(0)
    indices: dict[Value, int] = {}
    for i, value in enumerate(graph.outputs):
        # If a tensor is an output twice, its name stands for the first of the two outputs.
        indices.setdefault(value, i)
    index_by_name: dict[str, int] = {}
    for alias, value in graph.aliases.items():
        if value in indices:
            index_by_name[alias] = indices[value]
    for value, i in indices.items():
        index_by_name[value.name] = i
    # The names of the outputs are fields of the namedtuple. All other names are aliases.
    aliases = sorted(index_by_name.keys() - set(names))
    alias_indices = tuple((alias, index_by_name[alias]) for alias in aliases)
    return _namedtuple(names, alias_indices)._make


@cache
def _namedtuple(names: tuple[str, ...], aliases: tuple[tuple[str, int], ...]) -> Any:
    """Return a class of namedtuples with the fields `names`. The namedtuples can be pickled.

    A field can also be read by a name or an alias in brackets, as in `outputs["y"]`. `aliases` has
    pairs of an alias and the index of a field.
    """
    cls: Any = namedtuple("Outputs", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    indices = dict(aliases)
    for i, name in enumerate(names):
        indices[name] = i

    def getitem(self: tuple[Any, ...], key: object) -> Any:
        return tuple.__getitem__(self, _index(indices, names, key))

    def reduced(self: tuple[Any, ...]) -> tuple[Any, ...]:
        return _unpickled, (names, aliases, tuple(self))

    def asdict(self: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(names, self, strict=True))

    cls.__getitem__ = getitem
    cls.__reduce__ = reduced
    cls._asdict = asdict
    return cls


def _unpickled(
    names: tuple[str, ...], aliases: tuple[tuple[str, int], ...], values: tuple[object, ...]
) -> Any:
    return _namedtuple(names, aliases)._make(values)


def _index(indices: Mapping[str, int], names: tuple[str, ...], key: object) -> Any:
    """Return the index of the output whose name or alias is `key`.

    A key that is not a string, such as a slice, is returned unchanged. Raises KeyError for an
    unknown name.
    """
    if not isinstance(key, str):
        return key
    if key not in indices:
        hint = did_you_mean(key, indices)
        raise KeyError(f"no output is '{key}', the outputs are {listed(names)}. {hint}".rstrip())
    return indices[key]
