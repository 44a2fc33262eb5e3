"""Reads the quantisation of an archive, from graph.quant and from headers of tensor files.

Only provisional tensor files have quantisation in their headers. An entry of graph.quant names the
operation that rounds a tensor (spec 5.3, 7.1). The arguments of the operation are numbers, arrays
of numbers, or `constant(shape = ..., value = ...)`. `quantizer.Quantizer` applies the entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lowering.extents import MAX_RANK, show, volume
from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefError, SemanticError, ShapeError, raise_all
from nnef_jax.formats.base import Options
from nnef_jax.formats.nnef.expressions import ExpressionTypes
from nnef_jax.formats.nnef.flatten import evaluate
from nnef_jax.formats.nnef.parser import parse_quantization
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import ALGORITHMS, ArgumentValue, Quantizer
from nnef_jax.formats.syntax.types import SCALAR, ArrayOf, Tensor, TupleOf, Type
from nnef_jax.limits import Meter, raising
from nnef_jax.wording.similar import did_you_mean

# The key is the name that chapter 7 of the provisional text has.
_ALIASES = {"quantize_linear": "linear_quantize"}
_SCALARS = (Tensor("scalar"), Tensor("?"), Tensor(None))
_REAL = (SCALAR, Tensor("scalar"))
_TENSOR = ""  # stands for the tensor itself in an entry, since no argument can have this name
_NAMES = "an entry must name a tensor that the body of the graph itself assigns"


class _ArgumentTypes(ExpressionTypes):
    def how_to_define(self, name: str) -> str:
        return "arguments must be numbers: tensors have no value here"

    def fits(self, actual: Type, formal: Type) -> bool:
        """Tell whether an argument of type `actual` fits a parameter of type `formal`.

        In graph.quant, an array of numbers fits a tensor.
        """
        if isinstance(actual, ArrayOf) and isinstance(formal, Tensor):
            actual = actual.item
        return super().fits(actual, formal)

    def shown(self, formal: Type) -> str:
        if not isinstance(formal, Tensor):
            return str(formal)
        item = formal.item or "scalar"
        return f"{item} or {item}[]"

    def how_to_write(self, formal: Type, actual: Type) -> str:
        wants_point = "scalar" in self.shown(formal) and "integer" in str(actual)
        return "write numbers with a point, as in 2.0" if wants_point else ""


class QuantizationReader:
    """Reads graph.quant and the headers of tensor files of a document, and checks them."""

    def __init__(self, scope: Scope, options: Options) -> None:
        self._document = scope.document
        self._scope = scope
        self._options = options
        self.meter: Meter = options.meter

    def entries(self, source: Source) -> dict[str, Quantizer]:
        """Read a graph.quant; return its quantisers by the identifiers of the tensors (spec 5.3).

        Raises NnefSyntaxError if the text is not in the language. Raises SemanticError, which
        contains all errors of the entries.
        """
        lines: dict[str, int] = {}
        quantizers: dict[str, Quantizer] = {}
        errors: list[NnefError] = []
        names = {
            identifier.name: assignment.value
            for assignment in self._document.graph.body
            for identifier in s.identifiers(assignment.target)
        }
        labels = _labels(names)
        for key, node in parse_quantization(source, self.meter):
            name = str(key.value)
            span = Span(source, key.offset, len(name) + 2)
            try:
                if name not in names:
                    if name in labels:
                        hint = f"that is a label: write the variable's identifier, '{labels[name]}'"
                    else:
                        hint = did_you_mean(name, names, meter=self.meter) or _NAMES
                    message = f"the graph has no tensor '{name}'"
                    raise SemanticError(message, span=span, hint=hint)
                if name in lines:
                    message = f"tensor '{name}' already has an entry on line {lines[name]}"
                    raise SemanticError(message, span=span)
                lines[name] = span.line
                quantizers[name] = self._quantizer(node, source, self._document.provisional)
            except NnefError as error:
                errors += error.errors
        raise_all(errors)
        return quantizers

    def header(self, text: str, member: str) -> Quantizer:
        """Return the quantiser that the header of a provisional tensor file describes (spec 5.2).

        `text` is the invocation in the header, and `member` is the name of the file. Raises
        NnefSyntaxError or SemanticError if the invocation is not valid.
        """
        source = Source(member, f'"data": {text}')
        entries = parse_quantization(source, self.meter)
        if len(entries) != 1:
            message = "the header of a tensor file names one quantisation algorithm"
            raise SemanticError(message, span=Span(source, 0))
        return self._quantizer(entries[0][1], source, provisional=True)

    def _quantizer(self, node: s.Expression, source: Source, provisional: bool) -> Quantizer:
        fragment = self._algorithm(node, source)
        assert isinstance(node, s.Invocation)
        tensor, *parameters = fragment.parameters
        for argument in node.arguments:
            if argument.name in (None, tensor.name):
                rule = "arguments must be named"
                if argument.name:
                    rule = "the tensor must not be given"
                span = s.span_in(source, argument)
                named = ", ".join(f"{parameter.name} = ..." for parameter in parameters)
                hint = f"write {named}"
                raise SemanticError(f"in a quantisation entry {rule}", span=span, hint=hint)
        tensor_argument = s.Argument(node.offset, None, s.Identifier(node.offset, _TENSOR))
        call = replace(node, operation=fragment.name, arguments=(tensor_argument, *node.arguments))
        errors: list[NnefError] = []
        types = {_TENSOR: tensor.type}
        _ArgumentTypes(self._scope, source, provisional, errors, None, types).type_of(call)
        raise_all(errors)
        values: dict[str, ArgumentValue] = {}
        positions = self._scope.form(fragment, call).positions
        for parameter in parameters:
            position = positions.get(parameter.name)
            if position is not None:
                value = self._value(call.arguments[position].value, source)
                value = _as_declared(value, parameter.type)
                if not isinstance(parameter.type, ArrayOf | TupleOf):
                    values[parameter.name] = value
        quantizer = Quantizer(source, node, fragment.name, values)
        if fragment.name in ALGORITHMS:
            raise_all(list(quantizer.problems()))
        return quantizer

    def _algorithm(self, node: s.Expression, source: Source) -> s.Fragment:
        """Return the declaration of the operation in an entry.

        Raises SemanticError unless the operation takes a tensor of scalars and returns one.
        """
        assert isinstance(node, s.Invocation | s.Builtin)
        operation = node.operation if isinstance(node, s.Invocation) else node.function
        name = _ALIASES.get(operation, operation)
        span = s.span_in(source, node)
        algorithms = [*ALGORITHMS, *(fragment.name for fragment in self._document.fragments)]
        fragment = self._scope.lookup(name, None)
        if fragment is None or name not in algorithms:
            message = f"'{operation}' is not a quantisation algorithm"
            hint = did_you_mean(name, algorithms, meter=self.meter, most=2)
            if not hint:
                hint = f"there are {', '.join(ALGORITHMS)}, and the document's own fragments"
            raise SemanticError(message, span=span, hint=hint)
        types = [parameter.type for parameter in fragment.parameters[:1]]
        types += [result.type for result in fragment.results]
        if len(types) != 2 or any(type not in _SCALARS for type in types):
            message = f"fragment '{name}' cannot quantise a tensor"
            hint = "its first parameter and its only result must be of type tensor<scalar>"
            raise SemanticError(message, span=span, hint=hint)
        return fragment

    def _value(self, expression: s.Expression, source: Source) -> Any:
        if not isinstance(expression, s.Invocation) or expression.operation != "constant":
            return evaluate(expression, source, self._scope, self._options)
        parts = {a.name: self._value(a.value, source) for a in expression.arguments}
        shape = tuple(parts["shape"])
        items = np.array(parts["value"])
        span = s.span_in(source, expression)
        if len(shape) > MAX_RANK:
            message = f"a constant has {len(shape)} axes, arrays have at most {MAX_RANK}"
            raise ShapeError(message, span=span)
        size = volume(shape)
        if any(extent < 1 for extent in shape) or items.size not in (1, size):
            message = f"a constant of shape {show(shape)} cannot hold {items.size} values"
            raise ShapeError(message, span=span)
        if size > self.meter.limits.array_items:
            message = f"a constant of {size} items is too large"
            raise LimitError(message, span=span, hint=raising("array_items"))
        return np.broadcast_to(items.ravel(), size).reshape(shape)


def _labels(names: dict[str, s.Expression]) -> dict[Any, str]:
    """Map the label of each variable to the identifier of the variable.

    `names` maps identifiers to the expressions that are assigned to them. If several variables have
    a label, the label is mapped to the first of them.
    """
    labels: dict[Any, str] = {}
    for name, value in names.items():
        if isinstance(value, s.Invocation) and value.operation == "variable":
            for argument in value.arguments:
                if argument.name == "label" and isinstance(argument.value, s.Literal):
                    labels.setdefault(argument.value.value, name)
    return labels


def _as_declared(value: Any, type: Type) -> Any:
    """Convert the value of an argument to a declared type: an integer becomes a scalar.

    Texts of 1.0 provisional write scalars as integers.
    """
    if isinstance(value, list):
        return [_as_declared(item, type) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return float(value) if type in _REAL and isinstance(value, int) else value
