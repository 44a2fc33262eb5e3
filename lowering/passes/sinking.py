"""Slices inputs of a loop within the iterations of the loop.

If the products of an input with several matrices have been merged into one product, the slices of
this product are inputs of the loop. After this pass the product itself is an input. An iteration
reads it once, instead of reading each slice.
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
    """Replace inputs of loops that are slices of one tensor by this tensor."""
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
    """Return the source of a loop's input, and the equations that lead from it to the input."""
    chain: list[Equation] = []
    while (maker := matcher.maker(operand)) and _keeps_steps(maker):
        chain.insert(0, maker)
        (operand,) = maker.invars
    return operand, chain


def _keeps_steps(equation: Equation) -> bool:
    """Tell whether an equation computes each item along axis 0 from one item of its operand.

    The computed item must have all items of the operand's item in the same order, or a slice of
    them.
    """
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
