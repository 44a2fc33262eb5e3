"""Finds the values of symbols from the shapes of inputs, and checks the document's assertions."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowering.extents import UNKNOWN, is_symbolic
from lowering.location import Span
from nnef_jax.errors import InputError
from nnef_jax.flattening.hostvalues import is_plain
from nnef_jax.formats.base import Shapes
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.standard import COMPARISONS
from nnef_jax.formats.tract.document import Assertion, TractDocument
from nnef_jax.limits import Meter

_LARGEST_SYMBOL = 1 << 40  # the search for a symbol's value ends here
# Values of expressions are clamped to -_BEYOND and _BEYOND. All extents are between these bounds.
_BEYOND = 1 << 64
_EQUATION_STEPS = 20  # steps of the meter for an equation or an assertion
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: a // b if b != 0 else UNKNOWN,
}  # fmt: skip


def has_open_inputs(document: TractDocument, shapes: Shapes, values: Mapping[str, int]) -> bool:
    """Tell whether an extent of any input is open.

    `shapes` are the shapes that the user chose for inputs. All other inputs have the shapes of the
    document, in which symbols have the values `values`.
    """
    for shape in shapes.values():
        if any(extent is None or extent is UNKNOWN for extent in shape):
            return True
    for name, expressions in document.input_shapes.items():
        if name in shapes:
            continue
        for expression in expressions:
            # A declared extent of 0 is open.
            if evaluate(expression, values) in (0, UNKNOWN):
                return True
    return False


def solve(
    document: TractDocument,
    shapes: Shapes,
    meter: Meter,
    fixed: Mapping[str, int] = {},
) -> dict[str, int]:
    """Return the values of symbols for the shapes of inputs. A symbol without a value is UNKNOWN.

    `fixed` are values that the user chose. Raises InputError if no values fit the shapes, or if an
    assertion of the document is false.
    """
    equations = _equations(document, shapes, meter)
    values = dict(fixed)
    meter.spend(_EQUATION_STEPS * (len(equations) + len(document.assertions)), document.source.name)
    # Each solved equation gives a symbol its value, with which another equation may be solved.
    unsolved = list(equations)
    solution = _next_solution(unsolved, values)
    while solution is not None:
        equation, value = solution
        (symbol,) = equation.free(values)
        values[symbol] = value
        unsolved.remove(equation)
        solution = _next_solution(unsolved, values)
    for equation in equations:
        meter.spend(equation.size, document.source.name)
        equation.check(document, values)
    for assertion in document.assertions:
        _check(document, assertion, values)
    # Symbols that occur in shapes but are not declared are added.
    symbols = list(document.symbols)
    for expressions in document.input_shapes.values():
        for expression in expressions:
            symbols += _names(_parts(expression))
    return {symbol: values.get(symbol, UNKNOWN) for symbol in symbols}


def _equations(document: TractDocument, shapes: Shapes, meter: Meter) -> list[_Equation]:
    """Return an equation for each extent that is a number, and whose declaration contains symbols.

    In an equation, the extent equals the declared expression. Equations with a quotient come last,
    since several values of a symbol have the same quotient.
    """
    equations: list[_Equation] = []
    for name, shape in document.input_shapes.items():
        # The two lists differ in length if the user's shape has a wrong rank.
        extents = shapes.get(name, ())
        for axis, (expression, extent) in enumerate(zip(shape, extents, strict=False)):
            if extent is None or extent is UNKNOWN:
                continue
            parts = [*_parts(expression)]
            names = _names(parts)
            if names:
                equation = _Equation(
                    name, axis, expression, extent, size=len(parts), names=names, meter=meter
                )
                equations.append(equation)
    return sorted(equations, key=lambda equation: _divides(equation.expression))


def _next_solution(
    equations: Iterable[_Equation], values: Mapping[str, int]
) -> tuple[_Equation, int] | None:
    """Return the first equation that can be solved, and the value of its symbol.

    `values` are the values of symbols so far. Return None if no equation can be solved.
    """
    for equation in equations:
        value = equation.solution(values)
        if value is not None:
            return equation, value
    return None


@dataclass(frozen=True, slots=True)
class _Equation:
    """The statement that an extent of an input equals an expression in the document.

    The extent is that of the input `input` along the axis `axis`. The expression has `size` nodes.
    """

    input: str
    axis: int
    expression: s.Expression
    extent: int
    size: int
    names: Sequence[str]  # the symbols that occur in the expression
    meter: Meter

    def free(self, values: Mapping[str, int]) -> list[str]:
        """Return the symbols of the equation that have no value in `values`."""
        return [name for name in self.names if name not in values]

    def solution(self, values: Mapping[str, int]) -> int | None:
        """Return the value of the only symbol of the equation that has no value in `values`.

        Return None if there is no such value, or if the number of symbols without a value is not 1.
        """
        self.meter.spend(_EQUATION_STEPS + self.size, "the symbols")
        free = self.free(values)
        if len(free) != 1:
            return None
        if isinstance(self.expression, s.Identifier):
            return self.extent
        (symbol,) = free
        solved = {name: values[name] for name in self.names if name in values}

        def expression_at(symbol_value: int) -> int:
            """Return the value of the expression if the symbol has the value `symbol_value`."""
            self.meter.spend(self.size, "a symbol")
            return evaluate(self.expression, {**solved, symbol: symbol_value})

        at_0 = expression_at(0)
        at_1 = expression_at(1)
        if at_0 is UNKNOWN or at_1 is UNKNOWN:
            return None
        slope = at_1 - at_0
        if slope != 0:
            # If the expression is linear, it is at_0 + slope * symbol, and `guess` is the solution.
            guess = (self.extent - at_0) // slope
            is_extent = is_symbolic(guess) or guess >= 0
            if is_extent and expression_at(guess) == self.extent:
                return guess
        if is_symbolic(self.extent):
            return None
        # If the expression grows with the symbol, the search finds the smallest solution.
        value = bisect_left(range(_LARGEST_SYMBOL), self.extent, key=expression_at)
        return value if expression_at(value) == self.extent else None

    def check(self, document: TractDocument, values: Mapping[str, int]) -> None:
        """Raise InputError if the equation is false, or if its free symbol has no solution.

        `values` are the values of symbols.
        """
        if is_symbolic(self.extent):
            return
        value = evaluate(self.expression, values)
        free = self.free(values)
        span = s.span_in(document.source, self.expression)
        extent = f"input '{self.input}' has extent {self.extent} at axis {self.axis}"
        if len(free) == 1:
            raise InputError(f"{extent}, which no value of {free[0]} gives", span=span)
        is_known = value is not UNKNOWN and not is_symbolic(value)
        if is_known and value != self.extent:
            raise InputError(
                f"{extent}, it should be {value}: {_shown(self.names, values)}",
                span=span,
                hint="inputs that share a symbol must agree on it",
            )


def evaluate(expression: s.Expression, values: Mapping[str, int]) -> int:
    """Evaluate an expression of symbols and integers.

    `values` has the values of symbols. The result is UNKNOWN if a symbol has no value.
    """
    match expression:
        case s.Literal(value=int() as value) if not isinstance(value, bool):
            return value
        case s.Identifier(name=name):
            return values.get(name, UNKNOWN)
        case s.Unary(operand=operand):
            return -evaluate(operand, values)
        case s.Binary(operator=operator, left=left, right=right):
            return _binary(operator, evaluate(left, values), evaluate(right, values))
        case _:
            return UNKNOWN


def _binary(operator: str, left: int, right: int) -> int:
    """Compute an arithmetic operation or a comparison.

    The result is UNKNOWN if it depends on an unknown operand, or if there is no such operator.
    """
    if operator in COMPARISONS:
        return COMPARISONS[operator](left, right) if is_plain((left, right)) else UNKNOWN
    if operator not in _ARITHMETIC:
        return UNKNOWN
    result = _ARITHMETIC[operator](left, right)
    if is_plain([result]):
        return max(-_BEYOND, min(result, _BEYOND))
    return result


def _check(document: TractDocument, assertion: Assertion, values: Mapping[str, int]) -> None:
    """Raise InputError if an assertion is false. `values` are the values of symbols."""
    if assertion.scenario:
        # The assertion is only for one use of the network, such as the first step of decoding.
        return
    is_false = evaluate(assertion.condition, values) is False
    if not is_false:
        return
    message = f"the document asserts {assertion.text}"
    shown = _shown(_names(_parts(assertion.condition)), values)
    if shown:
        message += f", the inputs make {shown}"
    span = Span(document.source, assertion.offset, len(assertion.text))
    raise InputError(message, span=span)


def _shown(names: Sequence[str], values: Mapping[str, int]) -> str:
    """Return the values of symbols as a text, such as "N = 2, M = 3"."""
    return ", ".join(f"{name} = {values[name]}" for name in names if name in values)


def _names(parts: Iterable[s.Expression]) -> list[str]:
    """Return the names of the identifiers among expressions, each name once."""
    names = [part.name for part in parts if isinstance(part, s.Identifier)]
    return list(dict.fromkeys(names))


def _divides(expression: s.Expression) -> bool:
    """Tell whether an expression contains a division."""
    return any(isinstance(x, s.Binary) and x.operator == "/" for x in _parts(expression))


def _parts(expression: s.Expression) -> Iterator[s.Expression]:
    """Yield an expression and the operands, at any depth, that `evaluate` computes."""
    pending = [expression]
    while pending:
        part = pending.pop()
        yield part
        match part:
            case s.Unary(operand=operand):
                pending.append(operand)
            case s.Binary(left=left, right=right):
                pending += (right, left)
            case _:
                pass
