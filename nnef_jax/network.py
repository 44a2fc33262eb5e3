"""A network that was read: its graph for given input shapes, and its stored data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from lowering.extents import UNKNOWN, Shape, is_known, is_symbolic, show
from lowering.graph import Graph, Operation, TensorType, Value
from lowering.location import Source, Span
from nnef_jax.errors import InputError, SemanticError, ShapeError, UnsupportedError, raise_all
from nnef_jax.formats.base import Frontend, Options
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.tree import identifiers, span_in
from nnef_jax.formats.syntax.values import ExtentNeeded
from nnef_jax.limits import Meter


class Network:
    """A checked document with what is needed to flatten it, and its stored data by label.

    `graph` is its graph for the declared input shapes (or those of `options.input_shapes`), in
    which extents that are left open are UNKNOWN; `specialise` gives the one for known shapes.
    """

    def __init__(self, frontend: Frontend, options: Options) -> None:
        self.frontend = frontend
        self.document = frontend.document
        self.options = options
        self.data: dict[str, Any] = {}  # arrays of numpy, of jax once they are on the device
        self.quantization: Source | None = None  # the text of graph.quant
        self.unstored: frozenset[str] = frozenset()  # labels of states that are no variables
        self._is_guessed = False  # the structure depends on extents that are open
        self._specialised: dict[tuple[Shape, ...], Graph] = {}
        self._check_input_names(options.input_shapes)
        self._declared = self._flatten_declared() if options.input_shapes else None
        self._check_input_ranks(options.input_shapes)
        self.graph = self._flatten(options.input_shapes)
        if self._is_known():
            self._check_baked(self.graph)

    def quantized(self, quantizers: Mapping[str, Quantizer]) -> Network:
        """The same network with tensors quantised, by their identifiers, once they are computed.

        Raises SemanticError or ShapeError, in the text of the quantisers, where one does not fit.
        """
        options = replace(self.options, quantizers=quantizers)
        network = Network(self.frontend, options)
        network.data, network.quantization = self.data, self.quantization
        network.unstored = self.unstored
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
        options = replace(self.options, input_shapes=shapes)
        try:
            return self.frontend.flatten(options)
        except ExtentNeeded:
            pass
        # The structure depends on an open extent: take 1 for it, to learn the rest.
        try:
            guess = self.frontend.flatten(replace(options, open_extent=1))
        except SemanticError as error:
            error.hint = (
                "open extents of inputs were taken for 1 here, since the text depends on them: "
                "give them by load(..., input_shapes=...)"
            )
            raise
        self._is_guessed = True
        return _opened(guess, {**self.frontend.declared_shapes(self.options), **shapes})

    def _flatten_declared(self) -> Graph | None:
        """The graph for the document's own input shapes; None where it has none for them."""
        try:
            return self._flatten({})
        except SemanticError:
            return None

    def _check_input_names(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        names = [parameter.name for parameter in self.document.graph.parameters]
        raise_all(
            [
                InputError(
                    f"input_shapes names '{name}', the graph's inputs are {', '.join(names)}"
                )
                for name in shapes
                if name not in names
            ]
        )

    def _check_input_ranks(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        declared = self._declared.inputs if self._declared else ()
        raise_all(
            [
                InputError(
                    f"input_shapes gives '{value.name}' rank {len(shapes[value.name])}, "
                    f"the graph declares {show(value.type.shape)}",
                    span=self.span_of(value.name),
                )
                for value in declared
                if value.name in shapes and len(shapes[value.name]) != len(value.type.shape)
            ]
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
        if self._is_known():
            return self.graph
        key = tuple(shapes)
        if key not in self._specialised:
            names = [value.name for value in self.graph.inputs]
            named = {**self.options.input_shapes, **dict(zip(names, shapes, strict=True))}
            # Each call has a budget of its own: the network itself was read within one.
            meter = Meter(self.options.meter.limits)
            options = replace(self.options, input_shapes=named, meter=meter)
            if any(is_symbolic(extent) for shape in shapes for extent in shape):
                return self._symbolic(options)
            graph = self.frontend.flatten(options)
            self._check_baked(graph)
            self._check_variables(graph)
            self._specialised[key] = graph
        return self._specialised[key]

    def _symbolic(self, options: Options) -> Graph:
        """The graph for shapes in which `jax.export` keeps extents open."""
        symbolic = options.input_shapes
        known = {
            name: [None if is_symbolic(extent) else extent for extent in shape]
            for name, shape in symbolic.items()
        }
        try:
            return self.frontend.flatten(
                replace(options, input_shapes=known, symbolic_shapes=symbolic)
            )
        except ExtentNeeded:
            raise UnsupportedError(
                "the structure of the graph depends on an extent that is symbolic",
                hint="export it for known shapes",
            ) from None

    @cached_property
    def unused(self) -> frozenset[str]:
        """The labels of parameters that neither outputs nor states depend on."""
        if self._is_guessed:  # with other extents they may
            return frozenset()
        needed = self.graph.needed
        return frozenset(p.label for p in self.graph.parameters if p.value not in needed)

    def _is_known(self) -> bool:
        return all(is_known(value.type.shape) for value in self.graph.inputs)

    def _check_variables(self, graph: Graph) -> None:
        """Refuse variables that were not there, or not of this type, when their data were read."""
        known = {v.label: v.value.type for v in (*self.graph.parameters, *self.graph.states)}
        raise_all(
            [
                SemanticError(
                    f"variable '{variable.label}' depends on an open extent of an input",
                    span=variable.span,
                    hint="give the extent by load(..., input_shapes=...)",
                )
                for variable in (*graph.parameters, *graph.states)
                if known.get(variable.label) != variable.value.type
            ]
        )

    def _check_baked(self, graph: Graph) -> None:
        """Refuse reshapes that wrote down an extent which `input_shapes` has changed since."""
        if self._declared is None or len(self._declared.operations) != len(graph.operations):
            return
        errors = [
            ShapeError(
                f"'reshape' of {show(_input_shape(new))} to {show(new.results[0].type.shape)} "
                f"keeps the extent {old.results[0].type.shape[axis]} that the document's input "
                f"shapes had at axis {axis}, input_shapes made it {_input_shape(new)[axis]}",
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
    """The leading axis that a reshape passes through as declared, but not with new shapes."""
    before, after = _input_shape(old), _input_shape(new)
    old_out, new_out = next(old.writes()).type.shape, next(new.writes()).type.shape
    for axis, (a, b) in enumerate(zip(before, old_out, strict=False)):
        if a != b:
            return None
        if after[axis] != a and axis < len(new_out) and new_out[axis] == b:
            return axis
    return None


def _opened(graph: Graph, shapes: Mapping[str, Sequence[int | None]]) -> Graph:
    """The graph with inputs of these shapes, and all extents open that were guessed."""
    swapped: dict[Value, Value] = {}

    def open(value: Value, shape: Sequence[int | None]) -> Value:
        extents = tuple(UNKNOWN if extent is None else extent for extent in shape)
        swapped[value] = Value(value.name, TensorType(extents, value.type.dtype))
        return swapped[value]

    def swap(operand: Any) -> Any:
        if isinstance(operand, tuple):
            return tuple(map(swap, operand))  # pyright: ignore[reportUnknownArgumentType]
        return swapped.get(operand, operand) if isinstance(operand, Value) else operand

    inputs = tuple(
        open(value, shapes.get(value.name, [None] * len(value.type.shape)))
        for value in graph.inputs
    )
    for operation in graph.operations:
        for value in operation.writes():
            open(value, [None] * len(value.type.shape))
    return replace(
        graph,
        inputs=inputs,
        outputs=swap(graph.outputs),
        operations=tuple(
            replace(
                operation,
                operands=tuple((name, swap(operand)) for name, operand in operation.operands),
                results=swap(operation.results),
            )
            for operation in graph.operations
        ),
        states=tuple(replace(state, update=swap(state.update)) for state in graph.states),
        aliases={name: swap(value) for name, value in graph.aliases.items()},
    )
