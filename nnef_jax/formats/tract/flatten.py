"""From a document of the dialect to the flat graph.

A name may be assigned again; the last value counts. Values that follow from shapes stay on the
host (`host`); operations on tensors go into the graph, with the casts of `promotion`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Call, Graph, Value
from nnef_jax.errors import LimitError, NnefError, kept, raise_all
from nnef_jax.formats.base import Options
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emission import Frame
from nnef_jax.formats.syntax.invocation import InvalidInvocation
from nnef_jax.formats.syntax.standard import OPERATORS
from nnef_jax.formats.syntax.types import INTEGER
from nnef_jax.formats.tract.arguments import attribute, bind
from nnef_jax.formats.tract.call_site import CallSite
from nnef_jax.formats.tract.declarations import declarations
from nnef_jax.formats.tract.emission import WEIGHTY, Results, Said, weight
from nnef_jax.formats.tract.flat_graph import FlatGraph
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import meanings
from nnef_jax.formats.tract.quantized_tensors import quantized, with_codes
from nnef_jax.formats.tract.symbols import has_open_inputs
from nnef_jax.formats.tract.unit import Unit
from nnef_jax.formats.tract.unsupported import refuse_readers_of_padding, refuse_unsupported
from nnef_jax.limits import BINDING, CALL, ERROR, within_memory

_CONSTANTS = {"inf": math.inf, "nan": math.nan}
_LONGEST_PREFIX = 200
_CLOSE = "give the shapes of the inputs by load(..., input_shapes=...)"
# Steps beside those of an expression, by what there is to do.
_ASSIGNMENT = 3
_INVOCATION = 10
_INTRINSIC = 30
_DEEPEST = 100  # fragment calls: none calls itself, so that real ones are few


class _Poisoned(Exception):
    """An expression reads a name whose own error is already reported."""


def flatten(
    unit: Unit, options: Options, extents: Mapping[str, Any], data: dict[str, NDArray[Any]]
) -> tuple[Graph, Said]:
    """Return the flat graph of a network, given the extents of its symbols, and how it is said.

    `data` collects its variables' arrays by label. Raises NnefError, several if independent.
    """
    with within_memory("the flat graph"):
        document = unit.document
        header, source = document.graph, document.source
        is_open = has_open_inputs(
            document, {**options.input_shapes, **options.symbolic_shapes}, extents
        )
        graph = FlatGraph(options, data, is_open=is_open)
        graph.builder.reserve(i.name for a in header.body for i in s.identifiers(a.target))
        frame = Frame(None, source, {})
        inputs = [parameter.name for parameter in header.parameters]
        outputs = _Flattener(unit, graph, extents, dict.fromkeys(inputs)).outputs(frame)
        for name, value in frame.values.items():
            if isinstance(value, Value) and value.name != name:
                graph.builder.aliases[name] = value
        names = [result.name for result in header.results]
        flat = graph.builder.graph(header.name, outputs, names, inputs)
        refuse_readers_of_padding(flat)
        return flat, graph.said


class _Flattener:
    """Evaluates a unit into a graph, for given extents of symbols and values of inputs."""

    def __init__(
        self,
        unit: Unit,
        graph: FlatGraph,
        extents: Mapping[str, Any],
        inputs: Mapping[str, Value | None],
    ) -> None:
        self.unit = unit
        self.graph = graph
        self.extents = extents
        self.inputs = inputs
        self._meter = graph.meter
        self._most = graph.limits.steps

    def of(self, unit: Unit, extents: Mapping[str, Any], inputs: Mapping[str, Value]) -> _Flattener:
        return _Flattener(unit, self.graph, extents, inputs)

    def into(self, graph: FlatGraph) -> _Flattener:
        return _Flattener(self.unit, graph, self.extents, self.inputs)

    # Statements

    def outputs(self, frame: Frame) -> list[Value]:
        document = self.unit.document
        refuse_unsupported(document, self.graph.options.rules, self._meter)
        self._refuse_undeclared_inputs()
        errors: list[NnefError] = []
        for assignment in document.graph.body:
            targets = [identifier.name for identifier in s.identifiers(assignment.target)]
            names = [frame.prefix + target for target in targets]
            try:
                self._assign(assignment, names, frame)
            except _Poisoned:
                frame.values |= dict.fromkeys(targets, _Poisoned)
            except LimitError as error:
                error.span = error.span or s.span_in(frame.source, assignment.value)
                raise
            except NnefError as error:
                self._meter.steps += ERROR
                errors += kept(error)
                frame.values |= dict.fromkeys(targets, _Poisoned)
        outputs: list[Value] = []
        for result in document.graph.results:
            try:
                value, name = self.lookup(result, frame), frame.prefix + result.name
                outputs.append(self.graph.tensor(value, "", result, frame, [name]))
            except _Poisoned:
                pass
            except NnefError as error:
                errors.append(error)
        raise_all(errors)
        return outputs

    def _refuse_undeclared_inputs(self) -> None:
        document = self.unit.document
        missing = [p for p in document.graph.parameters if p.name not in document.input_shapes]
        frame = Frame(None, document.source, {})
        hint = "write NAME = tract_core_external(shape = [...], datum_type = 'f32');"
        raise_all(
            [self.graph.error(f"input '{p.name}' is not declared", p, frame, hint) for p in missing]
        )

    def _assign(self, assignment: s.Assignment, names: Sequence[str], frame: Frame) -> None:
        self._meter.steps += _ASSIGNMENT
        value = self.evaluate(assignment.value, frame, names)
        for name, item in self._unpack(assignment.target, value, frame):
            if frame.fragment is None and name in self.unit.quantizers:
                item = quantized(CallSite(self, {}, assignment, frame), name, item)
            frame.values[name] = item

    def _unpack(self, target: s.Target, value: Any, frame: Frame) -> Iterator[tuple[str, Any]]:
        match target:
            case s.Identifier(name=name):
                yield name, list(value) if isinstance(value, Results) else value
            case s.Array(items=items) | s.Tuple(items=items):
                parts = cast(list[Any], value if isinstance(value, list | tuple) else [value])
                if len(parts) != len(items):
                    message = f"{len(parts)} results cannot be assigned to {len(items)} names"
                    raise self.graph.error(message, target, frame)
                for item, part in zip(items, parts, strict=True):
                    yield from self._unpack(cast(s.Target, item), part, frame)

    # Expressions

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """Return the value of an expression; `names` are wanted for the tensors that it makes."""
        self._meter.steps += 1
        if self._meter.steps > self._most:
            self.graph.spend(0, node, frame)
        match node:
            case s.Literal(value=value):
                return value
            case s.Identifier():
                value = self.lookup(node, frame)
                if type(value) in WEIGHTY:  # it may be read again and again
                    self.graph.spend(2 * weight(value), node, frame)
                return value
            case s.Invocation():
                return self._invoke(node, frame, names)
            case s.Array(items=items) | s.Tuple(items=items):
                self.graph.spend(len(items), node, frame)
                found = [
                    item.value if type(item) is s.Literal else self.evaluate(item, frame)
                    for item in items
                ]
                return found if isinstance(node, s.Array) else tuple(found)
            case s.Unary(operand=operand):
                operands = {"x": self.evaluate(operand, frame)}
                return self._operator("neg", operands, node, frame, names)
            case s.Binary(operator=operator, left=left, right=right):
                operands = {"x": self.evaluate(left, frame), "y": self.evaluate(right, frame)}
                return self._operator(OPERATORS[operator], operands, node, frame, names)
            case s.Subscript(sequence=sequence, index=index):
                if isinstance(sequence, s.Identifier):  # of its value one item is read
                    values = self.lookup(sequence, frame)
                else:
                    values = self.evaluate(sequence, frame)
                return self._item(values, self.evaluate(index, frame), node, frame)
            case _:
                raise self.graph.error("this cannot be computed in the dialect", node, frame)

    def lookup(self, node: s.Identifier, frame: Frame) -> Any:
        """Return what a name stands for: a value of the body, a symbol, or infinity."""
        name = node.name
        if name in frame.values:
            if frame.values[name] is _Poisoned:
                raise _Poisoned
            return frame.values[name]
        if name in self.extents:
            # The length of a stream stays open: nothing needs it before the stream's end.
            if self.extents[name] is UNKNOWN and not (
                self.graph.is_open or self.unit.document.pulsed
            ):
                message = f"the shapes of the inputs do not tell what symbol '{name}' is"
                raise self.graph.error(message, node, frame)
            return self.extents[name]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise self.graph.error(f"'{name}' is not defined here", node, frame)

    def _item(self, values: Any, position: Any, node: s.Node, frame: Frame) -> Any:
        if isinstance(values, Value):  # of a list, which may be long, one item matters
            values = self.graph.known(values)
        is_host = isinstance(values, np.ndarray)
        if not (isinstance(values, list | tuple) or (is_host and values.ndim)):
            raise self.graph.error("only arrays and known values have items", node, frame)
        try:
            index = attribute(self.graph.known(position), INTEGER)
        except InvalidOperation as error:
            raise self.graph.error(error.message, node, frame, error.hint) from None
        if index is UNKNOWN:
            raise self.graph.error(
                "which item it is depends on an open extent", node, frame, _CLOSE
            )
        if not -len(values) <= index < len(values):
            raise self.graph.error(f"there is no item {index} among {len(values)}", node, frame)
        found: Any = values[index]
        return np.asarray(found, values.dtype) if is_host else self.graph.known(found)

    # Invocations

    def _invoke(self, node: s.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        # The bodies of the standard's fragments know only what the standard has.
        is_ours = frame.source is self.unit.document.source
        own = self.unit.document.fragments.get(node.operation) if is_ours else None
        fragment = own or declarations().get(node.operation)
        if fragment is None:
            raise self.graph.error(f"there is no operation '{node.operation}'", node, frame)
        rule = self.graph.options.rules.get(node.operation)
        if own is not None and rule is None:
            self.refuse_recursion(own, node, frame)
        try:
            if own is not None:
                self.graph.spend(BINDING * len(own.parameters), node, frame)
            bound = bind(fragment, node, self._meter, own=own is not None)
        except InvalidInvocation as error:
            raise self.graph.error(error.message, error.node, frame, error.hint) from None
        arguments: dict[str, Any] = {}
        inner: Frame | None = None
        for parameter in fragment.parameters:
            if parameter.name in bound:
                arguments[parameter.name] = self.evaluate(bound[parameter.name], frame)
            elif parameter.default is not None:
                if inner is None:
                    calls = self._calls(fragment, node, frame)
                    inner = Frame(fragment, fragment.source, {}, "", calls)
                arguments[parameter.name] = self.evaluate(parameter.default, inner)
        self.graph.spend(_INVOCATION + 2 * len(arguments), node, frame)
        if rule is None:
            if own is not None:
                return self._call(own, arguments, node, frame, names)
            handler = INTRINSICS.get(fragment.name)
            if handler is not None:
                self._meter.steps += _INTRINSIC
                site = CallSite(self, arguments, node, frame, names)
                return self.graph.located(lambda: handler(site), node, frame)
            if fragment.body is not None and fragment.name not in meanings():
                return self._call(fragment, arguments, node, frame, names)
        given: Mapping[str, Any] = arguments
        if self.graph.entries:
            given = with_codes(CallSite(self, arguments, node, frame, names), fragment.name)
        if rule is None:
            return self.graph.apply(fragment.name, given, node, frame, names)
        if own is not None:
            return self.graph.apply_own(rule, own.name, given, node, frame, names)
        return self.graph.apply(node.operation, given, node, frame, names, rule)

    def _operator(
        self,
        kind: str,
        operands: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Any:
        rule = self.graph.options.rules.get(kind)
        return self.graph.apply(kind, operands, node, frame, names, rule)

    def _call(
        self,
        fragment: s.Fragment,
        arguments: dict[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Any:
        self.graph.spend(2 * CALL, node, frame)
        inner = self.enter(fragment, arguments, node, frame, names)
        results = [self.lookup(s.Identifier(r.offset, r.name), inner) for r in fragment.results]
        return results[0] if len(results) == 1 else Results(results)

    def refuse_recursion(self, fragment: s.Fragment, node: s.Node, frame: Frame) -> None:
        """Refuse a call of a fragment from inside it: nothing there could end it."""
        if any(call.fragment == fragment.name for call in frame.calls):
            raise self.graph.error(f"fragment '{fragment.name}' calls itself", node, frame)
        if len(frame.calls) >= _DEEPEST:
            message = f"fragments call each other more than {_DEEPEST} deep"
            span = s.span_in(frame.source, node)
            raise LimitError(message, span=span, calls=frame.calls)

    def _calls(self, fragment: s.Fragment, node: s.Node, frame: Frame) -> tuple[Call, ...]:
        return (*frame.calls, Call(fragment.name, s.span_in(frame.source, node)))

    def enter(
        self,
        fragment: s.Fragment,
        arguments: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Frame:
        calls = self._calls(fragment, node, frame)
        prefix = f"{names[0] if names else frame.prefix + fragment.name}_"[-_LONGEST_PREFIX:]
        inner = Frame(fragment, fragment.source, dict(arguments), prefix, calls)
        own = dict(zip((r.name for r in fragment.results), names, strict=False))
        for assignment in fragment.body or ():
            targets = [identifier.name for identifier in s.identifiers(assignment.target)]
            wanted = [own.get(t) or self.graph.local(prefix + t) for t in targets]
            self._assign(assignment, wanted, inner)
        return inner
