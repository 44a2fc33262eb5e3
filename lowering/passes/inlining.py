"""Inlines called functions, so that the patterns of later passes match across calls."""

from __future__ import annotations

from lowering import jaxprs
from lowering.jaxpr_types import Equation
from lowering.jaxprs import PRODUCT
from lowering.program import Program
from lowering.rewriting import Matcher, Rewrite, in_loops, rewritten
from lowering.targets.target import Target


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace calls by the equations of the called functions, and choices by one branch.

    A choice between platforms becomes the branch of the target's platform. If the target keeps
    derivatives, functions with custom derivatives stay calls. If the target has kernels, barriers
    before products are removed.
    """
    closed = jaxprs.spliced(
        program.closed, target.platform, keeps_derivatives=target.keeps_derivatives
    )
    program = program.with_closed(closed)
    if not target.has_kernels:
        return program
    return rewritten(program, {PRODUCT: _without_barrier})


def _without_barrier(matcher: Matcher, equation: Equation) -> Rewrite:
    """Remove a barrier before the left operand of a product. Kernels add barriers themselves."""
    left, right = equation.invars
    barrier = matcher.maker(left, "optimization_barrier")
    if barrier is None or len(barrier.invars) > 1:
        return None
    return equation.replace(invars=[barrier.invars[0], right])
