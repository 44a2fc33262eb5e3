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
from nnef_jax.formats.nnef import values as plain_values
from nnef_jax.formats.syntax import standard as library
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.declared_tensors import result_count
from nnef_jax.formats.syntax.emitter import CallPlace, Emitter, Frame, Poisoned
from nnef_jax.formats.syntax.types import Tensor, Type
from nnef_jax.limits import EVALUATION_STEPS, RESULT_STEPS

# The number of array items, or of letters of a string, that count as one step of the meter.
ITEMS_PER_STEP = 16
# Maps the kind of an operation to the attribute whose items must be positive in NNEF documents. In
# graphs of other formats, these items may also be 0.
_POSITIVE_ATTRIBUTES = {"constant": "shape", "tile": "repeats"}

# A generator that evaluates an expression. For each part of the expression, this generator yields
# an inner generator, and then receives the value of the part. In the end, this generator returns
# the value of the expression.
Step = Generator["Step", Any, Any]


class Evaluator(Emitter, ABC):
    """Evaluates expressions. A subclass defines how operations are invoked."""

    def __init__(self, document: tree.Document, options: Options) -> None:
        super().__init__(options)
        self.document = document

    @abstractmethod
    def _invoke(self, node: tree.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        """Invoke an operation; return its result, or a generator that returns the result.

        The result is a generator if parts of the invocation are evaluated by generators. A
        generator is run to its end by `_run`. `names` are the names of the results.
        """

    def _emit(
        self, kind: str, operands: ByName, attributes: ByName, place: CallPlace, *, least: int = 1
    ) -> tuple[Any, ...]:
        """Add an operation to the graph and return its results.

        The items of the attributes in `_POSITIVE_ATTRIBUTES` must be at least `least`, unless the
        user has a rule for the kind. Raises ExtentNeeded if an extent among the operands is
        unknown.
        """
        steps = RESULT_STEPS * result_count(kind, operands, attributes)
        self.spend(steps, place.node, place.frame)
        plain_values.require_known(operands.values(), self.meter)
        rule = self.options.rules.get(kind)
        positive_attribute = _POSITIVE_ATTRIBUTES.get(kind)
        if positive_attribute is not None and rule is None:
            items = list(attributes[positive_attribute])
            if any([item < least for item in items]):
                error = InvalidOperation(f"'{positive_attribute}' must be positive, it is {items}")
                raise self.invalid(error, kind, operands, place.node, place.frame)
        return self.emit(kind, operands, attributes, place, rule)

    # The loop that drives evaluation

    def _run(self, step: object) -> Any:
        """Run the generator `step` to its end, and return its value.

        If the generator yields an inner generator, the inner generator is run to its end, and its
        value is sent to the outer generator. If `step` is no generator, `step` is returned.
        """
        stack: list[Step] = []  # Each generator waits for the value of the next one.
        result = step  # a generator to run, or a value to send to the last generator
        while True:
            if isinstance(result, GeneratorType):
                stack.append(result)
                result = None
            if not stack:
                return result
            try:
                result = stack[-1].send(result)
            except StopIteration as stop:
                stack.pop()
                result = stop.value

    # Expressions

    def _evaluate(self, node: tree.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """Evaluate an expression; return its value, or a generator that returns the value.

        The result is a generator if parts of the expression are evaluated by generators. `names`
        are the names of the tensors that are added to the graph for the expression.
        """
        # `spend` is only called if the limit is exceeded, since a call for each literal and name
        # would take time.
        self.meter.steps += 1
        if self.meter.steps > self.limits.steps:
            self.spend(0, node, frame)  # raises LimitError
        match node:
            case tree.Literal(value=value):
                return value
            case tree.Identifier(name=name):
                value = frame.values[name]
                if value is Poisoned:  # The assignment of the name had an error.
                    raise Poisoned
                return value
            case tree.Invocation():
                return self._invoke(node, frame, names)
            case tree.Array(items=items):
                return self._all(items, frame)
            case tree.Tuple(items=items):
                values = self._all(items, frame)
                if isinstance(values, GeneratorType):
                    return self._then(values, tuple)
                return tuple(values)
            case tree.Binary():
                self.meter.steps += EVALUATION_STEPS
                return self._binary(node, frame, names)
            case tree.Comprehension():
                return self._comprehension(node, frame)
            case _:
                self.meter.steps += EVALUATION_STEPS
                return self._compound(node, frame, names)

    def _all(self, items: Sequence[tree.Expression], frame: Frame) -> Any:
        """Evaluate expressions; return the list of their values.

        If one of the expressions is evaluated by a generator, return a generator that returns the
        list.
        """
        values: list[Any] = []
        pending = iter(items)
        value_by_name = frame.values
        self.meter.steps += len(items)
        if items and self.meter.steps > self.limits.steps:
            self.spend(0, items[0], frame)  # raises LimitError
        for item in pending:
            # Most items are literals or names of tensors, which need no call of `_evaluate`.
            if isinstance(item, tree.Literal):
                values.append(item.value)
            elif isinstance(item, tree.Identifier) and isinstance(value_by_name[item.name], Value):
                values.append(value_by_name[item.name])
            else:
                value = self._evaluate(item, frame)
                if isinstance(value, GeneratorType):
                    return self._remaining(value, values, pending, frame)
                values.append(value)
        return values

    def _remaining(
        self, step: Step, values: list[Any], pending: Iterator[tree.Expression], frame: Frame
    ) -> Step:
        """Evaluate the remaining expressions; return the list of all values.

        `values` are the values of earlier expressions. The next value comes from the generator
        `step`, and all later values from the expressions `pending`.
        """
        first_value = yield step
        values.append(first_value)
        for item in pending:
            value = yield self._evaluate(item, frame)
            values.append(value)
        return values

    def _then(self, step: Step, use: Callable[[Any], Any]) -> Step:
        """Run the generator `step` to its end, apply `use` to its value, and return the result.

        The result of `use` may be a generator too, which is then run to its end.
        """
        value = yield step
        result = yield use(value)
        return result

    def _compound(self, node: tree.Expression, frame: Frame, names: Sequence[str]) -> Step:
        """Evaluate an expression with operands; return its value. `names` are as for `_evaluate`.

        Each `yield` evaluates an operand: `_run` sends the value of the operand to the generator.
        """
        match node:
            case tree.Select(condition=condition, true_value=true_value, false_value=false_value):
                is_true = yield self._evaluate(condition, frame)
                chosen_expression = true_value if is_true else false_value
                result = yield self._evaluate(chosen_expression, frame, names)
                return result
            case tree.Unary(operator=operator, operand=operand):
                value = yield self._evaluate(operand, frame)
                if isinstance(value, Value):
                    kind = library.UNARY_OPERATORS[operator]
                    place = CallPlace(node, frame, names)
                    result, *_ = self._emit(kind, {"x": value}, attributes={}, place=place)
                    return result
                return plain_values.UNARY[operator](value)
            case tree.Subscript(sequence=sequence, index=index):
                values = yield self._evaluate(sequence, frame)
                position = yield self._evaluate(index, frame)
                return self._computed(node, frame, lambda: plain_values.item(values, position))
            case tree.Subrange(sequence=sequence, begin=begin, end=end):
                values = yield self._evaluate(sequence, frame)
                first = (yield self._evaluate(begin, frame)) if begin else None
                last = (yield self._evaluate(end, frame)) if end else None
                return self._computed(
                    node, frame, lambda: plain_values.subrange(values, first, last)
                )
            case tree.Builtin(function=function, argument=argument):
                value = yield self._evaluate(argument, frame)
                if function == "range_of":
                    # Each integer of the range is a separate object, which takes memory.
                    self.spend(len(value) // 2, node, frame)
                return self._computed(
                    node, frame, lambda: plain_values.builtin(function, value), value
                )
            case _:
                raise TypeError(f"not an expression: {node!r}")

    def _declared(self, node: tree.SyntaxNode, frame: Frame, value: object, type: Type) -> Any:
        """Convert the value of an argument to the declared type of its parameter.

        Documents of 1.0 provisional may have an integer in the place of a scalar. Values in all
        other documents are returned unchanged.
        """
        if not self.document.provisional:
            return value

        def convert() -> Any:
            return plain_values.as_declared(value, type, self.meter)

        return self._computed(node, frame, convert)

    def _computed(
        self, node: tree.SyntaxNode, frame: Frame, compute: Callable[[], Any], *operands: Any
    ) -> Any:
        """Call `compute` and return its result. An error of `compute` is reported at `node`.

        The meter counts steps for the lengths of the result and of `operands`.
        """
        try:
            value = compute()
        except plain_values.InvalidValue as error:
            raise self.error(str(error), node, frame) from None
        except plain_values.TooLarge as error:
            span = tree.span_in(frame.source, node)
            raise self.beyond(str(error), "array_items", span, frame.calls) from None
        for sequence in (value, *operands):
            if isinstance(sequence, list | str):
                self.spend(len(sequence) // ITEMS_PER_STEP, node, frame)
        return value

    def _binary(self, node: tree.Binary, frame: Frame, names: Sequence[str]) -> Step:
        """Evaluate a binary operator; return its result. `names` are as for `_evaluate`.

        The operators && and || evaluate their right operand only if the left operand does not
        decide the result.
        """
        operator = node.operator
        left = yield self._evaluate(node.left, frame)
        if operator == "&&" and left is False:
            return False
        if operator == "||" and left is True:
            return True
        right = yield self._evaluate(node.right, frame)
        if operator in ("&&", "||") and not isinstance(left, Value):
            # The left operand is True for &&, or False for ||. So the right operand is the result.
            return right
        if isinstance(left, Value) or isinstance(right, Value):
            left = self._declared(node, frame, left, Tensor("scalar"))
            right = self._declared(node, frame, right, Tensor("scalar"))
            kind = library.OPERATORS[operator]
            place = CallPlace(node, frame, names)
            operands = {"x": left, "y": right}
            result, *_ = self._emit(kind, operands, attributes={}, place=place)
            return result

        def compute() -> Any:
            return plain_values.binary(operator, left, right, self.meter)

        return self._computed(node, frame, compute, left, right)

    def _comprehension(self, node: tree.Comprehension, frame: Frame) -> Step:
        """Evaluate an array comprehension; return the list of its items.

        An example is `[for a in x, b in y if a < b yield a * b]`. Its loops run in parallel: they
        take the first items of x and y, then the second items, and so on.
        """
        iterables: list[Any] = []
        for loop in node.loops:
            iterable = yield self._evaluate(loop.iterable, frame)
            iterables.append(iterable)
        lengths = [len(iterable) for iterable in iterables]
        if len(set(lengths)) > 1:
            shown_lengths = " and ".join(map(str, lengths))
            message = f"the arrays iterated together have lengths {shown_lengths}"
            raise self.error(message, node, frame)
        items: list[Any] = []
        for loop_items in zip(*iterables, strict=True):
            self.spend(len(node.loops), node, frame)
            for loop, loop_item in zip(node.loops, loop_items, strict=True):
                frame.values[loop.name] = loop_item
            meets_condition = True
            if node.condition is not None:
                meets_condition = yield self._evaluate(node.condition, frame)
            if meets_condition:
                item = yield self._evaluate(node.item, frame)
                items.append(item)
        # The names of the loops have values only inside the comprehension.
        for loop in node.loops:
            frame.values.pop(loop.name, None)
        return items
