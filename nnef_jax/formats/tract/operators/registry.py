"""The registries of the dialect: operators, which take tensors, and intrinsics."""

from __future__ import annotations

from typing import Any

from nnef_jax.flattening.operators.attributes import attribute
from nnef_jax.flattening.operators.registry import Operators

# Operands have the types of the declaration. If the last operation of a meaning lacks a parameter
# of its kind, the argument of this name is taken from the call.
OPERATORS = Operators()
operator = OPERATORS.operator

# Arguments are as the text has them.
INTRINSICS = Operators()
intrinsic = INTRINSICS.operator

AXES: Any = attribute("axes", "axes_of")  # of input 0, which may count from the end


def argument(name: str) -> Any:
    """Return an attribute as the site has it."""
    return attribute(name, "argument")


def fixed(name: str) -> Any:
    """Return an attribute that is a whole number, neither open nor symbolic."""
    return attribute(name, "integer")
