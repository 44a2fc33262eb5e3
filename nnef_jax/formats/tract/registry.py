"""The operations of the dialect: those on tensors, and intrinsics."""

from __future__ import annotations

from nnef_jax.flattening.attributes import Attribute
from nnef_jax.flattening.operators import Operators

# Operations on tensors, which have the types that they take. An argument of the last operation that
# a meaning leaves out is the call's argument of that name.
OPERATORS = Operators()
operator = OPERATORS.operator

# Operations that need their call, as for an input or a shape. Arguments are those of the text.
INTRINSICS = Operators()
intrinsic = INTRINSICS.operator

AXES = Attribute("axes", "axes_of")  # of input 0, which may count from the end


def argument(name: str) -> Attribute:
    """Return an attribute of the type that its declaration has."""
    return Attribute(name, "argument")


def known(name: str) -> Attribute:
    """Return an attribute that is a whole number, and decides the structure of the graph."""
    return Attribute(name, "integer")
