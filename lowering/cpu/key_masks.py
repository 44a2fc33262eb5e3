"""Finds the keys that masks hide from all queries, for example beyond the filled part of a cache.

Masks may have any form, since each call computes the last visible key from the values of the masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowering.batches import Axes, NotSeparableError, batch_axes
from lowering.contexts import is_enabled
from lowering.facts import facts
from lowering.jaxpr_types import Equation, Variable
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables
from lowering.program import Program


@dataclass(frozen=True, slots=True)
class Hidden:
    """The masks of an attention, which hide keys from queries.

    The equations of the masks compute the variable `masked` from the variable `scores`. They add
    numbers to scores, or select numbers instead of scores. Therefore, if the masks turn the score 0
    into -inf, they turn all finite scores into -inf. After softmax the key of such a score has the
    weight 0, so that neither the key nor the key's value matters.
    """

    scores: Variable  # the scores before the masks
    masked: Variable  # the scores after the masks
    axes: Axes  # maps each variable that has an axis of keys to this axis


def hidden_keys(program: Program) -> Hidden | None:
    """Return the masks of an attention, if the attention may skip hidden keys.

    None is returned if there are no masks, or if keys that the masks hide may change the
    result.
    """
    masks = _masks(program) if is_enabled("hidden") else None
    if masks is None:
        return None
    scores, masked = masks
    _, keys, values, *_ = program.arguments
    axis_of_keys = {v: len(v.aval.shape) - 2 for v in (keys, values)}
    try:
        axes = batch_axes(program, axis_of_keys, follow=program.arguments, reduces=True)
    except NotSeparableError:
        return None
    return Hidden(scores, masked, axes) if _is_neutral(program, masked, axes) else None


def _masks(program: Program) -> tuple[Variable, Variable] | None:
    """Return the scores before the masks, and the scores after the masks.

    Softmax takes the maximum of the scores after the masks. None is returned if there are no
    masks, or if the equations up to the maximum are not a chain: each must read only the result of
    the previous one, apart from variables that do not depend on the scores.
    """
    first, *later = program.equations
    (scores,) = first.outvars
    masked = scores  # the result of the chain so far
    dependent = {scores}  # the variables that depend on the scores
    is_masked = False
    for equation in later:
        name = primitive(equation)
        dependent_operands = [v for v in variables(equation.invars) if v in dependent]
        is_in_chain = dependent_operands == [masked]
        if not is_in_chain:
            return None
        if name == "reduce_max":
            return (scores, masked) if is_masked else None
        (result,) = equation.outvars
        selects_scores = name == "select_n" and equation.invars[0] is not masked
        if selects_scores or name in ("add", "sub"):
            is_masked = True
        elif not _is_moving(equation):
            # After this equation a masked score need not be -inf. Only later masks count.
            scores = result
            is_masked = False
        masked = result
        dependent.add(result)
    return None


def _is_moving(equation: Equation) -> bool:
    """Tell whether an equation only moves or casts the items of a single operand."""
    properties = facts(equation)
    is_unary_copy = properties.by_item and properties.moves and len(equation.invars) == 1
    return properties.shapes or is_unary_copy


def _is_neutral(program: Program, masked: Variable, axes: Axes) -> bool:
    """Tell whether maxima and sums over keys ignore keys whose masked scores are -inf.

    `axes` maps each variable that has an axis of keys to this axis. `masked` is the variable of
    the masked scores.
    """
    # Without an axis of keys in the masked scores no key can be cut off.
    if masked not in axes:
        return False
    # This map has the number that each variable has at a hidden key: -inf, 0, or None for any other
    # number.
    item_of: dict[Variable, float | None] = {masked: -math.inf}
    for equation in program.equations:
        (result,) = equation.outvars
        operand_items = [None if is_literal(v) else item_of.get(v) for v in equation.invars]
        if result in axes:
            if result is not masked:  # the masked scores are -inf by definition
                item_of[result] = _item(equation, operand_items)
            continue
        reads_keys = any(v in axes for v in variables(equation.invars))
        if not reads_keys:
            continue
        # This equation removes the axis of keys.
        name = primitive(equation)
        is_neutral_maximum = name == "reduce_max" and -math.inf in operand_items
        is_neutral_sum = name in ("reduce_sum", PRODUCT) and 0 in operand_items
        if not is_neutral_maximum and not is_neutral_sum:
            return False
    return True


def _item(equation: Equation, operands: list[float | None]) -> float | None:
    """Return the item -inf or 0 that an equation computes, or None for any other item.

    `operands` has the operands' items: -inf, 0, or None for any other item. For example, -inf
    plus any other item is -inf, and exp(-inf) is 0.
    """
    match primitive(equation), operands:
        case _, [item] if _is_moving(equation):
            return item
        case ("add" | "sub", [item, None]) | ("add", [None, item]) if item == -math.inf:
            return item
        case ("exp" | "exp2", [item]) if item == -math.inf:
            return 0.0
        case ("mul" | "div", [item, None]) | ("mul", [None, item]) if item == 0:
            return item
        case _:
            return None
