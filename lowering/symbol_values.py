"""Bounds and values of the symbolic extents of `jax.export`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.extents import Extent, is_symbolic

# Maps each operator in the text of an extent to the function that computes it.
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}

_FUNCTIONS = {"mod", "max", "min", "floordiv"}  # the names of functions in the text of an extent


class Dimensions:
    """The symbolic dimensions of `jax.export` that stand for the extents of lists in one trace.

    A list is a tensor with an axis whose number of items is known only in a run.

    `scope` is the scope of the dimensions, by default a new one.
    """

    def __init__(self, scope: Any = None) -> None:
        self.scope: Any = scope
        self._by_text: dict[str, Any] = {}

    def of(self, attribute: Any) -> Any:
        """Return an attribute of an operation with a dimension in place of each `Extent`."""
        if isinstance(attribute, tuple):
            return tuple(map(self.of, attribute))  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(attribute, Extent):
            return attribute
        from jax import export  # imported here: networks without lists do not need it

        if self.scope is None:
            self.scope = export.SymbolicScope()
        dimension = self._by_text.get(attribute.text)
        if dimension is None:
            (dimension,) = export.symbolic_shape(attribute.text, scope=self.scope)
            self._by_text[attribute.text] = dimension
        return dimension


class SymbolValues:
    """The values that symbolic extents have in one run.

    A symbol without a value is an open extent of the program itself, such as a batch of any size.
    It stands for itself.

    Args:
        most: maps the name of each symbol to the largest value that the symbol can have.
        counts: maps the name of each symbol to its value in the run, an integer scalar of jax.
    """

    def __init__(self, most: Mapping[str, Any] = {}, counts: Mapping[str, Array] = {}) -> None:
        self._most: dict[str, Any] = {**most}
        self.counts: dict[str, Array] = {**counts}

    def inner(self, counts: Mapping[str, Array] | None = None) -> SymbolValues:
        """Return new values for the body of a loop or a branch. The body may define more symbols.

        If `counts` is not None, it replaces the values of the symbols.
        """
        return SymbolValues(self._most, self.counts if counts is None else counts)

    def define(self, extent: Any, most: Any, count: Array) -> None:
        """Set the value of a symbol in this run, and the largest value that it can have."""
        self._most[str(extent)] = most
        self.counts[str(extent)] = count

    def bound(self, extent: Any, scope: Any = None) -> Any:
        """Return the largest value that an extent can have.

        `scope` is the scope of the symbols of an `Extent`.
        """
        if not is_symbolic(extent) and not isinstance(extent, Extent):
            return extent
        # An open extent is its own largest value.
        most = self._most | _open(extent, self._most, scope)
        _, largest = _range(_parsed(str(extent)), most, counted=self._most)
        return largest

    def bounds(self, shape: Any) -> Any:
        """Return a shape in which each symbolic extent is replaced by its largest value."""
        if isinstance(shape, tuple):
            return tuple(map(self.bounds, shape))  # pyright: ignore[reportUnknownArgumentType]
        return self.bound(shape)

    def value(self, extent: Any) -> Any:
        """Return the value of an extent in this run.

        The value of a symbolic extent is a scalar of jax. The value of a number is the number.
        """
        if not is_symbolic(extent):
            return extent
        dimensions = _open(extent, self.counts)
        open_values = {name: jnp.asarray(dimension) for name, dimension in dimensions.items()}
        return _value(_parsed(str(extent)), self.counts | open_values)


def with_numbers(extent: Any, numbers: Mapping[str, int]) -> Any:
    """Return an extent with numbers in place of some of its symbols.

    For n0 + n1 and the number 0 for n0, the result is n1. Raises an error of jax if the result
    depends on the values of the other symbols, as the larger one of n0 and n1 does.
    """
    if symbols_in(extent).isdisjoint(numbers):
        return extent
    most = {**numbers} | _open(extent, numbers)
    number, _ = _range(_parsed(str(extent)), most, counted={})
    return number


def symbols_in(extent: Any) -> set[str]:
    """Return the names of the symbols in an extent, a shape, or another attribute."""
    if isinstance(extent, tuple):
        return set().union(*map(symbols_in, extent))  # pyright: ignore[reportUnknownArgumentType]
    if not (is_symbolic(extent) or isinstance(extent, Extent)):
        return set()
    nodes = ast.walk(_parsed(str(extent)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names - _FUNCTIONS


@dataclass(frozen=True, slots=True)
class UpperBounds:
    """Upper bounds of an extent, one of which is relative to the value of a symbol.

    If there are several symbols, the bound is relative to the largest of their values.

    Args:
        number: the extent is at most this number. Infinite if no such number is known.
        excess: the extent is at most the value of the symbol plus this number. Infinite if no such
            number is known.
    """

    number: float
    excess: float


def bounds_by_symbols(
    extent: Any, symbols: Collection[str], limits: Mapping[str, Any]
) -> UpperBounds:
    """Return bounds of an extent that hold for all values of `symbols`.

    These symbols have no largest values. The excess is relative to the largest value of `symbols`.
    `limits` maps each other symbol to an extent that the symbol's value never exceeds, such as n0 +
    1 for n1. Then the bounds of n1 + 2 by n0 are infinity and 3, and the bounds of min(n1, 4) are 4
    and 1.
    """
    # The bounds of a symbol are computed once: several expressions may contain the symbol.
    bounds_by_name = dict.fromkeys(symbols, UpperBounds(math.inf, 0))

    def bounds_of_extent(extent: Any) -> UpperBounds:
        if not is_symbolic(extent) and not isinstance(extent, Extent):
            return UpperBounds(extent, extent)
        return _bounds_by_name(_parsed(str(extent)), bounds_of_name)

    def bounds_of_name(name: str) -> UpperBounds:
        if name not in bounds_by_name:
            bounds = bounds_of_extent(limits.get(name, math.inf))
            # A list has at least 0 items, even if its limit is negative.
            bounds_by_name[name] = UpperBounds(max(bounds.number, 0), max(bounds.excess, 0))
        return bounds_by_name[name]

    return bounds_of_extent(extent)


def _bounds_by_name(node: ast.expr, bounds_of_name: Callable[[str], UpperBounds]) -> UpperBounds:
    """Return the bounds of an expression. `bounds_of_name` returns the bounds of a symbol."""
    match node:
        case ast.Constant(value=int(number)):
            return UpperBounds(number, number)
        case ast.Name(id=name):
            return bounds_of_name(name)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return UpperBounds(-number, -number)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if _is_never_negative(operand):
            return UpperBounds(0, 0)
        case ast.BinOp(
            left=ast.UnaryOp(op=ast.USub(), operand=left), op=ast.Mult(), right=right
        ) if _is_never_negative(left) and _is_never_negative(right):
            return UpperBounds(0, 0)  # the text -3*n0 means (-3)*n0
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            x = _bounds_by_name(left, bounds_of_name)
            y = _bounds_by_name(right, bounds_of_name)
            return UpperBounds(x.number + y.number, min(x.excess + y.number, x.number + y.excess))
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=int(number))):
            x = _bounds_by_name(left, bounds_of_name)
            return UpperBounds(x.number - number, x.excess - number)
        case ast.BinOp(left=left, op=ast.Sub(), right=right) if _is_never_negative(right):
            return _bounds_by_name(left, bounds_of_name)
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if _is_never_negative(node):
            x = _bounds_by_name(left, bounds_of_name)
            y = _bounds_by_name(right, bounds_of_name)
            # 0 times infinity is NaN.
            product = x.number * y.number if x.number and y.number else 0
            return UpperBounds(product, product)
        case ast.Call(func=ast.Name(id="floordiv"), args=[left, ast.Constant(value=int(divisor))]):
            x = _bounds_by_name(left, bounds_of_name)
            return UpperBounds(x.number / divisor, max(x.excess, 0))
        case ast.Call(func=ast.Name(id="max" | "min" as name), args=[left, right]):
            choose = max if name == "max" else min
            x = _bounds_by_name(left, bounds_of_name)
            y = _bounds_by_name(right, bounds_of_name)
            return UpperBounds(choose(x.number, y.number), choose(x.excess, y.excess))
        case _:
            return UpperBounds(math.inf, math.inf)


def _is_never_negative(node: ast.expr) -> bool:
    """Tell whether an expression is a sum or product of symbols and of numbers >= 0."""
    match node:
        case ast.Constant(value=int(number)):
            return number >= 0
        case ast.Name():
            return True
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):
            return _is_never_negative(left) and _is_never_negative(right)
        case _:
            return False


def _open(extent: Any, symbols: Mapping[str, object], scope: Any = None) -> dict[str, Any]:
    """Return a dict from names to dimensions of jax, for the symbols of an extent.

    Symbols in `symbols` are left out. `scope` is the scope of the symbols of an `Extent`.
    """
    from jax import export

    dimensions: dict[str, Any] = {}
    for name in symbols_in(extent) - symbols.keys():
        scope = extent.scope if is_symbolic(extent) else scope
        (dimensions[name],) = export.symbolic_shape(name, scope=scope)
    return dimensions


@cache
def _parsed(text: str) -> ast.expr:
    """Return the syntax tree of a symbolic extent's text, such as "P + 1".

    jax documents the text of a symbolic extent, but not its attributes.
    """
    return ast.parse(text.replace("^", "**"), mode="eval").body


def _range(
    node: ast.expr, most: Mapping[str, Any], counted: Mapping[str, object]
) -> tuple[Any, Any]:
    """Return the least and the largest value of an expression of symbols.

    A symbol in `counted` may have the values from 0 to its number in `most`. Another symbol has the
    value in `most`, which may be a symbolic dimension.
    """
    match node:
        case ast.Constant(value=int(number)):
            return number, number
        case ast.Name(id=name):
            return (0 if name in counted else most[name]), most[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            low, high = _range(operand, most, counted)
            return -high, -low
        case ast.BinOp(left=left, op=sign, right=right):
            ranges = _range(left, most, counted), _range(right, most, counted)
            return _range_of_operation(sign, *ranges)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            ranges = _range(left, most, counted), _range(right, most, counted)
            return _range_of_call(name, *ranges)
        case _:
            raise NotImplementedError(ast.unparse(node))


def _range_of_operation(
    sign: ast.operator, left: tuple[Any, Any], right: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Return the least and the largest result of an operation on numbers from two ranges."""
    low, high = left
    right_low, right_high = right
    if isinstance(sign, ast.Add):
        return low + right_low, high + right_high
    if isinstance(sign, ast.Sub):
        return low - right_high, high - right_low
    function = _OPERATIONS[type(sign)]  # a product or a power
    if low >= 0 and right_low >= 0:
        return function(low, right_low), function(high, right_high)
    ends = [function(x, y) for x in left for y in right]
    return min(ends), max(ends)


def _range_of_call(name: str, left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the least and the largest result of a function on numbers from two ranges.

    `name` is the function's name in `_FUNCTIONS`.
    """
    low, high = left
    right_low, right_high = right
    if name == "mod":
        # A remainder has the sign of the divisor, and a smaller absolute value.
        return min(right_low + 1, 0), max(right_high - 1, 0)
    if name in ("max", "min"):
        choose = max if name == "max" else min
        return choose(low, right_low), choose(high, right_high)
    # A quotient is largest or least at an end of the divisor's range, or next to 0.
    candidates = {right_low, right_high, -1, 1}
    divisors = [y for y in candidates if y and right_low <= y <= right_high]
    ends = [x // y for x in left for y in divisors]
    return min(ends, default=0), max(ends, default=0)


def _value(node: ast.expr, counts: Mapping[str, Array]) -> Any:
    """Return the value of an expression of symbols: a number, or a scalar of jax.

    `counts` has the value of each symbol.
    """
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return counts[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, counts)
        case ast.BinOp(left=left, op=sign, right=right):
            return _OPERATIONS[type(sign)](_value(left, counts), _value(right, counts))
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            functions = {"mod": jnp.mod, "max": jnp.maximum, "min": jnp.minimum}
            function = functions.get(name, jnp.floor_divide)
            return function(_value(left, counts), _value(right, counts))
        case _:
            raise NotImplementedError(ast.unparse(node))
