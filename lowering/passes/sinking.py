"""Slices inputs of a loop in its steps.

Products of an input with several matrices are one product, whose slices are inputs of a loop. The
loop reads the product itself: once in a step, instead of once for each slice.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array, lax

from lowering import jaxprs
from lowering.extents import volume
from lowering.facts import facts
from lowering.jaxpr_types import Atom, Equation
from lowering.jaxprs import SCAN, is_literal, primitive
from lowering.program import Computed, Matcher, Program, rewritten
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Replace inputs of loops that are slices of one tensor by that tensor."""
    return rewritten(program, {SCAN: _sunk})


def _sunk(matcher: Matcher, equation: Equation) -> Computed | None:
    constants, start, stacks = jaxprs.scan_parts(equation, equation.invars)
    chains = [_chain(matcher, x) for x in stacks]
    sources = list(dict.fromkeys(source for source, _ in chains))
    if len(sources) == len(stacks):
        return None
    inner = jaxprs.as_function(equation.params["jaxpr"])
    shared = len(constants) + len(start)

    def step(*arguments: Array) -> list[Array]:
        items = dict(zip(sources, arguments[shared:], strict=True))
        return inner(*arguments[:shared], *(_item(items[x], chain) for x, chain in chains))

    def function(*operands: Array) -> list[Array]:
        return jaxprs.scanned(equation, step, *jaxprs.scan_parts(equation, operands))

    return Computed(function, [*constants, *start, *sources])


def _chain(matcher: Matcher, operand: Atom) -> tuple[Atom, list[Equation]]:
    """Return the source of a loop's input, and the equations that compute the input from it."""
    chain: list[Equation] = []
    while (maker := matcher.maker(operand)) and _keeps_steps(maker):
        chain.insert(0, maker)
        (operand,) = maker.invars
    return operand, chain


def _keeps_steps(equation: Equation) -> bool:
    """Tell whether each item along the first axis is a part of one item, or all of it."""
    if len(equation.invars) != 1 or is_literal(equation.invars[0]):
        return False
    before, after = (tuple(v.aval.shape) for v in (*equation.invars, *equation.outvars[:1]))
    if not before or before[:1] != after[:1]:
        return False
    if primitive(equation) == "slice":
        return (equation.params["strides"] or [1])[0] == 1
    keeps_order = facts(equation).shapes and primitive(equation) != "transpose"
    return keeps_order and volume(before) == volume(after) and not _reorders(equation)


def _reorders(equation: Equation) -> bool:
    return primitive(equation) == "reshape" and equation.params["dimensions"] is not None


def _item(item: Array, chain: Sequence[Equation]) -> Array:
    """Compute an item of a loop's input from an item of the source."""
    for equation in chain:
        if primitive(equation) == "slice":
            names = ("start_indices", "limit_indices", "strides")
            bounds = [equation.params[name] for name in names]
            item = lax.slice(item, *(x and x[1:] for x in bounds))
        else:
            item = item.reshape(equation.outvars[0].aval.shape[1:])
    return item
