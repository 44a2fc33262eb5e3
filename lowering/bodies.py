"""The functions that equations evaluate: bodies of loops, branches, calls, choices of platforms.

Whoever follows axes, or anything else, through a program goes through these in one way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lowering import jaxprs
from lowering.jaxprs import primitive


class Outer(NamedTuple):
    """The operand or result, by place, of which a body has all items, or one along `steps` axes."""

    place: int
    steps: int = 0


class InnerFunction(NamedTuple):
    """A function within an equation.

    Args:
        closed: the function.
        arguments: by argument, which operand of the equation it is at first.
        results: by result, which one of the equation it is; None for what a loop asks.
        again: by result, the argument that it is in the next turn of a loop.
        times: how often a call evaluates it, 1 where only a run knows.
    """

    closed: Any
    arguments: Sequence[Outer]
    results: Sequence[Outer | None]
    again: Mapping[int, int] = {}
    times: int = 1


def bodies(equation: Any) -> list[InnerFunction]:
    """Return the functions that an equation evaluates; none if it is a primitive's own work."""
    name, params = primitive(equation), equation.params
    operands, results = (
        list(map(Outer, range(len(x)))) for x in (equation.invars, equation.outvars)
    )
    match name:
        case "scan":
            count, carried = jaxprs.scan_counts(equation)
            stacked = count + carried
            arguments = [Outer(i, int(i >= stacked)) for i in range(len(operands))]
            ends = [Outer(i, int(i >= carried)) for i in range(len(results))]
            again = {i: count + i for i in range(carried)}
            return [InnerFunction(params["jaxpr"], arguments, ends, again, params["length"])]
        case "while":
            asks, count = params["cond_nconsts"], params["body_nconsts"]
            state = operands[asks + count :]
            again = {i: count + i for i in range(len(results))}
            return [
                InnerFunction(params["cond_jaxpr"], [*operands[:asks], *state], [None]),
                InnerFunction(params["body_jaxpr"], [*operands[asks:]], results, again),
            ]
        case "cond":
            return [InnerFunction(branch, operands[1:], results) for branch in params["branches"]]
        case _:
            closed = jaxprs.called(equation)
            return [] if closed is None else [InnerFunction(closed, operands, results)]
