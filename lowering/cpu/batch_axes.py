"""Find the axis of each variable that holds the items of a batch, and change their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lowering import jaxprs
from lowering.cpu.view_rules import reshaped_runs
from lowering.facts import facts
from lowering.jaxprs import CONVOLUTION, PRODUCT, SCAN, is_literal, primitive, variables
from lowering.program import Program, Rules

Axes = Mapping[Any, int]

# Given an equation and its operands' axes, a rule returns that of the results; None if items mix.
_RULES = Rules()
_UNSIZED = Rules()  # the same for what `resized` does not resize


class NotSeparableError(Exception):
    """Items of the batch may depend on one another, by the equation that is its argument."""


def batch_axes(
    program: Program,
    known: Axes,
    *,
    follow: Iterable[Any] = (),
    reduces: bool = False,
    resizes: bool = True,
) -> dict[Any, int]:
    """Map variables to their axis of the batch's items. Raises NotSeparableError if items mix.

    What shall `follow` has the axis of what it meets, if it has items for all of the batch. If it
    `reduces`, maxima and sums over items are allowed: they have no such axis. Where nobody
    `resizes` the program, loops and lookups are followed too.
    """
    axes, following = dict(known), set(follow) - set(known)
    size = next((v.aval.shape[axis] for v, axis in known.items()), 1)
    # What is the same along these axes, and read once.
    repeated = {} if resizes else _alike(program, size)

    def axes_of(equation: Any) -> list[int | None]:
        return [None if is_literal(v) else axes.get(v) for v in equation.invars]

    def has_items(v: Any, axis: int, rank: int) -> bool:
        shape = v.aval.shape
        is_along = v in following and len(shape) == rank and shape[axis] == size
        return is_along or axis in repeated.get(v, ())

    for equation in program.equations:
        given = axes_of(equation)
        if all(axis is None for axis in given):
            for result in equation.outvars:
                is_sized = program.uses[result] == 1 and primitive(equation) == "broadcast_in_dim"
                if is_sized or not resizes:
                    repeated[result] = _repeated(equation, {} if resizes else repeated)
                if not resizes:
                    repeated[result] |= _made_of(equation, repeated)
            continue
        if primitive(equation) == SCAN and not resizes:
            axes.update(_scan_axes(program, equation, given, has_items))
            continue
        if facts(equation).by_item or primitive(equation) == "concatenate":
            rank = len(equation.outvars[0].aval.shape)
            for axis in {axis for axis in given if axis is not None}:
                same = [v for v in variables(equation.invars) if has_items(v, axis, rank)]
                axes.update(dict.fromkeys(same, axis))
            given = axes_of(equation)
        rule = _rule(equation, resizes=resizes)
        axis = None if rule is None else rule(equation, given)
        if axis is None and rule is not None and not resizes:
            # Operands that are the same for all items have one for each.
            others = [*_filled(equation, given, repeated)]
            axis = next((x for x in (rule(equation, y) for y in others) if x is not None), None)
        if axis is not None:
            axes.update((variable, axis) for variable in equation.outvars)
        elif not (reduces and _is_over(equation, given)):
            raise NotSeparableError(equation)
    return axes


def _rule(equation: Any, *, resizes: bool) -> Any:
    return _RULES.of(equation) or (None if resizes else _UNSIZED.of(equation))


def _alike(program: Program, size: int) -> dict[Any, set[int]]:
    """Return for each constant the axes of this extent along which it is the same."""
    alike: dict[Any, set[int]] = {}
    for variable, constant in zip(program.constants, program.closed.consts, strict=True):
        if axes := [axis for axis, n in enumerate(variable.aval.shape) if n == size]:
            array = np.asarray(constant)
            alike[variable] = {x for x in axes if np.all(array == array.take([0], axis=x))}
    return alike


def _filled(
    equation: Any, axes: Sequence[int | None], repeated: Mapping[Any, set[int]]
) -> Iterator[list[int | None]]:
    """Yield axes of operands: a missing one is an axis along which the operand repeats.

    Each missing axis is filled by itself first, then all of them by the same number.
    """
    fills = [set[int]() if is_literal(v) else repeated.get(v, set[int]()) for v in equation.invars]
    pairs = [*zip(axes, fills, strict=True)]
    for i, (axis, fill) in enumerate(pairs):
        yield from ([*axes[:i], x, *axes[i + 1 :]] for x in fill if axis is None)
    for x in set[int]().union(*fills):
        yield [x if axis is None and x in fill else axis for axis, fill in pairs]


def _made_of(equation: Any, repeated: Mapping[Any, set[int]]) -> set[int]:
    """Return the axes along which a result repeats because an operand does."""
    rule = _rule(equation, resizes=False)
    if rule is None or facts(equation).by_item:  # which `_repeated` knows
        return set()
    none: list[int | None] = [None] * len(equation.invars)
    axes = (rule(equation, filled) for filled in _filled(equation, none, repeated))
    return {axis for axis in axes if axis is not None}


def _is_over(equation: Any, given: Sequence[int | None]) -> bool:
    """Tell whether a maximum, sum or product is taken over the items."""
    if primitive(equation) in ("reduce_max", "reduce_sum"):
        return given[0] in equation.params["axes"]
    if primitive(equation) != PRODUCT:
        return False
    (sums, _) = equation.params["dimension_numbers"]
    return all(axis in axes for axis, axes in zip(given, sums, strict=True))


def _repeated(equation: Any, repeated: Mapping[Any, set[int]]) -> set[int]:
    """Return the axes along which a result is the same, by what is known of operands."""
    name, params = primitive(equation), equation.params
    if name == "broadcast_in_dim":
        (operand, *_), axes = equation.invars, params["broadcast_dimensions"]
        extents = dict(zip(axes, operand.aval.shape, strict=True))
        kept = {axes[axis] for axis in repeated.get(operand, ())} if not is_literal(operand) else ()
        return {i for i, n in enumerate(params["shape"]) if extents.get(i, 1) != n or i in kept}
    if name == "tile":
        pairs = zip(params["reps"], equation.invars[0].aval.shape, strict=True)
        return {axis for axis, (count, n) in enumerate(pairs) if count > n == 1}
    if name == "iota":
        return {*range(len(params["shape"]))} - {params["dimension"]}
    if facts(equation).by_item:
        whole = [v for v in equation.invars if v.aval.shape]
        found = [set[int]() if is_literal(v) else repeated.get(v, set[int]()) for v in whole]
        return set.intersection(*found) if found else set()
    return set()


def _scan_axes(
    program: Program,
    equation: Any,
    given: Sequence[int | None],
    has_items: Callable[[Any, int, int], bool],
) -> dict[Any, int]:
    """Return the axes of what a loop returns, in each step of which items are apart."""
    constants, carried, stacks = jaxprs.scan_parts(equation, given)
    body, count = program.body(equation), len(carried)
    states = body.arguments[len(constants) :][:count]
    items = [None if axis is None else axis - 1 for axis in stacks]
    found: list[int | None] = []
    while 0 not in stacks:
        pairs = zip(body.arguments, [*constants, *carried, *items], strict=True)
        known = {v: axis for v, axis in pairs if axis is not None}
        follow = [v for v in states if v not in known]
        axes = batch_axes(body, known, follow=follow, resizes=False)
        found = [None if is_literal(v) else axes.get(v) for v in body.results]
        before = [axes.get(v) for v in states]
        after = [y if x is None else x for x, y in zip(before, found[:count], strict=True)]
        if after == carried == found[:count]:
            ends = [None if axis is None else axis + 1 for axis in found[count:]]
            pairs = zip(equation.outvars, [*after, *ends], strict=True)
            return {v: axis for v, axis in pairs if axis is not None}
        _, starts, _ = jaxprs.scan_parts(equation, equation.invars)
        for x, y, v in zip(carried, after, starts, strict=True):
            has_axis = not is_literal(v) and y is not None and has_items(v, y, len(v.aval.shape))
            if x != y and not has_axis:
                raise NotSeparableError(equation)
        if after == carried:
            break
        carried = after
    raise NotSeparableError(equation)


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


@_UNSIZED("gather")
def _gather(equation: Any, given: list[int | None]) -> int | None:
    (axis, of_indices), numbers = given, equation.params["dimension_numbers"]
    (operand, indices), (result,) = equation.invars, equation.outvars
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    if of_indices is None:
        size, whole = equation.params["slice_sizes"][axis], operand.aval.shape[axis]
        left_out = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [i for i in range(len(operand.aval.shape)) if i not in left_out]
        return numbers.offset_dims[kept.index(axis)] if size == whole and axis in kept else None
    is_beside = axis is None and of_indices not in numbers.start_indices_batching_dims
    if of_indices == len(indices.aval.shape) - 1 or not (is_beside or given in map(list, pairs)):
        return None
    rows = [i for i in range(len(result.aval.shape)) if i not in numbers.offset_dims]
    return rows[of_indices]


@_UNSIZED("dynamic_slice")
def _dynamic_slice(equation: Any, given: list[int | None]) -> int | None:
    axis, *starts = given
    if axis is None or any(start is not None for start in starts):
        return None
    whole = equation.params["slice_sizes"][axis] == equation.invars[0].aval.shape[axis]
    return axis if whole else None


@_UNSIZED("sort", "top_k", "rev", "tile")
def _along_others(equation: Any, given: list[int | None]) -> int | None:
    """Return the axis of all operands, if it is none that the equation works along."""
    (axis, *others), params = given, equation.params
    last = len(equation.invars[0].aval.shape) - 1
    if "reps" in params:
        worked = [i for i, count in enumerate(params["reps"]) if count != 1]
    else:
        worked = params.get("dimensions", [params.get("dimension", params.get("axis", last))])
    return axis if all(x == axis for x in others) and axis not in worked else None


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
