"""Flattens a document of the dialect.

A name may be assigned more than once. An expression reads the value of the last assignment before
the expression. Values that follow from shapes are host values (see `hostvalues`). Operations on
tensors are added to the graph, with tract's implicit casts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lowering.extents import UNKNOWN
from lowering.graph import Call, Graph, Value
from nnef_jax.calls.trimming import length_name
from nnef_jax.errors import LimitError, NnefError, raise_all, without_frames
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.hostvalues import COSTLY_TYPES, weight
from nnef_jax.formats.base import GIVE_SHAPES, Options
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emitter import Frame, Poisoned
from nnef_jax.formats.syntax.invocation import InvalidInvocation, bind
from nnef_jax.formats.syntax.outline import add_if_unsupported, callers_of
from nnef_jax.formats.syntax.standard import OPERATORS
from nnef_jax.formats.syntax.types import INTEGER
from nnef_jax.formats.tract import unsupported
from nnef_jax.formats.tract.application import Results, applied, apply_fragment, tensor
from nnef_jax.formats.tract.attributes import attribute
from nnef_jax.formats.tract.call_site import REFUSALS, CallSite
from nnef_jax.formats.tract.declarations import declarations, operands
from nnef_jax.formats.tract.flat_graph import FlatCalls, FlatGraph
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import defined
from nnef_jax.formats.tract.quantized_tensors import quantized, with_codes
from nnef_jax.formats.tract.symbols import has_open_inputs
from nnef_jax.formats.tract.unit import Unit
from nnef_jax.limits import BINDING_STEPS, CALL_STEPS, ERROR_STEPS, within_memory

_NAMED_NUMBERS = {"inf": math.inf, "nan": math.nan}
_LONGEST_PREFIX = 200  # the largest number of characters of the prefix of a fragment's names
# The numbers of steps of the meter: for an assignment, for an invocation, and so on.
_ASSIGNMENT_STEPS = 3
_INVOCATION_STEPS = 10
_ARGUMENT_STEPS = 2
_ITEM_STEPS = 2  # for each item of a value that is read
_INTRINSIC_STEPS = 30
_DEEPEST_CALLS = 100  # the deepest nesting of calls of fragments; real networks nest a few calls


def flatten(
    unit: Unit, options: Options, extents: ByName, data: dict[str, NDArray[Any] | None]
) -> tuple[Graph, FlatCalls]:
    """Flatten a network. Return the graph, and the document's operation for each result.

    `extents` are the values of symbols. The arrays of variables are added to `data` by label,
    unless `data` already has the label. Raises NnefError, which contains all errors but those that
    follow from another error.
    """
    with within_memory("the flat graph"):
        document = unit.document
        header = document.graph
        shapes = {**options.input_shapes, **options.symbolic_shapes}
        graph = FlatGraph(options, data, is_open=has_open_inputs(document, shapes, extents))
        # Only the user's `progress` function needs the number of variables.
        graph.variable_count = document.variable_count if options.progress else 0
        builder = graph.builder
        builder.reserve(chain.from_iterable(map(_targets, header.body)))
        frame = Frame(fragment=None, source=document.source, values={})
        inputs = [parameter.name for parameter in header.parameters]
        unsupported_names = frozenset[str]()
        if options.outline:
            # A network that is only shown may have operations that cannot run.
            operations = unsupported.unsupported(document, options.rules)
            unsupported_names = callers_of(operations, document.fragments)
        no_values = dict.fromkeys(inputs)  # every input becomes an input of the graph
        flattener = _UnitFlattener(unit, graph, extents, no_values, unsupported_names)
        outputs = flattener.outputs(frame)
        _note_names(graph, header, frame.values)
        results = [result.name for result in header.results]
        flat = builder.graph(header.name, outputs, results, options.unfixed(inputs))
        unsupported.refuse_readers_of_padding(flat)
        for value, name, axis in unsupported.padded_outputs(flat):
            flat.aliases[length_name(name, axis, "places")] = value
        return flat, graph.calls


def _note_names(graph: FlatGraph, header: s.GraphDefinition, values: ByName) -> None:
    """Record the additional names that tensors have in the document, and the names of constants.

    `values` maps the names in the document to their values, after the body of the graph is
    evaluated.
    """
    constants: list[str] = []
    for name, value in values.items():
        if isinstance(value, Value) and value.name != name:
            graph.builder.aliases[name] = value
        if not _has_tensor(value):
            constants.append(name)
    # A step is a pair: the names that an assignment reads, and the names that it assigns to.
    steps = (([*s.names_in(assignment.value)], _targets(assignment)) for assignment in header.body)
    graph.note_folded(constants, steps)


def _targets(assignment: s.Assignment) -> list[str]:
    """Return the names to which a statement assigns values."""
    return [identifier.name for identifier in s.identifiers(assignment.target)]


def _has_tensor(value: object) -> bool:
    """Tell whether a value is a tensor of the graph, or a list or tuple that has one."""
    if isinstance(value, list | tuple):
        return any(map(_has_tensor, cast("Sequence[object]", value)))
    return isinstance(value, Value)


@dataclass(slots=True)
class _UnitFlattener:
    """The evaluation of a network into a graph.

    `extents` are the values of the network's symbols, and `inputs` the values of its inputs.
    If the network is only shown, `unsupported_names` are the fragments and operations that cannot
    run.
    """

    unit: Unit
    graph: FlatGraph
    extents: ByName
    inputs: ByName
    unsupported_names: Set[str] = frozenset()

    def into(self, graph: FlatGraph) -> _UnitFlattener:
        """Return a copy that adds operations to another graph."""
        return replace(self, graph=graph)

    def submodel(self, unit: Unit, extents: ByName, inputs: ByName, frame: Frame) -> list[Value]:
        """Evaluate another network into the same graph, and return its outputs.

        `extents` are the values of the network's symbols, and `inputs` are the tensors of its
        inputs. The values of assigned names are stored in `frame`.
        """
        return _UnitFlattener(unit, self.graph, extents, inputs).outputs(frame)

    # Statements

    def outputs(self, frame: Frame) -> list[Value]:
        """Evaluate all statements of the network, and return its outputs.

        The values of assigned names are stored in `frame`. Raises NnefError, which contains all
        errors that do not follow from another error.
        """
        document = self.unit.document
        if not self.unsupported_names:
            unsupported.refuse_unsupported(document, self.graph.options.rules, self.graph.meter)
        self._refuse_undeclared_inputs(frame)
        errors = self._evaluate_body(frame)
        outputs: list[Value] = []
        for result in document.graph.results:
            site = CallSite(self, result, frame)
            try:
                name = frame.prefix + result.name
                same_dtype = ""
                outputs.append(tensor(site, self.lookup(result, frame), same_dtype, name))
            except Poisoned:
                pass  # the error of the assignment is in `errors`
            except REFUSALS as refusal:
                errors.append(site.located(refusal))
        raise_all(errors)
        return outputs

    def _evaluate_body(self, frame: Frame) -> list[NnefError]:
        """Evaluate all statements of the network. Return the errors that do not follow from others.

        The values of assigned names are stored in `frame`. After an error, the value of a name is
        `Poisoned`.
        """
        document = self.unit.document
        errors: list[NnefError] = []
        for assignment in document.graph.body:
            if self.unsupported_names and add_if_unsupported(
                self.graph, assignment, frame.values, self.unsupported_names, document.source
            ):
                continue
            targets = _targets(assignment)
            result_names = [frame.prefix + target for target in targets]
            try:
                self._assign(assignment, result_names, frame)
                continue
            except Poisoned:
                pass  # the assignment reads a name whose own assignment has an error
            except REFUSALS as refusal:
                error = CallSite(self, assignment.value, frame).located(refusal)
                if isinstance(error, LimitError):
                    raise error from None
                self.graph.meter.steps += ERROR_STEPS
                errors += without_frames(error)
            frame.values |= dict.fromkeys(targets, Poisoned)
        return errors

    def _refuse_undeclared_inputs(self, frame: Frame) -> None:
        """Raise NnefError if the body of the graph does not declare all inputs of its header."""
        hint = "write NAME = tract_core_external(shape = [...], datum_type = 'f32');"
        document = self.unit.document
        errors: list[NnefError] = []
        for parameter in document.graph.parameters:
            if parameter.name not in document.input_shapes:
                message = f"input '{parameter.name}' is not declared"
                errors.append(CallSite(self, parameter, frame).error(message, hint))
        raise_all(errors)

    def _assign(self, assignment: s.Assignment, result_names: Sequence[str], frame: Frame) -> None:
        """Evaluate a statement, and store the values of the assigned names in `frame`.

        Results of operations get the names in `result_names`.
        """
        self.graph.meter.spend(_ASSIGNMENT_STEPS)
        assigned = self.evaluate(assignment.value, frame, result_names)
        for name, part in self.graph.unpacked(assignment.target, assigned, frame):
            value = list(part) if isinstance(part, Results) else part
            # The names in graph.quant are those of the graph's body, not of a fragment's body.
            if frame.fragment is None and name in self.unit.quantizers:
                value = quantized(CallSite(self, assignment, frame), name, value)
            frame.values[name] = value

    # Expressions

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """Evaluate an expression and return its value.

        If operations are added to the graph for the expression, their results get the names in
        `names`.
        """
        match node:  # these expressions need no call site
            case s.Literal(value=value):
                return value
            case s.Identifier():
                value = self.lookup(node, frame)
                # A large value counts against the limits each time that its name is read.
                if type(value) in COSTLY_TYPES:
                    self.graph.meter.spend(_ITEM_STEPS * weight(value))
                return value
            case s.Array(items=items) | s.Tuple(items=items):
                self.graph.meter.spend(len(items))
                values: list[Any] = []
                for item in items:
                    if type(item) is s.Literal:  # most items are literals
                        values.append(item.value)
                    else:
                        values.append(self.evaluate(item, frame))
                return values if isinstance(node, s.Array) else tuple(values)
            case _:
                pass
        site = CallSite(self, node, frame, names)
        value_of = partial(self.evaluate, frame=frame)
        try:
            match node:
                case s.Invocation():
                    return self._invoke(node, site)
                case s.Unary(operand=operand):
                    return self._operator("neg", {"x": value_of(operand)}, site)
                case s.Binary(operator=operator, left=left, right=right):
                    operands = {"x": value_of(left), "y": value_of(right)}
                    return self._operator(OPERATORS[operator], operands, site)
                case s.Subscript(sequence=sequence, index=index):
                    # Unlike `evaluate`, `lookup` does not count steps for all items of a name.
                    is_name = isinstance(sequence, s.Identifier)
                    items = self.lookup(sequence, frame) if is_name else value_of(sequence)
                    return self._item(items, value_of(index), site)
                case _:
                    raise site.error("this cannot be computed in the dialect")
        except REFUSALS as error:
            raise site.located(error) from None

    def lookup(self, node: s.Identifier, frame: Frame) -> Any:
        """Return the value of an identifier.

        The identifier is `inf`, `nan`, a symbol, or a name to which a statement has assigned a
        value. Raises Poisoned if the statement was wrong, and NnefError if the identifier has no
        value.
        """
        name = node.name
        if name in frame.values:
            value = frame.values[name]
            if value is Poisoned:
                raise Poisoned
            return value
        if name in self.extents:
            extent = self.extents[name]
            # If no extent of the inputs is open, only the length of a stream may be open.
            may_be_open = self.graph.is_open or self.unit.document.is_pulsed
            if extent is UNKNOWN and not may_be_open:
                message = f"symbol '{name}' does not follow from the shapes of the inputs"
                raise self.graph.error(message, node, frame)
            return extent
        if name in _NAMED_NUMBERS:
            return _NAMED_NUMBERS[name]
        raise self.graph.error(f"'{name}' is not defined here", node, frame)

    def _item(self, values: Any, index: object, site: CallSite) -> Any:
        """Return the item at an index of a list, a tuple or a constant array."""
        graph = self.graph
        # A small parameter is replaced by its value, which is stored in the archive. Of a list of
        # parameters, only the chosen item is replaced, in the last line of this function.
        if isinstance(values, Value):
            values = graph.known(values)
        is_array = isinstance(values, np.ndarray)
        has_items = values.ndim > 0 if is_array else isinstance(values, list | tuple)
        if not has_items:
            raise site.error("only arrays and known values have items")
        position = attribute(graph.known(index), INTEGER)
        if position is UNKNOWN:
            raise site.error("the index of the item depends on an open extent", GIVE_SHAPES)
        has_item = -len(values) <= position < len(values)
        if not has_item:
            raise site.error(f"there is no item {position} among {len(values)}")
        item: Any = values[position]
        if is_array:
            return np.asarray(item, values.dtype)
        return graph.known(item)

    # Invocations

    def _invoke(self, node: s.Invocation, site: CallSite) -> Any:
        """Apply the operation of an invocation, and return the result.

        The operation is a fragment of the document, or a declared operation of tract. The user may
        have a rule for it.
        """
        options = self.graph.options
        document_fragment = self._document_fragment(node.operation, site)
        is_of_document = document_fragment is not None
        fragment = document_fragment or declarations().get(node.operation)
        if fragment is None:
            raise site.error(f"there is no operation '{node.operation}'")
        is_expanded = is_of_document or fragment.name in defined(options.expand)
        rule = options.rules.get(node.operation)
        if is_expanded and options.expand == "all":
            rule = None  # the operation's definition is used, not the user's rule
        arguments = self._arguments(fragment, node, site, is_strict=is_of_document)
        site.arguments = arguments
        if rule is None and is_expanded:
            return self._call(fragment, site)
        if rule is not None and is_of_document:
            return apply_fragment(site, fragment.name, rule)
        intrinsic = INTRINSICS.get(fragment.name) if rule is None else None
        if intrinsic is not None:
            self.graph.meter.spend(_INTRINSIC_STEPS)
            site.operation = fragment.name
            site.operands = [arguments[name] for name in operands(fragment.name)]
            return intrinsic.run(site)
        if self.graph.entries:
            arguments = with_codes(site, fragment.name)
        # `fragment.name` is the main name of the operation, even if the document has an alias. A
        # user's rule belongs to the name in the document.
        name = fragment.name if rule is None else node.operation
        return applied(site, name, arguments, site.names, rule)

    def _document_fragment(self, name: str, site: CallSite) -> s.Fragment | None:
        """Return the document's fragment `name` for a call at `site`, or None.

        The bodies of the standard's fragments do not see the fragments of the document.
        """
        document = self.unit.document
        is_in_document = site.frame.source is document.source
        return document.fragments.get(name) if is_in_document else None

    def _arguments(
        self, fragment: s.Fragment, node: s.Invocation, site: CallSite, *, is_strict: bool
    ) -> dict[str, Any]:
        """Map the parameters of a fragment to their values in an invocation of the fragment.

        If `is_strict`, an argument for which there is no parameter is an error. Fragments of the
        document are strict. The operations that tract declares are not.
        """
        meter, frame = self.graph.meter, site.frame
        if is_strict:
            meter.spend(BINDING_STEPS * len(fragment.parameters))
        try:
            positions = bind(fragment, node, meter, freely=True, ignoring=not is_strict)
        except InvalidInvocation as error:
            raise self.graph.error(error.message, error.node, frame, error.hint) from None
        arguments: dict[str, Any] = {}
        default_frame: Frame | None = None  # the frame in which defaults are evaluated
        for parameter in fragment.parameters:
            name = parameter.name
            default = parameter.default
            if name in positions:
                arguments[name] = self.evaluate(node.arguments[positions[name]].value, frame)
            elif isinstance(default, s.Literal):  # most defaults are literals
                arguments[name] = default.value
            elif default is not None:
                if default_frame is None:
                    calls = self._calls_into(fragment, site)
                    default_frame = Frame(fragment, fragment.source, values={}, calls=calls)
                arguments[name] = self.evaluate(default, default_frame)
        meter.spend(_INVOCATION_STEPS + _ARGUMENT_STEPS * len(arguments))
        return arguments

    def _operator(self, kind: str, operands: ByName, site: CallSite) -> Any:
        """Apply an operation that the document writes as an operator, such as "+"."""
        rule = self.graph.options.rules.get(kind)
        return applied(site, kind, operands, site.names, rule)

    def _call(self, fragment: s.Fragment, site: CallSite) -> Any:
        """Evaluate the body of a fragment that `site` calls, and return the results."""
        self.graph.meter.spend(2 * CALL_STEPS)
        inner_frame = self.enter(fragment, site.arguments, site)
        results: list[Any] = []
        for result in fragment.results:
            identifier = s.Identifier(result.offset, result.name)
            results.append(self.lookup(identifier, inner_frame))
        return Results.of(results)

    def _calls_into(self, fragment: s.Fragment, site: CallSite) -> tuple[Call, ...]:
        """Return the calls that lead into a fragment, from the outermost one to the call of `site`.

        Raises NnefError if the fragment calls itself.
        """
        calls = site.frame.calls
        calls_itself = any(call.fragment == fragment.name for call in calls)
        if calls_itself:
            raise site.error(f"fragment '{fragment.name}' calls itself")
        if len(calls) >= _DEEPEST_CALLS:
            raise LimitError(f"fragments call each other more than {_DEEPEST_CALLS} deep")
        return (*calls, Call(fragment.name, site.span))

    def enter(self, fragment: s.Fragment, arguments: ByName, site: CallSite) -> Frame:
        """Evaluate the body of a fragment that `site` calls, and return the body's frame.

        `arguments` are the values of the fragment's parameters. The results of the fragment get the
        names of the call. Names of other tensors of the body begin with the first name of the call.
        """
        call_names = site.names
        calls = self._calls_into(fragment, site)
        call_name = call_names[0] if call_names else site.frame.prefix + fragment.name
        prefix = f"{call_name}_"[-_LONGEST_PREFIX:]
        inner_frame = Frame(fragment, fragment.source, dict(arguments), prefix, calls)
        # A call may name fewer results than the fragment has.
        results = [result.name for result in fragment.results]
        name_by_result = dict(zip(results, call_names, strict=False))
        for assignment in fragment.body or ():
            names: list[str] = []
            for target in _targets(assignment):
                names.append(name_by_result.get(target) or self.graph.local(prefix + target))
            self._assign(assignment, names, inner_frame)
        return inner_frame
