"""Moves computations out of a loop, if all iterations share them.

Values that depend only on parameters can then be prepared.
"""

from __future__ import annotations

from jax import Array

from lowering import jaxpr_evaluation, jaxprs
from lowering.jaxpr_types import Equation
from lowering.jaxprs import SCAN
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, rewritten
from lowering.split import split
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Compute values once before a loop, if they are equal in all iterations."""

    def hoist(matcher: Matcher, equation: Equation) -> Computed | None:
        return _hoisted(program.body(equation), equation)

    return rewritten(program, {SCAN: hoist})


def _hoisted(body: Program, equation: Equation) -> Computed | None:
    """Return a computation of the shared values of a loop, followed by the loop itself.

    Shared values are equal in all iterations. Return None if the loop has no shared values. `body`
    is the body of the loop in `equation`.
    """
    has_no_shared_values = all(map(body.is_late, body.equations))
    if has_no_shared_values:
        return None
    # `split` treats the constants of the loop as the parameters of the body.
    parts = split(body)

    def prepare_and_scan(*operands: Array) -> list[Array]:
        constants, start, stacks = jaxprs.scan_parts(equation, operands)
        shared_values = parts.prepare(constants)
        shared_count = len(shared_values)

        def step(*arguments: Array) -> list[Array]:
            return parts.call(arguments[:shared_count], arguments[shared_count:])

        return jaxpr_evaluation.scanned(equation, step, shared_values, start, stacks)

    return Computed(prepare_and_scan, equation.invars)
