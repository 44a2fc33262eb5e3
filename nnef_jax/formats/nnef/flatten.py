"""From a checked document to the flat graph: fragments expanded, expressions evaluated (3.3.3, 6).

Evaluation is a walk over the syntax tree by generators that a small loop drives
(`_Flattener._run`), not by recursion: how deep fragments call each other is bounded by `Limits`,
not by the interpreter's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, cast

from lowering import ops
from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation
from lowering.graph import Call, Graph, Rule, Value
from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefError, kept, raise_all
from nnef_jax.formats.base import ExtentNeeded, Options
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.nnef.unsupported import Body, refuse_unsupported
from nnef_jax.formats.syntax import standard as library
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import values as v
from nnef_jax.formats.syntax.emission import Emitter, Frame
from nnef_jax.formats.syntax.invocation import Form
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.standard import GENERIC_RESULT, INTRODUCING, standard
from nnef_jax.formats.syntax.tensors import (
    dtype_of,
    external_type,
    generic_of,
    result_count,
    variable_type,
)
from nnef_jax.formats.syntax.types import Tensor, Type
from nnef_jax.limits import CALL, CALLS_PER_STEP, ERROR, EVALUATION, RESULT, within_memory

_ITEMS_PER_STEP = 16
_LONGEST_PREFIX = 200
_POSITIVE = {"constant": "shape", "tile": "repeats"}  # which kinds take with items 0 too


def flatten(
    document: s.Document,
    scope: Scope,
    options: Options,
    quantizers: Mapping[str, Quantizer] | None = None,
) -> Graph:
    """The flat graph of a document that `checks.check` has passed.

    `quantizers` round tensors, by their names, once they are computed.

    Raises SemanticError, ShapeError, UnsupportedError or LimitError, several at once where they do
    not depend on each other; `ExtentNeeded` where something depends on an extent left open.
    """
    return _Flattener(document, scope, options, quantizers or {}).flatten()


def evaluate(
    expression: s.Expression, source: Source, document: s.Document, scope: Scope, options: Options
) -> Any:
    """The value of a checked expression that stands in no body, such as an argument in graph.quant.

    Raises SemanticError where it has none or calls an operation, `ExtentNeeded` where it
    depends on a tensor, LimitError.
    """
    flattener = _Flattener(document, scope, options, {})
    try:
        return flattener.evaluate(expression, Frame(None, source, {}))
    except KeyError:
        raise ExtentNeeded from None


class _Poisoned(Exception):
    """An expression reads a name whose own error is already reported."""


_Step = Generator["_Step", Any, Any]


class _Flattener(Emitter):
    def __init__(
        self,
        document: s.Document,
        scope: Scope,
        options: Options,
        quantizers: Mapping[str, Quantizer],
    ) -> None:
        super().__init__(GraphBuilder(real=options.real), options.meter)
        self.document = document
        self.scope = scope
        self.options = options
        self.quantizers = quantizers
        self.errors: list[NnefError] = []
        self.identifiers: set[str] = set()
        self.variables: set[Value] = set()
        self.unquantized: dict[Value, Value] = {}

    def evaluate(self, expression: s.Expression, frame: Frame) -> Any:
        called = next(s.invocations([expression]), None)
        if called is not None:
            hint = "write numbers and arrays of numbers"
            raise self.error("an expression here must not call operations", called, frame, hint)
        return self._run(self._evaluate(expression, frame))

    def flatten(self) -> Graph:
        with within_memory("the flat graph"):
            return self._flatten()

    def _flatten(self) -> Graph:
        graph, source = self.document.graph, self.document.source
        bodies: list[Body] = [(None, [assignment.value for assignment in graph.body], source)]
        bodies += [(None, [q.node], q.source) for q in self.quantizers.values()]
        refuse_unsupported(bodies, self.scope, self._has_rule, self._is_atomic)
        frame = Frame(None, source, {})
        self.identifiers = {i.name for a in graph.body for i in s.identifiers(a.target)}
        self.builder.reserve(self.identifiers)
        for assignment in graph.body:
            names = [identifier.name for identifier in s.identifiers(assignment.target)]
            try:
                value = self._evaluate(assignment.value, frame, names)
                if isinstance(value, GeneratorType):
                    value = self._run(value)
                for name, item in self._unpack(assignment.target, value, frame):
                    if not isinstance(item, Value) or item.name != name:
                        item = self._named(name, item, assignment)
                    if self.quantizers:
                        item = self._quantized(name, item)
                    frame.values[name] = item
            except _Poisoned:
                pass
            except LimitError as error:
                error.span = error.span or self._span(assignment.value, None)
                raise
            except NnefError as error:
                self.meter.steps += ERROR
                self.errors += kept(error)
            for name in names:
                frame.values.setdefault(name, _Poisoned)
        raise_all(self.errors)
        inputs = [parameter.name for parameter in graph.parameters]
        outputs = [frame.values[result.name] for result in graph.results]
        names = [result.name for result in graph.results]
        return self.builder.graph(graph.name, outputs, names, inputs)

    def _named(self, name: str, item: Any, node: s.Node) -> Value:
        """A value of the graph's own body as a tensor under its name."""
        if not isinstance(item, Value):
            attributes = {
                "shape": (1,),
                "value": (item,),
                "dtype": self.builder.literal_type(item).dtype,
            }
            (item,) = self.builder.operation(
                "constant", {}, attributes, [name], self._span(node, None)
            )
            item = cast(Value, item)
        if item.name != name:
            self.builder.aliases[name] = item
        return item

    def _quantized(self, name: str, value: Value) -> Value:
        """What a name stands for downstream: the value as graph.quant quantises it (spec 7.1)."""
        quantizer = self.quantizers.get(name)
        if quantizer is None:
            return value
        wanted = f"{name}_quantized"
        while wanted in self.identifiers:
            wanted += "_"
        frame = Frame(None, quantizer.source, {name: value}, f"{wanted}_")
        node = quantizer.invocation(name, value.type, variable=value in self.variables)
        result = self._run(self._invoke(node, frame, [wanted]))
        self.builder.aliases[name] = result
        self.unquantized[result] = value
        return result

    # The loop that drives evaluation

    def _run(self, step: Any) -> Any:
        """What evaluation ends in: it yields generators for parts, or values that are there."""
        stack: list[_Step] = []
        while True:
            if isinstance(step, GeneratorType):
                stack.append(step)
                step = None
            if not stack:
                return step
            try:
                step = stack[-1].send(step)
            except StopIteration as stop:
                stack.pop()
                step = stop.value

    def _span(self, node: s.Node, frame: Frame | None) -> Span:
        return s.span_in(frame.source if frame else self.document.source, node)

    # Expressions

    def _evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """The value of an expression, or a generator that finds it.

        `names` are those wanted for the tensors that it makes.
        """
        self.meter.steps += 1
        if self.meter.steps > self.limits.steps:
            self.spend(0, node, frame)
        match node:
            case s.Literal(value=value):
                return value
            case s.Identifier(name=name):
                found = frame.values[name]
                if found is _Poisoned:
                    raise _Poisoned
                return found
            case s.Invocation():
                return self._invoke(node, frame, names)
            case s.Array(items=items):
                return self._all(items, frame)
            case s.Tuple(items=items):
                found = self._all(items, frame)
                return (
                    self._then(found, tuple) if isinstance(found, GeneratorType) else tuple(found)
                )
            case s.Binary(operator=operator, left=left, right=right):
                self.meter.steps += EVALUATION
                return self._binary(node, operator, left, right, frame, names)
            case s.Comprehension():
                return self._comprehension(node, frame)
            case _:
                self.meter.steps += EVALUATION
                return self._compound(node, frame, names)

    def _all(self, items: Sequence[s.Expression], frame: Frame) -> Any:
        """A list of the values of some expressions, or a generator that finds it."""
        values: list[Any] = []
        pending = iter(items)
        known, meter, most = frame.values, self.meter, self.limits.steps
        for item in pending:
            if meter.steps < most:  # short cuts through `_evaluate` for what most items are
                if isinstance(item, s.Literal):
                    meter.steps += 1
                    values.append(item.value)
                    continue
                if isinstance(item, s.Identifier) and isinstance(known[item.name], Value):
                    meter.steps += 1
                    values.append(known[item.name])
                    continue
            value = self._evaluate(item, frame)
            if isinstance(value, GeneratorType):
                return self._rest(value, values, pending, frame)
            values.append(value)
        return values

    def _rest(
        self, step: Any, values: list[Any], pending: Iterator[s.Expression], frame: Frame
    ) -> _Step:
        """The list with the value of a step behind it, and with those of more expressions."""
        values.append((yield step))
        for item in pending:
            values.append((yield self._evaluate(item, frame)))
        return values

    def _then(self, step: _Step, use: Callable[[Any], Any]) -> _Step:
        return (yield use((yield step)))

    def _compound(self, node: s.Expression, frame: Frame, names: Sequence[str]) -> _Step:
        match node:
            case s.Select(condition=condition, true_value=true_value, false_value=false_value):
                chosen = true_value if (yield self._evaluate(condition, frame)) else false_value
                return (yield self._evaluate(chosen, frame, names))
            case s.Unary(operator=operator, operand=operand):
                value = yield self._evaluate(operand, frame)
                if v.holds_tensor(value):
                    kind = library.UNARY_OPERATORS[operator]
                    rule = self.options.rules.get(kind)
                    return self._emit(kind, {"x": value}, {}, node, frame, names, rule)[0]
                return v.unary(operator, value)
            case s.Subscript(sequence=sequence, index=index):
                values = yield self._evaluate(sequence, frame)
                position = yield self._evaluate(index, frame)
                return self._value(node, frame, lambda: v.item(values, position))
            case s.Subrange(sequence=sequence, begin=begin, end=end):
                values = yield self._evaluate(sequence, frame)
                first = (yield self._evaluate(begin, frame)) if begin else None
                last = (yield self._evaluate(end, frame)) if end else None
                return self._value(node, frame, lambda: v.subrange(values, first, last))
            case s.Builtin(function=function, argument=argument):
                value = yield self._evaluate(argument, frame)
                if function == "range_of":  # integers are objects of their own
                    self.spend(len(value) // 2, node, frame)
                return self._value(node, frame, lambda: v.builtin(function, value), value)
            case _:
                raise TypeError(f"not an expression: {node!r}")

    def _declared(self, node: s.Node, frame: Frame, value: Any, type: Type) -> Any:
        """The value of an argument as its parameter has it."""
        if not self.document.provisional:
            return value
        return self._value(node, frame, lambda: v.as_declared(value, type, self.meter))

    def _value(self, node: s.Node, frame: Frame, compute: Any, *read: Any) -> Any:
        try:
            value = compute()
        except v.InvalidValue as error:
            raise self.error(str(error), node, frame) from None
        except v.TooLarge as error:
            raise self.beyond(str(error), "array_items", node, frame) from None
        for sequence in (value, *read):  # time and memory that one step does not stand for
            if isinstance(sequence, list | str):
                self.spend(len(sequence) // _ITEMS_PER_STEP, node, frame)
        return value

    def _binary(
        self,
        node: s.Binary,
        operator: str,
        left: s.Expression,
        right: s.Expression,
        frame: Frame,
        names: Sequence[str],
    ) -> _Step:
        a = yield self._evaluate(left, frame)
        # As everywhere, && and || look at their right side only where the left one leaves it open.
        if (operator == "&&" and a is False) or (operator == "||" and a is True):
            return a
        b = yield self._evaluate(right, frame)
        if operator in ("&&", "||") and not v.holds_tensor(a):
            return b
        if v.holds_tensor(a) or v.holds_tensor(b):
            a, b = (self._declared(node, frame, x, Tensor("scalar")) for x in (a, b))
            kind = library.OPERATORS[operator]
            rule = self.options.rules.get(kind)
            return self._emit(kind, {"x": a, "y": b}, {}, node, frame, names, rule)[0]
        return self._value(node, frame, lambda: v.binary(operator, a, b, self.meter), a, b)

    def _comprehension(self, node: s.Comprehension, frame: Frame) -> _Step:
        iterables: list[Any] = []
        for loop in node.loops:
            iterables.append((yield self._evaluate(loop.iterable, frame)))
        if len({len(iterable) for iterable in iterables}) > 1:
            lengths = " and ".join(str(len(iterable)) for iterable in iterables)
            raise self.error(f"the arrays iterated together have lengths {lengths}", node, frame)
        items: list[Any] = []
        for together in zip(*iterables, strict=True):
            self.spend(len(node.loops), node, frame)
            for loop, item in zip(node.loops, together, strict=True):
                frame.values[loop.name] = item
            if node.condition is None or (yield self._evaluate(node.condition, frame)):
                items.append((yield self._evaluate(node.item, frame)))
        for loop in node.loops:
            frame.values.pop(loop.name, None)
        return items

    # Invocations

    def _invoke(self, node: s.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        fragment = self.scope.lookup(node.operation, frame.fragment)
        assert fragment is not None, node.operation  # the checks have found it
        form = self.scope.form(fragment, node)
        values = self._all(form.expressions(node), frame)
        if isinstance(values, GeneratorType):
            return self._then(values, lambda v: self._apply(fragment, form, v, node, frame, names))
        return self._apply(fragment, form, values, node, frame, names)

    def _apply(
        self,
        fragment: s.Fragment,
        form: Form,
        values: list[Any],
        node: s.Invocation,
        frame: Frame,
        names: Sequence[str],
    ) -> Any:
        """The result of an operation, or a generator that finds it."""
        if self.document.provisional:
            values = [
                self._declared(node, frame, value, parameter.type)
                for parameter, value in zip(fragment.parameters, values, strict=True)
            ]
        arguments = dict(zip(form.names, values, strict=True))
        generic = None
        if fragment.generic:
            generic = generic_of(fragment, node, arguments, frame.generic)
        if fragment.name in INTRODUCING and fragment is standard()[fragment.name]:
            return self._introduce(fragment.name, arguments, generic, node, frame, names)
        if self._is_atomic(fragment):
            operands = {name: arguments[name] for name in form.operands}
            attributes = {name: arguments[name] for name in form.attributes}
            if fragment.name in GENERIC_RESULT:
                try:
                    attributes["dtype"] = dtype_of(generic, self.builder)
                except InvalidOperation as error:
                    raise self.invalid(error, fragment.name, {}, node, frame) from None
            rule = self.options.rules.get(fragment.name)
            results = self._emit(fragment.name, operands, attributes, node, frame, names, rule)
            return results[0] if len(results) == 1 else results
        return self._call(fragment, arguments, generic, node, frame, names)

    def _call(
        self,
        fragment: s.Fragment,
        arguments: dict[str, Any],
        generic: str | None,
        node: s.Invocation,
        frame: Frame,
        names: Sequence[str],
    ) -> _Step:
        """Evaluate the body of a fragment."""
        calls = (*frame.calls, Call(fragment.name, self._span(node, frame)))
        if len(calls) > self.limits.call_depth:
            message = f"fragments call each other more than {self.limits.call_depth} deep"
            raise self.beyond(message, "call_depth", node, frame)
        work = CALL + EVALUATION * len(fragment.body or ()) + len(fragment.results)
        self.spend(work + len(calls) // CALLS_PER_STEP, node, frame)
        own = dict(zip((r.name for r in fragment.results), names, strict=False))
        prefix = f"{names[0] if names else frame.prefix + fragment.name}_"
        if (
            len(prefix) > _LONGEST_PREFIX
        ):  # in deep recursion names would take more room than all else
            prefix = f"{fragment.name[:_LONGEST_PREFIX]}_"
        inner = Frame(fragment, fragment.source, arguments, prefix, calls, generic)
        assert fragment.body is not None
        for assignment in fragment.body:
            targets = [identifier.name for identifier in s.identifiers(assignment.target)]
            # A fragment that makes arrays gets names for all their tensors at once.
            whole = names and len(fragment.results) == 1 and targets == [fragment.results[0].name]
            wanted = (
                names if whole else [own.get(name) or self.local(prefix + name) for name in targets]
            )
            value = yield self._evaluate(assignment.value, inner, wanted)
            inner.values.update(self._unpack(assignment.target, value, inner))
        results = [
            self._declared(node, frame, inner.values[result.name], result.type)
            for result in fragment.results
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _emit(
        self,
        kind: str,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
        rule: Rule | None = None,
    ) -> tuple[Any, ...]:
        """Add an operation whose operands are all known to the graph; `rule` is a user's own."""
        self.spend(RESULT * result_count(kind, operands, attributes), node, frame)
        v.require_known(*operands.values(), meter=self.meter)
        name = _POSITIVE.get(kind)
        if name is not None and rule is None and any([item < 1 for item in attributes[name]]):
            error = InvalidOperation(f"'{name}' must be positive, it is {list(attributes[name])}")
            raise self.invalid(error, kind, operands, node, frame)
        return self.emit(kind, operands, attributes, node, frame, names, rule)

    # Operations that introduce tensors

    def _introduce(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        generic: str | None,
        node: s.Invocation,
        frame: Frame,
        names: Sequence[str],
    ) -> Value:
        name = names[0] if names else frame.prefix + kind
        try:
            dtype = dtype_of(generic, self.builder)
            if kind == "external":
                # An extent of 0 is open in the text (spec 4.1.1), and empty where a call has it.
                declared = [extent or None for extent in arguments["shape"]]
                shape = self.options.input_shapes.get(name, declared)
                type = external_type(shape, dtype, self.options.open_extent)
                return self.bound(self.builder.input(name, type), node, frame)
            if kind == "variable":
                label = arguments["label"]
                self.spend(len(label) // _ITEMS_PER_STEP, node, frame)
                type = variable_type(arguments["shape"], label, dtype)
                made = self.builder.variable(name, label, type, self._span(node, frame))
                self.variables.add(made)
                return self.bound(made, node, frame)
            variable, value = arguments["variable"], arguments["value"]
            if not isinstance(value, Value):  # a constant of singleton shape (spec 3.3.2)
                rank = len(variable.type.shape) if isinstance(variable, Value) else 1
                dtype = self.builder.literal_type(value).dtype
                constant = {"shape": [1] * rank, "value": [value], "dtype": dtype}
                (value,) = self._emit("constant", {}, constant, node, frame, names)
            if isinstance(variable, Value):
                variable = self.unquantized.get(variable, variable)
            return self.builder.update(variable, value)
        except InvalidOperation as error:
            raise self.invalid(error, kind, {}, node, frame) from None

    # What can be run

    def _is_atomic(self, fragment: s.Fragment) -> bool:
        """Whether an operation stays one: it has a rule, and nothing asks for its body."""
        if fragment.body is None:
            return True
        return self.options.expand != "all" and self._has_rule(fragment)

    def _has_rule(self, fragment: s.Fragment) -> bool:
        """Whether an operation is a kind of the graph, or has a rule of the user's.

        Kinds are for operations of 1.0 final alone, whatever else a document gives their names;
        what else the provisional library has it defines by these, but for primitives of both. A
        user's rules are for those, for what only one library has, and for the document's own.
        """
        name, final = fragment.name, standard().get(fragment.name)
        is_own = fragment.source is self.document.source
        if name in self.options.rules:
            return is_own or final is None or final is fragment
        is_final = final is fragment or (fragment.body is None and final is not None)
        return name in ops.rules and not is_own and is_final

    def _unpack(self, target: s.Target, value: Any, frame: Frame) -> Iterable[tuple[str, Any]]:
        if isinstance(target, s.Identifier):
            return ((target.name, value),)
        return self._unpack_items(target, value, frame)

    def _unpack_items(
        self, target: s.Array | s.Tuple, value: Any, frame: Frame
    ) -> Iterator[tuple[str, Any]]:
        self.spend(len(target.items), target, frame)
        if len(target.items) != len(value):
            message = f"{len(value)} results cannot be assigned to {len(target.items)} names"
            raise self.error(message, target, frame)
        for item, part in zip(target.items, value, strict=True):
            yield from self._unpack(cast(s.Target, item), part, frame)
