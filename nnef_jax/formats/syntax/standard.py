"""The operations of NNEF 1.0 final, which every format in its language has."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache

from nnef_jax.formats.syntax.parsing import read_package
from nnef_jax.formats.syntax.tree import Fragment


@cache
def standard() -> Mapping[str, Fragment]:
    """Return the operations of NNEF 1.0 final by name, from stdlib.nnef."""
    return read_package("nnef_jax.formats.syntax", "stdlib.nnef")


# Operations whose arguments do not tell what their result holds: `?` does, the `dtype` of rules.
GENERIC_RESULT = ("constant", "cast")

# What operators are where one of their operands is a tensor (spec 3.3.3, table 1), what comparisons
# are where none is.
OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow",
    "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "==": "eq", "!=": "ne",
    "&&": "and", "||": "or",
}  # fmt: skip
COMPARISONS = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
UNARY_OPERATORS = {"-": "neg", "+": "copy", "!": "not"}

# Operations that the flat graph has other things for: inputs, variables and their updates.
INTRODUCING = frozenset({"external", "variable", "update"})
