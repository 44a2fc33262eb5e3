"""Lists the functions that an equation evaluates: bodies of loops, branches, called functions.

Analyses that follow axes or other properties through a program enter inner functions by this list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lowering import jaxprs
from lowering.jaxpr_types import ClosedJaxpr, Equation
from lowering.jaxprs import primitive


class Outer(NamedTuple):
    """The operand or result of the equation that an inner argument or result corresponds to.

    Args:
        place: its index among the operands or results.
        steps: 1 if the inner function gets one item along its leading axis, else 0.
    """

    place: int
    steps: int = 0


class InnerFunction(NamedTuple):
    """A function that an equation evaluates.

    Args:
        closed: the function.
        arguments: for each argument, the equation's operand, in the first turn of a loop.
        results: for each result, the equation's result; None for the condition of a loop.
        again: maps the index of a result to the index of the argument that the result becomes in
            the next turn.
        times: the number of evaluations in a call, 1 if it is unknown before a run.
    """

    closed: ClosedJaxpr
    arguments: Sequence[Outer]
    results: Sequence[Outer | None]
    again: Mapping[int, int] = {}
    times: int = 1


def bodies(equation: Equation) -> list[InnerFunction]:
    """Return the functions that an equation evaluates, in order; most primitives have none."""
    params = equation.params
    operands = list(map(Outer, range(len(equation.invars))))
    results = list(map(Outer, range(len(equation.outvars))))
    match primitive(equation):
        case "scan":
            count, carried = jaxprs.scan_counts(equation)
            stacked = count + carried
            arguments = [Outer(i, int(i >= stacked)) for i in range(len(operands))]
            ends = [Outer(i, int(i >= carried)) for i in range(len(results))]
            again = {i: count + i for i in range(carried)}
            return [InnerFunction(params["jaxpr"], arguments, ends, again, params["length"])]
        case "while":
            # The operands are the constants of the condition, those of the body, and the state.
            cond_count, body_count = params["cond_nconsts"], params["body_nconsts"]
            state = operands[cond_count + body_count :]
            again = {i: body_count + i for i in range(len(results))}
            return [
                InnerFunction(params["cond_jaxpr"], [*operands[:cond_count], *state], [None]),
                InnerFunction(params["body_jaxpr"], [*operands[cond_count:]], results, again),
            ]
        case "cond":
            return [InnerFunction(branch, operands[1:], results) for branch in params["branches"]]
        case _:
            closed = jaxprs.called(equation)
            return [] if closed is None else [InnerFunction(closed, operands, results)]
