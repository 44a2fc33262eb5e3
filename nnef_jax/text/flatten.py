"""From a checked document to the flat graph: fragments are expanded, expressions evaluated (spec 3.3.3, 6).

Evaluation is a walk over the syntax tree by generators that a small loop drives (`_Flattener._run`), not
by recursion: how deep fragments call each other is bounded by `Limits`, not by the interpreter's stack.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_known
from lowering.graph import Call, Graph, Operand, TensorType, Value
from lowering.location import Source, Span
from lowering.registry import Registry
from nnef_jax.errors import LimitError, NnefError, SemanticError, ShapeError, UnsupportedError, raise_all
from nnef_jax.limits import Limits
from nnef_jax.text import syntax as s
from nnef_jax.text import values as v
from nnef_jax.text.expressions import literal_type
from nnef_jax.text.invocation import bind
from nnef_jax.text.library import GENERIC_RESULT, Scope, standard
from nnef_jax.text.types import ANY, ArrayOf, Tensor, Type, deduce, has_tensor

Expand = Literal["auto", "all"]
_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow",
    "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "==": "eq", "!=": "ne",
    "&&": "and", "||": "or",
}  # fmt: skip
_UNARY_OPERATORS = {"-": "neg", "+": "copy", "!": "not"}
_INTRODUCING = frozenset({"external", "variable", "update"})


@dataclass(frozen=True, slots=True)
class Options:
    """How to flatten: which operations stay atomic, what the tensors of the document become."""

    registry: Registry
    expand: Expand = "auto"
    real: str = "float32"
    input_shapes: Mapping[str, Sequence[int | None]] = field(default_factory=dict[str, Sequence[int | None]])
    limits: Limits = field(default_factory=Limits)


def flatten(document: s.Document, scope: Scope, options: Options) -> Graph:
    """The flat graph of a document that `checks.check` has passed.

    Raises SemanticError, ShapeError, UnsupportedError or LimitError, several at once where they do not
    depend on each other; `values.ExtentNeeded` where something depends on an extent left open.
    """
    return _Flattener(document, scope, options).flatten()


@dataclass(slots=True)
class _Frame:
    """One body being evaluated."""

    fragment: s.Fragment | None
    source: Source
    values: dict[str, Any]
    prefix: str
    calls: tuple[Call, ...] = ()
    generic: str | None = None


class _Poisoned(Exception):
    """An expression reads a name whose own error is already reported."""


_Step = Generator["_Step", Any, Any]


class _Flattener:
    def __init__(self, document: s.Document, scope: Scope, options: Options) -> None:
        self.document = document
        self.scope = scope
        self.options = options
        self.limits = options.limits
        self.builder = GraphBuilder(options.registry, real=options.real)
        self.steps = 0
        self.errors: list[NnefError] = []

    def flatten(self) -> Graph:
        graph = self.document.graph
        self._refuse_unsupported()
        frame = _Frame(None, self.document.source, {}, "")
        self.builder.reserve(i.name for a in graph.body for i in s.identifiers(a.target))
        for assignment in graph.body:
            names = [identifier.name for identifier in s.identifiers(assignment.target)]
            try:
                value = self._run(self._evaluate(assignment.value, frame, names))
                for name, item in self._unpack(assignment.target, value, frame):
                    frame.values[name] = self._named(name, item, assignment)
            except _Poisoned:
                pass
            except LimitError:
                raise
            except NnefError as error:
                self.errors.append(error)
            for name in names:
                frame.values.setdefault(name, _Poisoned)
        raise_all(self.errors)
        outputs = [frame.values[result.name] for result in graph.results]
        return self.builder.graph(graph.name, outputs, [result.name for result in graph.results])

    def _named(self, name: str, item: Any, node: s.Node) -> Value:
        """A value of the graph's own body as a tensor under its name."""
        if not isinstance(item, Value):
            attributes = {"shape": (1,), "value": (item,), "dtype": self.builder.literal_type(item).dtype}
            (item,) = self.builder.operation("constant", {}, attributes, [name], self._span(node, None))
            item = cast(Value, item)
        if item.name != name:
            self.builder.aliases[name] = item
        return item

    # The loop that drives evaluation

    def _run(self, step: _Step) -> Any:
        stack = [step]
        result: Any = None
        while stack:
            try:
                step = stack[-1].send(result)
            except StopIteration as stop:
                stack.pop()
                result = stop.value
            else:
                stack.append(step)
                result = None
        return result

    def _span(self, node: s.Node, frame: _Frame | None) -> Span:
        return s.span_in(frame.source if frame else self.document.source, node)

    def _error(self, message: str, node: s.Node, frame: _Frame, hint: str = "") -> SemanticError:
        return SemanticError(message, span=self._span(node, frame), calls=frame.calls, hint=hint)

    def _limit(self, message: str, node: s.Node, frame: _Frame) -> LimitError:
        return LimitError(message, span=self._span(node, frame), calls=frame.calls)

    # Expressions

    def _evaluate(self, node: s.Expression, frame: _Frame, names: Sequence[str] = ()) -> _Step:
        """The value of an expression; `names` are those wanted for the tensors that it makes."""
        self.steps += 1
        if self.steps > self.limits.steps:
            raise self._limit(f"flattening takes more than {self.limits.steps} steps", node, frame)
        match node:
            case s.Literal(value=value):
                return value
            case s.Identifier(name=name):
                found = frame.values[name]
                if found is _Poisoned:
                    raise _Poisoned
                return found
            case s.Array(items=items):
                result: list[Any] = []
                for item in items:
                    result.append((yield self._evaluate(item, frame)))
                return result
            case s.Invocation():
                return (yield self._invoke(node, frame, names))
            case s.Tuple(items=items):
                result = []
                for item in items:
                    result.append((yield self._evaluate(item, frame)))
                return tuple(result)
            case s.Select(condition=condition, true_value=true_value, false_value=false_value):
                chosen = true_value if (yield self._evaluate(condition, frame)) else false_value
                return (yield self._evaluate(chosen, frame, names))
            case s.Binary(operator=operator, left=left, right=right):
                return (yield self._binary(node, operator, left, right, frame, names))
            case s.Unary(operator=operator, operand=operand):
                value = yield self._evaluate(operand, frame)
                if v.holds_tensor(value):
                    kind = _UNARY_OPERATORS[operator]
                    return self._emit(kind, {"x": value}, {}, node, frame, names)[0]
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
            case s.Comprehension():
                return (yield self._comprehension(node, frame))
            case s.Builtin(function=function, argument=argument):
                value = yield self._evaluate(argument, frame)
                return self._value(node, frame, lambda: v.builtin(function, value))

    def _value(self, node: s.Node, frame: _Frame, compute: Any) -> Any:
        try:
            return compute()
        except v.InvalidValue as error:
            raise self._error(str(error), node, frame) from None
        except v.TooLarge as error:
            raise self._limit(str(error), node, frame) from None

    def _binary(
        self,
        node: s.Binary,
        operator: str,
        left: s.Expression,
        right: s.Expression,
        frame: _Frame,
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
            if self.document.provisional:
                a, b = (v.as_declared(x, Tensor("scalar")) for x in (a, b))
            return self._emit(_OPERATORS[operator], {"x": a, "y": b}, {}, node, frame, names)[0]
        return self._value(node, frame, lambda: v.binary(operator, a, b, self.limits))

    def _comprehension(self, node: s.Comprehension, frame: _Frame) -> _Step:
        iterables: list[Any] = []
        for loop in node.loops:
            iterables.append((yield self._evaluate(loop.iterable, frame)))
        if len({len(iterable) for iterable in iterables}) > 1:
            lengths = " and ".join(str(len(iterable)) for iterable in iterables)
            raise self._error(f"the arrays iterated together have lengths {lengths}", node, frame)
        items: list[Any] = []
        for together in zip(*iterables, strict=True):
            for loop, item in zip(node.loops, together, strict=True):
                frame.values[loop.name] = item
            if node.condition is None or (yield self._evaluate(node.condition, frame)):
                items.append((yield self._evaluate(node.item, frame)))
        for loop in node.loops:
            frame.values.pop(loop.name, None)
        return items

    # Invocations

    def _invoke(self, node: s.Invocation, frame: _Frame, names: Sequence[str]) -> _Step:
        fragment = self.scope.lookup(node.operation, frame.fragment)
        assert fragment is not None, node.operation  # the checks have found it
        arguments: dict[str, Any] = {}
        given = bind(fragment, node)
        for parameter in fragment.parameters:
            expression = given.get(parameter.name, parameter.default)
            assert expression is not None
            value = yield self._evaluate(expression, frame)
            arguments[parameter.name] = (
                v.as_declared(value, parameter.type) if self.document.provisional else value
            )
        generic = self._generic(fragment, node, arguments, frame)
        if fragment.name in _INTRODUCING and fragment is standard()[fragment.name]:
            return self._introduce(fragment.name, arguments, generic, node, frame, names)
        if self._is_atomic(fragment):
            operands = {p.name: arguments[p.name] for p in fragment.parameters if has_tensor(p.type)}
            attributes = {p.name: arguments[p.name] for p in fragment.parameters if not has_tensor(p.type)}
            if fragment.name in GENERIC_RESULT:
                attributes["dtype"] = self._dtype(generic)
            results = self._emit(fragment.name, operands, attributes, node, frame, names)
            return results[0] if len(results) == 1 else results
        return (yield self._call(fragment, arguments, generic, node, frame, names))

    def _call(
        self,
        fragment: s.Fragment,
        arguments: dict[str, Any],
        generic: str | None,
        node: s.Invocation,
        frame: _Frame,
        names: Sequence[str],
    ) -> _Step:
        """Evaluate the body of a fragment."""
        calls = (*frame.calls, Call(fragment.name, self._span(node, frame)))
        if len(calls) > self.limits.call_depth:
            raise self._limit(f"fragments call each other more than {self.limits.call_depth} deep", node, frame)
        own = dict(zip((r.name for r in fragment.results), names, strict=False))
        prefix = f"{names[0] if names else frame.prefix + fragment.name}_"
        inner = _Frame(fragment, fragment.source, arguments, prefix, calls, generic)
        assert fragment.body is not None
        for assignment in fragment.body:
            targets = [identifier.name for identifier in s.identifiers(assignment.target)]
            # A fragment that makes arrays gets names for all their tensors at once.
            wanted = names if len(fragment.results) == 1 and targets == [fragment.results[0].name] and names else [
                own.get(target, prefix + target) for target in targets
            ]
            value = yield self._evaluate(assignment.value, inner, wanted)
            inner.values.update(self._unpack(assignment.target, value, inner))
        results = [inner.values[result.name] for result in fragment.results]
        return results[0] if len(results) == 1 else tuple(results)

    def _emit(
        self,
        kind: str,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Any],
        node: s.Node,
        frame: _Frame,
        names: Sequence[str],
    ) -> tuple[Any, ...]:
        """Add an operation to the graph; its results, result arrays as lists."""
        if len(self.builder.operations) >= self.limits.operations:
            raise self._limit(f"the flat graph has more than {self.limits.operations} operations", node, frame)
        operands = {name: cast(Operand, v.freeze(operand)) for name, operand in operands.items()}
        attributes = {name: v.freeze(value) for name, value in attributes.items()}
        wanted = names or [frame.prefix + kind]
        try:
            results = self.builder.operation(
                kind, operands, attributes, wanted, self._span(node, frame), frame.calls
            )
        except InvalidOperation as error:
            raise self._invalid(error, kind, operands, node, frame) from None
        return tuple(list(result) if isinstance(result, tuple) else result for result in results)

    def _invalid(
        self, error: InvalidOperation, kind: str, operands: Mapping[str, Any], node: s.Node, frame: _Frame
    ) -> NnefError:
        """The located error of an operation that refuses its arguments."""
        shown = ", ".join(f"{name} {_show(operand)}" for name, operand in operands.items())
        message = f"'{kind}': {error.message}" + (f" ({shown})" if shown else "")
        family = ShapeError if isinstance(error, InvalidShape) else SemanticError
        return family(message, span=self._span(node, frame), calls=frame.calls, hint=error.hint)

    # Operations that introduce tensors

    def _introduce(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        generic: str | None,
        node: s.Invocation,
        frame: _Frame,
        names: Sequence[str],
    ) -> Value:
        name = names[0] if names else frame.prefix + kind
        try:
            if kind == "external":
                return self.builder.input(name, self._external_type(name, arguments["shape"], generic))
            if kind == "variable":
                type = self._variable_type(arguments["shape"], arguments["label"], generic)
                return self.builder.variable(name, arguments["label"], type, self._span(node, frame))
            value = arguments["value"]
            if not isinstance(value, Value):
                (value,) = self._emit(
                    "constant",
                    {},
                    {"shape": [1], "value": [value], "dtype": self.builder.literal_type(value).dtype},
                    node,
                    frame,
                    names,
                )
            return self.builder.update(arguments["variable"], value)
        except InvalidOperation as error:
            raise self._invalid(error, kind, {}, node, frame) from None

    def _external_type(self, name: str, declared: Sequence[int], generic: str | None) -> TensorType:
        shape = self.options.input_shapes.get(name, declared)
        extents: list[int] = []
        for extent in shape:
            if extent is not None and extent is not UNKNOWN and extent < 0:
                raise InvalidOperation(
                    f"'shape' of an external must not be negative, it is {list(shape)}",
                    hint="0 stands for an extent that is not known yet",
                )
            extents.append(UNKNOWN if extent is None or extent == 0 else extent)
        return TensorType(tuple(extents), self._dtype(generic))

    def _variable_type(self, shape: Sequence[int], label: str, generic: str | None) -> TensorType:
        if not label:
            raise InvalidOperation("'label' of a variable must not be empty")
        if not is_known(shape):
            raise v.ExtentNeeded
        if any(extent < 1 for extent in shape):
            raise InvalidOperation(f"'shape' of a variable must be positive, it is {list(shape)}")
        return TensorType(tuple(shape), self._dtype(generic))

    def _dtype(self, generic: str | None) -> str:
        match generic:
            case "logical":
                return "bool"
            case "integer":
                return self.builder.integer
            case "scalar" | None:
                return self.builder.real
            case _:
                raise InvalidOperation(f"a tensor cannot hold '{generic}'")

    def _generic(
        self, fragment: s.Fragment, node: s.Invocation, arguments: Mapping[str, Any], frame: _Frame
    ) -> str | None:
        """What `?` stands for in an invocation (spec 1.0 final, generic fragments)."""
        if not fragment.generic:
            return None
        if node.generic == "?":
            return frame.generic
        if node.generic is not None:
            return node.generic
        for parameter in fragment.parameters:
            told = deduce(_type_of(arguments[parameter.name]), parameter.type)
            if told:
                return told
        return fragment.generic_default

    # What can be run

    def _is_atomic(self, fragment: s.Fragment) -> bool:
        """Whether an operation stays one: it has a rule, and nothing asks for its body."""
        if fragment.body is None:
            return True
        if self.options.expand == "all" or fragment.name not in self.options.registry:
            return False
        # A provisional operation with a body of its own is not the one that the rule is for.
        return self.scope.library.get(fragment.name) is not fragment or (
            standard().get(fragment.name) is fragment
        )

    def _refuse_unsupported(self) -> None:
        """Raise for all the operations at once that have neither a rule nor a body."""
        uses: dict[str, list[Span]] = {}
        seen: set[int] = set()
        pending: list[tuple[s.Fragment | None, Iterable[s.Assignment], Source, Span | None]] = [
            (None, self.document.graph.body, self.document.source, None)
        ]
        while pending:
            caller, body, source, reached = pending.pop()
            for node in _invocations(body):
                fragment = self.scope.lookup(node.operation, caller)
                if fragment is None or fragment.name in _INTRODUCING:
                    continue
                span = reached or s.span_in(source, node)
                if self._is_atomic(fragment):
                    if fragment.name not in self.options.registry:
                        uses.setdefault(fragment.name, []).append(span)
                elif id(fragment) not in seen and fragment.body is not None:
                    seen.add(id(fragment))
                    inside_document = fragment.source is self.document.source
                    pending.append((fragment, fragment.body, fragment.source, None if inside_document else span))
        raise_all(
            [
                UnsupportedError(
                    f"there is no rule for operation '{name}', used {len(spans)} "
                    f"time{'s' if len(spans) > 1 else ''}",
                    span=spans[0],
                    hint="give one by load(..., rules=registry)",
                )
                for name, spans in uses.items()
            ]
        )

    def _unpack(self, target: s.Target, value: Any, frame: _Frame) -> Iterator[tuple[str, Any]]:
        match target:
            case s.Identifier(name=name):
                yield name, value
            case s.Array(items=items) | s.Tuple(items=items):
                if len(items) != len(value):
                    raise self._error(
                        f"{len(value)} results cannot be assigned to {len(items)} names", target, frame
                    )
                for item, part in zip(items, value, strict=True):
                    yield from self._unpack(cast(s.Target, item), part, frame)


def _type_of(value: Any) -> Type:
    """The type of a value, as far as generic parameters ask for it."""
    match value:
        case Value(type=TensorType(dtype=dtype)):
            return Tensor({"bool": "logical"}.get(dtype, "integer" if "int" in dtype else "scalar"))
        case list():
            return ArrayOf(_type_of(value[0])) if value else ArrayOf(ANY)
        case bool() | int() | float() | str():
            return literal_type(value)
        case _:
            return ANY


def _show(operand: Operand) -> str:
    match operand:
        case Value():
            return str(operand.type)
        case tuple():
            return "[" + ", ".join(map(_show, operand)) + "]"
        case _:
            return repr(operand)


def _invocations(body: Iterable[s.Assignment]) -> Iterator[s.Invocation]:
    """All invocations in a body, in any order."""
    pending: list[Any] = [assignment.value for assignment in body]
    while pending:
        match pending.pop():
            case s.Invocation(arguments=arguments) as node:
                yield node
                pending += [argument.value for argument in arguments]
            case s.Array(items=items) | s.Tuple(items=items):
                pending += items
            case s.Unary(operand=inner) | s.Builtin(argument=inner):
                pending.append(inner)
            case s.Binary(left=left, right=right):
                pending += (left, right)
            case s.Select(condition=condition, true_value=left, false_value=right):
                pending += (condition, left, right)
            case s.Subscript(sequence=sequence, index=index):
                pending += (sequence, index)
            case s.Subrange(sequence=sequence, begin=begin, end=end):
                pending += (sequence, begin, end)
            case s.Comprehension(loops=loops, condition=condition, item=item):
                pending += (*(loop.iterable for loop in loops), condition, item)
            case _:
                pass
