"""A part of a network: which tensors it takes and gives, and the front end that flattens it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, Shape, is_known
from lowering.graph import Graph, Operation, TensorType, Value, substituted
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.flattening.emission import Emission, placed, refused
from nnef_jax.formats.base import ExtentNeeded, Frontend, Options, Stored, Written
from nnef_jax.limits import Meter
from nnef_jax.network import Network


def tensors(graph: Graph) -> dict[str, Value]:
    """Return the tensors of a graph by the names that a user has for them."""
    return graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))


def needed(graph: Graph, wanted: Iterable[Value], given: Collection[Value]) -> set[Value]:
    """Return the values that some depend on, cycle after cycle, down to those that are given."""
    found = set(wanted)
    while True:
        for operation in reversed(graph.operations):
            if any(value in found and value not in given for value in operation.writes()):
                found.update(operation.reads())
        states = [s for s in graph.states if s.value in found and s.value not in given]
        if found.issuperset(state.update for state in states):
            return found
        found.update(state.update for state in states)


@dataclass(frozen=True, slots=True)
class Part:
    """Names the tensors that a part of a graph takes and gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def of(self, graph: Graph) -> tuple[Graph, Mapping[Value, Value]]:
        """Return the part of a graph, and its inputs by the values whose places they take."""
        named = tensors(graph)
        given = {named[n]: replace(named[n], name=n, inserted=False) for n in self.inputs}
        found = needed(graph, [named[name] for name in self.outputs], given)

        def swap(operand: Any) -> Any:
            return substituted(operand, given)

        def stays(value: Value) -> bool:
            return value in found and value not in given

        operations = [o.reading(given) for o in graph.operations if any(map(stays, o.writes()))]
        part = replace(
            graph,
            inputs=tuple(given.values()),
            outputs=tuple(swap(named[name]) for name in self.outputs),
            output_names=self.outputs,
            operations=tuple(operations),
            parameters=tuple(p for p in graph.parameters if stays(p.value)),
            states=tuple(replace(s, update=swap(s.update)) for s in graph.states if stays(s.value)),
            aliases={n: swap(value) for n, value in graph.aliases.items() if value in found},
        )
        return part, given


class PartFrontend(Frontend):
    """The front end of a part of a network, whose pairs are among its inputs and outputs."""

    def __init__(self, whole: Network, part: Part, pairs: Mapping[str, str]) -> None:
        named = dict.fromkeys([*part.outputs, *pairs.values()])
        self._part = Part((*part.inputs, *pairs), tuple(named))
        self.inputs, self.outputs = self._part.inputs, self._part.outputs
        self.whole = whole
        self.graph = self._part.of(whole.unpaired)[0]
        self.describe_as(whole.frontend)
        is_open = whole.is_guessed or any(map(_has_unknown, self.graph.operations))
        if is_open and all(is_known(value.type.shape) for value in self.graph.inputs):
            raise InputError(
                "the part depends on open extents of inputs that it does not have",
                hint="give them by load(..., input_shapes=...) before the network is cut",
            )
        self._is_open = is_open

    def declared(self) -> Graph | None:
        """Return the part as it is for the document's own shapes, None where it is not known."""
        whole = self.whole.declared
        if whole is None or not {*self.inputs, *self.outputs} <= tensors(whole).keys():
            return None
        return self._part.of(whole)[0]

    def flatten(self, options: Options) -> Graph:
        """Return the part for the shapes in `options.input_shapes`, else those of the network."""
        if not self._is_open:
            return _retyped(self.graph, options, self.integer)
        shapes = [_shape(value, options) for value in self.graph.inputs]
        if not all(map(is_known, shapes)):
            raise ExtentNeeded
        from nnef_jax.execution.cache_key import described
        from nnef_jax.open_extents import Solver

        solver = Solver(self.whole, self._cut, lambda graph: [*described(graph)])
        return solver.solve(shapes, options.meter)

    def _cut(self, whole: Graph) -> Graph:
        missing = {*self.inputs, *self.outputs} - tensors(whole).keys()
        if missing:
            raise InputError(
                f"for these shapes the network has no tensor {', '.join(map(repr, missing))}",
                hint="its graph depends on them: cut it after load(..., input_shapes=...)",
            )
        return self._part.of(whole)[0]

    def stored(self, graph: Graph) -> Stored:
        """Return no data: those of the network stay where they are."""
        return Stored({}, self)

    def content(self) -> Iterable[object]:
        """Return the content of the whole network, and which part of it this is."""
        whole = self.whole
        fixed = [(name, x.dtype, x.tobytes()) for name, x in whole.options.values.items()]
        return [*whole.frontend.content(), repr((self._part, whole.options.input_shapes, fixed))]

    def spans(self) -> Mapping[str, Any]:
        """Return where the document assigns the names that the part has."""
        spans, values = self.whole.frontend.spans(), self.graph.values
        return {name: span for name, span in spans.items() if name in values}

    def identifiers(self, graph: Graph) -> Mapping[str, str]:
        """Return the names of tensors of the part, by what a saved graph.quant calls them."""
        return self.whole.frontend.identifiers(graph)

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        """Return the archive of the part as a flat document, with rounding as operations.

        Raises UnsupportedError, naming all that such a document cannot say.
        """
        whole = self.whole
        if whole.is_guessed:
            raise UnsupportedError(
                "the structure of the part depends on an open extent, no flat document has that",
                hint="give it by load(..., input_shapes=...) before the network is cut",
            )
        options = replace(whole.options, meter=Meter(whole.options.meter.limits))
        part = whole.unpaired, options, self._part.of
        return whole.frontend.flat_members(*part, arrays, quantization)


def _has_unknown(operation: Operation) -> bool:
    """Tell whether an attribute of an operation depends on an open extent."""

    def unknown(attribute: Any) -> bool:
        match attribute:
            case tuple():
                return any(map(unknown, attribute))  # pyright: ignore[reportUnknownArgumentType]
            case Graph(operations=operations):
                return any(map(_has_unknown, operations))
            case _:
                return attribute is UNKNOWN

    return any(unknown(attribute) for _, attribute in operation.attributes)


def _shape(value: Value, options: Options) -> Shape:
    """Return the shape that the options have for an input, else its own."""
    declared = [None if extent is UNKNOWN else extent for extent in value.type.shape]
    return options.shape(value.name, declared)


def _retyped(graph: Graph, options: Options, integer: str) -> Graph:
    """Return the graph with the types that follow from other shapes of its inputs.

    Raises ShapeError or SemanticError naming the operation that does not take them.
    """
    emission = Emission(options, integer)
    builder = emission.builder
    new: dict[Value, Value] = {}
    for value in graph.inputs:
        type = TensorType(_shape(value, options), value.type.dtype)
        new[value] = builder.input(value.name, type)
    for v in (*graph.parameters, *graph.states):
        new[v.value] = builder.variable(v.value.name, v.label, v.value.type, v.span)
    for operation in graph.operations:
        operands = {name: substituted(operand, new) for name, operand in operation.operands}
        old = tuple(operation.writes())
        try:
            emission.add(
                operation.kind,
                operands,
                dict(operation.attributes),
                [value.name for value in old] or [operation.kind],
                operation.span,
                operation.calls,
                rule=operation.rule,
                inserted=any(value.inserted for value in old),
            )
        except InvalidOperation as error:
            raise refused(
                error, operation.kind, operands, operation.span, operation.calls
            ) from None
        new.update(zip(old, builder.operations[-1].writes(), strict=True))
    for state in graph.states:
        with placed("'update'", state.span):
            builder.update(new[state.value], new[state.update])
    builder.aliases.update({name: new[value] for name, value in graph.aliases.items()})
    builder.folded.update(graph.folded)
    return builder.graph(graph.name, [new[v] for v in graph.outputs], graph.output_names)
