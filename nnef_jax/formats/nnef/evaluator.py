"""Evaluates the expressions of a document (spec 3.3.3).

The evaluation is not recursive. Generators walk over the syntax tree, and a loop (`Evaluator._run`)
drives them. Therefore the depth of fragment calls is bounded by `Limits`, and not by the stack of
the interpreter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from types import GeneratorType
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.emission import ByName
from nnef_jax.formats.base import Options
from nnef_jax.formats.nnef import values as v
from nnef_jax.formats.syntax import standard as library
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.declared_tensors import result_count
from nnef_jax.formats.syntax.emitter import CallPlace, Emitter, Frame, Poisoned
from nnef_jax.formats.syntax.types import Tensor, Type
from nnef_jax.limits import EVALUATION_STEPS, RESULT_STEPS

# The number of items of an array, or of letters of a string, that count as one step.
ITEMS_PER_STEP = 16
# Attributes that only kinds, and not documents, allow to have the item 0.
_POSITIVE = {"constant": "shape", "tile": "repeats"}


Step = Generator["Step", Any, Any]


class Evaluator(Emitter, ABC):
    """Evaluates expressions. A subclass defines how operations are invoked."""

    def __init__(self, document: s.Document, options: Options) -> None:
        super().__init__(options)
        self.document = document

    @abstractmethod
    def _invoke(self, node: s.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        """Invoke an operation; return its result, or a generator that returns the result.

        A generator is returned if evaluating the operation takes several steps; `_run` drives the
        generator to its end. `names` are the names of the results.
        """

    def _emit(
        self, kind: str, operands: ByName, attributes: ByName, place: CallPlace, *, least: int = 1
    ) -> tuple[Any, ...]:
        """Add an operation to the graph and return its results.

        `_POSITIVE` names, for some kinds, an attribute whose items must be positive, that is, at
        least `least`. Raises ExtentNeeded if an extent among the operands is unknown.
        """
        self.spend(RESULT_STEPS * result_count(kind, operands, attributes), place.node, place.frame)
        v.require_known(operands.values(), self.meter)
        rule = self.options.rules.get(kind)
        name = _POSITIVE.get(kind)
        if name is not None and rule is None:
            items = list(attributes[name])
            if any([item < least for item in items]):
                error = InvalidOperation(f"'{name}' must be positive, it is {items}")
                raise self.invalid(error, kind, operands, place.node, place.frame)
        return self.emit(kind, operands, attributes, place, rule)

    # The loop that drives evaluation

    def _run(self, step: object) -> Any:
        """Drive a generator to its end and return its value.

        If the generator yields other generators, these are driven to their ends too, and their
        values are sent to it. If `step` is no generator, it is returned unchanged.
        """
        stack: list[Step] = []
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

    # Expressions

    def _evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """Evaluate an expression; return its value, or a generator that returns the value.

        A generator is returned if evaluating the expression takes several steps. `names` are the
        names of the tensors that are added to the graph for the expression.
        """
        self.meter.steps += 1
        if self.meter.steps > self.limits.steps:
            self.spend(0, node, frame)
        match node:
            case s.Literal(value=value):
                return value
            case s.Identifier(name=name):
                value = frame.values[name]
                if value is Poisoned:
                    raise Poisoned
                return value
            case s.Invocation():
                return self._invoke(node, frame, names)
            case s.Array(items=items):
                return self._all(items, frame)
            case s.Tuple(items=items):
                values = self._all(items, frame)
                if isinstance(values, GeneratorType):
                    return self._then(values, tuple)
                return tuple(values)
            case s.Binary():
                self.meter.steps += EVALUATION_STEPS
                return self._binary(node, frame, names)
            case s.Comprehension():
                return self._comprehension(node, frame)
            case _:
                self.meter.steps += EVALUATION_STEPS
                return self._compound(node, frame, names)

    def _all(self, items: Sequence[s.Expression], frame: Frame) -> Any:
        """Evaluate expressions; return the list of their values, or a generator for the list.

        A generator, which returns the list, is needed if evaluating one of the expressions takes
        several steps.
        """
        values: list[Any] = []
        pending = iter(items)
        names = frame.values
        self.meter.steps += len(items)
        if items and self.meter.steps > self.limits.steps:
            self.spend(0, items[0], frame)
        for item in pending:
            if isinstance(item, s.Literal):  # most items are literals or names
                values.append(item.value)
            elif isinstance(item, s.Identifier) and isinstance(names[item.name], Value):
                values.append(names[item.name])
            else:
                value = self._evaluate(item, frame)
                if isinstance(value, GeneratorType):
                    return self._remaining(value, values, pending, frame)
                values.append(value)
        return values

    def _remaining(
        self, step: Step, values: list[Any], pending: Iterator[s.Expression], frame: Frame
    ) -> Step:
        """Evaluate the pending expressions, append their values, and return the list of all values.

        `step` is the generator of the first value.
        """
        values.append((yield step))
        for item in pending:
            values.append((yield self._evaluate(item, frame)))
        return values

    def _then(self, step: Step, use: Callable[[Any], Any]) -> Step:
        return (yield use((yield step)))

    def _compound(self, node: s.Expression, frame: Frame, names: Sequence[str]) -> Step:
        match node:
            case s.Select(condition=condition, true_value=true_value, false_value=false_value):
                chosen = true_value if (yield self._evaluate(condition, frame)) else false_value
                return (yield self._evaluate(chosen, frame, names))
            case s.Unary(operator=operator, operand=operand):
                value = yield self._evaluate(operand, frame)
                if isinstance(value, Value):
                    kind = library.UNARY_OPERATORS[operator]
                    return self._emit(kind, {"x": value}, {}, CallPlace(node, frame, names))[0]
                return v.UNARY[operator](value)
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
                if function == "range_of":  # each integer is an object
                    self.spend(len(value) // 2, node, frame)
                return self._value(node, frame, lambda: v.builtin(function, value), value)
            case _:
                raise TypeError(f"not an expression: {node!r}")

    def _declared(self, node: s.SyntaxNode, frame: Frame, value: object, type: Type) -> Any:
        """Convert the value of an argument to the declared type of its parameter.

        Only documents of 1.0 provisional need such conversions, since they write scalars as
        integers.
        """
        if not self.document.provisional:
            return value
        return self._value(node, frame, lambda: v.as_declared(value, type, self.meter))

    def _value(
        self, node: s.SyntaxNode, frame: Frame, compute: Callable[[], Any], *read: Any
    ) -> Any:
        """Call `compute` and return its result. Its errors get the place of a node.

        Steps are counted for the length of the result, and for the lengths of the operands in
        `read`.
        """
        try:
            value = compute()
        except v.InvalidValue as error:
            raise self.error(str(error), node, frame) from None
        except v.TooLarge as error:
            span = s.span_in(frame.source, node)
            raise self.beyond(str(error), "array_items", span, frame.calls) from None
        for sequence in (value, *read):
            if isinstance(sequence, list | str):
                self.spend(len(sequence) // ITEMS_PER_STEP, node, frame)
        return value

    def _binary(self, node: s.Binary, frame: Frame, names: Sequence[str]) -> Step:
        operator = node.operator
        a = yield self._evaluate(node.left, frame)
        # && and || evaluate their right operand only if the left operand does not decide the
        # result.
        decides = (operator == "&&" and a is False) or (operator == "||" and a is True)
        if decides:
            return a
        b = yield self._evaluate(node.right, frame)
        if operator in ("&&", "||") and not isinstance(a, Value):
            return b
        if isinstance(a, Value) or isinstance(b, Value):
            a = self._declared(node, frame, a, Tensor("scalar"))
            b = self._declared(node, frame, b, Tensor("scalar"))
            kind = library.OPERATORS[operator]
            return self._emit(kind, {"x": a, "y": b}, {}, CallPlace(node, frame, names))[0]
        return self._value(node, frame, lambda: v.binary(operator, a, b, self.meter), a, b)

    def _comprehension(self, node: s.Comprehension, frame: Frame) -> Step:
        iterables: list[Any] = []
        for loop in node.loops:
            iterables.append((yield self._evaluate(loop.iterable, frame)))
        if len({len(iterable) for iterable in iterables}) > 1:
            lengths = " and ".join(str(len(iterable)) for iterable in iterables)
            raise self.error(f"the arrays iterated together have lengths {lengths}", node, frame)
        items: list[Any] = []
        for loop_items in zip(*iterables, strict=True):
            self.spend(len(node.loops), node, frame)
            for loop, item in zip(node.loops, loop_items, strict=True):
                frame.values[loop.name] = item
            if node.condition is None or (yield self._evaluate(node.condition, frame)):
                items.append((yield self._evaluate(node.item, frame)))
        for loop in node.loops:
            frame.values.pop(loop.name, None)
        return items
