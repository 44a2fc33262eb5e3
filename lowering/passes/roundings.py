"""Leaves out roundings to 16 bits between computations in 32 bits.

XLA leaves out such roundings too, but only after all its other passes. A network with
floating-point arguments of 32 bits asks for its roundings. These roundings stay.
"""

from __future__ import annotations

import jax.numpy as jnp

from lowering.jaxpr_types import Equation
from lowering.jaxprs import is_literal
from lowering.program import Program
from lowering.rewriting import Matcher, Rewrite, Rules, rewritten
from lowering.targets.target import Target

_RULES = Rules()


def run(program: Program, target: Target) -> Program:
    """Remove conversions from 32 to 16 bits and back from a program and from its loops.

    A program is returned unchanged if one of its floating-point arguments does not have 16 bits.
    """
    dtypes = {v.aval.dtype for v in program.arguments}
    floating = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    have_16_bits = all(dtype.itemsize == 2 for dtype in floating)
    return _removed(program) if have_16_bits else program


def _removed(program: Program) -> Program:
    """Remove conversions from 32 to 16 bits and back, in a program and in its loops."""
    return rewritten(program, _RULES).with_bodies(_removed)


@_RULES("convert_element_type")
def _wide(matcher: Matcher, equation: Equation) -> Rewrite:
    """Replace a conversion to float32 by the float32 operand of an earlier conversion."""
    (operand,) = equation.invars
    (result,) = equation.outvars
    earlier = matcher.maker(operand, "convert_element_type")
    if earlier is None or result.aval.dtype != jnp.float32:
        return None
    (source,) = earlier.invars
    if is_literal(source) or source.aval.dtype != jnp.float32:
        return None
    return source
