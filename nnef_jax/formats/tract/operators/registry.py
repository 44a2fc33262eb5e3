"""The registries of the dialect: of operators on tensors, and of intrinsics."""

from __future__ import annotations

from typing import Any

from nnef_jax.flattening.operators.attributes import attribute
from nnef_jax.flattening.operators.registry import Operators

# Operands have the types of the declaration. If the last operation of a meaning lacks a parameter
# of its kind, it takes the argument of that name from the call.
OPERATORS = Operators()
operator = OPERATORS.operator

# Arguments have the values that the text gives them.
INTRINSICS = Operators()
intrinsic = INTRINSICS.operator

AXES: Any = attribute("axes", "axes_of")  # axes of input 0; negative ones count from the end


def argument(name: str) -> Any:
    """Return an attribute that is read without conversion."""
    return attribute(name, "argument")


def fixed(name: str) -> Any:
    """Return an attribute that is an integer, neither open nor symbolic."""
    return attribute(name, "integer")
