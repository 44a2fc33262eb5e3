"""Applies operators and built-in functions to values that are not tensors (spec 3.3.3).

A value is an int, a float, a bool or a str. Arrays are lists, tuples are tuples, and tensors are
objects of `lowering.graph.Value`. The functions raise `InvalidValue`. The evaluator adds the span
to this error.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lowering.extents import UNKNOWN
from lowering.graph import Value
from nnef_jax.flattening.host_operations import truncated
from nnef_jax.formats.base import ExtentNeeded
from nnef_jax.formats.syntax.standard import COMPARISONS
from nnef_jax.formats.syntax.types import ArrayOf, Primitive, Tensor, TupleOf, Type
from nnef_jax.limits import Meter

Known = Any  # a value of the language; the docstring of the module lists the types
_INTEGER_BITS = 63
_SEQUENCES = (list, tuple)


class InvalidValue(ValueError):
    """An expression has no value, for example because it divides an integer by zero."""


class TooLarge(ValueError):
    """An array or a string is longer than the limits allow."""


def _checked(value: int) -> int:
    """Return an integer. Raises InvalidValue if it does not fit 64 bits."""
    if value.bit_length() > _INTEGER_BITS:
        raise InvalidValue("the integer does not fit 64 bits")
    return value


def _divide(dividend: Known, divisor: Known) -> Known:
    """Divide two integers or two real numbers.

    The quotient of integers is truncated towards 0. Real numbers are divided as in IEEE 754: 1 / 0
    is infinity, 1 / -0.0 is -infinity, and 0 / 0 is NaN.
    """
    if isinstance(dividend, int):
        if divisor == 0:
            raise InvalidValue("division of an integer by zero")
        return truncated(dividend, divisor)
    if divisor != 0.0:
        return dividend / divisor
    if dividend == 0.0 or math.isnan(dividend):
        return math.nan
    sign_of_divisor = math.copysign(1.0, divisor)
    return math.copysign(math.inf, dividend) * sign_of_divisor


def _power(base: Known, exponent: Known) -> Known:
    """Compute the power of an integer or a real number.

    If a real result exceeds the range of floats, the result is infinity or -infinity.
    """
    if isinstance(base, int):
        if exponent < 0:
            raise InvalidValue("an integer has no negative power")
        if abs(base) > 1 and exponent > _INTEGER_BITS:
            raise InvalidValue("the integer does not fit 64 bits")
        return base**exponent
    try:
        return math.pow(base, exponent)
    except OverflowError:
        is_positive = base > 0 or exponent % 2 == 0
        return math.inf if is_positive else -math.inf
    except ValueError:
        if base == 0.0:  # The exponent is negative.
            is_odd = exponent % 2 == 1
            return math.copysign(math.inf, base) if is_odd else math.inf
        raise InvalidValue(f"{base} to the power {exponent} is not a real number") from None


UNARY: dict[str, Callable[[Known], Known]] = {
    "!": operator.not_, "-": operator.neg, "+": lambda value: value,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Known, Known], Known]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide, "^": _power,
}  # fmt: skip
_RELATIONS: dict[str, Callable[[Known, Known], bool]] = {
    **COMPARISONS,
    "in": lambda item, items: item in items,
}


def binary(symbol: str, left: Known, right: Known, meter: Meter) -> Known:
    """Compute the binary operator `symbol`, such as "+", of two values that are not tensors."""
    if symbol in _RELATIONS:
        require_known((left, right), meter)
        return _RELATIONS[symbol](left, right)
    if isinstance(left, list | str):
        return _joined(symbol, left, right, meter.limits.array_items)
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    # Only a text of 1.0 provisional may mix integers and real numbers.
    are_mixed = isinstance(left, int) != isinstance(right, int)
    if are_mixed:
        left = float(left)
        right = float(right)
    result = _ARITHMETIC[symbol](left, right)
    return _checked(result) if isinstance(result, int) else result


def _joined(symbol: str, left: Known, right: Known, most: int) -> Known:
    """Return left + right or left * right for an array or a string `left`.

    `symbol` is "+" for two arrays or strings that are joined. It is "*" if `left` is repeated
    `right` times. Raises TooLarge if the result would have more than `most` items.
    """
    if symbol == "*":
        _require_extent(right)
        length = len(left) * max(right, 0)
    else:
        length = len(left) + len(right)
    if length > most:
        raise TooLarge(f"an array or string would be longer than {most}")
    return _ARITHMETIC[symbol](left, right)


def _leaves(values: Iterable[Known], meter: Meter) -> Iterator[Known]:
    """Yield the items at any depth that are not arrays or tuples: 1, 2, 3 for [1, [2, 3]].

    The items are in any order. An array may contain an array many times, so the number of items may
    grow exponentially with the depth. Raises TooLarge if there are more items than the limit.
    """
    pending = list(values)
    count = len(pending)
    most = meter.limits.array_items
    while pending:
        value = pending.pop()
        if isinstance(value, _SEQUENCES):
            count += len(value)
            if count > most:
                raise TooLarge(f"arrays of arrays have more than {most} items here")
            meter.spend(len(value))
            pending += value
        else:
            yield value


def require_known(values: Iterable[Known], meter: Meter) -> None:
    """Raise ExtentNeeded if one of `values` is an unknown extent, or contains one at any depth."""
    for value in values:
        if value is UNKNOWN:
            raise ExtentNeeded
        if isinstance(value, _SEQUENCES):
            for leaf in _leaves(value, meter):
                if leaf is UNKNOWN:
                    raise ExtentNeeded


def item(sequence: Known, index: int) -> Known:
    """Return `sequence[index]`. Raises InvalidValue if the index is negative or too large."""
    _require_extent(index)
    if index < 0 or index >= len(sequence):
        raise InvalidValue(f"index {index} is out of range, the length is {len(sequence)}")
    return sequence[index]


def subrange(sequence: Known, begin: int | None, end: int | None) -> Known:
    """Return `sequence[begin:end]`, which is empty if `begin` is not below `end`.

    Raises InvalidValue if a bound is negative or too large.
    """
    begin = 0 if begin is None else begin
    end = len(sequence) if end is None else end
    _require_extent(begin, end)
    for bound in (begin, end):
        if bound < 0 or bound > len(sequence):
            raise InvalidValue(f"bound {bound} is out of range, the length is {len(sequence)}")
    return sequence[begin:end]


_INTEGER_LITERAL = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER_LITERAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def builtin(function: str, value: Known) -> Known:
    """Apply a built-in function or a cast (spec 3.3.3)."""
    match function:
        case "shape_of":
            # A number has no axes. NNEF has no tensors of fewer than 2 axes, so axes of extent 1
            # are appended until there are 2.
            shape = list(value.type.shape) if isinstance(value, Value) else []
            missing_axes = max(2 - len(shape), 0)
            return shape + [1] * missing_axes
        case "length_of":
            return len(value)
        case "range_of":
            return list(range(len(value)))
        case "string":
            _require_extent(value)
            if isinstance(value, bool):
                return "true" if value else "false"
            return value if isinstance(value, str) else repr(value)
        case "logical":
            _require_extent(value)
            return bool(value)
        case "scalar":
            if isinstance(value, str):
                is_number = _NUMBER_LITERAL.fullmatch(value) is not None
                if not is_number or math.isinf(float(value)):
                    raise InvalidValue(f"'{value}' is not a number")
                return float(value)
            _require_extent(value)
            return float(value)
        case _:
            return _to_integer(value)


def _to_integer(value: Known) -> int:
    """Convert a string, a number or a bool to an integer. UNKNOWN remains UNKNOWN."""
    if value is UNKNOWN:
        return value
    if isinstance(value, str):
        if not _INTEGER_LITERAL.fullmatch(value):
            raise InvalidValue(f"'{value}' is not an integer")
        return _checked(int(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidValue(f"{value} has no integer value")
        # By the provisional specification, a number is "truncated to the closest smaller integer
        # value".
        return _checked(math.floor(value))
    return int(value)


def _require_extent(*values: Known) -> None:
    """Raise ExtentNeeded if one of the values is UNKNOWN."""
    for value in values:
        if value is UNKNOWN:
            raise ExtentNeeded


def as_declared(value: Known, type: Type, meter: Meter) -> Known:
    """Convert an argument in a text of 1.0 provisional to its declared type.

    An integer becomes a scalar if the type is a scalar or a tensor of scalars. Raises TooLarge if
    the argument has too many items.
    """
    if isinstance(value, _SEQUENCES):
        # The loop only counts the items: `_leaves` raises TooLarge.
        for _ in _leaves([value], meter):
            pass
    return _as_declared(value, type)


def _as_declared(value: Known, type: Type) -> Known:
    """Convert a value and its items; see `as_declared`. The items are not counted."""
    match value, type:
        case bool(), _:
            return value
        case int(), (Primitive("scalar") | Tensor("scalar" | "?" | None)):
            _require_extent(value)
            return float(value)
        case list(), ArrayOf(item_type):
            return [_as_declared(item, item_type) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case tuple(), TupleOf(types):
            pairs = zip(value, types, strict=True)  # pyright: ignore
            return tuple([_as_declared(item, item_type) for item, item_type in pairs])
        case _:
            return value
