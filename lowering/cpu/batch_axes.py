"""Find the axis of each variable that holds the items of a batch, and change their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowering import jaxprs
from lowering.cpu.view_rules import reshaped_runs
from lowering.facts import facts
from lowering.jaxprs import CONVOLUTION, PRODUCT, is_literal, primitive, variables
from lowering.program import Program
from lowering.rules import Rules

Axes = Mapping[Any, int]

# Given an equation and its operands' axes, a rule returns that of the results; None if items mix.
_RULES = Rules()


class NotSeparableError(Exception):
    """Items of the batch may depend on one another."""


def batch_axes(
    program: Program, known: Axes, *, follow: Iterable[Any] = (), reduces: bool = False
) -> dict[Any, int]:
    """Map variables to their axis of the batch's items. Raises NotSeparableError if items mix.

    What shall `follow` has the axis of what it meets, if it has items for all of the batch. If it
    `reduces`, maxima and sums over items are allowed: they have no such axis.
    """
    axes, following = dict(known), set(follow) - set(known)
    size = next((v.aval.shape[axis] for v, axis in known.items()), 1)
    repeated: dict[Any, set[int]] = {}  # what is the same along these axes, and read once

    def axes_of(equation: Any) -> list[int | None]:
        return [None if is_literal(v) else axes.get(v) for v in equation.invars]

    def has_items(v: Any, axis: int, rank: int) -> bool:
        shape = v.aval.shape
        is_along = v in following and len(shape) == rank and shape[axis] == size
        return is_along or axis in repeated.get(v, ())

    for equation in program.equations:
        given = axes_of(equation)
        if all(axis is None for axis in given):
            if primitive(equation) == "broadcast_in_dim":
                (result,) = equation.outvars
                repeated[result] = _new_axes(equation) if program.uses[result] == 1 else set()
            continue
        if facts(equation).by_item or primitive(equation) == "concatenate":
            rank = len(equation.outvars[0].aval.shape)
            for axis in {axis for axis in given if axis is not None}:
                same = [v for v in variables(equation.invars) if has_items(v, axis, rank)]
                axes.update(dict.fromkeys(same, axis))
            given = axes_of(equation)
        rule = _RULES.of(equation)
        axis = None if rule is None else rule(equation, given)
        if axis is not None:
            axes.update((variable, axis) for variable in equation.outvars)
        elif not (reduces and _is_over(equation, given)):
            raise NotSeparableError
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


@_RULES(by_item=True)
def _elementwise(equation: Any, given: list[int | None]) -> int | None:
    found = {axis for axis in given if axis is not None}
    (axis, *others), rank = found, len(equation.outvars[0].aval.shape)
    pairs = zip(equation.invars, given, strict=True)
    shapes = [v.aval.shape for v, own in pairs if own is None and v.aval.shape]
    repeats = all(len(shape) == rank and shape[axis] == 1 for shape in shapes)
    return axis if repeats and not others else None


@_RULES("transpose")
def _transpose(equation: Any, given: list[int | None]) -> int | None:
    return equation.params["permutation"].index(given[0])


@_RULES("broadcast_in_dim")
def _broadcast_in_dim(equation: Any, given: list[int | None]) -> int | None:
    (variable, *_), (axis, *_) = equation.invars, given
    target = None if axis is None else equation.params["broadcast_dimensions"][axis]
    same = target is not None and equation.params["shape"][target] == variable.aval.shape[axis]
    return target if same else None


@_RULES(removes=True)
def _removing(equation: Any, given: list[int | None]) -> int | None:
    axis, removed = given[0], equation.params[facts(equation).removes]
    if len(given) > 1 or axis is None or axis in removed:
        return None
    return axis - sum(other < axis for other in removed)


@_RULES("reshape")
def _reshape(equation: Any, given: list[int | None]) -> int | None:
    if len(given) != 1 or equation.params["dimensions"] is not None:
        return None
    runs = reshaped_runs(equation.invars[0].aval.shape, equation.params["new_sizes"]) or []
    return next((new[0] for old, new in runs if old == (given[0],) and len(new) == 1), None)


@_RULES(along=True)
def _beside(equation: Any, given: list[int | None]) -> int | None:
    """Return the axis of all operands where the equation works along another one."""
    found = set(given)
    return None if len(found) != 1 or equation.params[facts(equation).along] in found else given[0]


@_RULES(per_axis=True)
def _untouched(equation: Any, given: list[int | None]) -> int | None:
    """Return the axis where parameters for each axis leave it as it is."""
    axis, params = given[0], equation.params
    if axis is None or any(other is not None for other in given[1:]):
        return None
    same = equation.invars[0].aval.shape[axis] == equation.outvars[0].aval.shape[axis]
    entries = [(params[name], entry) for name, entry in facts(equation).per_axis.items()]
    plain = all(entry in (None, x and x[axis]) for x, entry in entries if x is not None)
    return axis if same and plain else None


@_RULES(CONVOLUTION)
def _conv(equation: Any, given: list[int | None]) -> int | None:
    numbers = equation.params["dimension_numbers"]
    plain = given == [numbers.lhs_spec[0], None] and equation.params["batch_group_count"] == 1
    return numbers.out_spec[0] if plain else None


@_RULES(PRODUCT)
def _dot_general(equation: Any, given: list[int | None]) -> int | None:
    sums, batches = equation.params["dimension_numbers"]
    numbers = zip(equation.invars, sums, batches, strict=True)
    free = [[i for i in range(v.aval.ndim) if i not in (*x, *y)] for v, x, y in numbers]
    axes: list[Any] = [*zip(*batches, strict=True)]  # of the operands, for each of the result
    axes += [*((axis, None) for axis in free[0]), *((None, axis) for axis in free[1])]
    return axes.index(tuple(given)) if tuple(given) in axes else None


def resized(program: Program, *parts: tuple[Axes, int]) -> Program:
    """Return the program for so many items along axes instead of all."""
    shapes: dict[Any, list[int]] = {}
    for axes, size in parts:
        for variable, axis in axes.items():
            shapes.setdefault(variable, list(variable.aval.shape))[axis] = size

    def change(equation: Any) -> Any:
        (result, *_), name = equation.outvars, facts(equation).resized
        if not name or result not in shapes:
            return equation
        triples = zip(equation.params[name], result.aval.shape, shapes[result], strict=True)
        sizes = tuple(new if old != new else size for size, old, new in triples)
        return equation.replace(params=equation.params | {name: sizes})

    return program.with_closed(jaxprs.retyped(program.closed, shapes, change)) if parts else program
