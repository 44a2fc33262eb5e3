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
    """Raised with the equation as argument, if items of a batch may depend on one another."""


def batch_axes(
    program: Program,
    seeds: Axes,
    *,
    follow: Iterable[Variable] = (),
    reduces: bool = False,
    resizes: bool = True,
) -> dict[Variable, int]:
    """Map each variable that has a batch axis to this axis, by following a program.

    Raises NotSeparableError if items of the batch may depend on one another.

    Args:
        program: the program.
        seeds: maps some arguments of the program to their batch axes.
        follow: arguments that are not in `seeds` but may have a batch axis too. If an equation
            reads such an argument together with a variable that has a batch axis, the argument
            gets the axis that is linked with this batch axis, provided that the extent of the
            linked axis is the batch size.
        reduces: whether sums and maxima over the batch are allowed. The results of such sums
            have no batch axis.
        resizes: whether the caller will change the batch size by `resized`. If it will not,
            loops and lookups are followed too.
    """
    axes = dict(seeds)
    followed = set(follow) - set(seeds)
    sizes = [variable.aval.shape[axis] for variable, axis in seeds.items()]
    batch_size = sizes[0] if sizes else 1
    # Maps variables to axes along which they repeat one item.
    constant_axes = {} if resizes else _constant_axes(program, batch_size)

    def may_be_batch_axis(operand: Atom, axis: int) -> bool:
        """Tell whether an axis may be the batch axis of an operand, or repeats one item."""
        may_hold_batch = operand in followed and operand.aval.shape[axis] == batch_size
        return may_hold_batch or axis in constant_axes.get(operand, ())

    def may_get_axis(operand: Atom, axis: int) -> bool:
        """Tell whether an operand without a batch axis may get an axis by a link."""
        is_followed = resizes or operand in followed
        return is_followed and may_be_batch_axis(operand, axis)

    for equation in program.equations:
        # `operand_axes` has the batch axis of each operand, or None for an operand without one.
        operand_axes = [None if is_literal(v) else axes.get(v) for v in equation.invars]
        reads_batch = any(axis is not None for axis in operand_axes)
        if not reads_batch:
            for result in equation.outvars[:1]:  # an equation for an effect has no result
                constant_axes[result] = _repeated_axes(
                    program, equation, constant_axes, resizes=resizes
                )
            continue
        functions = [] if resizes else inner_functions(equation)
        if functions:
            may_have_batch = followed.union(equation.outvars)
            inner_axes = _axes_by_functions(
                program, equation, functions, operand_axes, may_be_batch_axis
            )
            for variable, axis in inner_axes.items():
                if axis is not None and variable in may_have_batch:
                    axes[variable] = axis
            continue
        links = _batch_links(equation, operand_axes, may_be_batch_axis, resizes=resizes)
        for linked_operand_axes, result_axes in links:
            for index, axis in linked_operand_axes.items():
                operand = equation.invars[index]
                if operand_axes[index] is None and may_get_axis(operand, axis):
                    axes[operand] = axis
            for index, axis in result_axes.items():
                axes[equation.outvars[index]] = axis
        have_all_results_axis = axes.keys() >= {*equation.outvars}
        is_reduction = reduces and links
        if not have_all_results_axis and not is_reduction:
            raise NotSeparableError(equation)
    return axes


def _repeated_axes(
    program: Program, equation: Equation, constant_axes: ConstantAxes, *, resizes: bool
) -> set[int]:
    """Return the axes along which an equation's first result repeats one item.

    Along such an axis, the result may later get one value for each item of the batch. If
    `resizes` is true, only a broadcast has such axes, since `resized` can resize a broadcast
    whose result has no second reader.
    """
    if not resizes:
        return _constant_axes_of_result(equation, constant_axes)
    result = equation.outvars[0]
    is_resizable = primitive(equation) == "broadcast_in_dim" and program.uses[result] == 1
    return _constant_axes_of_result(equation, constant_axes={}) if is_resizable else set()


# The first map maps the index of each linked operand to the linked axis. The second map does so for
# each linked result.
Ends = tuple[Mapping[int, int], Mapping[int, int]]


def _batch_links(
    equation: Equation,
    operand_axes: Sequence[int | None],
    may_be_batch_axis: Callable[[Atom, int], bool],
    *,
    resizes: bool,
) -> Sequence[Ends]:
    """Return an equation's links that contain the batch axes of all operands.

    `operand_axes` has the batch axis of each operand, or None for an operand without one. An
    operand without one may be part of a link only if `may_be_batch_axis(operand, axis)` is true for
    its linked axis. If no link contains the batch axes of all operands, items of the batch may be
    mixed, and the result is empty. `resizes` is as in `batch_axes`.
    """
    if resizes and not _is_resizable(equation):
        return []
    table = axes_of(equation) or UNLINKED
    may_sum = primitive(equation) in _SUMS
    links: list[Ends] = []
    for link in table.links:
        if link.kind == "apart" or may_sum:
            ends = link.single()
            if ends is not None:
                links.append(ends)
    batch = {i: axis for i, axis in enumerate(operand_axes) if axis is not None}
    # Prefer links in which exactly the operands with a batch axis are linked.
    exact_links = [(operands, results) for operands, results in links if operands == batch]
    if exact_links:
        return exact_links

    def fits(index: int, axis: int) -> bool:
        """Tell whether a link may contain an axis of an operand without a batch axis."""
        operand = equation.invars[index]
        is_repeated = facts(equation).by_item and operand.aval.shape[axis] == 1
        return is_repeated or (not is_literal(operand) and may_be_batch_axis(operand, axis))

    for operands, results in links:
        contains_batch = batch.items() <= operands.items()
        without_batch = operands.keys() - batch.keys()
        if contains_batch and all(fits(i, operands[i]) for i in without_batch):
            return [(operands, results)]
    return []


def _is_resizable(equation: Equation) -> bool:
    """Tell whether `resized` can change an extent of an equation's operands."""
    if primitive(equation) in (PRODUCT, CONVOLUTION):
        return True
    fact = facts(equation)
    return fact.keeps_axes or fact.shapes or bool(fact.removes)


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
        """Tell whether all items of the operand at `index` are equal along an axis."""
        operand = equation.invars[index]
        return not is_literal(operand) and axis in constant_axes.get(operand, ())

    for link in table.links:
        ends = link.single()
        if ends is None:
            continue
        operand_axes, result_axes = ends
        are_operands_constant = all(is_constant(i, axis) for i, axis in operand_axes.items())
        if 0 in result_axes and are_operands_constant:
            axes.add(result_axes[0])
    return axes


def _axes_by_functions(
    program: Program,
    equation: Equation,
    functions: Sequence[InnerFunction],
    operand_axes: Sequence[int | None],
    may_be_batch_axis: Callable[[Atom, int], bool],
) -> dict[Variable, int | None]:
    """Return the batch axes that an equation's variables get from its inner functions.

    If there are several functions, such as the branches of a choice, all must give the same axes.
    `operand_axes` has the batch axis of each operand, or None.
    """
    axes_by_function: list[dict[Variable, int | None]] = []
    for function in functions:
        axes = _axes_by_function(program, equation, function, operand_axes, may_be_batch_axis)
        # The condition of a loop, and a function that has only effects, give no axes.
        if axes:
            axes_by_function.append(axes)
    if not axes_by_function:
        return {}
    first = axes_by_function[0]
    functions_agree = all(axes == first for axes in axes_by_function)
    if not functions_agree:
        raise NotSeparableError(equation)
    return first


def _axes_by_function(
    program: Program,
    equation: Equation,
    function: InnerFunction,
    operand_axes: Sequence[int | None],
    may_be_batch_axis: Callable[[Atom, int], bool],
) -> dict[Variable, int | None]:
    """Return the batch axes of an equation's results, by following one of its inner functions.

    `operand_axes` has the batch axis of each operand, or None. For a loop, the returned map also
    has the batch axes of the initial values of carried values. An iteration may give a carried
    value a batch axis. Therefore the body of a loop is followed repeatedly, until the batch axes
    of the carried values do not change in an iteration.
    """
    argument_axes = _argument_axes(equation, function, operand_axes)
    inside = replace(program, closed=function.closed)
    arguments = inside.arguments
    carried = list(function.carried_to.values())  # the indices of the arguments that are carried
    # Maps the index of a carried argument to the operand that is its initial value.
    initial = {i: equation.invars[function.arguments[i].number] for i in carried}
    while True:
        seeds: dict[Variable, int] = {}
        for argument, axis in zip(arguments, argument_axes, strict=True):
            if axis is not None:
                seeds[argument] = axis
        follow = [arguments[i] for i in carried if argument_axes[i] is None]
        axes = batch_axes(inside, seeds, follow=follow, resizes=False) if seeds else {}
        result_axes = [None if is_literal(v) else axes.get(v) for v in inside.results]
        # The batch axes that the arguments have in the next iteration.
        next_axes = list(argument_axes)
        for result_index, argument_index in function.carried_to.items():
            result_axis = result_axes[result_index]
            next_axes[argument_index] = axes.get(arguments[argument_index], result_axis)
        if next_axes == argument_axes:
            break
        for i, operand in initial.items():
            axis = next_axes[i]
            if axis == argument_axes[i]:
                continue
            if axis is None or is_literal(operand) or not may_be_batch_axis(operand, axis):
                raise NotSeparableError(equation)
            if primitive(equation) != SCAN:
                # The condition of a `while` loop has been followed without the new batch axis.
                raise NotSeparableError(equation)
        argument_axes = next_axes
    for result_index, argument_index in function.carried_to.items():
        if result_axes[result_index] != argument_axes[argument_index]:
            raise NotSeparableError(equation)  # an iteration moves the batch to another axis
    initial_axes = {v: argument_axes[i] for i, v in initial.items() if not is_literal(v)}
    return initial_axes | _axes_of_results(equation, function, result_axes)


def _argument_axes(
    equation: Equation, function: InnerFunction, operand_axes: Sequence[int | None]
) -> list[int | None]:
    """Return the batch axis of each argument of an equation's inner function, or None.

    `operand_axes` has the batch axis of each operand of the equation, or None. For the body of a
    loop, the axes are those of the first iteration.
    """
    read_operands = {outer.number for outer in function.arguments}
    for number, axis in enumerate(operand_axes):
        if axis is not None and number not in read_operands:
            raise NotSeparableError(equation)  # the choice between branches depends on the batch
    argument_axes: list[int | None] = []
    for number, steps in function.arguments:
        axis = operand_axes[number]
        if axis is not None and axis < steps:
            raise NotSeparableError(equation)  # the loop iterates over the batch
        argument_axes.append(None if axis is None else axis - steps)
    return argument_axes


def _axes_of_results(
    equation: Equation, function: InnerFunction, inner_axes: Sequence[int | None]
) -> dict[Variable, int | None]:
    """Map the results of an equation to their batch axes.

    `inner_axes` has the batch axis of each result of the equation's inner function, or None.
    """
    axes: dict[Variable, int | None] = {}
    for inner_axis, outer in zip(inner_axes, function.results, strict=True):
        if outer is not None:
            axis = None if inner_axis is None else inner_axis + outer.steps
            axes[equation.outvars[outer.number]] = axis
        elif inner_axis is not None:
            # The condition of a loop differs between the items of the batch.
            raise NotSeparableError(equation)
    return axes


def resized(program: Program, *changes: tuple[Axes, int]) -> Program:
    """Return a program whose variables have new extents along some axes.

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
        """Put the new extents of an equation's result into the parameter that lists extents."""
        result, *_ = equation.outvars
        name = facts(equation).resized
        if not name or result not in shapes:
            return equation
        extents = list(equation.params[name])
        for axis, new_extent in enumerate(shapes[result]):
            if new_extent != result.aval.shape[axis]:
                extents[axis] = new_extent
        return equation.replace(params=equation.params | {name: tuple(extents)})

    return program.with_closed(jaxprs.retyped(program.closed, shapes, resize_parameter))
