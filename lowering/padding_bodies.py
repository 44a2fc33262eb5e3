"""Evaluates branches and loops of jax on padded arrays.

The rules of this module complete the rules of `lowering.padding_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.extents import is_symbolic
from lowering.jaxpr_types import ClosedJaxpr, Equation
from lowering.jaxprs import SCAN
from lowering.padding_rules import RULES as RULES
from lowering.padding_state import PaddedState, with_derivatives_where
from lowering.program import Program


@RULES("cond")
def _branches(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate the branch that the first operand chooses."""
    index, *arguments = operands
    finite = [i for i, v in enumerate(equation.invars[1:]) if state.is_finite(v)]

    def as_function(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *arguments: state.inner().evaluated(Program(branch), arguments, finite)

    functions = list(map(as_function, equation.params["branches"]))
    return lax.switch(index, functions, *arguments)


@RULES(SCAN)
def _scan(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate a loop along an axis. Iterations for padding leave the carry unchanged.

    These iterations also read the carry and the constants, and may compute NaN or infinities.
    Therefore all that they read has no derivatives.
    """
    length = equation.params["length"]
    body = Program(equation.params["jaxpr"])
    constants, start, stacks = jaxprs.scan_parts(equation, operands)
    if is_symbolic(length):
        most = state.symbols.bound(length)  # the number of iterations
        is_item = jnp.arange(most) < state.symbols.value(length)

        def step_of_item(*arguments: Any) -> Sequence[Any]:
            body_arguments, is_running = arguments[:-1], arguments[-1]
            read = [with_derivatives_where(is_running, x) for x in body_arguments]
            results = state.inner().evaluated(body, read)
            carry = body_arguments[len(constants) : len(constants) + len(start)]
            for i, before in enumerate(carry):
                results[i] = jnp.where(is_running, results[i], before)
            return results

        # The last stack tells each iteration whether it is for an item.
        stacks = [*(lax.slice_in_dim(x, 0, most) for x in stacks), is_item]
        return jaxpr_evaluation.scanned(
            equation, step_of_item, constants, start, stacks, length=most
        )

    def step(*arguments: Any) -> Sequence[Any]:
        return state.inner().evaluated(body, arguments)

    return jaxpr_evaluation.scanned(equation, step, constants, start, stacks)


@RULES("while")
def _while(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Repeat a body while a condition holds. The carried arrays keep their shapes."""
    condition, body = (Program(equation.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    condition_count = equation.params["cond_nconsts"]
    constant_count = condition_count + equation.params["body_nconsts"]
    condition_constants = operands[:condition_count]
    body_constants = operands[condition_count:constant_count]

    def continues(carry: list[Any]) -> Any:
        (result,) = state.inner().evaluated(condition, [*condition_constants, *carry])
        return result

    def next_carry(carry: list[Any]) -> list[Any]:
        return state.inner().evaluated(body, [*body_constants, *carry])

    return lax.while_loop(continues, next_carry, operands[constant_count:])
