"""Lists the functions that an equation evaluates: bodies of loops, branches, called functions.

Analyses that follow axes or other properties through a program use this list to enter inner
functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lowering import jaxprs
from lowering.jaxpr_types import ClosedJaxpr, Equation
from lowering.jaxprs import primitive


class OuterValue(NamedTuple):
    """An operand or result of an equation, as a value of the equation's inner function.

    An argument of the inner function stands for an operand of the equation. A result of the inner
    function stands for a result of the equation.

    Args:
        number: the index of the operand or result in the equation.
        steps: 1 if a loop takes one item along axis 0 in each iteration, otherwise 0.
    """

    number: int
    steps: int = 0


class InnerFunction(NamedTuple):
    """A function that an equation evaluates, such as the body of a loop.

    Args:
        closed: the traced function.
        arguments: for each argument of the function, the equation's operand. For a loop this is
            the operand of the first iteration.
        results: for each result of the function, the equation's result, or None for the result
            of a loop's condition.
        carried_to: maps the index of a result to the index of the argument that the result
            becomes in the next iteration.
        times: the number of evaluations in a call, or 1 if the number is unknown before the
            program runs.
    """

    closed: ClosedJaxpr
    arguments: Sequence[OuterValue]
    results: Sequence[OuterValue | None]
    carried_to: Mapping[int, int] = {}
    times: int = 1


def inner_functions(equation: Equation) -> list[InnerFunction]:
    """Return the functions that an equation evaluates, in order. Most primitives have none."""
    params = equation.params
    operands = list(map(OuterValue, range(len(equation.invars))))
    results = list(map(OuterValue, range(len(equation.outvars))))
    match primitive(equation):
        case "scan":
            constant_count, carried_count = jaxprs.scan_counts(equation)
            # The operands are the constants, the initial carry, and the stacks. The results are
            # the final carry and the stacks. An iteration reads or computes one item of a stack.
            first_stack = constant_count + carried_count
            item_operands = [OuterValue(i, steps=1) for i in range(first_stack, len(operands))]
            item_results = [OuterValue(i, steps=1) for i in range(carried_count, len(results))]
            body_arguments = [*operands[:first_stack], *item_operands]
            body_results = [*results[:carried_count], *item_results]
            carried_to = {i: constant_count + i for i in range(carried_count)}
            body = params["jaxpr"]
            return [InnerFunction(body, body_arguments, body_results, carried_to, params["length"])]
        case "while":
            # The operands are the constants of the condition, the constants of the body, and the
            # state. The results are the final state.
            condition_constants = params["cond_nconsts"]
            body_constants = params["body_nconsts"]
            state = operands[condition_constants + body_constants :]
            condition_arguments = [*operands[:condition_constants], *state]
            body_arguments = operands[condition_constants:]
            carried_to = {i: body_constants + i for i in range(len(results))}
            return [
                InnerFunction(params["cond_jaxpr"], condition_arguments, [None]),
                InnerFunction(params["body_jaxpr"], body_arguments, results, carried_to),
            ]
        case "cond":  # operand 0 is the index of the branch
            return [InnerFunction(branch, operands[1:], results) for branch in params["branches"]]
        case _:
            closed = jaxprs.called(equation)
            return [] if closed is None else [InnerFunction(closed, operands, results)]
