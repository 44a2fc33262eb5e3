"""Implements `Model.cut`: determines the part that a user means, and reports wrong requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lowering.graph import Graph, Value
from nnef_jax.errors import InputError, raise_all
from nnef_jax.execution.probe import hint_for
from nnef_jax.options import names_of
from nnef_jax.parts.part import Part, PartFrontend, dependencies_down_to, tensors
from nnef_jax.reading.network import Network, with_pairs

_Named = Mapping[str, Value]
_Names = Sequence[str] | None


def cut(
    network: Network,
    inputs: _Names,
    outputs: _Names,
    stored: Callable[[str], NDArray[np.generic]],
) -> Network:
    """Return the part of a network from the tensors `inputs` to `outputs`, as a network.

    `Model.cut` explains `inputs` and `outputs`. `stored` returns the array of a variable by its
    label.
    """
    part = _part_of_arguments(network.graph, inputs, outputs)
    graph, _ = part.cut_from(network.graph)
    raise_all([*_wrong_states(network, graph)])
    labels = [variable.label for variable in (*graph.parameters, *graph.states)]
    pairs = {label: network.pairs[label] for label in labels if label in network.pairs}
    # A part of a part is cut from the original network, because only the original can be saved.
    if isinstance(network.frontend, PartFrontend):
        frontend = PartFrontend(network.frontend.network, part, pairs)
    else:
        frontend = PartFrontend(network, part, pairs)
    return Network(
        frontend,
        replace(network.options, input_shapes={}, values={}),
        with_pairs(frontend.graph, pairs),
        frontend.graph,
        {label: stored(label) for label in labels},
        pairs,
        frontend.declared(),
        network.is_guessed,
    )


def _wrong_states(network: Network, part: Graph) -> Iterator[InputError]:
    """Yield an error for each state of a part that is not known without the network's inputs.

    The shape or the initial value of such a state depends on inputs of the network.
    """
    for state in part.states:
        if state.label in network.open_states:
            yield InputError(
                f"the part has state '{state.label}', whose shape or initial value depends on the "
                "inputs",
                span=state.span,
                hint="cut a part without it: take the tensor that is read from it as an input",
            )


def _part_of_arguments(graph: Graph, inputs: _Names, outputs: _Names) -> Part:
    """Return the part that the arguments of `Model.cut` describe.

    Raises one InputError with all errors in the arguments.
    """
    by_name = tensors(graph)
    in_names = None if inputs is None else names_of("inputs", inputs, "names of tensors")
    out_names = None if outputs is None else names_of("outputs", outputs, "names of tensors")
    wrong_inputs = _wrong_names(graph, "inputs", in_names)
    wrong_outputs = _wrong_names(graph, "outputs", out_names)
    raise_all([*wrong_inputs, *wrong_outputs])
    if in_names is None:
        results = [by_name[name] for name in out_names or graph.output_names]
        values = dependencies_down_to(graph, results, ())
        if out_names is None:  # The part is all of the network, with inputs that it does not read.
            values.update(graph.inputs)
        in_names = tuple(value.name for value in graph.inputs if value in values)
    part_inputs = {name: by_name[name] for name in in_names}
    if out_names is None:
        computable = _computable(graph, frozenset(part_inputs.values()))
        pairs = zip(graph.output_names, graph.outputs, strict=True)
        out_names = tuple(name for name, value in pairs if value in computable)
        if not out_names:
            out_names = graph.output_names
    part_outputs = {name: by_name[name] for name in out_names}
    raise_all([*_wrong_part(graph, part_inputs, part_outputs)])
    return Part(in_names, out_names)


def _wrong_names(graph: Graph, what: str, names: Sequence[str] | None) -> Iterator[InputError]:
    by_name = tensors(graph)
    if names is not None and not names:
        yield InputError(f"{what} names no tensor")
    first_names: dict[Value, str] = {}
    for name in dict.fromkeys(names or ()):
        if name not in by_name:
            message = f"{what}: the graph has no tensor '{name}'"
            yield InputError(message, hint=hint_for(name, graph, by_name))
        elif names and names.count(name) > 1:
            yield InputError(f"{what} names '{name}' {names.count(name)} times")
        elif what == "inputs":
            first = first_names.setdefault(by_name[name], name)
            if first != name:
                yield InputError(f"inputs names one tensor twice: '{first}' and '{name}'")


def _wrong_part(graph: Graph, inputs: _Named, outputs: _Named) -> Iterator[InputError]:
    """Yield an error for each fault of a part.

    Faults are inputs that are missing, outputs that depend on no input, and inputs that are not
    needed. `inputs` and `outputs` are the part's tensors by name.
    """
    cuts = frozenset(inputs.values())
    values = dependencies_down_to(graph, outputs.values(), cuts)
    missing = _missing_names(graph, cuts, values)
    if missing:
        hint = f"cut(inputs=[{', '.join(map(repr, [*inputs, *missing]))}], ...)"
        message = f"the part also needs {', '.join(map(repr, missing))}, which no input gives"
        yield InputError(message, hint=hint)
    dependent = _dependent(graph, cuts)
    # outputs that are constant in the whole network too
    constant = {*graph.outputs} - _dependent(graph, graph.inputs)
    for name, value in outputs.items():
        if value not in dependent and value not in constant:
            yield InputError(f"output '{name}' does not depend on an input of the part")
    unread = set(graph.inputs) - graph.needed  # inputs that the whole network does not read either
    for name, value in inputs.items():
        if value in values or value in unread:
            continue
        sources = dependencies_down_to(graph, [value], ())
        earlier_outputs = [output for output, result in outputs.items() if result in sources]
        if earlier_outputs:
            message = f"input '{name}' is computed from output '{earlier_outputs[0]}'"
            yield InputError(message, hint="inputs come before outputs")
        else:
            yield InputError(f"input '{name}' is not needed", hint="leave it out")


def _missing_names(graph: Graph, inputs: frozenset[Value], values: set[Value]) -> list[str]:
    """Return the names of tensors that a part reads, but cannot compute from its inputs.

    `values` are the values on which the outputs of the part depend.
    """
    from_part = _dependent_in_cycle(graph, inputs, inputs)
    from_elsewhere = _dependent_in_cycle(graph, {*graph.inputs} - inputs, inputs)
    computed = (values & from_part) - inputs
    reads: list[Value] = []
    for operation in graph.operations:
        is_computed = not computed.isdisjoint(operation.writes())
        if is_computed:
            reads += operation.reads()
    reads += [
        state.update
        for state in graph.states
        if state.value in values and state.value not in inputs
    ]
    names: list[str] = []
    for value in dict.fromkeys(reads):
        if value in from_elsewhere and value not in from_part:
            names += _names_of(graph, value, from_elsewhere)
    return list(dict.fromkeys(names))


def _computable(graph: Graph, inputs: frozenset[Value]) -> set[Value]:
    """Return the values that can be computed from the inputs of a part, in any cycle.

    They are the values that do not depend on any other input of the network.
    """
    variables = [variable.value for variable in (*graph.parameters, *graph.states)]
    results = [value for operation in graph.operations for value in operation.writes()]
    return {*inputs, *variables, *results} - _dependent(graph, {*graph.inputs} - inputs, inputs)


def _dependent(
    graph: Graph, sources: Iterable[Value], cuts: frozenset[Value] = frozenset()
) -> set[Value]:
    """Return the sources, and all values that depend on them in the same cycle or a later one.

    A dependency by way of a value in `cuts` does not count.
    """
    values = set(sources)
    while True:
        values = _dependent_in_cycle(graph, values, cuts)
        states = {
            state.value
            for state in graph.states
            if state.update in values and state.value not in cuts
        }
        if states <= values:
            return values
        values |= states


def _dependent_in_cycle(
    graph: Graph, sources: Iterable[Value], cuts: frozenset[Value]
) -> set[Value]:
    """Return the sources, and all values that depend on them in the same cycle.

    A dependency by way of a value in `cuts` does not count.
    """
    values = set(sources)
    for operation in graph.operations:
        depends = not values.isdisjoint(operation.reads())
        if depends:
            values.update(value for value in operation.writes() if value not in cuts)
    return values


def _names_of(graph: Graph, value: Value, among: set[Value]) -> Iterator[str]:
    """Yield the name of a value.

    If the value has no name, yield the names of the nearest values in `among` from which it is
    computed.
    """
    names = {tensor: name for name, tensor in tensors(graph).items()}
    if value in names:
        yield names[value]
        return
    for operation in graph.operations:
        if value in operation.writes():
            for read in operation.reads():
                if read in among:
                    yield from _names_of(graph, read, among)
