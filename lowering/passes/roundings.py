"""Leaves out roundings to 16 bits between computations in 32 bits, as XLA does after all passes."""

from __future__ import annotations

import jax.numpy as jnp

from lowering.jaxpr_types import Equation
from lowering.jaxprs import is_literal
from lowering.program import Matcher, Program, Rewrite, Rules, rewritten
from lowering.targets.target import Target

_RULES = Rules()


def run(program: Program, target: Target) -> Program:
    """Replace a conversion from 32 to 16 bits and back by nothing, in functions too."""
    return rewritten(program, _RULES).with_bodies(lambda inner: run(inner, target))


@_RULES("convert_element_type")
def _wide(matcher: Matcher, equation: Equation) -> Rewrite:
    (operand,), (result,) = equation.invars, equation.outvars
    before = matcher.maker(operand, "convert_element_type")
    if before is None or is_literal(before.invars[0]) or result.aval.dtype != jnp.float32:
        return None
    (source,) = before.invars
    return source if source.aval.dtype == jnp.float32 else None
