"""Flattens a document of the dialect.

A name may be assigned more than once; the last value counts. Values that follow from shapes are
host values (see `hostvalues`). Operations on tensors are added to the graph, with tract's implicit
casts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
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

_CONSTANTS = {"inf": math.inf, "nan": math.nan}
_LONGEST_PREFIX = 200  # characters
# Steps of the meter.
_ASSIGNMENT = 3
_INVOCATION = 10
_ARGUMENT = 2
_ITEM = 2  # for each item of a value that is read
_INTRINSIC = 30
_DEEPEST = 100  # the deepest nesting of fragment calls, of which real networks have few


def flatten(
    unit: Unit, options: Options, extents: ByName, data: dict[str, NDArray[Any] | None]
) -> tuple[Graph, FlatCalls]:
    """Flatten a network; return the graph, and the document's operation for each result.

    `extents` are the values of symbols. The arrays of variables are added to `data` by label,
    unless `data` already has the label. Raises NnefError, which contains all errors that do not
    follow from another error.
    """
    with within_memory("the flat graph"):
        document = unit.document
        header = document.graph
        shapes = {**options.input_shapes, **options.symbolic_shapes}
        graph = FlatGraph(options, data, is_open=has_open_inputs(document, shapes, extents))
        graph.variables = document.variables if options.progress else 0
        builder = graph.builder
        builder.reserve(name for a in header.body for name in _targets(a))
        frame = Frame(None, document.source, {})
        inputs = [parameter.name for parameter in header.parameters]
        refused = frozenset[str]()
        if options.outline:
            names = unsupported.unsupported(document, options.rules)
            refused = callers_of(names, document.fragments)
        flattener = _UnitFlattener(unit, graph, extents, dict.fromkeys(inputs), refused)
        outputs = flattener.outputs(frame)
        for name, value in frame.values.items():
            if isinstance(value, Value) and value.name != name:
                builder.aliases[name] = value
        constants = [name for name, x in frame.values.items() if not _has_tensor(x)]
        graph.fold(constants, (([*s.names_in(a.value)], _targets(a)) for a in header.body))
        results = [result.name for result in header.results]
        flat = builder.graph(header.name, outputs, results, options.unfixed(inputs))
        unsupported.refuse_readers_of_padding(flat)
        for value, name, axis in unsupported.padded_outputs(flat):
            flat.aliases[length_name(name, axis, "places")] = value
        return flat, graph.calls


def _targets(assignment: s.Assignment) -> list[str]:
    return [identifier.name for identifier in s.identifiers(assignment.target)]


def _has_tensor(x: object) -> bool:
    if isinstance(x, list | tuple):
        return any(map(_has_tensor, cast("Sequence[object]", x)))
    return isinstance(x, Value)


@dataclass(slots=True)
class _UnitFlattener:
    """The evaluation of a network into a graph.

    `extents` are the values of the network's symbols, and `inputs` the values of its inputs.
    `unsupported_names` are the fragments and operations that cannot run.
    """

    unit: Unit
    graph: FlatGraph
    extents: ByName
    inputs: ByName
    # The unsupported operations of a network that is only shown.
    unsupported_names: Set[str] = frozenset()

    def into(self, graph: FlatGraph) -> _UnitFlattener:
        return replace(self, graph=graph)

    def submodel(self, unit: Unit, extents: ByName, inputs: ByName, frame: Frame) -> list[Value]:
        return _UnitFlattener(unit, self.graph, extents, inputs).outputs(frame)

    # Statements

    def outputs(self, frame: Frame) -> list[Value]:
        document = self.unit.document
        if not self.unsupported_names:
            unsupported.refuse_unsupported(document, self.graph.options.rules, self.graph.meter)
        self._refuse_undeclared_inputs(frame)
        errors: list[NnefError] = []
        for assignment in document.graph.body:
            if self.unsupported_names and add_if_unsupported(
                self.graph, assignment, frame.values, self.unsupported_names, document.source
            ):
                continue
            targets = _targets(assignment)
            try:
                self._assign(assignment, [frame.prefix + target for target in targets], frame)
                continue
            except Poisoned:
                pass
            except REFUSALS as refusal:
                error = CallSite(self, assignment.value, frame).located(refusal)
                if isinstance(error, LimitError):
                    raise error from None
                self.graph.meter.steps += ERROR_STEPS
                errors += without_frames(error)
            frame.values |= dict.fromkeys(targets, Poisoned)
        outputs: list[Value] = []
        for result in document.graph.results:
            site = CallSite(self, result, frame)
            try:
                name = frame.prefix + result.name
                outputs.append(tensor(site, self.lookup(result, frame), "", name))
            except Poisoned:
                pass
            except REFUSALS as refusal:
                errors.append(site.located(refusal))
        raise_all(errors)
        return outputs

    def _refuse_undeclared_inputs(self, frame: Frame) -> None:
        hint = "write NAME = tract_core_external(shape = [...], datum_type = 'f32');"
        document = self.unit.document
        errors: list[NnefError] = []
        for parameter in document.graph.parameters:
            if parameter.name not in document.input_shapes:
                message = f"input '{parameter.name}' is not declared"
                errors.append(CallSite(self, parameter, frame).error(message, hint))
        raise_all(errors)

    def _assign(self, assignment: s.Assignment, names: Sequence[str], frame: Frame) -> None:
        self.graph.meter.spend(_ASSIGNMENT)
        value = self.evaluate(assignment.value, frame, names)
        for name, part in self.graph.unpacked(assignment.target, value, frame):
            item = list(part) if isinstance(part, Results) else part
            if frame.fragment is None and name in self.unit.quantizers:
                item = quantized(CallSite(self, assignment, frame), name, item)
            frame.values[name] = item

    # Expressions

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """Evaluate an expression and return its value.

        If operations are added to the graph for the expression, their results get the names in
        `names`.
        """
        match node:
            case s.Literal(value=value):
                return value
            case s.Identifier():
                value = self.lookup(node, frame)
                # Each time that a name is read counts against the limits.
                if type(value) in COSTLY_TYPES:
                    self.graph.meter.spend(_ITEM * weight(value))
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
        value = partial(self.evaluate, frame=frame)
        try:
            match node:
                case s.Invocation():
                    return self._invoke(node, site)
                case s.Unary(operand=operand):
                    return self._operator("neg", {"x": value(operand)}, site)
                case s.Binary(operator=operator, left=left, right=right):
                    operands = {"x": value(left), "y": value(right)}
                    return self._operator(OPERATORS[operator], operands, site)
                case s.Subscript(sequence=sequence, index=index):
                    # `lookup` counts only the steps for one item.
                    is_name = isinstance(sequence, s.Identifier)
                    items = self.lookup(sequence, frame) if is_name else value(sequence)
                    return self._item(items, value(index), site)
                case _:
                    raise site.error("this cannot be computed in the dialect")
        except REFUSALS as error:
            raise site.located(error) from None

    def lookup(self, node: s.Identifier, frame: Frame) -> Any:
        """Return the value of an identifier.

        It is a name that the body has assigned, or a symbol, or `inf` or `nan`.
        """
        name = node.name
        if name in frame.values:
            if frame.values[name] is Poisoned:
                raise Poisoned
            return frame.values[name]
        if name in self.extents:
            # Only the length of a stream may be open here.
            may_be_open = self.graph.is_open or self.unit.document.is_pulsed
            if self.extents[name] is UNKNOWN and not may_be_open:
                message = f"symbol '{name}' does not follow from the shapes of the inputs"
                raise self.graph.error(message, node, frame)
            return self.extents[name]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise self.graph.error(f"'{name}' is not defined here", node, frame)

    def _item(self, values: Any, position: object, site: CallSite) -> Any:
        graph = self.graph
        # Of a list, only the chosen item is replaced, in the last line.
        if isinstance(values, Value):
            values = graph.known(values)
        is_host = isinstance(values, np.ndarray)
        has_items = values.ndim > 0 if is_host else isinstance(values, list | tuple)
        if not has_items:
            raise site.error("only arrays and known values have items")
        index = attribute(graph.known(position), INTEGER)
        if index is UNKNOWN:
            raise site.error("the index of the item depends on an open extent", GIVE_SHAPES)
        has_item = -len(values) <= index < len(values)
        if not has_item:
            raise site.error(f"there is no item {index} among {len(values)}")
        item: Any = values[index]
        return np.asarray(item, values.dtype) if is_host else graph.known(item)

    # Invocations

    def _invoke(self, node: s.Invocation, site: CallSite) -> Any:
        # The bodies of the standard's fragments do not see the fragments of the document.
        document = self.unit.document
        options = self.graph.options
        in_document = site.frame.source is document.source
        defined_here = document.fragments.get(node.operation) if in_document else None
        fragment = defined_here or declarations().get(node.operation)
        if fragment is None:
            raise site.error(f"there is no operation '{node.operation}'")
        by_definition = defined_here is not None or fragment.name in defined(options.expand)
        rule = options.rules.get(node.operation)
        if by_definition and options.expand == "all":
            rule = None
        is_strict = defined_here is not None
        site.arguments = arguments = self._arguments(fragment, node, site, is_strict=is_strict)
        if rule is None:
            if by_definition:
                return self._call(fragment, site)
            intrinsic = INTRINSICS.get(fragment.name)
            if intrinsic is not None:
                self.graph.meter.spend(_INTRINSIC)
                site.operation = fragment.name
                site.operands = [arguments[name] for name in operands(fragment.name)]
                return intrinsic.run(site)
        elif defined_here is not None:
            return apply_fragment(site, defined_here.name, rule)
        if self.graph.entries:
            arguments = with_codes(site, fragment.name)
        name = fragment.name if rule is None else node.operation
        return applied(site, name, arguments, site.names, rule)

    def _arguments(
        self, fragment: s.Fragment, node: s.Invocation, site: CallSite, *, is_strict: bool
    ) -> dict[str, Any]:
        """Return the values of a fragment's parameters by name, for an invocation of it.

        If `is_strict`, an argument for which there is no parameter is an error. Only the fragments
        of the document are strict.
        """
        meter, frame = self.graph.meter, site.frame
        if is_strict:
            meter.spend(BINDING_STEPS * len(fragment.parameters))
        try:
            positions = bind(fragment, node, meter, freely=True, ignoring=not is_strict)
        except InvalidInvocation as error:
            raise self.graph.error(error.message, error.node, frame, error.hint) from None
        arguments: dict[str, Any] = {}
        inner: Frame | None = None
        for parameter in fragment.parameters:
            name = parameter.name
            default = parameter.default
            if name in positions:
                arguments[name] = self.evaluate(node.arguments[positions[name]].value, frame)
            elif isinstance(default, s.Literal):  # most defaults are literals
                arguments[name] = default.value
            elif default is not None:
                if inner is None:
                    calls = self._calls(fragment, site)
                    inner = Frame(fragment, fragment.source, {}, "", calls)
                arguments[name] = self.evaluate(default, inner)
        meter.spend(_INVOCATION + _ARGUMENT * len(arguments))
        return arguments

    def _operator(self, kind: str, operands: ByName, site: CallSite) -> Any:
        rule = self.graph.options.rules.get(kind)
        return applied(site, kind, operands, site.names, rule)

    def _call(self, fragment: s.Fragment, site: CallSite) -> Any:
        self.graph.meter.spend(2 * CALL_STEPS)
        inner = self.enter(fragment, site.arguments, site)
        results = [self.lookup(s.Identifier(r.offset, r.name), inner) for r in fragment.results]
        return Results.of(results)

    def _calls(self, fragment: s.Fragment, site: CallSite) -> tuple[Call, ...]:
        """Return the calls that lead into a fragment, from the outermost one to the call of `site`.

        Raises NnefError if the fragment calls itself.
        """
        calls = site.frame.calls
        if any(call.fragment == fragment.name for call in calls):
            raise site.error(f"fragment '{fragment.name}' calls itself")
        if len(calls) >= _DEEPEST:
            raise LimitError(f"fragments call each other more than {_DEEPEST} deep")
        return (*calls, Call(fragment.name, site.span))

    def enter(self, fragment: s.Fragment, arguments: ByName, site: CallSite) -> Frame:
        names = site.names
        calls = self._calls(fragment, site)
        call_name = names[0] if names else site.frame.prefix + fragment.name
        prefix = f"{call_name}_"[-_LONGEST_PREFIX:]
        inner = Frame(fragment, fragment.source, dict(arguments), prefix, calls)
        # A call may name fewer results than the fragment has.
        result_names = dict(zip([r.name for r in fragment.results], names, strict=False))
        for assignment in fragment.body or ():
            targets = _targets(assignment)
            local = [result_names.get(t) or self.graph.local(prefix + t) for t in targets]
            self._assign(assignment, local, inner)
        return inner
