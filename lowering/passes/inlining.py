"""Put the equations of called functions in the place of calls, so that patterns reach over them."""

from __future__ import annotations

from typing import Any

from lowering import jaxprs
from lowering.jaxprs import PRODUCT
from lowering.program import Matcher, Program, in_loops, rewritten
from lowering.targets.target import Target


@in_loops
def run(program: Program, target: Target) -> Program:
    """Inline calls, and what a choice of platforms has for the target's, if it has one.

    Functions that have derivatives of their own stay where derivatives are taken.
    """
    keeps = target.keeps_derivatives
    closed = jaxprs.spliced(program.closed, target.platform, keeps_derivatives=keeps)
    program = program.with_closed(closed)
    return rewritten(program, {PRODUCT: _bare}) if target.has_kernels else program


def _bare(matcher: Matcher, equation: Any) -> Any:
    """Multiply without a barrier before the left operand: kernels of a target put their own."""
    left, right = equation.invars
    barrier = matcher.maker(left, "optimization_barrier")
    if barrier is None or len(barrier.invars) > 1:
        return None
    return equation.replace(invars=[barrier.invars[0], right])
