"""Flattens a checked document: evaluates the graph's body and expands fragments (spec 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.custom_operations import (
    custom_kind,
    is_body,
    types_of,
    with_list_extents,
)
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

_LONGEST_PREFIX = 200  # the largest number of characters of the prefix of a frame


def flatten(
    scope: Scope, calls: Calls, options: Options, quantizers: Mapping[str, Quantizer]
) -> Graph:
    """Flatten a checked document into a graph.

    `calls` are the invocations that `semantics.check` returned. `quantizers` maps names of tensors
    to the quantisers that round these tensors after they are computed.

    Raises SemanticError, ShapeError, UnsupportedError or LimitError. All errors of the document are
    raised together. An error that is only the consequence of another error is left out. Raises
    ExtentNeeded if the graph depends on an open extent.
    """
    with within_memory("the flat graph"):
        return _Flattener(scope, options, quantizers).flatten(calls)


def evaluate(expression: tree.Expression, source: Source, scope: Scope, options: Options) -> Any:
    """Evaluate a checked expression that is in no body, for example an argument in graph.quant.

    Raises SemanticError if the expression has no value or invokes an operation, ExtentNeeded if it
    reads a name, and LimitError if its value is too large.
    """
    flattener = _Flattener(scope, options, quantizers={})
    frame = Frame(fragment=None, source=source, values={})
    invocation = next(tree.invocations([expression]), None)
    if invocation is not None:
        message = "an expression here must not call operations"
        hint = "write numbers and arrays of numbers"
        raise flattener.error(message, invocation, frame, hint)
    try:
        return flattener.run(expression, frame)
    except KeyError:  # The expression reads a name, and `frame` has no values of names.
        raise ExtentNeeded from None


class _Flattener(Evaluator):
    """Evaluates the body of the graph, or of a fragment, and adds the operations to a flat graph.

    `quantizers` maps names of tensors to the quantisers that round these tensors.
    """

    def __init__(self, scope: Scope, options: Options, quantizers: Mapping[str, Quantizer]) -> None:
        super().__init__(scope.document, options)
        self.scope = scope
        self.quantizers = quantizers
        self.errors: list[NnefError] = []
        self.variables: set[Value] = set()
        # Maps quantised tensors to the same tensors before quantisation.
        self.unquantized: dict[Value, Value] = {}
        self.bodies: Set[str] = set()  # the names of the fragments that enclose this graph
        self._atomic: dict[int, bool] = {}  # maps ids of fragments to results of `_is_atomic`

    def run(self, expression: tree.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """Evaluate an expression to its end, and return its value.

        `names` are the names of the tensors that are added to the graph for the expression.
        """
        value = self._evaluate(expression, frame, names)
        return self._run(value) if isinstance(value, GeneratorType) else value

    def flatten(self, calls: Calls) -> Graph:
        """Flatten the document's graph. `calls` are the invocations in its body."""
        graph = self.document.graph
        source = self.document.source
        unsupported_names = self._unsupported_names([*self._entry_calls(), (calls, source)])
        frame = Frame(fragment=None, source=source, values={})
        # The names of the document are reserved, so that inserted tensors get different names.
        for assignment in graph.body:
            self.builder.reserve(_names(assignment))
        for assignment in graph.body:
            if unsupported_names and add_if_unsupported(
                self, assignment, frame.values, unsupported_names, source
            ):
                continue
            try:
                self._assign(assignment, frame)
            except Poisoned:
                pass  # The assignment reads a name whose own assignment has an error.
            except LimitError as error:
                error.span = error.span or tree.span_in(source, assignment.value)
                raise
            except NnefError as error:
                self.meter.steps += ERROR_STEPS
                self.errors += without_frames(error)
            for name in _names(assignment):
                # If the assignment has failed, its names have no value.
                frame.values.setdefault(name, Poisoned)
        raise_all(self.errors)
        input_names = [parameter.name for parameter in graph.parameters]
        output_names = [result.name for result in graph.results]
        outputs = [frame.values[name] for name in output_names]
        unfixed_names = self.options.unfixed(input_names)
        return self.builder.graph(graph.name, outputs, output_names, unfixed_names)

    def _assign(self, assignment: tree.Assignment, frame: Frame) -> None:
        """Evaluate an assignment of the graph's body, and set the assigned names in `frame`."""
        value = self.run(assignment.value, frame, _names(assignment))
        for name, item in self.unpacked(assignment.target, value, frame):
            has_name = isinstance(item, Value) and item.name == name
            if not has_name:
                item = self._named(name, item, assignment, frame)
            if self.quantizers:
                item = self._quantized(name, item)
            frame.values[name] = item

    def _entry_calls(self) -> list[tuple[Calls, Source]]:
        """Return a pair (invocations, source) for each entry of graph.quant."""
        quantizers = self.quantizers.values()
        return [(calls_of([quantizer.node]), quantizer.source) for quantizer in quantizers]

    def _unsupported_names(self, bodies: Sequence[tuple[Calls, Source]]) -> frozenset[str]:
        """Return the names of unsupported operations and of the fragments that call them.

        The search for operations begins in `bodies`. If the network is to be run, not only to be
        shown, raise UnsupportedError for unsupported operations instead.
        """
        search = (bodies, self.scope, self._has_rule, self._is_atomic)
        if self.options.outline:
            operations = [*unsupported(*search), *self.scope.undeclared()]
            fragments = {fragment.name: fragment for fragment in self.document.fragments}
            names = callers_of(operations, fragments)
            if names:
                return names
        refuse_unsupported(*search)
        return frozenset()

    def _named(self, name: str, item: Value | Scalar, node: tree.SyntaxNode, frame: Frame) -> Value:
        """Return the tensor that the main graph assigns to `name`.

        If `item` is a number, the tensor is a constant. If the tensor has another name already,
        `name` becomes an alias of the tensor.
        """
        if not isinstance(item, Value):
            try:
                item = self._constant(item, rank=1, place=CallPlace(node, frame, [name]))
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
        (constant,) = self.emit("constant", operands={}, attributes=attributes, place=place)
        return constant

    def _quantized(self, name: str, value: Value) -> Value:
        """Quantise the tensor `value` by the entry of graph.quant for `name` (spec 7.1).

        If graph.quant has no entry for the name, `value` is returned unchanged.
        """
        quantizer = self.quantizers.get(name)
        if quantizer is None:
            return value
        result_name = self.builder.unreserved(f"{name}_quantized")
        frame = Frame(
            fragment=None,
            source=quantizer.source,
            values={name: value},
            prefix=f"{result_name}_",
        )
        node = quantizer.invocation(name, value.type, variable=value in self.variables)
        result = self._run(self._invoke(node, frame, [result_name]))
        self.builder.aliases[name] = result
        self.unquantized[result] = value
        return result

    # Invocations

    def _invoke(self, node: tree.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        """Invoke an operation; see `Evaluator._invoke`."""
        fragment = self.scope.lookup(node.operation, frame.fragment)
        # `semantics.check` has reported operations that nothing declares.
        assert fragment is not None, node.operation
        form = self.scope.form(fragment, node)
        place = CallPlace(node, frame, names)

        def apply(values: list[Any]) -> Any:
            return self._apply(fragment, form, values, place)

        values = self._all(form.expressions(node), frame)
        if isinstance(values, GeneratorType):
            return self._then(values, apply)
        return apply(values)

    def _apply(
        self, fragment: tree.Fragment, form: Form, values: list[Any], place: CallPlace
    ) -> Any:
        """Apply an operation to the values of its parameters; return its result.

        `values` has a value for each parameter of `fragment`, in the order of `form`. If the body
        of the fragment is evaluated, return a generator that returns the result.
        """
        node, frame, _ = place
        if self.document.provisional:
            for i, parameter in enumerate(fragment.parameters):
                values[i] = self._declared(node, frame, values[i], parameter.type)
        arguments = dict(zip(form.names, values, strict=True))
        generic = None
        if fragment.generic:
            generic = generic_of(fragment, cast(tree.Invocation, node), arguments, frame.generic)
        introduces_tensor = fragment.name in INTRODUCING and fragment is standard()[fragment.name]
        if introduces_tensor:
            return self._introduce(fragment.name, arguments, generic, place)
        kind = self._custom_kind(fragment)
        is_custom = kind != ""
        if not is_custom and not self._is_atomic(fragment):
            return self._call(fragment, arguments, generic, place)
        operands = {name: arguments[name] for name in form.operands}
        attributes = {name: arguments[name] for name in form.attributes}
        if fragment.name in GENERIC_RESULT and not is_custom:
            try:
                attributes["dtype"] = dtype_of(generic, self.builder)
            except InvalidOperation as error:
                raise self.invalid(
                    error, fragment.name, operands={}, node=node, frame=frame
                ) from None
        if is_custom:
            results = self._emit_custom(kind, operands, attributes, place)
        else:
            results = self._emit(fragment.name, operands, attributes, place)
        return results[0] if len(results) == 1 else results

    def _call(
        self,
        fragment: tree.Fragment,
        arguments: dict[str, Any],
        generic: str | None,
        place: CallPlace,
    ) -> Step:
        """Evaluate the body of a fragment; return the result, or the tuple of results.

        `arguments` has the values of the parameters by name. `generic` is the type that `?` stands
        for in the body.
        """
        node, frame, names = place
        calls = (*frame.calls, Call(fragment.name, tree.span_in(frame.source, node)))
        if len(calls) > self.limits.call_depth:
            message = f"fragments call each other more than {self.limits.call_depth} deep"
            raise self.beyond(message, "call_depth", tree.span_in(frame.source, node), calls[:-1])
        work = CALL_STEPS + EVALUATION_STEPS * len(fragment.body or ()) + len(fragment.results)
        self.spend(work + len(calls) // CALLS_PER_STEP, node, frame)
        declared_names = [result.name for result in fragment.results]
        # A call may name fewer results than the fragment has.
        name_by_result = dict(zip(declared_names, names, strict=False))
        call_name = names[0] if names else frame.prefix + fragment.name
        prefix = f"{call_name}_"
        if len(prefix) > _LONGEST_PREFIX:
            # The prefix of a nested call contains the outer prefix. Long prefixes fill memory.
            prefix = f"{fragment.name[:_LONGEST_PREFIX]}_"
        inner = Frame(fragment, fragment.source, arguments, prefix, calls, generic)
        assert fragment.body is not None
        for assignment in fragment.body:
            targets = _names(assignment)
            is_only_result = len(declared_names) == 1 and targets == declared_names
            if names and is_only_result:
                # The tensors of the result get the names of the call. If the result is an array,
                # there is a name for each of its tensors.
                tensor_names = names
            else:
                # The name of a tensor that is no result: the prefix, then the name in the fragment.
                tensor_names = [name_by_result.get(x) or self.local(prefix + x) for x in targets]
            value = yield self._evaluate(assignment.value, inner, tensor_names)
            inner.values.update(self.unpacked(assignment.target, value, inner))
        results: list[Any] = []
        for result in fragment.results:
            value = inner.values[result.name]
            results.append(self._declared(node, frame, value, result.type))
        return results[0] if len(results) == 1 else tuple(results)

    # Custom operations of a network that was converted from another format

    def _custom_kind(self, fragment: tree.Fragment) -> str:
        """Return the kind that a fragment stands for if it is a custom operation, otherwise "".

        A fragment for which the user has a rule is not a custom operation.
        """
        is_in_document = fragment.source is self.document.source
        if not is_in_document or fragment.name in self.options.rules:
            return ""
        return custom_kind(fragment)

    def _emit_custom(
        self, kind: str, operands: ByName, attributes: ByName, place: CallPlace
    ) -> tuple[Any, ...]:
        """Add the operation that a custom operation stands for. Return the operation's results."""
        try:
            attributes = dict(attributes)
            for name, attribute in attributes.items():
                if is_body(attribute):
                    attributes[name] = self._body(attribute, place)
                else:
                    attributes[name] = with_list_extents(attribute)
            operands = self._of_one_dtype(operands)
            return self._emit(kind, operands, attributes, place, least=0)
        except NnefError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The document declares the types of the operation. The kind may not take these types,
            # so the rule of the kind may fail in any way.
            message = f"'{kind}' does not take its arguments: {error}"
            raise self.error(message, place.node, place.frame) from error

    def _of_one_dtype(self, operands: ByName) -> ByName:
        """Convert Python integers among the operands to the dtype of the operands' integer tensors.

        If the integer tensors have different dtypes, the Python integers are not converted.
        """
        tensor_dtypes = [x.type.dtype for x in operands.values() if isinstance(x, Value)]
        integer_dtypes = set(filter(is_integer, tensor_dtypes))
        is_single_dtype = len(integer_dtypes) == 1
        # Without a conversion, Python integers have the dtype `builder.integer`.
        if not is_single_dtype or self.builder.integer in integer_dtypes:
            return operands
        convert = np.dtype(integer_dtypes.pop()).type
        converted = dict(operands)
        for name, operand in operands.items():
            if type(operand) is int:
                converted[name] = convert(operand)
        return converted

    def _body(self, value: Sequence[Any], place: CallPlace) -> Graph:
        """Return the graph that the argument `value` of a custom operation stands for.

        The argument has the name of a fragment, followed by the types of the fragment's parameters.
        The graph is the flattened body of the fragment.
        """
        fragment_name = value[0]
        fragment = self.scope.lookup(fragment_name, caller=None)
        types = types_of(value, self.options.real)
        if fragment is None or fragment.body is None or len(fragment.parameters) != len(types):
            raise ValueError(f"there is no fragment '{fragment_name}' with {len(types)} parameters")
        if fragment_name in self.bodies:
            raise ValueError(f"fragment '{fragment_name}' contains itself")
        inner = _Flattener(self.scope, self.options, quantizers={})
        inner.bodies = {*self.bodies, fragment_name}
        calls = calls_of(assignment.value for assignment in fragment.body)
        refuse_unsupported([(calls, fragment.source)], self.scope, self._has_rule, self._is_atomic)
        input_names = [parameter.name for parameter in fragment.parameters]
        inputs: dict[str, Any] = {}
        for name, type in zip(input_names, types, strict=True):
            inputs[name] = inner.builder.input(name, type)
        step = inner._call(fragment, inputs, generic=None, place=place._replace(names=()))
        values = inner._run(step)
        outputs = list(values) if isinstance(values, tuple) else [values]
        output_names = [result.name for result in fragment.results]
        return inner.builder.graph(fragment.name, outputs, output_names, input_names)

    # Operations that introduce tensors

    def _introduce(
        self, kind: str, arguments: ByName, generic: str | None, place: CallPlace
    ) -> Value:
        """Return the tensor that an operation introduces.

        `kind` is the name of the operation: "external", "variable" or "update". `generic` is the
        type that `?` stands for in the operation.
        """
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
            raise self.invalid(error, kind, operands={}, node=node, frame=frame) from None

    def _external(self, name: str, shape: Sequence[int], dtype: str, place: CallPlace) -> Value:
        """Add an input to the graph, or a constant if the user fixes the value of the input."""
        # In a document, the extent 0 is open (spec 4.1.1). In `declared` and in the options of a
        # load, None is open, and 0 is an empty axis.
        declared = [extent or None for extent in shape]
        if name in self.options.values:
            array = self.options.value(name, declared, dtype)
            items = array.ravel().tolist()
            attributes = {"shape": array.shape, "value": items, "dtype": dtype}
            (result,) = self.emit("constant", operands={}, attributes=attributes, place=place)
            return result
        input_shape = self.options.input_shapes.get(name, declared)
        type = external_type(input_shape, dtype, self.options.open_extent)
        return self.bound(self.builder.input(name, type), place.node, place.frame)

    def _variable(
        self, name: str, shape: Sequence[int], label: str, dtype: str, place: CallPlace
    ) -> Value:
        """Add a variable to the graph."""
        node, frame, _ = place
        self.spend(len(label) // ITEMS_PER_STEP, node, frame)
        type = variable_type(shape, label, dtype)
        variable = self.builder.variable(name, label, type, tree.span_in(frame.source, node))
        self.variables.add(variable)
        return self.bound(variable, node, frame)

    def _update(self, variable: Any, value: Any, place: CallPlace) -> Value:
        """Update a variable to `value` (a tensor or a number). Return the new tensor."""
        is_tensor = isinstance(variable, Value)  # Otherwise `update` refuses `variable`.
        if not isinstance(value, Value):
            rank = len(variable.type.shape) if is_tensor else 1
            value = self._constant(value, rank, place)
        if is_tensor:
            variable = self.unquantized.get(variable, variable)
        return self.builder.update(variable, value)

    # What can be run

    def _is_atomic(self, fragment: tree.Fragment) -> bool:
        """Tell whether a call of a fragment becomes a single operation of the graph.

        A call becomes a single operation if the fragment has no body. The same happens if the
        fragment has a rule, unless the user expands all fragments. Otherwise the body is evaluated.
        """
        is_atomic = self._atomic.get(id(fragment))
        if is_atomic is None:
            is_expanded = self.options.expand == "all" or not self._has_rule(fragment)
            is_atomic = fragment.body is None or not is_expanded
            self._atomic[id(fragment)] = is_atomic
        return is_atomic

    def _has_rule(self, fragment: tree.Fragment) -> bool:
        """Tell whether a fragment can become a single operation: as a kind, or by a user's rule.

        The kinds are the operations of 1.0 final, and the primitives of 1.0 provisional that have
        the same names. A fragment of the document is never a kind, even if it has the name of a
        kind. A user's rule applies to operations of 1.0 final, to operations that only the
        provisional library has, and to fragments of the document.
        """
        if self._custom_kind(fragment):
            return True
        name = fragment.name
        is_in_document = fragment.source is self.document.source
        final_fragment = standard().get(name)  # the declaration in 1.0 final
        is_final = fragment is final_fragment
        if name in self.options.rules:
            is_only_provisional = final_fragment is None
            return is_in_document or is_final or is_only_provisional
        if is_in_document or name not in ops.rules:
            return False
        is_primitive = fragment.body is None and final_fragment is not None
        return is_final or is_primitive


def _names(assignment: tree.Assignment) -> list[str]:
    """Return the names in the target of an assignment."""
    return [identifier.name for identifier in tree.identifiers(assignment.target)]
