"""Cuts a part out of a network's graph, and offers it as a front end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, Shape, is_known
from lowering.graph import Graph, Operation, StateVariable, TensorType, Value, substituted
from lowering.location import Span
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.flattening.emission import Emission, locating_errors, refused
from nnef_jax.formats.base import ExtentNeeded, Frontend, Options, Stored, Written
from nnef_jax.limits import Meter
from nnef_jax.reading.network import Network


def tensors(graph: Graph) -> dict[str, Value]:
    """Return a dict from names to the values of a graph.

    An output may have two names: the name of its tensor, and its name as an output. Both are keys.
    """
    return graph.values | dict(zip(graph.output_names, graph.outputs, strict=True))


def dependencies_down_to(
    graph: Graph, results: Iterable[Value], inputs: Collection[Value]
) -> set[Value]:
    """Return `results`, and the values on which they depend, in any cycle.

    The search goes back from the results, and stops at the values in `inputs`.
    """
    values = set(results)

    def is_computed(value: Value) -> bool:
        return value in values and value not in inputs

    while True:
        for operation in reversed(graph.operations):
            if any(map(is_computed, operation.writes())):
                values.update(operation.reads())
        # The value of a state is its update from the cycle before.
        updates = [state.update for state in graph.states if is_computed(state.value)]
        if values.issuperset(updates):
            return values
        values.update(updates)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a network. It is defined by the names of its input tensors and output tensors."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def cut_from(self, graph: Graph) -> tuple[Graph, Mapping[Value, Value]]:
        """Return the part's graph, and a mapping from values of `graph` to inputs of the part.

        All operations of the part that read such a value read the part's input instead.
        """
        values_by_name = tensors(graph)
        inputs: dict[Value, Value] = {}
        for name in self.inputs:
            value = values_by_name[name]
            inputs[value] = replace(value, name=name, inserted=False)
        outputs = [values_by_name[name] for name in self.outputs]
        needed = dependencies_down_to(graph, outputs, inputs)

        def replaced(value: Value) -> Value:
            return inputs.get(value, value)

        def is_computed(value: Value) -> bool:
            return value in needed and value not in inputs

        operations: list[Operation] = []
        for operation in graph.operations:
            if any(map(is_computed, operation.writes())):
                operations.append(operation.reading(inputs))
        parameters = [variable for variable in graph.parameters if is_computed(variable.value)]
        states: list[StateVariable] = []
        for state in graph.states:
            if is_computed(state.value):
                states.append(replace(state, update=replaced(state.update)))
        aliases: dict[str, Value] = {}
        for alias, value in graph.aliases.items():
            if value in needed:
                aliases[alias] = replaced(value)
        part = replace(
            graph,
            inputs=tuple(inputs.values()),
            outputs=tuple(map(replaced, outputs)),
            output_names=self.outputs,
            operations=tuple(operations),
            parameters=tuple(parameters),
            states=tuple(states),
            aliases=aliases,
        )
        return part, inputs


class PartFrontend(Frontend):
    """The front end of a part of a network.

    A state of the part may be an input and an output of the document that belong together, as in
    `Network.pairs`. The front end then has this input among its inputs, and this output among its
    outputs.
    """

    def __init__(self, network: Network, part: Part, pairs: Mapping[str, str]) -> None:
        outputs = dict.fromkeys([*part.outputs, *pairs.values()])  # an ordered set
        self._part = Part((*part.inputs, *pairs), tuple(outputs))
        self.inputs: Sequence[str] = self._part.inputs
        self.outputs: Sequence[str] = self._part.outputs
        self.network = network
        graph, _ = self._part.cut_from(network.unpaired)
        self.graph: Graph = graph
        self.describe_as(network.frontend)
        is_open = network.is_guessed or any(map(_has_unknown, self.graph.operations))
        has_known_inputs = all(is_known(value.type.shape) for value in self.graph.inputs)
        if is_open and has_known_inputs:
            raise InputError(
                "the part depends on open extents of inputs that are not the part's",
                hint="give them by load(..., input_shapes=...) before the network is cut",
            )
        self._is_open = is_open

    def declared(self) -> Graph | None:
        """Return the part's graph for the shapes that the document declares.

        Return None if the network's graph for these shapes is not known, or lacks a tensor of the
        part.
        """
        graph = self.network.declared
        if graph is None or self._missing_tensors(graph):
            return None
        part, _ = self._part.cut_from(graph)
        return part

    def flatten(self, options: Options) -> Graph:
        """Return the part's graph for the shapes in `options.input_shapes`.

        An input that is not in `options.input_shapes` has the shape that it has in the network.
        """
        if not self._is_open:
            return _retyped(self.graph, options, self.integer)
        shapes = [_shape(value, options) for value in self.graph.inputs]
        if not all(map(is_known, shapes)):
            raise ExtentNeeded
        from nnef_jax.execution.cache_key import described
        from nnef_jax.parts.open_extents import Solver

        # The part depends on open extents of the network's inputs. `Solver` finds these from the
        # shapes of the part's inputs.
        solver = Solver(self.network, self._cut, lambda graph: [*described(graph)])
        return solver.solve(shapes, options.meter)

    def _cut(self, graph: Graph) -> Graph:
        """Cut the part out of a graph.

        Raises InputError if the graph lacks an input or output of the part.
        """
        missing = self._missing_tensors(graph)
        if missing:
            raise InputError(
                f"for these shapes the network has no tensor {', '.join(map(repr, missing))}",
                hint="its graph depends on them: cut it after load(..., input_shapes=...)",
            )
        part, _ = self._part.cut_from(graph)
        return part

    def _missing_tensors(self, graph: Graph) -> set[str]:
        """Return the names of the part's inputs and outputs that a graph does not have."""
        return {*self.inputs, *self.outputs} - tensors(graph).keys()

    def stored(self, graph: Graph) -> Stored:
        """Return no data, because the function `cut` takes all arrays from the network."""
        return Stored({}, self)

    def content(self) -> Iterable[object]:
        """Return the content of the network, and the tensors and shapes at which it is cut."""
        options = self.network.options
        fixed_inputs = [(name, x.dtype, x.tobytes()) for name, x in options.values.items()]
        definition = repr((self._part, options.input_shapes, fixed_inputs))
        return [*self.network.frontend.content(), definition]

    def spans(self) -> Mapping[str, Span]:
        """Return a dict from names to the places in the document where they are assigned.

        Only names in the part are included.
        """
        spans = self.network.frontend.spans()
        names = self.graph.values
        return {name: span for name, span in spans.items() if name in names}

    def identifiers(self, graph: Graph) -> Mapping[str, str]:
        """Return a dict from identifiers in a saved graph.quant to names of the part's tensors."""
        return self.network.frontend.identifiers(graph)

    def members(self, arrays: Mapping[str, Any], quantization: str | None) -> Written:
        """Return the members of an archive with the part as a flat document.

        In the document, roundings of tensors are operations. Raises UnsupportedError if a flat
        document cannot express the part. The error lists everything that cannot be expressed.
        """
        network = self.network
        if network.is_guessed:
            raise UnsupportedError(
                "the structure of the part depends on an open extent, no flat document has that",
                hint="give it by load(..., input_shapes=...) before the network is cut",
            )
        options = replace(network.options, meter=Meter(network.options.meter.limits))
        cut = self._part.cut_from
        return network.frontend.flat_members(network.unpaired, options, cut, arrays, quantization)


def _has_unknown(operation: Operation) -> bool:
    """Tell whether an attribute of an operation depends on an open extent."""

    def is_unknown(attribute: object) -> bool:
        """Tell whether an attribute is an open extent, or contains an open extent."""
        match attribute:
            case tuple():
                return any(map(is_unknown, attribute))  # pyright: ignore[reportUnknownArgumentType]
            case Graph(operations=operations):
                return any(map(_has_unknown, operations))
            case _:
                return attribute is UNKNOWN

    return any(is_unknown(attribute) for _, attribute in operation.attributes)


def _shape(value: Value, options: Options) -> Shape:
    """Return the shape of an input from the options, or else from the graph."""
    declared = [None if extent is UNKNOWN else extent for extent in value.type.shape]
    return options.shape(value.name, declared)


def _retyped(graph: Graph, options: Options, integer: str) -> Graph:
    """Return a graph for the input shapes in the options, with new types of all tensors.

    `integer` is the dtype of integer literals. Raises a ShapeError or SemanticError, which names
    the operation, if the shapes do not fit an operation.
    """
    emission = Emission(options, integer)
    builder = emission.builder
    retyped: dict[Value, Value] = {}  # maps a value of `graph` to the value with the new type
    for value in graph.inputs:
        type = TensorType(_shape(value, options), value.type.dtype)
        retyped[value] = builder.input(value.name, type)
    for variable in (*graph.parameters, *graph.states):
        value = variable.value
        retyped[value] = builder.variable(value.name, variable.label, value.type, variable.span)
    for operation in graph.operations:
        operands = {name: substituted(operand, retyped) for name, operand in operation.operands}
        results = tuple(operation.writes())
        # If an operation has no results, its kind is used as its name.
        result_names = [value.name for value in results] or [operation.kind]
        try:
            emission.add(
                operation.kind,
                operands,
                dict(operation.attributes),
                result_names,
                operation.span,
                operation.calls,
                rule=operation.rule,
                inserted=any(value.inserted for value in results),
            )
        except InvalidOperation as error:
            raise refused(
                error, operation.kind, operands, operation.span, operation.calls
            ) from None
        added_operation = builder.operations[-1]
        retyped.update(zip(results, added_operation.writes(), strict=True))
    for state in graph.states:
        with locating_errors("'update'", state.span):
            builder.update(retyped[state.value], retyped[state.update])
    builder.aliases.update({name: retyped[value] for name, value in graph.aliases.items()})
    builder.folded.update(graph.folded)
    return builder.graph(
        graph.name, [retyped[value] for value in graph.outputs], graph.output_names
    )
