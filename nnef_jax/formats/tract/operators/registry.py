"""The registries of the dialect: of operators on tensors, and of intrinsics."""

from __future__ import annotations

from typing import Any

from nnef_jax.flattening.operators.attributes import attribute
from nnef_jax.flattening.operators.registry import Operators, Registration

# Operands are converted to the types of the declaration. The last operation of a meaning takes
# missing arguments from the call, by name.
OPERATORS = Operators()
operator: Registration = OPERATORS.operator

# Arguments are passed without conversion.
INTRINSICS = Operators()
intrinsic: Registration = INTRINSICS.operator

AXES: Any = attribute("axes", "axes_of")  # axes of input 0; negative ones count from the end


def argument(name: str) -> Any:
    """Return an attribute that is read without conversion."""
    return attribute(name, "argument")


def fixed(name: str) -> Any:
    """Return an attribute that is an integer, neither open nor symbolic."""
    return attribute(name, "integer")
