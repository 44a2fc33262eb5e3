"""Runs a batch a few items at a time, where all that is computed of one item fits the caches.

Tensors of a whole batch do not: they are written to memory and read again between two operations,
and beyond 32 MB the C library takes them anew from the system in each call, page by page. Batches
of 8 take, at once and in chunks: MobileNetV2 72 and 48 ms, a U-Net 328 and 198, ResNet-18 159 and
135, ResNet-50 400 and 381.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend import core

from lowering.optimize.layout import ELEMENTWISE, reshaped_runs

# Bytes that one operation may read and write: with 32 MB 8 items of a U-Net take 5 to 10 % longer,
# with 16 MB those of ResNet-50 4 %.
_MEMORY = 24 << 20

# The same for more items than the heaviest operation allows. Products gain by more rows, but with
# 24 MB here a stage hands on so much that memory is taken anew in each call. Batches of 8 take, in
# one stage and in up to three: ResNet-18 222 and 196 ms, MobileNetV2 76 and 61.
_LIGHT = 5 << 20
_NEAR = 16  # equations within which a border is put where the least is handed on

# What makes a stage of its own worth the copies at its borders.
_PRODUCTS = ("conv_general_dilated", "dot_general")

Axes = Mapping[Any, int]
Rule = Callable[[Any, list[int | None]], int | None]


class NotSeparableError(Exception):
    """Items of the batch may depend on one another."""


def can_be_chunked(inputs: Sequence[Any]) -> bool:
    """Whether all inputs have two or more items along their first axis, and as many."""
    extents = {x.shape[0] if x.shape else 1 for x in inputs}
    return len(extents) == 1 and min(extents) > 1


@dataclass(frozen=True, slots=True)
class Stage:
    """Equations that are computed for `size` items of the batch at a time."""

    size: int
    equations: Sequence[Any]
    reads: Sequence[Any]  # variables of the inputs and of stages before
    results: Sequence[Any]  # variables that later stages read or the function returns


def stages(jaxpr: Any, inputs: Sequence[Any], axes: Axes, batch: int) -> list[Stage]:
    """The equations in stages of more and more items, each of as many as it and all later ones
    allow: the last layers of a network have little memory and large matrices, which are read once
    for each part of the batch. `inputs` are the variables that hold the batch.
    """
    dependent = set(inputs)
    makers: dict[Any, Any] = {}  # of what is the same for all items
    own: list[Any] = []
    for equation in jaxpr.eqns:
        if any(not isinstance(v, core.Literal) and v in dependent for v in equation.invars):
            own.append(equation)
            dependent.update(equation.outvars)
        else:
            makers.update((variable, equation) for variable in equation.outvars)
    groups = _groups(own, axes, batch)
    wanted = [v for v in jaxpr.outvars if not isinstance(v, core.Literal)]
    found: list[Stage] = []
    for index, (size, equations) in enumerate(groups):
        made = {v for e in equations for v in e.outvars}
        later = [v for _, group in groups[index + 1 :] for e in group for v in e.invars]
        results = [v for v in _unique([*later, *wanted]) if v in made]
        read = _unique(v for e in equations for v in e.invars)
        reads = [v for v in read if v in dependent and v not in made]
        found.append(Stage(size, [*_makers_of(read, makers, jaxpr), *equations], reads, results))
    same = [v for v in _unique(wanted) if v not in dependent]
    return [*found, Stage(batch, _makers_of(same, makers, jaxpr), [], same)] if same else found


def united(stages: Sequence[Stage], outputs: Sequence[Any]) -> Stage:
    """Stages, from the first one, as a single one of as many items as the last of them takes."""
    equations = {id(e): e for stage in stages for e in stage.equations}.values()
    made = {v for e in equations for v in e.outvars}
    reads = [v for v in _unique(v for stage in stages for v in stage.reads) if v not in made]
    results = {v for stage in stages for v in stage.results}
    return Stage(
        stages[-1].size, list(equations), reads, [v for v in _unique(outputs) if v in results]
    )


def _groups(equations: Sequence[Any], axes: Axes, batch: int) -> list[tuple[int, Sequence[Any]]]:
    """Neighbouring equations with the number of items that they are computed for at a time."""
    sizes = [n for n in range(1, batch + 1) if batch % n == 0]
    traffic = [_traffic(equation, axes) for equation in equations]

    def most(volume: int, limit: int) -> int:
        return max((n for n in sizes if n * volume <= limit * batch), default=1)

    least = most(max(traffic, default=0), _MEMORY)
    allowed = [max(least, most(volume, _LIGHT)) for volume in traffic]
    allowed = list(itertools.accumulate(reversed(allowed), min))[::-1]
    groups: list[tuple[int, Sequence[Any]]] = []
    start = 0
    while start < len(equations):
        stop = next((i for i, n in enumerate(allowed) if n > allowed[start]), len(equations))
        stop = _narrowest(equations, stop)
        group = equations[start:stop]
        if groups and not any(e.primitive.name in _PRODUCTS for e in group):
            size, before = groups.pop()
            groups.append((size, [*before, *group]))
        else:
            groups.append((allowed[start], group))
        start = stop
    return groups


def _narrowest(equations: Sequence[Any], start: int) -> int:
    """The index, not far from the start, before which results of the fewest bytes are handed on."""
    last = {v: index for index, e in enumerate(equations) for v in _unique(e.invars)}
    made = {v: index for index, e in enumerate(equations) for v in e.outvars}

    def handed_on(index: int) -> int:
        return sum(_bytes(v) for v, i in made.items() if i < index <= last.get(v, index))

    return min(range(start, min(start + _NEAR, len(equations)) + 1), key=handed_on)


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(v for v in variables if not isinstance(v, core.Literal)))


def _makers_of(variables: Iterable[Any], makers: Mapping[Any, Any], jaxpr: Any) -> list[Any]:
    """The equations that compute variables which are the same for all items."""
    pending = list(variables)
    needed: set[int] = set()
    while pending:
        equation = makers.get(pending.pop())
        if equation is not None and id(equation) not in needed:
            needed.add(id(equation))
            pending += _unique(equation.invars)
    return [equation for equation in jaxpr.eqns if id(equation) in needed]


def _traffic(equation: Any, axes: Axes) -> int:
    variables = [*equation.invars, *equation.outvars]
    return sum(_bytes(v) for v in variables if not isinstance(v, core.Literal) and v in axes)


def _bytes(variable: Any) -> int:
    return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize


def batch_axes(jaxpr: Any, known: Mapping[Any, int]) -> dict[Any, int]:
    """The axis of the batch's items of each variable that depends on them.

    Raises NotSeparableError unless each item of a result depends on one item of the inputs.
    """
    axes = dict(known)
    uses = Counter(v for e in jaxpr.eqns for v in e.invars if not isinstance(v, core.Literal))
    uses.update(v for v in jaxpr.outvars if not isinstance(v, core.Literal))
    repeated: dict[Any, set[int]] = {}  # what is the same along these axes, and read once

    def axes_of(equation: Any) -> list[int | None]:
        return [None if isinstance(v, core.Literal) else axes.get(v) for v in equation.invars]

    for equation in jaxpr.eqns:
        given = axes_of(equation)
        if all(axis is None for axis in given):
            (result, *_) = equation.outvars
            if equation.primitive.name == "broadcast_in_dim" and uses[result] == 1:
                repeated[result] = _new_axes(equation)
            continue
        if equation.primitive.name in (*ELEMENTWISE, "concatenate"):
            for axis in set(given) - {None}:
                same = [v for v in equation.invars if _is_repeated(v, axis, repeated)]
                axes.update(dict.fromkeys(same, axis))
            given = axes_of(equation)
        rule = _RULES.get(equation.primitive.name)
        axis = None if rule is None else rule(equation, given)
        if axis is None:
            raise NotSeparableError
        axes.update((variable, axis) for variable in equation.outvars)
    return axes


def _new_axes(equation: Any) -> set[int]:
    """The axes along which a broadcast repeats its operand."""
    operand, *_ = equation.invars
    extents = dict(zip(equation.params["broadcast_dimensions"], operand.aval.shape, strict=True))
    shape = equation.params["shape"]
    return {axis for axis, n in enumerate(shape) if extents.get(axis, 1) != n}


def _is_repeated(variable: Any, axis: int | None, repeated: Mapping[Any, set[int]]) -> bool:
    return not isinstance(variable, core.Literal) and axis in repeated.get(variable, ())


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


def _squeeze(equation: Any, given: list[int | None]) -> int | None:
    return _without(given[0], equation.params["dimensions"])


def _reduction(equation: Any, given: list[int | None]) -> int | None:
    return _without(given[0], equation.params["axes"]) if len(given) == 1 else None


def _without(axis: int | None, removed: Sequence[int]) -> int | None:
    if axis is None or axis in removed:
        return None
    return axis - sum(other < axis for other in removed)


def _reshape(equation: Any, given: list[int | None]) -> int | None:
    if len(given) != 1 or equation.params["dimensions"] is not None:
        return None
    runs = reshaped_runs(equation.invars[0].aval.shape, equation.params["new_sizes"]) or []
    return next((new[0] for old, new in runs if old == (given[0],) and len(new) == 1), None)


def _beside(name: str) -> Rule:
    """Of a primitive that works along one other axis, a parameter of it."""

    def rule(equation: Any, given: list[int | None]) -> int | None:
        found = set(given)
        if len(found) != 1 or equation.params[name] in found:
            return None
        return given[0]

    return rule


def _untouched(*trivial: tuple[str, Any]) -> Rule:
    """Of a primitive with parameters for each axis, which are trivial along that of the batch."""

    def rule(equation: Any, given: list[int | None]) -> int | None:
        axis = given[0]
        if axis is None:
            return None
        params = equation.params
        plain = all(params[name] is None or params[name][axis] == value for name, value in trivial)
        return axis if plain and all(other is None for other in given[1:]) else None

    return rule


def _slice(equation: Any, given: list[int | None]) -> int | None:
    axis = given[0]
    same = equation.invars[0].aval.shape[axis] == equation.outvars[0].aval.shape[axis]
    return axis if same else None


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


_WINDOW = _untouched(
    ("window_dimensions", 1),
    ("window_strides", 1),
    ("padding", (0, 0)),
    ("base_dilation", 1),
)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"), _reduction
    ),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min", "reduce_window_sum"), _WINDOW),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "split"), _beside("axis")),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _beside("dimension"),
    "conv_general_dilated": _conv,
    "dot_general": _dot_general,
    "pad": _untouched(("padding_config", (0, 0, 0))),
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
}


def resized(axes: Axes, size: int) -> Callable[[Any], Any]:
    """What turns an equation for the whole batch into that for `size` items."""

    def change(equation: Any) -> Any:
        variable = equation.outvars[0]
        if variable not in axes:
            return equation
        return equation.replace(params=_resized(equation, axes[variable], size))

    return change


def _resized(equation: Any, axis: int, size: int) -> dict[str, Any]:
    """The parameters of an equation for another number of items."""
    name = {
        "broadcast_in_dim": "shape",
        "reshape": "new_sizes",
        "slice": "limit_indices",
    }.get(equation.primitive.name)
    if name is None:
        return equation.params
    extents = equation.params[name]
    return equation.params | {name: (*extents[:axis], size, *extents[axis + 1 :])}
