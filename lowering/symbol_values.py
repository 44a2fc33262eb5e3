"""Bounds and values of the symbolic extents of `jax.export`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.extents import Extent, is_symbolic

# For each operator in the text of an extent, the function that computes it.
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}

_FUNCTIONS = {"mod", "max", "min", "floordiv"}  # the names of functions in the text of an extent


class Dimensions:
    """The symbolic dimensions of `jax.export` that stand for the extents of lists in one trace.

    `scope` is the scope of the dimensions, by default a new one.
    """

    def __init__(self, scope: Any = None) -> None:
        self._scope: Any = scope
        self._by_text: dict[str, Any] = {}

    def of(self, attribute: Any) -> Any:
        """Return an attribute of an operation with a dimension in place of each `Extent`."""
        if isinstance(attribute, tuple):
            return tuple(map(self.of, attribute))  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(attribute, Extent):
            return attribute
        from jax import export  # imported here: networks without lists do not need it

        if self._scope is None:
            self._scope = export.SymbolicScope()
        dimension = self._by_text.get(attribute.text)
        if dimension is None:
            (dimension,) = export.symbolic_shape(attribute.text, scope=self._scope)
            self._by_text[attribute.text] = dimension
        return dimension


class SymbolValues:
    """The values that symbolic extents have in one run.

    A symbol without a value is an open extent of the program itself, such as a batch of any size.
    It stands for itself.

    Args:
        most: the largest value of each symbol, by its name.
        counts: the value of each symbol in the run, an integer scalar of jax.
    """

    def __init__(self, most: Mapping[str, Any] = {}, counts: Mapping[str, Array] = {}) -> None:
        self._most: dict[str, Any] = {**most}
        self.counts: dict[str, Array] = {**counts}

    def inner(self, counts: Mapping[str, Array] | None = None) -> SymbolValues:
        """Return the values for the body of a loop or a branch, which may define more symbols.

        If `counts` is not None, it replaces the values of the symbols.
        """
        return SymbolValues(self._most, self.counts if counts is None else counts)

    def define(self, extent: Any, most: Any, count: Array) -> None:
        """Set the value of a symbol in this run, and the largest value that it can have."""
        self._most[str(extent)] = most
        self.counts[str(extent)] = count

    def bound(self, extent: Any) -> Any:
        """Return the largest value that an extent can have."""
        if not is_symbolic(extent):
            return extent
        most = self._most | _open(extent, self._most)  # an open extent is its own largest value
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


def symbols_in(extent: Any) -> set[str]:
    """Return the names of the symbols in an extent, a shape, or another attribute."""
    if isinstance(extent, tuple):
        return set().union(*map(symbols_in, extent))  # pyright: ignore[reportUnknownArgumentType]
    if not (is_symbolic(extent) or isinstance(extent, Extent)):
        return set()
    nodes = ast.walk(_parsed(str(extent)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names - _FUNCTIONS


def _open(extent: Any, symbols: Mapping[str, object]) -> dict[str, Any]:
    """Return a dimension of jax, by name, for each symbol of an extent that is not in `symbols`."""
    from jax import export

    dimensions: dict[str, Any] = {}
    for name in symbols_in(extent) - symbols.keys():
        (dimensions[name],) = export.symbolic_shape(name, scope=extent.scope)
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
        return 0, max(right_high - 1, 0)  # a remainder is less than the divisor
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
