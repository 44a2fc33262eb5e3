"""Reads the quantisation of an archive, from graph.quant and from headers of tensor files.

Only provisional tensor files have quantisation in their headers. An entry of graph.quant names the
operation that rounds a tensor (spec 5.3, 7.1). The arguments of the operation are numbers, arrays
of numbers, or `constant(shape = ..., value = ...)`. `quantizer.Quantizer` applies the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import MAX_RANK, show, volume
from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefError, SemanticError, ShapeError, raise_all
from nnef_jax.formats.base import Options
from nnef_jax.formats.nnef.expressions import ExpressionTypes
from nnef_jax.formats.nnef.flatten import evaluate
from nnef_jax.formats.nnef.parser import parse_quantization
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.quantizer import ALGORITHMS, ArgumentValue, Quantizer
from nnef_jax.formats.syntax.types import SCALAR, ArrayOf, Tensor, TupleOf, Type
from nnef_jax.limits import Meter, raising
from nnef_jax.wording.similar import did_you_mean

# Maps a name in chapter 7 of the provisional specification to the operation's name in all other
# chapters.
_ALIASES = {"quantize_linear": "linear_quantize"}
# The types of a tensor that may hold scalars. A quantisation algorithm takes and returns a tensor
# of such a type.
_TENSORS_OF_SCALARS = (Tensor("scalar"), Tensor("?"), Tensor(None))
# The types for which an integer in a text of 1.0 provisional becomes a scalar.
_REAL_TYPES = (SCALAR, Tensor("scalar"))
# In the invocation of an entry, this name stands for the quantised tensor. No argument can have
# this name.
_TENSOR = ""
_HINT_TO_NAME = "an entry must name a tensor that the body of the graph itself assigns"


class _ArgumentTypes(ExpressionTypes):
    """Infers the types of the arguments in an entry of graph.quant."""

    def how_to_define(self, name: str) -> str:
        """Return a hint for an undefined name, which is probably the name of a tensor."""
        return "arguments must be numbers: tensors have no value here"

    def fits(self, actual: Type, formal: Type) -> bool:
        """Tell whether an argument of type `actual` fits a parameter of type `formal`.

        In graph.quant, an array of numbers fits a tensor.
        """
        if isinstance(actual, ArrayOf) and isinstance(formal, Tensor):
            actual = actual.item
        return super().fits(actual, formal)

    def shown(self, formal: Type) -> str:
        """Return a declared type in the form that messages show, such as "scalar or scalar[]"."""
        if not isinstance(formal, Tensor):
            return str(formal)
        item = formal.item or "scalar"
        return f"{item} or {item}[]"

    def how_to_write(self, formal: Type, actual: Type) -> str:
        """Return a hint how to rewrite an argument of type `actual` for `formal`, or ""."""
        needs_point = "scalar" in self.shown(formal) and "integer" in str(actual)
        return "write numbers with a point, as in 2.0" if needs_point else ""


class QuantizationReader:
    """Reads graph.quant and the headers of tensor files of a document, and checks them."""

    def __init__(self, scope: Scope, options: Options) -> None:
        self._document = scope.document
        self._scope = scope
        self._options = options
        self.meter: Meter = options.meter

    def entries(self, source: Source) -> dict[str, Quantizer]:
        """Read a graph.quant; return a dict from identifiers of tensors to quantisers (spec 5.3).

        Raises NnefSyntaxError if the text is not in the language. Raises a SemanticError that
        contains all errors of the entries.
        """
        line_by_name: dict[str, int] = {}  # the line of the entry for each identifier
        quantizers: dict[str, Quantizer] = {}
        errors: list[NnefError] = []
        values: dict[str, tree.Expression] = {}  # maps identifiers to assigned expressions
        for assignment in self._document.graph.body:
            for identifier in tree.identifiers(assignment.target):
                values[identifier.name] = assignment.value
        labels = _labels(values)
        for key, node in parse_quantization(source, self.meter):
            name = str(key.value)
            quote_count = 2  # The key is the name in quotes.
            span = Span(source, key.offset, len(name) + quote_count)
            try:
                if name not in values:
                    raise self._unknown_tensor(name, values, labels, span)
                if name in line_by_name:
                    message = f"tensor '{name}' already has an entry on line {line_by_name[name]}"
                    raise SemanticError(message, span=span)
                line_by_name[name] = span.line
                quantizers[name] = self._quantizer(node, source, self._document.provisional)
            except NnefError as error:
                errors += error.errors
        raise_all(errors)
        return quantizers

    def _unknown_tensor(
        self, name: str, identifiers: Collection[str], labels: Mapping[Any, str], span: Span
    ) -> SemanticError:
        """Return the error for an entry with a name that is no identifier of the graph.

        `identifiers` are the identifiers of the graph, and `labels` maps the labels of variables to
        identifiers. `span` is the entry's place.
        """
        if name in labels:
            hint = f"that is a label: write the variable's identifier, '{labels[name]}'"
        else:
            hint = did_you_mean(name, identifiers, meter=self.meter) or _HINT_TO_NAME
        return SemanticError(f"the graph has no tensor '{name}'", span=span, hint=hint)

    def header(self, text: str, member: str) -> Quantizer:
        """Return the quantiser that the header of a provisional tensor file describes (spec 5.2).

        `text` is the invocation in the header, and `member` is the name of the file. Raises
        NnefSyntaxError or SemanticError if the invocation is not valid.
        """
        # The invocation is parsed as an entry of graph.quant for a tensor with an arbitrary name.
        source = Source(member, f'"data": {text}')
        entries = parse_quantization(source, self.meter)
        if len(entries) != 1:
            message = "the header of a tensor file names one quantisation algorithm"
            raise SemanticError(message, span=Span(source, 0))
        ((_, node),) = entries
        return self._quantizer(node, source, provisional=True)

    def _quantizer(self, node: tree.Expression, source: Source, provisional: bool) -> Quantizer:
        """Return the quantiser for the invocation in an entry, and check the arguments.

        If `provisional`, an integer may take the place of a scalar.
        """
        fragment = self._algorithm(node, source)
        assert isinstance(node, tree.Invocation)
        tensor, *parameters = fragment.parameters
        _check_names(node, source, fragment)
        # An entry leaves out the first argument (the tensor), but the check needs this argument.
        tensor_argument = tree.Argument(node.offset, None, tree.Identifier(node.offset, _TENSOR))
        call = replace(node, operation=fragment.name, arguments=(tensor_argument, *node.arguments))
        errors: list[NnefError] = []
        argument_types = _ArgumentTypes(
            self._scope, source, provisional, errors, fragment=None, types={_TENSOR: tensor.type}
        )
        argument_types.type_of(call)
        raise_all(errors)
        values: dict[str, ArgumentValue] = {}
        positions = self._scope.form(fragment, call).positions
        for parameter in parameters:
            position = positions.get(parameter.name)
            if position is None:  # The parameter has its default.
                continue
            # Every argument is evaluated, so that all errors are found. The values of arrays and
            # tuples are then dropped, since a quantiser does not have them.
            value = self._value(call.arguments[position].value, source)
            value = _as_declared(value, parameter.type)
            if not isinstance(parameter.type, ArrayOf | TupleOf):
                values[parameter.name] = value
        quantizer = Quantizer(source, node, fragment.name, values)
        if fragment.name in ALGORITHMS:
            raise_all(list(quantizer.problems()))
        return quantizer

    def _algorithm(self, node: tree.Expression, source: Source) -> tree.Fragment:
        """Return the declaration of the operation in an entry.

        Raises SemanticError unless the operation takes a tensor of scalars and returns one.
        """
        assert isinstance(node, tree.Invocation | tree.Builtin)
        operation = node.operation if isinstance(node, tree.Invocation) else node.function
        name = _ALIASES.get(operation, operation)
        span = tree.span_in(source, node)
        algorithms = [*ALGORITHMS, *(fragment.name for fragment in self._document.fragments)]
        fragment = self._scope.lookup(name, caller=None)
        if fragment is None or name not in algorithms:
            message = f"'{operation}' is not a quantisation algorithm"
            hint = did_you_mean(name, algorithms, meter=self.meter, most=2)
            if not hint:
                hint = f"there are {', '.join(ALGORITHMS)}, and the document's own fragments"
            raise SemanticError(message, span=span, hint=hint)
        first_parameters = fragment.parameters[:1]  # empty for a fragment without parameters
        types = [declared.type for declared in (*first_parameters, *fragment.results)]
        if len(types) != 2 or any(type not in _TENSORS_OF_SCALARS for type in types):
            message = f"fragment '{name}' cannot quantise a tensor"
            hint = "its first parameter and its only result must be of type tensor<scalar>"
            raise SemanticError(message, span=span, hint=hint)
        return fragment

    def _value(self, expression: tree.Expression, source: Source) -> Any:
        """Return the value of an argument: a number, a list, or the array of a `constant`."""
        if isinstance(expression, tree.Invocation) and expression.operation == "constant":
            return self._constant(expression, source)
        return evaluate(expression, source, self._scope, self._options)

    def _constant(self, expression: tree.Invocation, source: Source) -> NDArray[Any]:
        """Return the array of an argument `constant(shape = ..., value = ...)`.

        Raises ShapeError if the values do not fit the shape, and LimitError if the array would be
        too large.
        """
        # The names of the arguments are checked already.
        arguments: dict[str | None, Any] = {}
        for argument in expression.arguments:
            arguments[argument.name] = self._value(argument.value, source)
        shape = tuple(arguments["shape"])
        items = np.array(arguments["value"])
        span = tree.span_in(source, expression)
        if len(shape) > MAX_RANK:
            message = f"a constant has {len(shape)} axes, arrays have at most {MAX_RANK}"
            raise ShapeError(message, span=span)
        size = volume(shape)
        has_empty_axis = any(extent < 1 for extent in shape)
        if has_empty_axis or items.size not in (1, size):
            message = f"a constant of shape {show(shape)} cannot hold {items.size} values"
            raise ShapeError(message, span=span)
        if size > self.meter.limits.array_items:
            message = f"a constant of {size} items is too large"
            raise LimitError(message, span=span, hint=raising("array_items"))
        return np.broadcast_to(items.ravel(), size).reshape(shape)


def _check_names(node: tree.Invocation, source: Source, fragment: tree.Fragment) -> None:
    """Raise SemanticError if an argument of an entry has no name, or has the name of the tensor.

    `node` is the invocation in the entry, and `fragment` is the declaration of its operation. The
    tensor is the first parameter of the fragment.
    """
    tensor, *parameters = fragment.parameters
    for argument in node.arguments:
        is_tensor = argument.name == tensor.name
        if is_tensor or argument.name is None:
            rule = "the tensor must not be given" if is_tensor else "arguments must be named"
            span = tree.span_in(source, argument)
            named = ", ".join(f"{parameter.name} = ..." for parameter in parameters)
            hint = f"write {named}"
            raise SemanticError(f"in a quantisation entry {rule}", span=span, hint=hint)


def _labels(values: dict[str, tree.Expression]) -> dict[Any, str]:
    """Map the label of each variable to the identifier of the variable.

    `values` maps identifiers to the assigned expressions. If several variables have the same label,
    the label is mapped to the first of them.
    """
    identifier_by_label: dict[Any, str] = {}
    for identifier, value in values.items():
        if isinstance(value, tree.Invocation) and value.operation == "variable":
            for argument in value.arguments:
                if argument.name == "label" and isinstance(argument.value, tree.Literal):
                    label = argument.value.value
                    identifier_by_label.setdefault(label, identifier)
    return identifier_by_label


def _as_declared(value: Any, type: Type) -> Any:
    """Convert an integer to a scalar if the declared type is a type of real numbers.

    Texts of 1.0 provisional may have an integer in the place of a scalar.
    """
    if isinstance(value, list):
        return [_as_declared(item, type) for item in value]  # pyright: ignore[reportUnknownVariableType]
    is_integer = isinstance(value, int)
    return float(value) if is_integer and type in _REAL_TYPES else value
