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
    """Return a part of a network as a network. The part computes `outputs` from `inputs`.

    `inputs` and `outputs` are names of tensors, or None, as in `Model.cut`. `stored` is a function
    from the label of a variable to its array.
    """
    part = _part_of_arguments(network.graph, inputs, outputs)
    graph, _ = part.cut_from(network.graph)
    raise_all([*_wrong_states(network, graph)])
    labels = [variable.label for variable in (*graph.parameters, *graph.states)]
    pairs = {label: network.pairs[label] for label in labels if label in network.pairs}
    # The network may be a part of an original network. The new part is then cut from the original,
    # because only the original can be saved.
    if isinstance(network.frontend, PartFrontend):
        frontend = PartFrontend(network.frontend.network, part, pairs)
    else:
        frontend = PartFrontend(network, part, pairs)
    options = replace(network.options, input_shapes={}, values={})
    arrays = {label: stored(label) for label in labels}
    return Network(
        frontend,
        options,
        graph=with_pairs(frontend.graph, pairs),
        unpaired=frontend.graph,
        data=arrays,
        pairs=pairs,
        declared=frontend.declared(),
        is_guessed=network.is_guessed,
    )


def _wrong_states(network: Network, part: Graph) -> Iterator[InputError]:
    """Yield an error for each wrong state of a part.

    A state is wrong if its shape or its initial value depends on inputs of the network.
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
    values_by_name = tensors(graph)
    input_names = None if inputs is None else names_of("inputs", inputs, "names of tensors")
    output_names = None if outputs is None else names_of("outputs", outputs, "names of tensors")
    wrong_inputs = _wrong_names(graph, "inputs", input_names)
    wrong_outputs = _wrong_names(graph, "outputs", output_names)
    raise_all([*wrong_inputs, *wrong_outputs])
    if input_names is None:
        input_names = _default_input_names(graph, output_names)
    part_inputs = {name: values_by_name[name] for name in input_names}
    if output_names is None:
        output_names = _default_output_names(graph, frozenset(part_inputs.values()))
    part_outputs = {name: values_by_name[name] for name in output_names}
    raise_all([*_wrong_part(graph, part_inputs, part_outputs)])
    return Part(input_names, output_names)


def _default_input_names(graph: Graph, output_names: _Names) -> tuple[str, ...]:
    """Return the names of the network's inputs that a part reads to compute its outputs.

    If `output_names` is None, the part is the complete network. The result then has all inputs,
    also inputs that no operation reads.
    """
    if output_names is None:
        return tuple(value.name for value in graph.inputs)
    values_by_name = tensors(graph)
    results = [values_by_name[name] for name in output_names]
    needed = dependencies_down_to(graph, results, inputs=())
    return tuple(value.name for value in graph.inputs if value in needed)


def _default_output_names(graph: Graph, inputs: frozenset[Value]) -> tuple[str, ...]:
    """Return the names of the network's outputs that can be computed from a part's inputs.

    If none of the outputs can be computed, return the names of all outputs.
    """
    computable = _computable(graph, inputs)
    names: list[str] = []
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value in computable:
            names.append(name)
    return tuple(names) or graph.output_names


def _wrong_names(graph: Graph, argument: str, names: _Names) -> Iterator[InputError]:
    """Yield an error for each wrong name in an argument of `Model.cut`.

    `argument` is the name of the argument: "inputs" or "outputs". `names` is None if the user did
    not pass the argument.
    """
    if names is None:
        return
    if not names:
        yield InputError(f"{argument} names no tensor")
    values_by_name = tensors(graph)
    first_names: dict[Value, str] = {}  # by tensor, since a tensor may have several names
    for name in dict.fromkeys(names):
        if name not in values_by_name:
            message = f"{argument}: the graph has no tensor '{name}'"
            yield InputError(message, hint=hint_for(name, graph, values_by_name))
        elif names.count(name) > 1:
            yield InputError(f"{argument} names '{name}' {names.count(name)} times")
        elif argument == "inputs":
            first_name = first_names.setdefault(values_by_name[name], name)
            if first_name != name:
                yield InputError(f"inputs names one tensor twice: '{first_name}' and '{name}'")


def _wrong_part(graph: Graph, inputs: _Named, outputs: _Named) -> Iterator[InputError]:
    """Yield an error for each fault of a part.

    There are three faults: an input is missing, an output depends on no input, or an input is not
    needed. `inputs` and `outputs` map names to tensors of the part.
    """
    part_inputs = frozenset(inputs.values())
    needed = dependencies_down_to(graph, outputs.values(), part_inputs)
    missing = _missing_names(graph, part_inputs, needed)
    if missing:
        all_inputs = ", ".join(map(repr, [*inputs, *missing]))
        message = f"the part also needs {', '.join(map(repr, missing))}, which no input gives"
        yield InputError(message, hint=f"cut(inputs=[{all_inputs}], ...)")
    dependent = _dependent(graph, part_inputs)
    # `constant_outputs` depend on no input in the complete network. In the part they are no errors.
    constant_outputs = {*graph.outputs} - _dependent(graph, graph.inputs)
    for name, value in outputs.items():
        if value not in dependent and value not in constant_outputs:
            yield InputError(f"output '{name}' does not depend on an input of the part")
    # The complete network does not read the inputs in `unread`. In the part they are no errors.
    unread = set(graph.inputs) - graph.needed
    for name, value in inputs.items():
        if value in needed or value in unread:
            continue
        # The part does not need this input. A usual reason is that the input is computed from an
        # output.
        sources = dependencies_down_to(graph, [value], inputs=())
        earlier_outputs = [output for output, result in outputs.items() if result in sources]
        if earlier_outputs:
            message = f"input '{name}' is computed from output '{earlier_outputs[0]}'"
            yield InputError(message, hint="inputs come before outputs")
        else:
            yield InputError(f"input '{name}' is not needed", hint="leave it out")


def _missing_names(graph: Graph, inputs: frozenset[Value], values: set[Value]) -> list[str]:
    """Return the names of tensors that a part reads, but cannot compute from its inputs.

    For example, let a network compute y from an input z, and then x + y. A part with the input x
    and the output x + y reads y, and lacks it.

    Args:
        graph: the graph of the network.
        inputs: the part's inputs.
        values: the values on which the part's outputs depend.
    """
    from_part = _dependent_in_cycle(graph, inputs, cuts=inputs)
    other_inputs = {*graph.inputs} - inputs
    from_elsewhere = _dependent_in_cycle(graph, other_inputs, cuts=inputs)
    computed = (values & from_part) - inputs
    read: list[Value] = []  # the values that the part reads
    for operation in graph.operations:
        is_computed = not computed.isdisjoint(operation.writes())
        if is_computed:
            read += operation.reads()
    for state in graph.states:
        if state.value in values and state.value not in inputs:
            read.append(state.update)  # the part also computes the next value of the state
    names: list[str] = []
    for value in dict.fromkeys(read):
        if value in from_elsewhere and value not in from_part:
            names += _names_of(graph, value, from_elsewhere)
    return list(dict.fromkeys(names))


def _computable(graph: Graph, inputs: frozenset[Value]) -> set[Value]:
    """Return the values that can be computed from the inputs of a part, in any cycle.

    A value is in the result unless it depends on an input of the network that the part lacks.
    """
    values = set(inputs)
    for variable in (*graph.parameters, *graph.states):
        values.add(variable.value)
    for operation in graph.operations:
        values.update(operation.writes())
    other_inputs = {*graph.inputs} - inputs
    return values - _dependent(graph, other_inputs, cuts=inputs)


def _dependent(
    graph: Graph, sources: Iterable[Value], cuts: frozenset[Value] = frozenset()
) -> set[Value]:
    """Return the sources, and all values that depend on them in the same cycle or a later one.

    Paths through a value in `cuts` are no dependencies.
    """
    values = set(sources)
    while True:
        values = _dependent_in_cycle(graph, values, cuts)
        next_states: set[Value] = set()
        for state in graph.states:
            if state.update in values and state.value not in cuts:
                next_states.add(state.value)
        if next_states <= values:
            return values
        # In the next cycle, states that were updated from these values are sources too.
        values |= next_states


def _dependent_in_cycle(
    graph: Graph, sources: Iterable[Value], cuts: frozenset[Value]
) -> set[Value]:
    """Return the sources, and all values that depend on them in the same cycle.

    Paths through a value in `cuts` are no dependencies.
    """
    values = set(sources)
    for operation in graph.operations:
        depends = not values.isdisjoint(operation.reads())
        if depends:
            values |= set(operation.writes()) - cuts
    return values


def _names_of(graph: Graph, value: Value, among: set[Value]) -> Iterator[str]:
    """Yield the name of a value.

    If the value has no name, yield the names of the values in `among` from which it is computed.
    """
    names = {tensor: name for name, tensor in tensors(graph).items()}
    if value in names:
        yield names[value]
        return
    for operation in graph.operations:
        if value in operation.writes():
            for operand in operation.reads():
                if operand in among:
                    yield from _names_of(graph, operand, among)
