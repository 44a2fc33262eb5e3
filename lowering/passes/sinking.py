"""Slices inputs of a loop within the iterations of the loop.

If the products of an input with several matrices have been merged into one product, the slices of
this product are inputs of the loop. After this pass the product itself is an input of the loop. An
iteration reads the product once, instead of reading each slice.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.extents import volume
from lowering.facts import facts
from lowering.jaxpr_types import Atom, Equation
from lowering.jaxprs import SCAN, is_literal, primitive
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, rewritten
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Let loops that read several slices of one tensor read the tensor itself.

    The slices are taken in each iteration instead.
    """
    return rewritten(program, {SCAN: _sunk})


def _sunk(matcher: Matcher, equation: Equation) -> Computed | None:
    """Return a loop that slices its inputs in each iteration.

    Return None if each input is sliced from a tensor of its own.
    """
    constants, start, stacks = jaxprs.scan_parts(equation, equation.invars)
    chains = [_chain(matcher, stack) for stack in stacks]
    sources = list(dict.fromkeys(source for source, _ in chains))  # each tensor once
    if len(sources) == len(stacks):
        return None
    body = jaxpr_evaluation.as_function(equation.params["jaxpr"])
    first_item = len(constants) + len(start)

    def step(*arguments: Array) -> list[Array]:
        item_of_source = dict(zip(sources, arguments[first_item:], strict=True))
        items = [_item(item_of_source[source], chain) for source, chain in chains]
        return body(*arguments[:first_item], *items)

    def scan_sources(*operands: Array) -> list[Array]:
        return jaxpr_evaluation.scanned(equation, step, *jaxprs.scan_parts(equation, operands))

    return Computed(scan_sources, [*constants, *start, *sources])


def _chain(matcher: Matcher, operand: Atom) -> tuple[Atom, list[Equation]]:
    """Return the tensor from which a loop's input is sliced, and the equations that slice it.

    The first equation reads the tensor, and the last one computes `operand`. None of them changes
    axis 0, which counts the iterations.
    """
    chain: list[Equation] = []
    maker = matcher.maker(operand)
    while maker and _keeps_steps(maker):
        chain.insert(0, maker)
        (operand,) = maker.invars
        maker = matcher.maker(operand)
    return operand, chain


def _keeps_steps(equation: Equation) -> bool:
    """Tell whether an equation slices or reshapes its operand separately for each index of axis 0.

    The part of the result at an index then depends only on the operand's part at this index.
    """
    if len(equation.invars) != 1 or is_literal(equation.invars[0]):
        return False
    before = tuple(equation.invars[0].aval.shape)
    after = tuple(equation.outvars[0].aval.shape)
    keeps_axis_0 = len(before) > 0 and before[:1] == after[:1]
    if not keeps_axis_0:
        return False
    if primitive(equation) == "slice":
        strides = equation.params["strides"]
        return strides is None or strides[0] == 1
    is_reshape = facts(equation).shapes and not _reorders(equation)
    # A broadcast that repeats items has more items in its result.
    return is_reshape and volume(before) == volume(after)


def _reorders(equation: Equation) -> bool:
    """Tell whether a reshape or transposition changes the order of items."""
    if primitive(equation) == "transpose":
        return True
    return primitive(equation) == "reshape" and equation.params["dimensions"] is not None


def _item(item: Array, chain: Sequence[Equation]) -> Array:
    """Slice or reshape one item of a stack, as the equations in `chain` do for the whole stack.

    `item` is the part of the stack at an index of axis 0. The result is the part of the sliced or
    reshaped stack at this index. Both lack axis 0.
    """
    for equation in chain:
        if primitive(equation) == "slice":
            params = equation.params
            starts = params["start_indices"][1:]
            stops = params["limit_indices"][1:]
            strides = params["strides"]
            item = lax.slice(item, starts, stops, strides[1:] if strides else None)
        else:
            item = item.reshape(equation.outvars[0].aval.shape[1:])
    return item
