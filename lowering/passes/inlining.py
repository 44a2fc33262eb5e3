"""Inlines called functions, so that the patterns of later passes match across calls."""

from __future__ import annotations

from lowering import jaxprs
from lowering.jaxpr_types import Equation
from lowering.jaxprs import PRODUCT
from lowering.program import Matcher, Program, Rewrite, in_loops, rewritten
from lowering.targets.target import Target


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace calls of functions by their equations, and choices between platforms by one branch.

    The branch is that of the target's platform. If the target keeps derivatives, functions with
    custom derivatives stay calls. If it has kernels, barriers before products are removed.
    """
    keeps = target.keeps_derivatives
    closed = jaxprs.spliced(program.closed, target.platform, keeps_derivatives=keeps)
    program = program.with_closed(closed)
    if not target.has_kernels:
        return program
    return rewritten(program, {PRODUCT: _bare})


def _bare(matcher: Matcher, equation: Equation) -> Rewrite:
    """Remove a barrier before the left operand of a product. Kernels add barriers themselves."""
    left, right = equation.invars
    barrier = matcher.maker(left, "optimization_barrier")
    if barrier is None or len(barrier.invars) > 1:
        return None
    return equation.replace(invars=[barrier.invars[0], right])
