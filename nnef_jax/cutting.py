"""`Model.cut`: which part of a network is meant, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lowering.graph import Graph, Value
from nnef_jax.errors import InputError, raise_all
from nnef_jax.execution.probe import hint_for
from nnef_jax.network import Network, with_pairs
from nnef_jax.options import names_of
from nnef_jax.part import Part, PartFrontend, needed, tensors

_Named = Mapping[str, Value]


def cut(network: Network, inputs: Any, outputs: Any, stored: Callable[[str], Any]) -> Network:
    """Return the part of a network between tensors of these names, as `Model.cut` documents it.

    `stored` gives the arrays of variables by label.
    """
    part = _part(network.graph, inputs, outputs)
    kept, _ = part.of(network.graph)
    raise_all([*_changing(network, kept)])
    labels = [variable.label for variable in (*kept.parameters, *kept.states)]
    pairs = {label: network.pairs[label] for label in labels if label in network.pairs}
    # A part of a part is one of the whole, which alone can be saved.
    whole = network.frontend.whole if isinstance(network.frontend, PartFrontend) else network
    frontend = PartFrontend(whole, part, pairs)
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
                f"the part has state '{state.label}', whose shape or start follows from the inputs",
                span=state.span,
                hint="cut a part without it: take what is read of it as an input",
            )


def _part(graph: Graph, inputs: Any, outputs: Any) -> Part:
    """Return the part that the arguments ask for. Raises InputError for all that is wrong."""
    named = tensors(graph)
    given = None if inputs is None else names_of("inputs", inputs, "names of tensors")
    wanted = None if outputs is None else names_of("outputs", outputs, "names of tensors")
    raise_all([*_wrong_names(graph, "inputs", given), *_wrong_names(graph, "outputs", wanted)])
    if given is None:
        found = needed(graph, [named[name] for name in wanted or graph.output_names], ())
        if wanted is None:  # the whole network, with inputs that it does not read
            found.update(graph.inputs)
        given = tuple(value.name for value in graph.inputs if value in found)
    sources = {name: named[name] for name in given}
    if wanted is None:
        follows = _following(graph, frozenset(sources.values()))
        own = zip(graph.output_names, graph.outputs, strict=True)
        wanted = tuple(name for name, value in own if value in follows) or graph.output_names
    results = {name: named[name] for name in wanted}
    raise_all([*_wrong_part(graph, sources, results)])
    return Part(given, wanted)


def _wrong_names(graph: Graph, what: str, names: Sequence[str] | None) -> Iterator[InputError]:
    named = tensors(graph)
    if names is not None and not names:
        yield InputError(f"{what} names no tensor")
    first: dict[Value, str] = {}
    for name in dict.fromkeys(names or ()):
        if name not in named:
            message = f"{what}: the graph has no tensor '{name}'"
            yield InputError(message, hint=hint_for(name, graph, named))
        elif names and names.count(name) > 1:
            yield InputError(f"{what} names '{name}' {names.count(name)} times")
        elif what == "inputs" and first.setdefault(named[name], name) != name:
            yield InputError(f"inputs names one tensor twice: '{first[named[name]]}' and '{name}'")


def _wrong_part(graph: Graph, inputs: _Named, outputs: _Named) -> Iterator[InputError]:
    """Yield why a part cannot be, or does not need one of its inputs."""
    given = frozenset(inputs.values())
    found = needed(graph, outputs.values(), given)
    missing = _missing(graph, given, found)
    if missing:
        hint = f"cut(inputs=[{', '.join(map(repr, [*inputs, *missing]))}], ...)"
        message = f"the part also needs {', '.join(map(repr, missing))}, which no input gives"
        yield InputError(message, hint=hint)
    fed = _reached(graph, given)
    constant = {*graph.outputs} - _reached(graph, graph.inputs)  # in the network too
    for name, value in outputs.items():
        if value not in fed and value not in constant:
            yield InputError(f"output '{name}' does not depend on an input of the part")
    idle = set(graph.inputs) - graph.needed  # nor does the network read them
    for name, value in inputs.items():
        if value in found or value in idle:
            continue
        sources = needed(graph, [value], ())
        before = [output for output, value in outputs.items() if value in sources]
        if before:
            message = f"input '{name}' is computed from output '{before[0]}'"
            yield InputError(message, hint="inputs come before outputs")
        else:
            yield InputError(f"input '{name}' is not needed", hint="leave it out")


def _missing(graph: Graph, given: frozenset[Value], found: set[Value]) -> list[str]:
    """Return the tensors that a part reads, but cannot compute from what it is given."""
    fed = _after(graph, given, given)
    outside = _after(graph, {*graph.inputs} - given, given)
    reads = [
        value
        for operation in graph.operations
        if any(v in found and v in fed and v not in given for v in operation.writes())
        for value in operation.reads()
    ]
    reads += [s.update for s in graph.states if s.value in found and s.value not in given]
    lacking = [value for value in dict.fromkeys(reads) if value in outside and value not in fed]
    return [*dict.fromkeys(name for value in lacking for name in _spelled(graph, value, outside))]


def _following(graph: Graph, given: frozenset[Value]) -> set[Value]:
    """Return the values that can be computed from given ones, cycle after cycle."""
    variables = [variable.value for variable in (*graph.parameters, *graph.states)]
    made = [value for operation in graph.operations for value in operation.writes()]
    return {*given, *variables, *made} - _reached(graph, {*graph.inputs} - given, given)


def _reached(
    graph: Graph, values: Iterable[Value], given: frozenset[Value] = frozenset()
) -> set[Value]:
    """Return the values that depend on some, in the same cycle or a later one.

    What they depend on through given ones is left out.
    """
    found = set(values)
    while True:
        found = _after(graph, found, given)
        states = {s.value for s in graph.states if s.update in found and s.value not in given}
        if states <= found:
            return found
        found |= states


def _after(graph: Graph, values: Iterable[Value], given: frozenset[Value]) -> set[Value]:
    """Return the values that depend on some within a cycle, otherwise than through given ones."""
    found = set(values)
    for operation in graph.operations:
        if not found.isdisjoint(operation.reads()):
            found.update(value for value in operation.writes() if value not in given)
    return found


def _spelled(graph: Graph, value: Value, among: set[Value]) -> Iterator[str]:
    """Yield the name of a value, or where a user has none for it, of what it is computed from."""
    names = {known: name for name, known in tensors(graph).items()}
    if value in names:
        yield names[value]
        return
    for operation in graph.operations:
        if value in operation.writes():
            for read in operation.reads():
                if read in among:
                    yield from _spelled(graph, read, among)
