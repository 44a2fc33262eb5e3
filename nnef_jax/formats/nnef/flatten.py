"""Flattens a checked document: evaluates the graph's body and expands fragments (spec 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import chain
from types import GeneratorType
from typing import Any, cast

import numpy as np

from lowering import ops
from lowering.errors import InvalidOperation
from lowering.graph import Call, Graph, Scalar, Value, is_integer
from lowering.location import Source
from nnef_jax.errors import LimitError, NnefError, raise_all, without_frames
from nnef_jax.flattening.emission import ByName
from nnef_jax.formats.base import ExtentNeeded, Options
from nnef_jax.formats.nnef.evaluator import ITEMS_PER_STEP, Evaluator, Step
from nnef_jax.formats.nnef.expressions import Calls
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.nnef.semantics import calls_of, refuse_unsupported, unsupported
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.custom_operations import custom_kind, is_body, types_of
from nnef_jax.formats.syntax.declared_tensors import (
    dtype_of,
    external_type,
    generic_of,
    variable_type,
)
from nnef_jax.formats.syntax.emitter import CallPlace, Frame, Poisoned
from nnef_jax.formats.syntax.invocation import Form
from nnef_jax.formats.syntax.outline import add_if_unsupported, callers_of
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.standard import GENERIC_RESULT, INTRODUCING, standard
from nnef_jax.limits import CALL_STEPS, CALLS_PER_STEP, ERROR_STEPS, EVALUATION_STEPS, within_memory

_LONGEST_PREFIX = 200  # the largest number of characters of a prefix


def flatten(
    scope: Scope, calls: Calls, options: Options, quantizers: Mapping[str, Quantizer]
) -> Graph:
    """Flatten a checked document into a graph.

    `calls` are the invocations that `semantics.check` returned. `quantizers` maps names of tensors
    to the quantisers that round these tensors after they are computed.

    Raises SemanticError, ShapeError, UnsupportedError or LimitError. All errors of the document are
    raised together, except those that follow from another error. Raises ExtentNeeded if the graph
    depends on an open extent.
    """
    with within_memory("the flat graph"):
        return _Flattener(scope, options, quantizers).flatten(calls)


def evaluate(expression: s.Expression, source: Source, scope: Scope, options: Options) -> Any:
    """Evaluate a checked expression outside of bodies, such as an argument in graph.quant.

    Raises SemanticError if the expression has no value or invokes an operation, ExtentNeeded if it
    reads a name, and LimitError if its value is too large.
    """
    flattener = _Flattener(scope, options, {})
    frame = Frame(None, source, {})
    invocation = next(s.invocations([expression]), None)
    if invocation is not None:
        message = "an expression here must not call operations"
        hint = "write numbers and arrays of numbers"
        raise flattener.error(message, invocation, frame, hint)
    try:
        return flattener.run(expression, frame)
    except KeyError:
        raise ExtentNeeded from None


class _Flattener(Evaluator):
    def __init__(self, scope: Scope, options: Options, quantizers: Mapping[str, Quantizer]) -> None:
        super().__init__(scope.document, options)
        self.scope = scope
        self.quantizers = quantizers
        self.errors: list[NnefError] = []
        self.variables: set[Value] = set()
        self.unquantized: dict[Value, Value] = {}
        self.bodies: Set[str] = set()  # the names of the fragments that enclose this graph
        self._atomic: dict[int, bool] = {}  # the results of `_is_atomic` by the id of the fragment

    def run(self, expression: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        value = self._evaluate(expression, frame, names)
        return self._run(value) if isinstance(value, GeneratorType) else value

    def flatten(self, calls: Calls) -> Graph:
        graph = self.document.graph
        source = self.document.source
        refused = self._refused([*self._entry_calls(), (calls, source)])
        frame = Frame(None, source, {})
        targets = [_names(assignment) for assignment in graph.body]
        self.builder.reserve(chain(*targets))
        for assignment, names in zip(graph.body, targets, strict=True):
            if refused and add_if_unsupported(self, assignment, frame.values, refused, source):
                continue
            try:
                value = self.run(assignment.value, frame, names)
                for name, item in self.unpacked(assignment.target, value, frame):
                    if not isinstance(item, Value) or item.name != name:
                        item = self._named(name, item, assignment, frame)
                    if self.quantizers:
                        item = self._quantized(name, item)
                    frame.values[name] = item
            except Poisoned:
                pass
            except LimitError as error:
                error.span = error.span or s.span_in(source, assignment.value)
                raise
            except NnefError as error:
                self.meter.steps += ERROR_STEPS
                self.errors += without_frames(error)
            for name in names:
                frame.values.setdefault(name, Poisoned)
        raise_all(self.errors)
        inputs = [parameter.name for parameter in graph.parameters]
        outputs = [frame.values[result.name] for result in graph.results]
        names = [result.name for result in graph.results]
        return self.builder.graph(graph.name, outputs, names, self.options.unfixed(inputs))

    def _entry_calls(self) -> list[tuple[Calls, Source]]:
        """Return the invocations in each entry of graph.quant, with the entry's source."""
        quantizers = self.quantizers.values()
        return [(calls_of([quantizer.node]), quantizer.source) for quantizer in quantizers]

    def _refused(self, bodies: Sequence[tuple[Calls, Source]]) -> frozenset[str]:
        """Return the names of unsupported operations and of the fragments that call them.

        If the network is flattened to be run, not only to be shown, raise UnsupportedError for
        unsupported operations instead.
        """
        search = bodies, self.scope, self._has_rule, self._is_atomic
        if self.options.outline:
            fragments = {fragment.name: fragment for fragment in self.document.fragments}
            refused = callers_of([*unsupported(*search), *self.scope.undeclared()], fragments)
            if refused:
                return refused
        refuse_unsupported(*search)
        return frozenset()

    def _named(self, name: str, item: Value | Scalar, node: s.SyntaxNode, frame: Frame) -> Value:
        """Return the tensor for `item`, a tensor or a number that the main graph assigns to `name`.

        If the tensor has a name already, `name` becomes an alias of it.
        """
        if not isinstance(item, Value):
            try:
                item = self._constant(item, 1, CallPlace(node, frame, [name]))
            except InvalidOperation as error:
                raise self.error(error.message, node, frame) from None
        if item.name != name:
            self.builder.aliases[name] = item
        return item

    def _constant(self, value: Scalar, rank: int, place: CallPlace) -> Value:
        """Add a number to the graph as a constant tensor with a single item (spec 3.3.2).

        The tensor has `rank` axes of extent 1.
        """
        dtype = self.builder.literal_type(value).dtype
        attributes = {"shape": [1] * rank, "value": [value], "dtype": dtype}
        return self.emit("constant", {}, attributes, place)[0]

    def _quantized(self, name: str, value: Value) -> Value:
        """Return the tensor that expressions read for `name`.

        It is `value`, or `value` after quantisation if graph.quant has an entry for the name (spec
        7.1).
        """
        quantizer = self.quantizers.get(name)
        if quantizer is None:
            return value
        result_name = self.builder.unreserved(f"{name}_quantized")
        frame = Frame(None, quantizer.source, {name: value}, f"{result_name}_")
        node = quantizer.invocation(name, value.type, variable=value in self.variables)
        result = self._run(self._invoke(node, frame, [result_name]))
        self.builder.aliases[name] = result
        self.unquantized[result] = value
        return result

    # Invocations

    def _invoke(self, node: s.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        fragment = self.scope.lookup(node.operation, frame.fragment)
        assert fragment is not None, node.operation  # `semantics.check` has looked the operation up
        form = self.scope.form(fragment, node)
        place = CallPlace(node, frame, names)
        values = self._all(form.expressions(node), frame)
        if isinstance(values, GeneratorType):
            return self._then(values, lambda v: self._apply(fragment, form, v, place))
        return self._apply(fragment, form, values, place)

    def _apply(self, fragment: s.Fragment, form: Form, values: list[Any], place: CallPlace) -> Any:
        """Apply an operation to the values of its parameters; return its result.

        If the operation is a fragment whose body is evaluated, return a generator that returns the
        result.
        """
        node, frame, _ = place
        if self.document.provisional:
            pairs = zip(values, fragment.parameters, strict=True)
            values = [self._declared(node, frame, value, p.type) for value, p in pairs]
        arguments = dict(zip(form.names, values, strict=True))
        generic = None
        if fragment.generic:
            generic = generic_of(fragment, cast(s.Invocation, node), arguments, frame.generic)
        if fragment.name in INTRODUCING and fragment is standard()[fragment.name]:
            return self._introduce(fragment.name, arguments, generic, place)
        kind = self._custom_kind(fragment)
        if not kind and not self._is_atomic(fragment):
            return self._call(fragment, arguments, generic, place)
        operands = {name: arguments[name] for name in form.operands}
        attributes = {name: arguments[name] for name in form.attributes}
        if not kind and fragment.name in GENERIC_RESULT:
            try:
                attributes["dtype"] = dtype_of(generic, self.builder)
            except InvalidOperation as error:
                raise self.invalid(error, fragment.name, {}, node, frame) from None
        add = self._emit_custom if kind else self._emit
        results = add(kind or fragment.name, operands, attributes, place)
        return results[0] if len(results) == 1 else results

    def _call(
        self, fragment: s.Fragment, arguments: dict[str, Any], generic: str | None, place: CallPlace
    ) -> Step:
        """Evaluate the body of a fragment for arguments; return the results of the fragment.

        `generic` is the type that `?` stands for in the body.
        """
        node, frame, names = place
        calls = (*frame.calls, Call(fragment.name, s.span_in(frame.source, node)))
        if len(calls) > self.limits.call_depth:
            message = f"fragments call each other more than {self.limits.call_depth} deep"
            raise self.beyond(message, "call_depth", s.span_in(frame.source, node), calls[:-1])
        work = CALL_STEPS + EVALUATION_STEPS * len(fragment.body or ()) + len(fragment.results)
        self.spend(work + len(calls) // CALLS_PER_STEP, node, frame)
        # A call may name fewer results than the fragment has.
        result_names = dict(zip([r.name for r in fragment.results], names, strict=False))
        call_name = names[0] if names else frame.prefix + fragment.name
        prefix = f"{call_name}_"
        if len(prefix) > _LONGEST_PREFIX:  # the prefixes of recursive calls would fill the memory
            prefix = f"{fragment.name[:_LONGEST_PREFIX]}_"
        inner = Frame(fragment, fragment.source, arguments, prefix, calls, generic)
        assert fragment.body is not None
        for assignment in fragment.body:
            targets = _names(assignment)
            # If an array is the only result, its tensors get all the names.
            is_array = len(fragment.results) == 1 and targets == [fragment.results[0].name]
            local = [result_names.get(name) or self.local(prefix + name) for name in targets]
            names_of_targets = names if names and is_array else local
            value = yield self._evaluate(assignment.value, inner, names_of_targets)
            inner.values.update(self.unpacked(assignment.target, value, inner))
        values = [(inner.values[result.name], result.type) for result in fragment.results]
        results = [self._declared(node, frame, value, type) for value, type in values]
        return results[0] if len(results) == 1 else tuple(results)

    # Custom operations of a network that was converted from another format

    def _custom_kind(self, fragment: s.Fragment) -> str:
        """Return the kind that a fragment stands for if it is a custom operation, otherwise "".

        A fragment for which the user has a rule is not a custom operation.
        """
        if fragment.source is not self.document.source or fragment.name in self.options.rules:
            return ""
        return custom_kind(fragment)

    def _emit_custom(
        self, kind: str, operands: ByName, attributes: ByName, place: CallPlace
    ) -> tuple[Any, ...]:
        """Add an operation of the kind that a custom operation stands for; return its results."""
        try:
            attributes = dict(attributes)
            for name, x in attributes.items():
                if is_body(x):
                    attributes[name] = self._body(x, place)
            return self._emit(kind, self._of_one_dtype(operands), attributes, place, least=0)
        except NnefError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The document declares the operation, so the types of its arguments were not checked.
            message = f"'{kind}' does not take its arguments: {error}"
            raise self.error(message, place.node, place.frame) from error

    def _of_one_dtype(self, operands: ByName) -> ByName:
        """Convert Python integers among the operands to the dtype of the tensors of integers.

        The integers are not converted if the tensors of integers have different dtypes.
        """
        tensors = [x.type.dtype for x in operands.values() if isinstance(x, Value)]
        dtypes = set(filter(is_integer, tensors))
        if len(dtypes) != 1 or self.builder.integer in dtypes:
            return operands
        as_item = np.dtype(dtypes.pop()).type
        integers = {name: as_item(x) for name, x in operands.items() if type(x) is int}
        return {**operands, **integers}

    def _body(self, value: Sequence[Any], place: CallPlace) -> Graph:
        """Return the graph that the argument `value` of a custom operation stands for.

        The argument has the name of a fragment, followed by the types of the fragment's parameters.
        The graph is the flattened body of the fragment.
        """
        fragment = self.scope.lookup(value[0], None)
        types = types_of(value, self.options.real)
        if fragment is None or fragment.body is None or len(fragment.parameters) != len(types):
            raise ValueError(f"there is no fragment '{value[0]}' with {len(types)} parameters")
        if value[0] in self.bodies:
            raise ValueError(f"fragment '{value[0]}' contains itself")
        inner = _Flattener(self.scope, self.options, {})
        inner.bodies = {*self.bodies, value[0]}
        calls = calls_of(assignment.value for assignment in fragment.body)
        refuse_unsupported([(calls, fragment.source)], self.scope, self._has_rule, self._is_atomic)
        names = [parameter.name for parameter in fragment.parameters]
        inputs = dict(zip(names, map(inner.builder.input, names, types), strict=True))
        values = inner._run(inner._call(fragment, inputs, None, place._replace(names=())))
        results = [result.name for result in fragment.results]
        outputs = list(values) if isinstance(values, tuple) else [values]
        return inner.builder.graph(fragment.name, outputs, results, names)

    # Operations that introduce tensors

    def _introduce(
        self, kind: str, arguments: ByName, generic: str | None, place: CallPlace
    ) -> Value:
        node, frame, names = place
        name = names[0] if names else frame.prefix + kind
        try:
            dtype = dtype_of(generic, self.builder)
            if kind == "external":
                return self._external(name, arguments["shape"], dtype, place)
            if kind == "variable":
                return self._variable(name, arguments["shape"], arguments["label"], dtype, place)
            return self._update(arguments["variable"], arguments["value"], place)
        except InvalidOperation as error:
            raise self.invalid(error, kind, {}, node, frame) from None

    def _external(self, name: str, shape: Sequence[int], dtype: str, place: CallPlace) -> Value:
        # An extent of 0 is open in the document (spec 4.1.1), but an empty axis in a call.
        declared = [extent or None for extent in shape]
        if name in self.options.values:
            array = self.options.value(name, declared, dtype)
            items = array.ravel().tolist()
            constant = {"shape": array.shape, "value": items, "dtype": dtype}
            return self.emit("constant", {}, constant, place)[0]
        input_shape = self.options.input_shapes.get(name, declared)
        type = external_type(input_shape, dtype, self.options.open_extent)
        return self.bound(self.builder.input(name, type), place.node, place.frame)

    def _variable(
        self, name: str, shape: Sequence[int], label: str, dtype: str, place: CallPlace
    ) -> Value:
        node, frame, _ = place
        self.spend(len(label) // ITEMS_PER_STEP, node, frame)
        type = variable_type(shape, label, dtype)
        variable = self.builder.variable(name, label, type, s.span_in(frame.source, node))
        self.variables.add(variable)
        return self.bound(variable, node, frame)

    def _update(self, variable: Any, value: Any, place: CallPlace) -> Value:
        if not isinstance(value, Value):
            rank = len(variable.type.shape) if isinstance(variable, Value) else 1
            value = self._constant(value, rank, place)
        if isinstance(variable, Value):
            variable = self.unquantized.get(variable, variable)
        return self.builder.update(variable, value)

    # What can be run

    def _is_atomic(self, fragment: s.Fragment) -> bool:
        """Tell whether a call of a fragment becomes a single operation of the graph.

        Otherwise the body of the fragment is evaluated.
        """
        is_atomic = self._atomic.get(id(fragment))
        if is_atomic is None:
            is_expanded = self.options.expand == "all" or not self._has_rule(fragment)
            is_atomic = fragment.body is None or not is_expanded
            self._atomic[id(fragment)] = is_atomic
        return is_atomic

    def _has_rule(self, fragment: s.Fragment) -> bool:
        """Tell whether a fragment can become a single operation: as a kind, or by a user's rule.

        The kinds are the operations of 1.0 final, and the primitives of 1.0 provisional that have
        the same names. A fragment of the document is no kind, even if it has the name of a kind. A
        user's rule applies to operations of 1.0 final, to operations that only the provisional
        library has, and to fragments of the document.
        """
        if self._custom_kind(fragment):
            return True
        name = fragment.name
        final = standard().get(name)
        in_document = fragment.source is self.document.source
        if name in self.options.rules:
            return in_document or final is None or final is fragment
        is_primitive = fragment.body is None and final is not None
        is_kind = name in ops.rules and (final is fragment or is_primitive)
        return is_kind and not in_document


def _names(assignment: s.Assignment) -> list[str]:
    return [identifier.name for identifier in s.identifiers(assignment.target)]
