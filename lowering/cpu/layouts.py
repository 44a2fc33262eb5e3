"""Choose the kernels of a program, and the layouts of its tensors, for a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.contexts import is_enabled
from lowering.cpu.blocks import attended
from lowering.cpu.kernel_rules import RULES
from lowering.cpu.memory import materialised, uninlined
from lowering.cpu.pending_view import (
    Order,
    View,
    arranged,
    full_array,
    item_of,
    plain,
    stack_of,
    tensor,
)
from lowering.cpu.rereads import reread
from lowering.cpu.view_rules import stays
from lowering.facts import facts
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import SCAN, is_literal, primitive
from lowering.prepare import Split
from lowering.program import Program
from lowering.split import split
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Choose kernels and layouts: evaluate all equations on views of their operands.

    A view delays transpositions until a kernel needs them. A program without transpositions and
    kernels stays unchanged.
    """
    if all(map(stays, program.equations)):
        return program

    def evaluate(*arguments: Array) -> list[Array]:
        views = _argument_views(program, arguments)
        return [tensor(view) for view in evaluated(program, views, reread(program))]

    return program.retraced(evaluate)


def _argument_views(program: Program, arrays: Sequence[Array]) -> list[View]:
    """Return views of a program's arguments.

    In a backward pass the views have the orders of axes of the forward pass.
    """
    order_of = _orders(program) if program.role == "backward" else {}
    parameter_count = program.parameters
    views: list[View] = []
    for i, (variable, array) in enumerate(zip(program.arguments, arrays, strict=True)):
        is_parameter = i < parameter_count
        view = plain(array, is_early=is_parameter and program.prepares)
        if variable in order_of:
            order = order_of[variable]
            view = replace(view, array=arranged(view, order), order=order)
        views.append(view)
    return views


def _orders(program: Program) -> dict[Variable, Order]:
    """Map variables of a backward pass to the orders of axes that they have in the forward pass.

    Convolutions compute with channels last, so that their images have this order. An equation
    that keeps axes hands the order on to all its variables. If a backward pass takes its
    arguments in the order of the forward pass, XLA drops the transpositions of both passes.
    """
    # An equation that keeps axes makes a group of all its variables. This map has, for each
    # variable, the groups of which the variable is a member.
    groups_of: dict[Variable, list[Sequence[Variable]]] = defaultdict(list)
    pending: list[tuple[Atom, Order]] = []  # variables with their orders
    for equation in program.equations:
        if primitive(equation) == jaxprs.CONVOLUTION:
            pending += _orders_of_images(equation)
        elif facts(equation).keeps_axes:
            variables = jaxprs.variables([*equation.invars, *equation.outvars])
            group = [v for v in variables if len(v.aval.shape) > 2]
            for variable in group:
                groups_of[variable].append(group)
    # Hand the orders on from variable to variable.
    orders: dict[Variable, Order] = {}
    while pending:
        variable, order = pending.pop()
        if is_literal(variable) or variable in orders:
            continue
        orders[variable] = order
        for group in groups_of[variable]:
            pending += [(member, order) for member in group]
    return orders


def _orders_of_images(convolution: Equation) -> list[tuple[Atom, Order]]:
    """Return the two images of a convolution, each with its order of axes.

    This order has the channels last. The images are the input and the result. In the gradient by a
    filter, the images are the input and the gradient of the result. The gradient of the result is
    then the second operand, in place of a filter.
    """
    input, filter = convolution.invars
    (result,) = convolution.outvars
    batch_axis, channel_axis, *spatial = convolution.params["dimension_numbers"].lhs_spec
    # In the gradient by a filter, batch and channels change places. This gradient is recognised by
    # its channel axis, which comes before the batch axis.
    is_filter_gradient = batch_axis > channel_axis
    if is_filter_gradient:
        order = (channel_axis, *spatial, batch_axis)
        return [(input, order), (filter, order)]
    order = (batch_axis, *spatial, channel_axis)
    return [(input, order), (result, order)]


def evaluated(
    program: Program, arguments: Sequence[View], stored: Collection[Variable] = ()
) -> list[View]:
    """Evaluate a program on views of its arguments, and return views of its results.

    XLA computes the variables in `stored` only once, for all equations that read them.
    """

    def results_by_rule(equation: Equation, views: list[View]) -> list[View]:
        """Return views of an equation's results, from views of its operands."""
        rule = RULES.rule_for(equation)
        results = None if rule is None else rule(program, equation, *views)
        if results is None:
            # Without a kernel, the equation is evaluated on tensors in their own layout.
            tensors = list(map(tensor, views))
            return list(map(plain, jaxpr_evaluation.bind(equation, tensors)))
        return results if isinstance(results, list) else [results]

    def compute(equation: Equation, views: list[View]) -> Sequence[View]:
        """Return views of an equation's results, and store the results that are in `stored`."""
        is_early = all(view.is_early for view in views)
        results: list[View] = []
        for variable, view in zip(equation.outvars, results_by_rule(equation, views), strict=True):
            array = materialised(full_array(view)) if variable in stored else view.array
            results.append(replace(view, array=array, is_early=is_early))
        return results

    def constant_view(constant: Array) -> View:
        return plain(constant, is_early=True)

    # Equations that run before all calls or before a loop are moved to the front, so that rules for
    # products have the matrices.
    return program.early_first().evaluated(arguments, compute, constant_view)


@RULES("attention")
def _attention(program: Program, equation: Equation, *views: View) -> View:
    """Compute an attention, whose equation has a traced function as a parameter."""
    inner = replace(program, closed=equation.params["jaxpr"], parameters=0)
    return attended(inner, views, evaluated)


@RULES(SCAN)
def _scan(program: Program, equation: Equation, *views: View) -> list[View] | None:
    """Lay out the body of a scan, and compute shared values once before the scan.

    Shared values are equal in all iterations. If an iteration hands a state to the next one, the
    states, stacked arguments and stacked results have their axes in order. If each iteration
    computes a part of a batch, views keep their layouts.
    """
    constant_views, start_views, stack_views = jaxprs.scan_parts(equation, views)
    carried_count = len(start_views)
    # Without a carried state, each iteration computes a part of a batch.
    recurs = program.in_loop or carried_count > 0
    if recurs and not is_enabled("scan"):
        return None
    body = replace(program.body(equation), prepares=program.prepares or recurs, in_loop=recurs)
    constants = list(map(tensor, constant_views))
    start = list(map(tensor, start_views))
    # The axis of the iterations comes first.
    stacks = [_laid_out(view, first_axes=(0,), in_order=recurs) for view in stack_views]
    items = [item_of(stack) for stack in stacks]
    parts, result_items = _body_parts(body, constants, start, items, in_order=recurs)
    prepared = parts.prepare(constants)
    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    # This list tells for each stack whether an iteration first reads the stack's item into memory.
    are_read_first = [False] * len(stacks)
    if recurs and options["length"]:  # without iterations a stack has no item to read
        are_read_first = _are_sliced(body, len(stacks))
    # None stands for a stack whose items `iterate` reads itself.
    scanned: list[Array | None] = []
    for stack, is_read_first in zip(stacks, are_read_first, strict=True):
        scanned.append(None if is_read_first else stack.array)

    def iterate(
        carry: list[Array], index_and_items: tuple[Any, list[Array | None]]
    ) -> tuple[list[Array], list[Array]]:
        """Compute an iteration, and return the new carry and the items of stacked results."""
        index, items = index_and_items
        arguments = [*carry]
        for stack, item in zip(stacks, items, strict=True):
            arguments.append(_item(stack.array, index) if item is None else item)
        results = parts.call(prepared, arguments)
        return results[:carried_count], results[carried_count:]

    index = jnp.arange(options["length"]) if any(are_read_first) else None
    last, arrays = lax.scan(iterate, start, (index, scanned), **options)
    return [*map(plain, last), *map(stack_of, result_items, arrays)]


@RULES("while")
def _while(program: Program, equation: Equation, *views: View) -> list[View] | None:
    """Lay out the body of a loop, and compute values that all iterations share before the loop."""
    if not is_enabled("scan"):
        return None
    params = equation.params
    arrays = list(map(tensor, views))
    first_constant = params["cond_nconsts"]
    first_state = first_constant + params["body_nconsts"]
    condition_constants = arrays[:first_constant]
    constants = arrays[first_constant:first_state]
    start = arrays[first_state:]
    body = replace(
        program,
        closed=params["body_jaxpr"],
        parameters=len(constants),
        prepares=True,
        in_loop=True,
    )
    parts, _ = _body_parts(body, constants, start, items=[], in_order=True)
    prepared = list(parts.prepare(constants))
    changed = {
        "body_jaxpr": jaxpr_evaluation.make_jaxpr(parts.call, prepared, start),
        "body_nconsts": len(prepared),
    }
    # The condition may have an axis of a batch, which `lax.while_loop` refuses.
    operands = [*condition_constants, *prepared, *start]
    return list(map(plain, equation.primitive.bind(*operands, **(params | changed))))


@RULES("cond")
def _cond(program: Program, equation: Equation, index: View, *views: View) -> list[View] | None:
    """Lay out the branches, and compute values of early operands alone before the choice."""
    if not is_enabled("scan"):
        return None
    early = [i for i, view in enumerate(views) if view.is_early]
    late = [i for i, view in enumerate(views) if not view.is_early]
    arrays = list(map(tensor, views))
    constants = [arrays[i] for i in early]
    arguments = [arrays[i] for i in late]
    branches: list[Callable[[list[Array]], list[Any]]] = []
    for closed in equation.params["branches"]:
        inner = program.with_closed(closed)
        # The parameters of a program are its first arguments.
        ordered = [inner.arguments[i] for i in (*early, *late)]
        reordered = jaxprs.of_equations(closed, inner.equations, inner.results, arguments=ordered)
        branch = replace(inner, closed=reordered, parameters=len(early))
        parts, _ = _body_parts(branch, constants, arguments, items=[], in_order=True)
        branches.append(partial(parts.call, parts.prepare(constants)))
    return list(map(plain, lax.switch(tensor(index), branches, arguments)))


def _laid_out(view: View, *, first_axes: Sequence[int] = (), in_order: bool) -> View:
    """Return a view with all items in its array, and with `first_axes` in front.

    If `in_order` is true, the other axes are in ascending order. If `in_order` is false, the other
    axes stay in the order of the view.
    """
    axes = sorted(view.order) if in_order else view.order
    order = (*first_axes, *(axis for axis in axes if axis not in first_axes))
    return View(full_array(view, order), order, view.shape)


def _body_parts(
    body: Program,
    constants: list[Array],
    start: list[Array],
    items: list[View],
    *,
    in_order: bool,
) -> tuple[Split, list[View]]:
    """Choose kernels and layouts for the body of a loop or a branch, and split the body.

    A split has two functions. The first, its preparation, computes the values that all iterations
    share. The second, its call, computes an iteration. The returned list has a view for each
    stacked result: the view of the item that an iteration computes. If `in_order` is true, the axes
    of these items are in ascending order.
    """
    carried_count = len(start)

    def step(
        constants: list[Array], carry: list[Array], items: list[View]
    ) -> tuple[list[Array], list[View]]:
        """Evaluate the body, and return the new carry and views of the items of results."""
        constant_views = [plain(constant, body.prepares) for constant in constants]
        arguments = [*constant_views, *map(plain, carry), *items]
        results = evaluated(body, arguments, reread(body))
        new_carry = list(map(tensor, results[:carried_count]))
        return new_carry, [_laid_out(view, in_order=in_order) for view in results[carried_count:]]

    closed, (_, result_items) = jaxpr_evaluation.make_jaxpr_and_types(step, constants, start, items)
    return split(body.with_closed(closed)), result_items


def _are_sliced(body: Program, count: int) -> list[bool]:
    """Tell, for each of the last `count` arguments, whether the body slices the argument.

    The answer is also true if the body slices a value that is computed item by item from the
    argument, such as the sum of the argument and a constant.

    XLA computes a sliced value by a function that looks up the number of the iteration for each
    item, and LLVM does not vectorise this function. In a loop of 128 iterations of an LSTM of 256
    units, with 8 rows and one stack for all gates, an iteration takes 79 us. If the iteration first
    reads the item of the stack into memory, it takes 36 us.
    """
    if not is_enabled("items"):
        return [False] * count
    first = len(body.arguments) - count
    arguments = body.arguments[first:]
    # Maps each variable to the arguments from which the variable is computed item by item.
    origins_of = {variable: {variable} for variable in arguments}
    sliced: set[Variable] = set()
    for equation in body.equations:
        origins: set[Variable] = set()
        for operand in jaxprs.variables(equation.invars):
            origins |= origins_of.get(operand, set())
        if primitive(equation) in ("slice", "split"):
            sliced |= origins
        elif facts(equation).by_item or facts(equation).shapes:
            origins_of.update(dict.fromkeys(equation.outvars, origins))
    return [variable in sliced for variable in arguments]


@uninlined
def _item(stack: Array, index: Array) -> Array:
    """Return the item of a stack at an index of axis 0."""
    shape = stack.shape[1:]
    zeros = [jnp.zeros_like(index)] * len(shape)
    item = lax.dynamic_slice(stack, (index, *zeros), (1, *shape))
    return item.reshape(shape)
