"""The registries of the dialect: of operators on tensors, and of intrinsics."""

from __future__ import annotations

from typing import Any

from nnef_jax.flattening.operators.attributes import attribute
from nnef_jax.flattening.operators.registry import Operators, Registration

# Operators on tensors. Operands are converted to the types of the declaration. If the last
# operation of a meaning lacks an argument, it takes the call's argument of the same name.
OPERATORS = Operators()
operator: Registration = OPERATORS.operator

# Intrinsics. Unlike the operands of operators, the arguments are not converted.
INTRINSICS = Operators()
intrinsic: Registration = INTRINSICS.operator

AXES: Any = attribute("axes", "axes_of")  # axes of input 0; negative axes count from the end


def argument(name: str) -> Any:
    """Return an attribute that is read without conversion."""
    return attribute(name, "argument")


def fixed(name: str) -> Any:
    """Return an attribute that is an integer, neither open nor symbolic."""
    return attribute(name, "integer")
