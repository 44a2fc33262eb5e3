"""Symbolic extents: their values for given input shapes, and the assertions on them."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowering.extents import UNKNOWN, is_symbolic
from lowering.location import Span
from nnef_jax.errors import InputError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.standard import COMPARISONS
from nnef_jax.formats.tract.document import Assertion, TractDocument
from nnef_jax.limits import Meter

_LARGEST = 1 << 40  # that a symbol is looked for
_BEYOND = 1 << 64  # larger than any extent: values of expressions stay there
_STEPS = 20  # of the meter, for an equation or assertion
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: a // b if b != 0 else UNKNOWN,
}  # fmt: skip


def has_open_inputs(
    document: TractDocument, given: Mapping[str, Sequence[Any]], values: Mapping[str, Any]
) -> bool:
    """Tell whether an input's extent is open, given some inputs' shapes and symbols' values."""
    return any(
        extent is None or extent is UNKNOWN for shape in given.values() for extent in shape
    ) or any(
        evaluate(extent, values) in (0, UNKNOWN)
        for name, shape in document.input_shapes.items()
        if name not in given
        for extent in shape
    )


def solve(
    document: TractDocument,
    shapes: Mapping[str, Sequence[int | None]],
    meter: Meter,
    given: Mapping[str, int] = {},
) -> dict[str, int]:
    """Return symbols' values by inputs' shapes, or UNKNOWN; some may be given.

    Raises InputError where none fit.
    """
    equations = [
        _Equation(name, axis, expression, extent, len(parts), _names(parts), meter)
        for name, shape in document.input_shapes.items()
        for axis, (expression, extent) in enumerate(zip(shape, shapes.get(name, ()), strict=False))
        if extent is not None and extent is not UNKNOWN and _names(parts := [*_parts(expression)])
    ]
    # Quotients last: they leave open which of several values a symbol has.
    equations.sort(key=lambda equation: _divides(equation.expression))
    values = dict(given)
    meter.spend(_STEPS * (len(equations) + len(document.assertions)), document.source.name)
    unsolved = list(equations)
    while found := next(((e, x) for e in unsolved if (x := e.solution(values)) is not None), None):
        equation, value = found
        values[equation.free(values)[0]] = value
        unsolved.remove(equation)
    for equation in equations:
        meter.spend(equation.size, document.source.name)
        equation.check(document, values)
    for assertion in document.assertions:
        _check(document, assertion, values)
    symbols = dict.fromkeys(document.symbols)  # and those that only occur in shapes of inputs
    for shape in document.input_shapes.values():
        symbols |= dict.fromkeys(name for extent in shape for name in _names(_parts(extent)))
    return {symbol: values.get(symbol, UNKNOWN) for symbol in symbols}


@dataclass(frozen=True, slots=True)
class _Equation:
    """An extent of an input that the document gives by an expression of so many parts."""

    input: str
    axis: int
    expression: s.Expression
    extent: int
    size: int
    names: Sequence[str]  # of the symbols in the expression
    meter: Meter

    def free(self, values: Mapping[str, int]) -> list[str]:
        return [name for name in self.names if name not in values]

    def solution(self, values: Mapping[str, int]) -> int | None:
        """Return the value of its only free symbol, None where it has none or more of them."""
        self.meter.spend(_STEPS + self.size, "the symbols")
        free = self.free(values)
        if len(free) != 1:
            return None
        if isinstance(self.expression, s.Identifier):
            return self.extent
        known = {name: values[name] for name in self.names if name in values}

        def at(value: int) -> Any:
            self.meter.spend(self.size, "a symbol")
            return evaluate(self.expression, {**known, free[0]: value})

        zero, one = at(0), at(1)
        if zero is UNKNOWN or one is UNKNOWN:
            return None
        if one != zero:
            guess = (self.extent - zero) // (one - zero)
            if (is_symbolic(guess) or guess >= 0) and at(guess) == self.extent:
                return guess
        if is_symbolic(self.extent):
            return None
        # The smallest value for which an expression that grows is the extent.
        value = bisect_left(range(_LARGEST), self.extent, key=at)
        return value if at(value) == self.extent else None

    def check(self, document: TractDocument, values: Mapping[str, int]) -> None:
        if is_symbolic(self.extent):
            return
        found, free = evaluate(self.expression, values), self.free(values)
        span = s.span_in(document.source, self.expression)
        start = f"input '{self.input}' has extent {self.extent} at axis {self.axis}, "
        if len(free) == 1:
            raise InputError(f"{start}which no value of {free[0]} gives", span=span)
        if found is not UNKNOWN and not is_symbolic(found) and found != self.extent:
            raise InputError(
                f"{start}it should be {found}: {_shown(self.names, values)}",
                span=span,
                hint="inputs that share a symbol must agree on it",
            )


def evaluate(expression: s.Expression, values: Mapping[str, int]) -> Any:
    """Compute an expression of symbols and integers: UNKNOWN where a symbol has no value."""
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


def _binary(operator: str, a: Any, b: Any) -> Any:
    if operator in COMPARISONS:
        is_open = any(x is UNKNOWN or is_symbolic(x) for x in (a, b))
        return UNKNOWN if is_open else COMPARISONS[operator](a, b)
    result = _ARITHMETIC[operator](a, b) if operator in _ARITHMETIC else UNKNOWN
    is_open = result is UNKNOWN or is_symbolic(result)
    return result if is_open else max(-_BEYOND, min(result, _BEYOND))


def _check(document: TractDocument, assertion: Assertion, values: Mapping[str, int]) -> None:
    # A scenario names one use of the network, such as the first step of decoding.
    if assertion.scenario or evaluate(assertion.condition, values) is not False:
        return
    known = _shown(_names(_parts(assertion.condition)), values)
    raise InputError(
        f"the document asserts {assertion.text}" + (f", the inputs make {known}" if known else ""),
        span=Span(document.source, assertion.offset, len(assertion.text)),
    )


def _shown(names: Sequence[str], values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {values[name]}" for name in names if name in values)


def _names(parts: Iterable[s.Expression]) -> list[str]:
    return list(dict.fromkeys(part.name for part in parts if isinstance(part, s.Identifier)))


def _divides(expression: s.Expression) -> bool:
    return any(isinstance(x, s.Binary) and x.operator == "/" for x in _parts(expression))


def _parts(expression: s.Expression) -> Iterator[s.Expression]:
    """Yield an expression and what it is made of, as far as symbols can be made of it."""
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
