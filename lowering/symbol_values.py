"""Bounds and values of the symbolic extents of `jax.export`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from lowering.extents import is_symbolic

_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}


class SymbolValues:
    """The values that symbolic extents have in one run.

    Args:
        most: the largest value of each symbol, by its name.
        counts: the value of each symbol in the run, an integer scalar of jax.
    """

    def __init__(self, most: Mapping[str, int], counts: Mapping[str, Array]) -> None:
        self._most = most
        self._counts = counts

    def bound(self, extent: Any) -> int:
        """Return the largest value that an extent can have."""
        if not is_symbolic(extent):
            return extent
        return _range(_parsed(str(extent)), self._most)[1]

    def bounds(self, shape: Any) -> Any:
        """Return an equation's parameter with the largest value of each symbolic extent in it."""
        if isinstance(shape, tuple):
            return tuple(map(self.bounds, shape))  # pyright: ignore[reportUnknownArgumentType]
        return self.bound(shape)

    def value(self, extent: Any) -> Any:
        """Return the value of an extent in this run.

        For a symbolic extent it is a scalar of jax, and otherwise the extent itself.
        """
        return _value(_parsed(str(extent)), self._counts) if is_symbolic(extent) else extent


@cache
def _parsed(text: str) -> ast.expr:
    """Return the syntax tree of a symbolic extent's text, such as "P + 1".

    jax documents the text of a symbolic extent, but not its attributes.
    """
    return ast.parse(text.replace("^", "**"), mode="eval").body


def _range(node: ast.expr, most: Mapping[str, int]) -> tuple[int, int]:
    """Return the least and the largest value of an expression of symbols.

    Each symbol may have the values from 0 to its number in `most`.
    """
    match node:
        case ast.Constant(value=int(number)):
            return number, number
        case ast.Name(id=name):
            return 0, most[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            low, high = _range(operand, most)
            return -high, -low
        case ast.BinOp(left=left, op=op, right=right):
            function = _OPERATIONS[type(op)]
            ends = [function(a, b) for a in _range(left, most) for b in _range(right, most)]
            return min(ends), max(ends)
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            (a, b), (c, d) = _range(left, most), _range(right, most)
            if name == "mod":
                return 0, max(d - 1, 0)
            if name in ("max", "min"):
                choose = max if name == "max" else min
                return choose(a, c), choose(b, d)
            if name == "floordiv":
                ends = [x // y for x in (a, b) for y in (c, d) if y]
                return min(ends), max(ends)
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
