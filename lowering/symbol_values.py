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

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}

_FUNCTIONS = {"mod", "max", "min", "floordiv"}


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

        `counts` replaces the values of the symbols.
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
        _, most = _range(_parsed(str(extent)), self._most | _open(extent, self._most), self._most)
        return most

    def bounds(self, shape: Any) -> Any:
        """Return an equation's parameter with the largest value of each symbolic extent in it."""
        if isinstance(shape, tuple):
            return tuple(map(self.bounds, shape))  # pyright: ignore[reportUnknownArgumentType]
        return self.bound(shape)

    def value(self, extent: Any) -> Any:
        """Return the value of an extent in this run.

        For a symbolic extent it is a scalar of jax, and otherwise the extent itself.
        """
        if not is_symbolic(extent):
            return extent
        sizes = {name: jnp.asarray(n) for name, n in _open(extent, self.counts).items()}
        return _value(_parsed(str(extent)), self.counts | sizes)


def symbols_in(extent: Any) -> set[str]:
    """Return the names of the symbols in an extent, a shape, or another attribute."""
    if isinstance(extent, tuple):
        return set().union(*map(symbols_in, extent))  # pyright: ignore[reportUnknownArgumentType]
    if not (is_symbolic(extent) or isinstance(extent, Extent)):
        return set()
    nodes = ast.walk(_parsed(str(extent)))
    return {x.id for x in nodes if isinstance(x, ast.Name)} - _FUNCTIONS


def _open(extent: Any, symbols: Mapping[str, object]) -> dict[str, Any]:
    """Return the symbols of an extent that are not in `symbols`, by name, as dimensions of jax."""
    from jax import export

    names = symbols_in(extent) - symbols.keys()
    return {name: export.symbolic_shape(name, scope=extent.scope)[0] for name in names}


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
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _range(left, most, counted)
            c, d = _range(right, most, counted)
            if isinstance(op, ast.Add):
                return a + c, b + d
            if isinstance(op, ast.Sub):
                return a - d, b - c
            function = _OPERATIONS[type(op)]
            if a >= 0 and c >= 0:
                return function(a, c), function(b, d)
            ends = [function(x, y) for x in (a, b) for y in (c, d)]
            return min(ends), max(ends)
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            a, b = _range(left, most, counted)
            c, d = _range(right, most, counted)
            if name == "mod":
                return 0, max(d - 1, 0)
            if name in ("max", "min"):
                choose = max if name == "max" else min
                return choose(a, c), choose(b, d)
            if name == "floordiv":
                # A quotient is largest or least at an end of the divisor's range, or next to 0.
                divisors = [y for y in {c, d, -1, 1} if y and c <= y <= d]
                ends = [x // y for x in (a, b) for y in divisors]
                return min(ends, default=0), max(ends, default=0)
        case _:
            pass
    raise NotImplementedError(ast.unparse(node))


def _value(node: ast.expr, counts: Mapping[str, Array]) -> Any:
    """Return the value of an expression of symbols: a number, or a scalar of jax."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return counts[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, counts)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATIONS[type(op)](_value(left, counts), _value(right, counts))
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            functions = {"mod": jnp.mod, "max": jnp.maximum, "min": jnp.minimum}
            function = functions.get(name, jnp.floor_divide)
            return function(_value(left, counts), _value(right, counts))
        case _:
            raise NotImplementedError(ast.unparse(node))
