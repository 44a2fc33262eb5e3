"""Keys that a mask hides from all queries, as those beyond the filled part of a cache.

No mask's form is looked for: what is computed of it in each call tells up to which key to read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowering.ablation import runs
from lowering.cpu.batch import Axes, NotSeparableError, batch_axes
from lowering.facts import facts
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables


def _is_moving(equation: Any) -> bool:
    """Tell whether the result has items of its one operand, as they are or in another dtype."""
    known = facts(equation)
    return known.shapes or (known.by_item and known.moves and len(equation.invars) == 1)


_MASKING = frozenset(("add", "sub", "select_n"))

# Items that make no difference to what sums over keys.
_NEUTRAL = {"reduce_max": -math.inf, "reduce_sum": 0.0, PRODUCT: 0.0}


@dataclass(frozen=True, slots=True)
class Hidden:
    """Masks of an attention: equations from `scores`, scaled perhaps, to `masked` ones.

    Where a masked score is -inf for scores of 0 it is so for all finite ones: masks are added or
    selected. Softmax makes it 0, so that neither key nor value makes a difference.
    """

    scores: Any
    eqns: Sequence[Any]
    masked: Any
    axes: Axes  # of keys, by variable

    @property
    def reads(self) -> set[Any]:
        """Return the variables that masks are computed from."""
        made = {self.scores, *(v for e in self.eqns for v in e.outvars)}
        return {v for e in self.eqns for v in variables(e.invars)} - made


def hidden_keys(attention: Any) -> Hidden | None:
    """Find the masks of an attention; None where keys that they hide may change its result."""
    if not runs("hidden"):
        return None
    first, *rest = attention.eqns
    ((_, sums), (_, batch)) = first.params["dimension_numbers"]
    keys = first.invars[1]
    free = next(i for i in range(len(keys.aval.shape)) if i not in (*sums, *batch))
    last = next(e for e in rest if attention.values in variables(e.invars) and _is_product(e))
    ((_, (along,)), _) = last.params["dimension_numbers"]
    if keys is attention.values and free != along:
        return None
    try:
        known = {keys: free, attention.values: along}
        axes = batch_axes(attention, known, follow=attention.reads, reduces=True)
    except NotSeparableError:
        return None
    found = _masks(attention.eqns)
    if found is None:
        return None
    scores, eqns, masked = found
    is_hidden = masked in axes and _is_neutral(rest, masked, axes)
    return Hidden(scores, eqns, masked, axes) if is_hidden else None


def _is_product(equation: Any) -> bool:
    return primitive(equation) == PRODUCT


def _masks(equations: Sequence[Any]) -> tuple[Any, Sequence[Any], Any] | None:
    """Return the variable before the masks, their equations, and what a maximum is taken of."""
    scores = current = equations[0].outvars[0]
    made, eqns = {current}, list[Any]()
    for equation in equations[1:]:
        name, operands = primitive(equation), variables(equation.invars)
        if [v for v in operands if v in made] != [current]:
            return None
        if name == "reduce_max":
            break
        is_condition = name == "select_n" and equation.invars[0] is current
        (current,) = equation.outvars
        made.add(current)
        if (name in _MASKING or _is_moving(equation)) and not is_condition:
            eqns.append(equation)
        else:
            scores, eqns = current, []
    masks = any(primitive(e) in _MASKING for e in eqns)
    return (scores, eqns, current) if masks else None


def _is_neutral(equations: Sequence[Any], masked: Any, axes: Axes) -> bool:
    """Tell whether all that goes over keys is indifferent to those whose masked scores are -inf."""
    items = {masked: -math.inf}  # of such keys, by variable
    for equation in equations:
        keyed = any(v in axes for v in variables(equation.invars))
        (result,) = equation.outvars
        if not keyed or result is masked:
            continue
        if result in axes:
            item = _item(equation, items)
            if item is not None:
                items[result] = item
        else:
            name, weights = primitive(equation), equation.invars[0]
            if name not in _NEUTRAL or is_literal(weights) or items.get(weights) != _NEUTRAL[name]:
                return False
    return True


def _item(equation: Any, items: Mapping[Any, float]) -> float | None:
    """Return what an equation makes of -inf or 0, whatever finite numbers are beside it."""
    given = [None if is_literal(v) else items.get(v) for v in equation.invars]
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
