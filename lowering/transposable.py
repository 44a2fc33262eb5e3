"""Rewrites a linear function so that jax can transpose it."""

from __future__ import annotations

import jax.numpy as jnp

from lowering import jaxprs
from lowering.jaxpr_types import ClosedJaxpr, Equation
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, rewritten


def without_stops(linear: ClosedJaxpr) -> ClosedJaxpr:
    """Return a linear function with zeros in place of the results of `stop_gradient`.

    jax can transpose the new function. It batches a choice between two branches as a selection, and
    `stop_gradient` then computes the operands of the branch that is not chosen. What this branch
    computes is discarded, so these operands may be zeros.
    """

    def change(equation: Equation, inner: ClosedJaxpr) -> ClosedJaxpr:
        # A checkpoint also computes values that are not linear, and these must stay.
        return without_stops(inner) if jaxprs.recomputed(equation) is None else inner

    program = Program(linear).with_inner(change)
    return rewritten(program, {"stop_gradient": _zeros}).closed


def _zeros(matcher: Matcher, equation: Equation) -> Computed:
    """Return zeros for the result of an equation."""
    return Computed(jnp.zeros_like, equation.invars)
