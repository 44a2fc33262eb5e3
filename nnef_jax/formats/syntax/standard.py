"""The operations and operators of NNEF 1.0 final, which all formats in NNEF's language have."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from nnef_jax.formats.syntax.parsing import read_package
from nnef_jax.formats.syntax.tree import Fragment


@cache
def standard() -> Mapping[str, Fragment]:
    """Return a dict from names to the declarations of NNEF 1.0 final, read from stdlib.nnef."""
    return read_package("nnef_jax.formats.syntax", "stdlib.nnef")


# Operations of these names have a generic type argument, such as `real` in `cast<real>(x)`. This
# argument is the type of the result's items. In the rules of the operations, it is the attribute
# `dtype`.
GENERIC_RESULT = ("constant", "cast")

# The operation on tensors for each binary operator (spec 3.3.3, table 1).
OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "^": "pow",
    "<": "lt", ">": "gt", "<=": "le", ">=": "ge", "==": "eq", "!=": "ne",
    "&&": "and", "||": "or",
}  # fmt: skip
# The comparison of values that are not tensors, for each operator that compares.
COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
# The operation on tensors for each unary operator.
UNARY_OPERATORS = {"-": "neg", "+": "copy", "!": "not"}

# Operations that introduce inputs, variables and updates. The flat graph has no such operations.
INTRODUCING = frozenset({"external", "variable", "update"})
