"""The registries of the dialect: operators, which take tensors, and intrinsics."""

from __future__ import annotations

from typing import Any

from nnef_jax.flattening.attributes import Attribute
from nnef_jax.flattening.operators import Operators

# Operands have the types of the declaration. The last operation that a meaning adds takes further
# arguments from the call: those that have the names of the kind's parameters.
OPERATORS = Operators()
operator = OPERATORS.operator

# Arguments are as the text has them.
INTRINSICS = Operators()
intrinsic = INTRINSICS.operator

AXES: Any = Attribute("axes", "axes_of")  # of input 0, which may count from the end


def argument(name: str) -> Any:
    """Return an attribute as the site has it."""
    return Attribute(name, "argument")


def fixed(name: str) -> Any:
    """Return an attribute that is a whole number, neither open nor symbolic."""
    return Attribute(name, "integer")
