"""Finds the batch axis of each variable, and changes the size of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lowering import jaxprs
from lowering.axes import UNLINKED, axes_of
from lowering.bodies import InnerFunction, inner_functions
from lowering.facts import facts
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import CONVOLUTION, PRODUCT, SCAN, is_literal, primitive
from lowering.program import Program

Axes = Mapping[Variable, int]
ConstantAxes = Mapping[Variable, set[int]]  # axes along which all items of a variable are equal
_SUMS = ("reduce_max", "reduce_sum", PRODUCT)


class NotSeparableError(Exception):
    """Raised if items of a batch may depend on one another. The argument is the equation."""


def batch_axes(
    program: Program,
    seeds: Axes,
    *,
    follow: Iterable[Variable] = (),
    reduces: bool = False,
    resizes: bool = True,
) -> dict[Variable, int]:
    """Map each variable that holds the batch to its batch axis.

    Raises NotSeparableError if items of the batch may depend on one another.

    Args:
        program: the program.
        seeds: maps some arguments of the program to their batch axes.
        follow: arguments that are not in `seeds` but may hold the batch too. If an equation
            reads such an argument together with a variable that has a batch axis, the argument
            gets the axis that is linked with this batch axis, provided that its extent is the
            batch size.
        reduces: whether sums and maxima over the batch are allowed. The results of such sums
            have no batch axis.
        resizes: whether the caller will change the batch size by `resized`. If it will not,
            loops and lookups are followed too.
    """
    axes = dict(seeds)
    following = set(follow) - set(seeds)
    size = next((v.aval.shape[axis] for v, axis in seeds.items()), 1)
    constant_axes = {} if resizes else _constant_axes(program, size)

    def has_items(v: Atom, axis: int) -> bool:
        """Tell whether an operand may hold the batch along an axis, or repeats one item there."""
        follows = v in following and v.aval.shape[axis] == size
        return follows or axis in constant_axes.get(v, ())

    for equation in program.equations:
        batch = [None if is_literal(v) else axes.get(v) for v in equation.invars]
        has_batch = any(axis is not None for axis in batch)
        if not has_batch:
            for result in equation.outvars[:1]:
                if not resizes:
                    constant_axes[result] = _constant_axes_of_result(equation, constant_axes)
                elif primitive(equation) == "broadcast_in_dim" and program.uses[result] == 1:
                    constant_axes[result] = _constant_axes_of_result(equation, {})
            continue
        functions = [] if resizes else inner_functions(equation)
        if functions:
            targets = following.union(equation.outvars)
            inner_axes = _axes_by_functions(program, equation, functions, batch, has_items)
            for v, axis in inner_axes.items():
                if axis is not None and v in targets:
                    axes[v] = axis
            continue
        links = _links(equation, batch, has_items, resizes=resizes)
        for operand_axes, result_axes in links:
            for index, axis in operand_axes.items():
                v = equation.invars[index]
                may_get_axis = batch[index] is None and (resizes or v in following)
                if may_get_axis and has_items(v, axis):
                    axes[v] = axis
            axes.update((equation.outvars[index], axis) for index, axis in result_axes.items())
        all_have_axis = axes.keys() >= {*equation.outvars}
        is_reduction = reduces and links
        if not all_have_axis and not is_reduction:
            raise NotSeparableError(equation)
    return axes


# Two maps: from the index of an operand to its axis, and from the index of a result to its axis.
Ends = tuple[Mapping[int, int], Mapping[int, int]]


def _links(
    equation: Equation,
    batch_of_operands: Sequence[int | None],
    has_items: Callable[[Atom, int], bool],
    *,
    resizes: bool,
) -> Sequence[Ends]:
    """Return the links of an equation that contain the batch axes of all its operands.

    `batch_of_operands` has the batch axis of each operand, or None. An operand in a link may
    have no batch axis if `has_items` is true for the operand and the linked axis. If no link
    fits, items of the batch may be mixed, and the result is empty. `resizes` is as in
    `batch_axes`.
    """
    if resizes and not _is_resizable(equation):
        return []
    table = axes_of(equation) or UNLINKED
    is_sum = primitive(equation) in _SUMS
    singles = (link.single() for link in table.links if is_sum or link.kind == "apart")
    links = [ends for ends in singles if ends]
    batch = {i: axis for i, axis in enumerate(batch_of_operands) if axis is not None}
    exact = [ends for ends in links if ends[0] == batch]

    def may_lack_axis(index: int, axis: int) -> bool:
        v = equation.invars[index]
        is_repeated = facts(equation).by_item and v.aval.shape[axis] == 1
        return is_repeated or (not is_literal(v) and has_items(v, axis))

    def covers_batch(linked: Mapping[int, int]) -> bool:
        missing = linked.keys() - batch.keys()
        return batch.items() <= linked.items() and all(may_lack_axis(i, linked[i]) for i in missing)

    return exact or [ends for ends in links if covers_batch(ends[0])][:1]


def _is_resizable(equation: Equation) -> bool:
    if primitive(equation) in (PRODUCT, CONVOLUTION):
        return True
    fact = facts(equation)
    return fact.keeps_axes or fact.shapes or bool(fact.removes)


def _constant_axes(program: Program, size: int) -> dict[Variable, set[int]]:
    """Map each constant to its axes of extent `size` along which all items are equal."""
    constant_axes: dict[Variable, set[int]] = {}
    for variable, constant in zip(program.constants, program.closed.consts, strict=True):
        axes = [axis for axis, n in enumerate(variable.aval.shape) if n == size]
        if axes:
            array = np.asarray(constant)
            constant_axes[variable] = {
                axis for axis in axes if np.all(array == array.take([0], axis=axis))
            }
    return constant_axes


def _constant_axes_of_result(equation: Equation, constant_axes: ConstantAxes) -> set[int]:
    """Return the axes of an equation's first result along which all items are equal.

    `constant_axes` maps variables to axes along which their items are equal.
    """
    table = axes_of(equation) or UNLINKED
    axes = {*table.constant_axes}
    singles = (link.single() for link in table.links)
    for operand_axes, result_axes in filter(None, singles):
        linked = [(equation.invars[i], axis) for i, axis in operand_axes.items()]
        if all(not is_literal(v) and axis in constant_axes.get(v, ()) for v, axis in linked):
            axes.update(axis for i, axis in result_axes.items() if i == 0)
    return axes


def _axes_by_functions(
    program: Program,
    equation: Equation,
    functions: Sequence[InnerFunction],
    operands: Sequence[int | None],
    has_items: Callable[[Atom, int], bool],
) -> dict[Variable, int | None]:
    """Return the batch axes that an equation's variables get from its inner functions.

    `functions` are for example the branches of a choice, which must agree. `operands` has the
    batch axis of each operand, or None.
    """
    by_function: list[dict[Variable, int | None]] = []
    for function in functions:
        axes = _axes_within(program, equation, function, operands, has_items)
        if axes:  # a function with effects only has no results
            by_function.append(axes)
    if not by_function:
        return {}
    first = by_function[0]
    if any(axes != first for axes in by_function):  # the branches of a choice differ
        raise NotSeparableError(equation)
    return first


def _axes_within(
    program: Program,
    equation: Equation,
    body: InnerFunction,
    operands: Sequence[int | None],
    has_items: Callable[[Atom, int], bool],
) -> dict[Variable, int | None]:
    """Return the batch axes of an equation's results, by following one of its inner functions.

    `operands` has the batch axis of each operand, or None. For a loop, the returned map also
    has the batch axes of the initial values of carried values. The body of a loop is followed
    repeatedly, until the batch axes of the carried values do not change in an iteration, since
    an iteration may give a carried value a batch axis.
    """
    inside = replace(program, closed=body.closed)
    arguments = inside.arguments
    carried = list(body.carried_to.values())
    with_batch = {i for i, axis in enumerate(operands) if axis is not None}
    if with_batch - {outer.number for outer in body.arguments}:
        raise NotSeparableError(equation)  # the choice between branches depends on the batch
    before: list[int | None] = []
    for index, steps in body.arguments:
        axis = operands[index]
        before.append(None if axis is None else axis - steps)
    while -1 not in before:  # -1 means that the loop iterates over the batch
        seeds = {v: x for v, x in zip(arguments, before, strict=True) if x is not None}
        follow = [arguments[i] for i in carried if before[i] is None]
        axes = batch_axes(inside, seeds, follow=follow, resizes=False) if seeds else {}
        ends = [None if is_literal(v) else axes.get(v) for v in inside.results]
        after = list(before)
        for i, j in body.carried_to.items():
            after[j] = axes.get(arguments[j], ends[i])
        is_stable = after == before and all(
            ends[i] == before[j] for i, j in body.carried_to.items()
        )
        if is_stable:
            initial = {i: equation.invars[body.arguments[i].number] for i in carried}
            initial_axes = {v: before[i] for i, v in initial.items() if not is_literal(v)}
            return initial_axes | _outside(equation, body, ends)
        for i in carried:
            v = equation.invars[body.arguments[i].number]
            axis = after[i]
            if axis == before[i]:
                continue
            may_hold_batch = axis is not None and not is_literal(v) and has_items(v, axis)
            if not may_hold_batch or primitive(equation) != SCAN:
                raise NotSeparableError(equation)
        if after == before:
            break
        before = after
    raise NotSeparableError(equation)


def _outside(
    equation: Equation, body: InnerFunction, ends: Sequence[int | None]
) -> dict[Variable, int | None]:
    """Map the results of an equation to their batch axes.

    `ends` has the batch axes of the results of its inner function `body`.
    """
    axes: dict[Variable, int | None] = {}
    for axis, outer in zip(ends, body.results, strict=True):
        if outer is not None:
            end = None if axis is None else axis + outer.steps
            axes[equation.outvars[outer.number]] = end
        elif axis is not None:  # the items of a batch need different numbers of iterations
            raise NotSeparableError(equation)
    return axes


def resized(program: Program, *parts: tuple[Axes, int]) -> Program:
    """Return a program whose variables have other extents along some axes.

    Each of the `parts` is a pair: a map from variables to axes, and the new extent of these
    axes.
    """
    if not parts:
        return program
    shapes: dict[Variable, list[int]] = {}
    for axes, extent in parts:
        for variable, axis in axes.items():
            shapes.setdefault(variable, list(variable.aval.shape))[axis] = extent

    def change(equation: Equation) -> Equation:
        result, *_ = equation.outvars
        name = facts(equation).resized
        if not name or result not in shapes:
            return equation
        sizes = list(equation.params[name])
        for axis, extent in enumerate(shapes[result]):
            if extent != result.aval.shape[axis]:
                sizes[axis] = extent
        return equation.replace(params=equation.params | {name: tuple(sizes)})

    return program.with_closed(jaxprs.retyped(program.closed, shapes, change))
