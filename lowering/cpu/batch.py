"""Find the axis of each variable that holds the items of a batch, and change their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lowering.cpu.layout import reshaped_runs
from lowering.facts import facts, rule_of
from lowering.jaxprs import PRODUCT, is_literal, primitive, variables

Axes = Mapping[Any, int]
Rule = Callable[[Any, list[int | None]], int | None]


class NotSeparableError(Exception):
    """Items of the batch may depend on one another."""


def batch_axes(
    jaxpr: Any, known: Mapping[Any, int], *, follow: Iterable[Any] = (), reduces: bool = False
) -> dict[Any, int]:
    """Map variables to their axis of the batch's items. Raises NotSeparableError if items mix.

    What shall `follow` has the axis of what it meets, if it has items for all of the batch. If it
    `reduces`, maxima and sums over items are allowed: they have no such axis.
    """
    axes, following = dict(known), set(follow) - set(known)
    size = next((v.aval.shape[axis] for v, axis in known.items()), 1)
    uses = Counter(variables([*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]))
    repeated: dict[Any, set[int]] = {}  # what is the same along these axes, and read once

    def axes_of(equation: Any) -> list[int | None]:
        return [None if is_literal(v) else axes.get(v) for v in equation.invars]

    for equation in jaxpr.eqns:
        given = axes_of(equation)
        if all(axis is None for axis in given):
            (result, *_) = equation.outvars
            if primitive(equation) == "broadcast_in_dim" and uses[result] == 1:
                repeated[result] = _new_axes(equation)
            continue
        if facts(equation).by_item or primitive(equation) == "concatenate":
            for axis in set(given) - {None}:
                rank = len(equation.outvars[0].aval.shape)
                beside = [v for v in variables(equation.invars) if v in following]
                same = [v for v in equation.invars if _is_repeated(v, axis, repeated)]
                same += [v for v in beside if _has_items(v.aval.shape, rank, axis, size)]
                axes.update(dict.fromkeys(same, axis))
            given = axes_of(equation)
        rule = _rule_for(equation)
        axis = None if rule is None else rule(equation, given)
        if axis is None and reduces and _is_over(equation, given):
            continue
        if axis is None:
            raise NotSeparableError
        axes.update((variable, axis) for variable in equation.outvars)
    return axes


def _is_over(equation: Any, given: Sequence[int | None]) -> bool:
    """Tell whether a maximum, sum or product is taken over the items."""
    if primitive(equation) in ("reduce_max", "reduce_sum"):
        return given[0] in equation.params["axes"]
    if primitive(equation) != PRODUCT:
        return False
    (sums, _) = equation.params["dimension_numbers"]
    return all(axis in axes for axis, axes in zip(given, sums, strict=True))


def _new_axes(equation: Any) -> set[int]:
    operand, *_ = equation.invars
    extents = dict(zip(equation.params["broadcast_dimensions"], operand.aval.shape, strict=True))
    shape = equation.params["shape"]
    return {axis for axis, n in enumerate(shape) if extents.get(axis, 1) != n}


def _has_items(shape: Sequence[int], rank: int, axis: int | None, size: int) -> bool:
    return axis is not None and len(shape) == rank and shape[axis] == size


def _is_repeated(variable: Any, axis: int | None, repeated: Mapping[Any, set[int]]) -> bool:
    return not is_literal(variable) and axis in repeated.get(variable, ())


def _elementwise(equation: Any, given: list[int | None]) -> int | None:
    found = {axis for axis in given if axis is not None}
    if len(found) != 1:
        return None
    (axis,) = found
    rank = len(equation.outvars[0].aval.shape)
    for variable, own in zip(equation.invars, given, strict=True):
        shape = variable.aval.shape
        if own is None and shape and (len(shape) != rank or shape[axis] != 1):
            return None
    return axis


def _transpose(equation: Any, given: list[int | None]) -> int | None:
    return equation.params["permutation"].index(given[0])


def _broadcast_in_dim(equation: Any, given: list[int | None]) -> int | None:
    (variable, *_), (axis, *_) = equation.invars, given
    target = None if axis is None else equation.params["broadcast_dimensions"][axis]
    same = target is not None and equation.params["shape"][target] == variable.aval.shape[axis]
    return target if same else None


def _removing(equation: Any, given: list[int | None]) -> int | None:
    axis, removed = given[0], equation.params[facts(equation).removes]
    if len(given) > 1 or axis is None or axis in removed:
        return None
    return axis - sum(other < axis for other in removed)


def _reshape(equation: Any, given: list[int | None]) -> int | None:
    if len(given) != 1 or equation.params["dimensions"] is not None:
        return None
    runs = reshaped_runs(equation.invars[0].aval.shape, equation.params["new_sizes"]) or []
    return next((new[0] for old, new in runs if old == (given[0],) and len(new) == 1), None)


def _beside(equation: Any, given: list[int | None]) -> int | None:
    """Return the axis of all operands where the equation works along another one."""
    found = set(given)
    return None if len(found) != 1 or equation.params[facts(equation).along] in found else given[0]


def _untouched(equation: Any, given: list[int | None]) -> int | None:
    """Return the axis where parameters for each axis leave it as it is."""
    axis, params = given[0], equation.params
    if axis is None or any(other is not None for other in given[1:]):
        return None
    same = equation.invars[0].aval.shape[axis] == equation.outvars[0].aval.shape[axis]
    entries = [(params[name], entry) for name, entry in facts(equation).per_axis.items()]
    plain = all(entry in (None, x and x[axis]) for x, entry in entries if x is not None)
    return axis if same and plain else None


def _conv(equation: Any, given: list[int | None]) -> int | None:
    numbers = equation.params["dimension_numbers"]
    plain = given == [numbers.lhs_spec[0], None] and equation.params["batch_group_count"] == 1
    return numbers.out_spec[0] if plain else None


def _dot_general(equation: Any, given: list[int | None]) -> int | None:
    (left_sums, right_sums), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = given
    if left in left_batch and right in right_batch:
        place = left_batch.index(left)
        return place if right_batch.index(right) == place else None
    ranks = [len(variable.aval.shape) for variable in equation.invars]
    free = [
        [axis for axis in range(rank) if axis not in (*sums, *batch)]
        for rank, sums, batch in zip(
            ranks, (left_sums, right_sums), (left_batch, right_batch), strict=True
        )
    ]
    if right is None and left in free[0]:
        return len(left_batch) + free[0].index(left)
    if left is None and right in free[1]:
        return len(left_batch) + len(free[0]) + free[1].index(right)
    return None


def _rule_for(equation: Any) -> Rule | None:
    return rule_of(
        equation,
        _RULES,
        by_item=_elementwise,
        along=_beside,
        removes=_removing,
        per_axis=_untouched,
    )


_RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "reshape": _reshape,
    "transpose": _transpose,
}


def resized(axes: Axes, size: int) -> Callable[[Any], Any]:
    """Return a function that turns equations for the whole batch into those for `size` items."""

    def change(equation: Any) -> Any:
        variable = equation.outvars[0]
        if variable not in axes:
            return equation
        return equation.replace(params=_resized(equation, axes[variable], size))

    return change


def _resized(equation: Any, axis: int, size: int) -> dict[str, Any]:
    name = facts(equation).resized
    if not name:
        return equation.params
    extents = equation.params[name]
    return equation.params | {name: (*extents[:axis], size, *extents[axis + 1 :])}
