"""Finds the keys that a mask hides from all queries, as beyond the filled part of a cache.

No mask's form is looked for: what is computed of it in each call tells up to which key to read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lowering.batches import Axes, NotSeparableError, batch_axes
from lowering.contexts import runs
from lowering.facts import facts
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables
from lowering.program import Program


@dataclass(frozen=True, slots=True)
class Hidden:
    """Masks of an attention: what is between `scores`, scaled perhaps, and `masked` ones.

    Where a masked score is -inf for scores of 0 it is so for all finite ones: masks are added or
    selected. Softmax makes it 0, so that neither key nor value makes a difference.
    """

    scores: Any
    masked: Any
    axes: Axes  # of keys, by variable


def hidden_keys(program: Program) -> Hidden | None:
    """Find the masks of an attention; None where keys that they hide may change its result."""
    found = _masks(program) if runs("hidden") else None
    _, keys, values, *_ = program.arguments
    known = {x: len(x.aval.shape) - 2 for x in (keys, values)}
    try:
        axes = batch_axes(program, known, follow=program.arguments, reduces=True)
    except NotSeparableError:
        return None
    return Hidden(*found, axes) if found and _is_neutral(program, found[1], axes) else None


def _masks(program: Program) -> tuple[Any, Any] | None:
    """Return the variables before masks and after them, of which a maximum is taken."""
    first, *rest = program.equations
    (current,) = first.outvars
    scores, made, is_masked = current, {current}, False
    for equation in rest:
        name, operands = primitive(equation), variables(equation.invars)
        if [v for v in operands if v in made] != [current]:
            return None
        if name == "reduce_max":
            return (scores, current) if is_masked else None
        is_chosen = name == "select_n" and equation.invars[0] is not current
        is_mask = is_chosen or name in ("add", "sub")
        (result,) = equation.outvars
        if not (is_mask or _is_moving(equation)):
            scores, is_masked = result, False
        current, is_masked = result, is_masked or is_mask
        made.add(current)
    return None


def _is_moving(equation: Any) -> bool:
    """Tell whether the result has items of its one operand, as they are or in another dtype."""
    known = facts(equation)
    return known.shapes or (known.by_item and known.moves and len(equation.invars) == 1)


def _is_neutral(program: Program, masked: Any, axes: Axes) -> bool:
    """Tell whether all that goes over keys is indifferent to those whose masked scores are -inf."""
    items: dict[Any, float | None] = {masked: -math.inf}  # of such keys, by variable
    for equation in program.equations:
        (result,) = equation.outvars
        given = [None if is_literal(v) else items.get(v) for v in equation.invars]
        if result in axes:
            items.setdefault(result, _item(equation, given))
        elif not axes.keys().isdisjoint(variables(equation.invars)):
            name = primitive(equation)
            is_maximum = name == "reduce_max" and -math.inf in given
            is_sum = name in ("reduce_sum", PRODUCT) and 0 in given
            if not (is_maximum or is_sum):
                return False
    return masked in axes


def _item(equation: Any, given: list[float | None]) -> float | None:
    """Return the result of an equation on -inf or 0, whatever finite numbers are beside it."""
    match primitive(equation), given:
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
