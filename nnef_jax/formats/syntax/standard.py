"""The operations and operators of NNEF 1.0 final, which all formats in its language have."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from nnef_jax.formats.syntax.parsing import read_package
from nnef_jax.formats.syntax.tree import Fragment


@cache
def standard() -> Mapping[str, Fragment]:
    """Return the declarations of NNEF 1.0 final by name, read from stdlib.nnef."""
    return read_package("nnef_jax.formats.syntax", "stdlib.nnef")


# Operations whose generic argument decides the items of the result. It is the attribute `dtype` of
# their rules.
GENERIC_RESULT = ("constant", "cast")

# By operator: operations on tensors (spec 3.3.3, table 1), and comparisons of other values.
OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow",
    "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "==": "eq", "!=": "ne",
    "&&": "and", "||": "or",
}  # fmt: skip
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
UNARY_OPERATORS = {"-": "neg", "+": "copy", "!": "not"}

# Operations that introduce inputs, variables and updates instead of operations of the flat graph.
INTRODUCING = frozenset({"external", "variable", "update"})
