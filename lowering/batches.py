"""Finds the batch axis of each variable, and changes the size of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lowering import jaxprs
from lowering.axes import axes_of
from lowering.axis_links import UNLINKED
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
            reads one of these arguments together with a variable that has a batch axis, the
            argument gets the axis that is linked with this batch axis. The extent of this axis
            must be the batch size.
        reduces: whether sums and maxima over the batch are allowed. The results of such sums
            have no batch axis.
        resizes: whether the caller will change the batch size by `resized`. If it will not,
            loops and lookups are followed too.
    """
    axes = dict(seeds)
    followed = set(follow) - set(seeds)
    sizes = [variable.aval.shape[axis] for variable, axis in seeds.items()]
    size = sizes[0] if sizes else 1
    constant_axes = {} if resizes else _constant_axes(program, size)

    def has_items(operand: Atom, axis: int) -> bool:
        """Tell whether an operand may hold the batch along an axis, or repeats one item there."""
        may_hold_batch = operand in followed and operand.aval.shape[axis] == size
        return may_hold_batch or axis in constant_axes.get(operand, ())

    for equation in program.equations:
        # `operand_axes` has the batch axis of each operand, or None for an operand without one.
        operand_axes = [None if is_literal(v) else axes.get(v) for v in equation.invars]
        reads_batch = any(axis is not None for axis in operand_axes)
        if not reads_batch:
            for result in equation.outvars[:1]:
                if not resizes:
                    constant_axes[result] = _constant_axes_of_result(equation, constant_axes)
                elif primitive(equation) == "broadcast_in_dim" and program.uses[result] == 1:
                    # `resized` can resize this broadcast, since nothing else reads its result.
                    constant_axes[result] = _constant_axes_of_result(equation, constant_axes={})
            continue
        functions = [] if resizes else inner_functions(equation)
        if functions:
            may_get_axis = followed.union(equation.outvars)
            inner_axes = _axes_by_functions(program, equation, functions, operand_axes, has_items)
            for variable, axis in inner_axes.items():
                if axis is not None and variable in may_get_axis:
                    axes[variable] = axis
            continue
        links = _links(equation, operand_axes, has_items, resizes=resizes)
        for linked_operand_axes, result_axes in links:
            for index, axis in linked_operand_axes.items():
                operand = equation.invars[index]
                lacks_axis = operand_axes[index] is None
                may_get_axis = resizes or operand in followed
                if lacks_axis and may_get_axis and has_items(operand, axis):
                    axes[operand] = axis
            for index, axis in result_axes.items():
                axes[equation.outvars[index]] = axis
        have_results_axis = axes.keys() >= {*equation.outvars}
        is_reduction = reduces and links
        if not have_results_axis and not is_reduction:
            raise NotSeparableError(equation)
    return axes


# The first map has the axis of each linked operand, by the index of the operand. The second map has
# the axis of each linked result, by the index of the result.
Ends = tuple[Mapping[int, int], Mapping[int, int]]


def _links(
    equation: Equation,
    batch_of_operands: Sequence[int | None],
    has_items: Callable[[Atom, int], bool],
    *,
    resizes: bool,
) -> Sequence[Ends]:
    """Return the links of an equation that contain the batch axes of all its operands.

    `batch_of_operands` has the batch axis of each operand, or None for an operand without one.
    Such an operand may be part of a link if `has_items(operand, axis)` is true for its linked
    axis. If no link fits, items of the batch may be mixed, and the result is empty. `resizes` is
    as in `batch_axes`.
    """
    if resizes and not _is_resizable(equation):
        return []
    table = axes_of(equation) or UNLINKED
    is_sum = primitive(equation) in _SUMS
    links: list[Ends] = []
    for link in table.links:
        ends = link.single() if is_sum or link.kind == "apart" else None
        if ends is not None:
            links.append(ends)
    batch = {i: axis for i, axis in enumerate(batch_of_operands) if axis is not None}
    # Prefer links in which exactly the operands with a batch axis are linked.
    exact = [(operands, results) for operands, results in links if operands == batch]
    if exact:
        return exact

    def may_lack_axis(index: int, axis: int) -> bool:
        operand = equation.invars[index]
        is_repeated = facts(equation).by_item and operand.aval.shape[axis] == 1
        return is_repeated or (not is_literal(operand) and has_items(operand, axis))

    for operands, results in links:
        has_batch = batch.items() <= operands.items()
        without_batch = operands.keys() - batch.keys()
        if has_batch and all(may_lack_axis(i, operands[i]) for i in without_batch):
            return [(operands, results)]
    return []


def _is_resizable(equation: Equation) -> bool:
    """Tell whether `resized` can change an extent of an equation's operands."""
    if primitive(equation) in (PRODUCT, CONVOLUTION):
        return True
    properties = facts(equation)
    return properties.keeps_axes or properties.shapes or bool(properties.removes)


def _constant_axes(program: Program, size: int) -> dict[Variable, set[int]]:
    """Map each constant to its axes of extent `size` along which all items are equal."""
    constant_axes: dict[Variable, set[int]] = {}
    for variable, constant in zip(program.constants, program.closed.consts, strict=True):
        axes = [axis for axis, extent in enumerate(variable.aval.shape) if extent == size]
        if not axes:
            continue
        array = np.asarray(constant)
        constant_axes[variable] = set()
        for axis in axes:
            first_item = array.take([0], axis=axis)
            if np.all(array == first_item):
                constant_axes[variable].add(axis)
    return constant_axes


def _constant_axes_of_result(equation: Equation, constant_axes: ConstantAxes) -> set[int]:
    """Return the axes of an equation's first result along which all items are equal.

    `constant_axes` maps variables to axes along which their items are equal.
    """
    table = axes_of(equation) or UNLINKED
    axes = {*table.constant_axes}

    def is_constant(index: int, axis: int) -> bool:
        operand = equation.invars[index]
        return not is_literal(operand) and axis in constant_axes.get(operand, ())

    for link in table.links:
        ends = link.single()
        if ends is None:
            continue
        operand_axes, result_axes = ends
        if 0 in result_axes and all(is_constant(i, axis) for i, axis in operand_axes.items()):
            axes.add(result_axes[0])
    return axes


def _axes_by_functions(
    program: Program,
    equation: Equation,
    functions: Sequence[InnerFunction],
    operand_axes: Sequence[int | None],
    has_items: Callable[[Atom, int], bool],
) -> dict[Variable, int | None]:
    """Return the batch axes that an equation's variables get from its inner functions.

    `functions` are for example the branches of a choice, which must agree. `operand_axes` has
    the batch axis of each operand, or None.
    """
    axes_by_function: list[dict[Variable, int | None]] = []
    for function in functions:
        axes = _axes_within(program, equation, function, operand_axes, has_items)
        if axes:  # a function that has only effects has no results
            axes_by_function.append(axes)
    if not axes_by_function:
        return {}
    first = axes_by_function[0]
    branches_agree = all(axes == first for axes in axes_by_function)
    if not branches_agree:
        raise NotSeparableError(equation)
    return first


def _axes_within(
    program: Program,
    equation: Equation,
    body: InnerFunction,
    operand_axes: Sequence[int | None],
    has_items: Callable[[Atom, int], bool],
) -> dict[Variable, int | None]:
    """Return the batch axes of an equation's results, by following one of its inner functions.

    `operand_axes` has the batch axis of each operand, or None. For a loop, the returned map also
    has the batch axes of the initial values of carried values. An iteration may give a carried
    value a batch axis. Therefore the body of a loop is followed repeatedly, until the batch axes
    of the carried values do not change in an iteration.
    """
    inside = replace(program, closed=body.closed)
    arguments = inside.arguments
    carried = list(body.carried_to.values())  # the indices of the arguments that are carried
    # Maps the index of a carried argument to the operand that is its initial value.
    initial = {i: equation.invars[body.arguments[i].number] for i in carried}
    with_batch = {i for i, axis in enumerate(operand_axes) if axis is not None}
    read_by_body = {outer.number for outer in body.arguments}
    if not with_batch <= read_by_body:
        raise NotSeparableError(equation)  # the choice between branches depends on the batch
    argument_axes: list[int | None] = []
    for index, steps in body.arguments:
        axis = operand_axes[index]
        argument_axes.append(None if axis is None else axis - steps)
    while -1 not in argument_axes:  # -1 means that the loop iterates over the batch
        seeds: dict[Variable, int] = {}
        for argument, axis in zip(arguments, argument_axes, strict=True):
            if axis is not None:
                seeds[argument] = axis
        follow = [arguments[i] for i in carried if argument_axes[i] is None]
        axes = batch_axes(inside, seeds, follow=follow, resizes=False) if seeds else {}
        result_axes = [None if is_literal(v) else axes.get(v) for v in inside.results]
        # The axes with which the next iteration begins.
        next_axes = list(argument_axes)
        are_carried_on = True  # whether carried results have the axes of the arguments
        for result_index, argument_index in body.carried_to.items():
            result_axis = result_axes[result_index]
            next_axes[argument_index] = axes.get(arguments[argument_index], result_axis)
            are_carried_on = are_carried_on and result_axis == argument_axes[argument_index]
        if next_axes == argument_axes:
            if not are_carried_on:
                break
            initial_axes = {v: argument_axes[i] for i, v in initial.items() if not is_literal(v)}
            return initial_axes | _outside(equation, body, result_axes)
        for i, operand in initial.items():
            axis = next_axes[i]
            if axis == argument_axes[i]:
                continue
            if axis is None or is_literal(operand) or not has_items(operand, axis):
                raise NotSeparableError(equation)
            if primitive(equation) != SCAN:
                raise NotSeparableError(equation)
        argument_axes = next_axes
    raise NotSeparableError(equation)


def _outside(
    equation: Equation, body: InnerFunction, result_axes: Sequence[int | None]
) -> dict[Variable, int | None]:
    """Map the results of an equation to their batch axes.

    `result_axes` has the batch axis of each result of the inner function `body`, or None.
    """
    axes: dict[Variable, int | None] = {}
    for axis, outer in zip(result_axes, body.results, strict=True):
        if outer is not None:
            outer_axis = None if axis is None else axis + outer.steps
            axes[equation.outvars[outer.number]] = outer_axis
        elif axis is not None:  # the items of a batch need different numbers of iterations
            raise NotSeparableError(equation)
    return axes


def resized(program: Program, *changes: tuple[Axes, int]) -> Program:
    """Return a program whose variables have other extents along some axes.

    Each of the `changes` is a pair: a map from variables to axes, and the new extent of these
    axes.
    """
    if not changes:
        return program
    shapes: dict[Variable, list[int]] = {}
    for axes, extent in changes:
        for variable, axis in axes.items():
            shape = shapes.setdefault(variable, list(variable.aval.shape))
            shape[axis] = extent

    def resize_parameter(equation: Equation) -> Equation:
        result, *_ = equation.outvars
        name = facts(equation).resized
        if not name or result not in shapes:
            return equation
        extents = list(equation.params[name])
        for axis, extent in enumerate(shapes[result]):
            if extent != result.aval.shape[axis]:
                extents[axis] = extent
        return equation.replace(params=equation.params | {name: tuple(extents)})

    return program.with_closed(jaxprs.retyped(program.closed, shapes, resize_parameter))
