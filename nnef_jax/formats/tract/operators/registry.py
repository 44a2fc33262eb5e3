"""The registries of the dialect. One has operators on tensors, the other has intrinsics."""

from __future__ import annotations

from typing import Any

from nnef_jax.flattening.operators.attributes import attribute
from nnef_jax.flattening.operators.registry import Operators, Registration

# The registry of operators on tensors. Operands are converted to the declared types. The function
# of an operator adds operations to the graph. If the last of these operations lacks an argument, it
# gets the call's argument of the same name.
OPERATORS = Operators()
operator: Registration = OPERATORS.operator

# The registry of intrinsics. The arguments of an intrinsic are not converted.
INTRINSICS = Operators()
intrinsic: Registration = INTRINSICS.operator

AXES: Any = attribute("axes", "axes_of")  # axes of input 0; negative axes count from the end


def argument(name: str) -> Any:
    """Declare an attribute that is the argument `name` of the call, without any conversion."""
    return attribute(name, "argument")


def fixed(name: str) -> Any:
    """Declare an attribute that is the integer argument `name` of the call.

    The integer must not be symbolic or depend on an open extent.
    """
    return attribute(name, "integer")
