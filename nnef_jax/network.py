"""A network that was read: its graph for given input shapes, and the data stored for its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from lowering.extents import UNKNOWN, Shape, is_known, show
from lowering.graph import Graph, Operation, TensorType, Value
from lowering.location import Source, Span
from nnef_jax.errors import InputError, SemanticError, ShapeError, raise_all
from nnef_jax.text import syntax as s
from nnef_jax.text.flatten import Options, Quantizer, flatten
from nnef_jax.text.library import Scope
from nnef_jax.text.syntax import Document, identifiers, span_in
from nnef_jax.text.values import ExtentNeeded


class Network:
    """A checked document with what is needed to flatten it, and its stored data by label.

    `graph` is its graph for the declared input shapes (or those of `options.input_shapes`), in which
    extents that are left open are UNKNOWN; `specialise` gives the one for known shapes.
    """

    def __init__(self, document: Document, scope: Scope, options: Options) -> None:
        self.document = document
        self.options = options
        self.data: dict[str, NDArray[Any]] = {}
        self.quantization: Source | None = None  # the text of graph.quant
        self.scope = scope
        self._specialised: dict[tuple[Shape, ...], Graph] = {}
        self._check_input_names(options.input_shapes)
        self._declared = self._flatten({}) if options.input_shapes else None
        self.graph = self._flatten(options.input_shapes)

    def quantized(self, quantizers: Mapping[str, Quantizer]) -> Network:
        """The same network with tensors quantised, by their identifiers, once they are computed.

        Raises SemanticError or ShapeError, in the text of the quantisers, where one does not fit.
        """
        options = replace(self.options, quantizers=quantizers)
        network = Network(self.document, self.scope, options)
        network.data, network.quantization = self.data, self.quantization
        raise_all(
            [
                SemanticError(
                    "a quantisation algorithm must not have variables", span=variable.span
                )
                for variable in (*network.graph.parameters, *network.graph.states)
                if variable.label not in self.data
            ]
        )
        return network

    def _flatten(self, shapes: Mapping[str, Sequence[int | None]]) -> Graph:
        try:
            return self._flatten_known(shapes)
        except ExtentNeeded:
            pass
        # The structure depends on an open extent: take 1 for it, to learn the rest.
        try:
            guess = self._flatten_known(self._guessed_shapes(shapes))
        except ExtentNeeded:  # pragma: no cover - every extent is known now
            raise AssertionError from None
        except SemanticError as error:
            error.hint = "an extent is left open and the text depends on it: give it by load(..., input_shapes=...)"
            raise
        return _with_open_outputs(guess)

    def _flatten_known(self, shapes: Mapping[str, Sequence[int | None]]) -> Graph:
        return flatten(self.document, self.scope, replace(self.options, input_shapes=shapes))

    def _guessed_shapes(self, shapes: Mapping[str, Sequence[int | None]]) -> dict[str, list[int]]:
        declared = _externals(self.document) | {name: list(shape) for name, shape in shapes.items()}
        return {name: [extent or 1 for extent in shape] for name, shape in declared.items()}

    def _check_input_names(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        names = [parameter.name for parameter in self.document.graph.parameters]
        declared = _externals(self.document)
        for name, shape in shapes.items():
            if name not in names:
                raise InputError(
                    f"input_shapes names '{name}', the graph's inputs are {', '.join(names)}"
                )
            if name in declared and len(shape) != len(declared[name]):
                raise InputError(
                    f"input_shapes gives '{name}' rank {len(shape)}, it is declared with {len(declared[name])}",
                    span=self.span_of(name),
                )

    @cached_property
    def _spans(self) -> dict[str, Span]:
        source = self.document.source
        return {
            identifier.name: span_in(source, identifier)
            for assignment in self.document.graph.body
            for identifier in identifiers(assignment.target)
        }

    def span_of(self, name: str) -> Span | None:
        """Where the graph's body assigns a name."""
        return self._spans.get(name)

    def specialise(self, shapes: Sequence[Shape]) -> Graph:
        """The graph for these input shapes, in the order of the inputs; all its shapes are checked.

        Raises ShapeError or SemanticError naming the operation that does not take them.
        """
        if all(is_known(value.type.shape) for value in self.graph.inputs):
            self._check_baked(self.graph)
            return self.graph
        key = tuple(shapes)
        if key not in self._specialised:
            named = {
                value.name: shape for value, shape in zip(self.graph.inputs, shapes, strict=True)
            }
            graph = self._flatten_known(named)
            self._check_baked(graph)
            self._specialised[key] = graph
        return self._specialised[key]

    def _check_baked(self, graph: Graph) -> None:
        """Refuse reshapes that wrote down an extent which `input_shapes` has changed since."""
        if self._declared is None or len(self._declared.operations) != len(graph.operations):
            return
        errors = [
            ShapeError(
                f"'reshape' of {show(_input_shape(new))} to {show(new.results[0].type.shape)} "
                f"keeps the extent {old.results[0].type.shape[axis]} that the document's own input shapes "
                f"had at axis {axis}, input_shapes made it {_input_shape(new)[axis]}",
                span=new.span,
                calls=new.calls,
                hint="write 0 there in the document, which takes the extent of the input",
            )
            for old, new in zip(self._declared.operations, graph.operations, strict=True)
            if old.kind == new.kind == "reshape" and (axis := _baked_axis(old, new)) is not None
            if isinstance(old.results[0], Value) and isinstance(new.results[0], Value)
        ]
        raise_all(errors)


def _input_shape(operation: Operation) -> Shape:
    return next(operation.reads()).type.shape


def _baked_axis(old: Operation, new: Operation) -> int | None:
    """The leading axis that a reshape passes through as declared but not with the new input shapes."""
    before, after = _input_shape(old), _input_shape(new)
    old_out, new_out = next(old.writes()).type.shape, next(new.writes()).type.shape
    for axis, (a, b) in enumerate(zip(before, old_out, strict=False)):
        if a != b:
            return None
        if after[axis] != a and axis < len(new_out) and new_out[axis] == b:
            return axis
    return None


def _externals(document: Document) -> dict[str, list[int]]:
    """The declared shapes of the externals whose shape is written as a literal."""
    found: dict[str, list[int]] = {}
    for assignment in document.graph.body:
        match assignment:
            case s.Assignment(
                target=s.Identifier(name=name),
                value=s.Invocation(operation="external", arguments=arguments),
            ):
                for argument in arguments:
                    if argument.name == "shape" and isinstance(argument.value, s.Array):
                        items = argument.value.items
                        found[name] = [
                            item.value
                            if isinstance(item, s.Literal) and isinstance(item.value, int)
                            else 0
                            for item in items
                        ]
            case _:
                pass
    return found


def _with_open_outputs(graph: Graph) -> Graph:
    """The graph with all extents of its outputs unknown: they were found with guessed input shapes."""
    outputs = tuple(
        Value(value.name, TensorType((UNKNOWN,) * len(value.type.shape), value.type.dtype))
        for value in graph.outputs
    )
    return replace(graph, outputs=outputs)
