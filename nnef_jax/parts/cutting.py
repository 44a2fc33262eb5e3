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
from nnef_jax.parts.part import Part, PartFrontend, needed, tensors
from nnef_jax.reading.network import Network, with_pairs

_Named = Mapping[str, Value]
_Names = Sequence[str] | None


def cut(
    network: Network,
    inputs: _Names,
    outputs: _Names,
    stored: Callable[[str], NDArray[np.generic]],
) -> Network:
    """Return the part of a network between tensors of these names, as a network.

    `Model.cut` explains `inputs` and `outputs`. `stored` returns the array of a variable by its
    label.
    """
    part = _part(network.graph, inputs, outputs)
    graph, _ = part.of(network.graph)
    raise_all([*_changing(network, graph)])
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


def _changing(network: Network, part: Graph) -> Iterator[InputError]:
    for state in part.states:
        if state.label in network.changing:
            yield InputError(
                f"the part has state '{state.label}', whose shape or initial value depends on the "
                "inputs",
                span=state.span,
                hint="cut a part without it: take the tensor that is read from it as an input",
            )


def _part(graph: Graph, inputs: _Names, outputs: _Names) -> Part:
    """Return the part that the arguments describe. Raises one InputError with all errors."""
    by_name = tensors(graph)
    starts = None if inputs is None else names_of("inputs", inputs, "names of tensors")
    ends = None if outputs is None else names_of("outputs", outputs, "names of tensors")
    raise_all([*_wrong_names(graph, "inputs", starts), *_wrong_names(graph, "outputs", ends)])
    if starts is None:
        values = needed(graph, [by_name[name] for name in ends or graph.output_names], ())
        if ends is None:  # The part is the whole network, including inputs that it does not read.
            values.update(graph.inputs)
        starts = tuple(value.name for value in graph.inputs if value in values)
    sources = {name: by_name[name] for name in starts}
    if ends is None:
        computable = _computable(graph, frozenset(sources.values()))
        pairs = zip(graph.output_names, graph.outputs, strict=True)
        ends = tuple(name for name, value in pairs if value in computable)
        if not ends:
            ends = graph.output_names
    results = {name: by_name[name] for name in ends}
    raise_all([*_wrong_part(graph, sources, results)])
    return Part(starts, ends)


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
    """Yield the errors of a part.

    The errors are inputs that are missing, outputs that depend on no input, and inputs that are not
    needed.
    """
    cuts = frozenset(inputs.values())
    values = needed(graph, outputs.values(), cuts)
    missing = _missing(graph, cuts, values)
    if missing:
        hint = f"cut(inputs=[{', '.join(map(repr, [*inputs, *missing]))}], ...)"
        message = f"the part also needs {', '.join(map(repr, missing))}, which no input gives"
        yield InputError(message, hint=hint)
    dependent = _reached(graph, cuts)
    # outputs that are constant in the whole network too
    constant = {*graph.outputs} - _reached(graph, graph.inputs)
    for name, value in outputs.items():
        if value not in dependent and value not in constant:
            yield InputError(f"output '{name}' does not depend on an input of the part")
    unread = set(graph.inputs) - graph.needed  # inputs that the whole network does not read either
    for name, value in inputs.items():
        if value in values or value in unread:
            continue
        sources = needed(graph, [value], ())
        before = [output for output, value in outputs.items() if value in sources]
        if before:
            message = f"input '{name}' is computed from output '{before[0]}'"
            yield InputError(message, hint="inputs come before outputs")
        else:
            yield InputError(f"input '{name}' is not needed", hint="leave it out")


def _missing(graph: Graph, inputs: frozenset[Value], values: set[Value]) -> list[str]:
    """Return the names of tensors that a part reads, but cannot compute from its inputs.

    `values` are the values on which the outputs of the part depend.
    """
    inside = _after(graph, inputs, inputs)
    outside = _after(graph, {*graph.inputs} - inputs, inputs)
    computed = (values & inside) - inputs
    reads: list[Value] = []
    for operation in graph.operations:
        if not computed.isdisjoint(operation.writes()):
            reads += operation.reads()
    reads += [s.update for s in graph.states if s.value in values and s.value not in inputs]
    names: list[str] = []
    for value in dict.fromkeys(reads):
        if value in outside and value not in inside:
            names += _names_of(graph, value, outside)
    return list(dict.fromkeys(names))


def _computable(graph: Graph, inputs: frozenset[Value]) -> set[Value]:
    """Return the values that can be computed from the inputs of a part, in any cycle."""
    variables = [variable.value for variable in (*graph.parameters, *graph.states)]
    results = [value for operation in graph.operations for value in operation.writes()]
    return {*inputs, *variables, *results} - _reached(graph, {*graph.inputs} - inputs, inputs)


def _reached(
    graph: Graph, sources: Iterable[Value], cuts: frozenset[Value] = frozenset()
) -> set[Value]:
    """Return the sources, and all values that depend on them in the same cycle or a later one.

    A dependency by way of a value in `cuts` does not count.
    """
    values = set(sources)
    while True:
        values = _after(graph, values, cuts)
        states = {s.value for s in graph.states if s.update in values and s.value not in cuts}
        if states <= values:
            return values
        values |= states


def _after(graph: Graph, sources: Iterable[Value], cuts: frozenset[Value]) -> set[Value]:
    """Return the sources, and all values that depend on them in the same cycle.

    A dependency by way of a value in `cuts` does not count.
    """
    values = set(sources)
    for operation in graph.operations:
        if not values.isdisjoint(operation.reads()):
            values.update(value for value in operation.writes() if value not in cuts)
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
            for read in operation.reads():
                if read in among:
                    yield from _names_of(graph, read, among)
