"""Lay tensors out as kernels for a CPU want them, and choose the kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.contexts import runs
from lowering.cpu.blocks import attended
from lowering.cpu.kernel_rules import RULES
from lowering.cpu.memory import in_memory, uninlined
from lowering.cpu.pending_view import View, arranged, item_of, plain, stack_of, tensor, whole
from lowering.cpu.rereads import reread
from lowering.cpu.view_rules import stays
from lowering.facts import facts
from lowering.jaxprs import SCAN, is_literal, primitive
from lowering.program import Program
from lowering.split import split
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Evaluate all equations anew, on arrays whose transpositions wait for a kernel.

    A program without transpositions and kernels stays as it is.
    """
    if all(map(stays, program.equations)):
        return program

    def function(*arguments: Any) -> list[Any]:
        known = arguments[: program.parameters]
        free = arguments[program.parameters :]
        views = [plain(x, program.prepares) for x in known] + list(map(plain, free))
        if program.role == "backward":
            orders = _orders(program)
            for i, (variable, view) in enumerate(zip(program.arguments, views, strict=True)):
                order = orders.get(variable, view.order)
                views[i] = replace(view, array=arranged(view, order), order=order)
        return [tensor(view) for view in evaluated(program, views, reread(program))]

    return program.retraced(function)


def _orders(program: Program) -> dict[Any, tuple[int, ...]]:
    """Map variables that meet convolutions to the order of axes that these compute in.

    What a backward pass reads was computed in it: XLA then drops both transpositions.
    """
    orders: dict[Any, tuple[int, ...]] = {}
    beside: dict[Any, list[Sequence[Any]]] = defaultdict(list)  # what has the same axes
    pending: list[tuple[Any, tuple[int, ...]]] = []
    for equation in program.equations:
        if primitive(equation) == jaxprs.CONVOLUTION:
            numbers = equation.params["dimension_numbers"]
            first, second, *spatial = numbers.lhs_spec
            order = (min(first, second), *spatial, max(first, second))
            pending.append((equation.invars[0], order))
            # In a filter's gradient it is the gradient of the result that moves as a filter.
            other = equation.invars[1] if first > second else equation.outvars[0]
            pending.append((other, order))
        elif facts(equation).keeps_axes:
            several = jaxprs.variables([*equation.invars, *equation.outvars])
            several = [v for v in several if len(v.aval.shape) > 2]
            for variable in several:
                beside[variable].append(several)
    while pending:
        variable, order = pending.pop()
        if variable not in orders and not is_literal(variable):
            orders[variable] = order
            pending += [(v, order) for several in beside[variable] for v in several]
    return orders


def evaluated(
    program: Program, arguments: Sequence[View], kept: Collection[Any] = ()
) -> list[View]:
    """Evaluate a program on views, and keep some variables in memory."""

    def compute(equation: Any, views: list[View]) -> Sequence[View]:
        rule, known = RULES.of(equation), all(view.known for view in views)
        found = None if rule is None else rule(program, equation, *views)
        if found is None:  # it takes tensors in their own layout
            found = list(map(plain, jaxprs.bind(equation, list(map(tensor, views)))))
        pairs = zip(equation.outvars, found if isinstance(found, list) else [found], strict=True)
        arrays = [(x, in_memory(whole(x)) if v in kept else x.array) for v, x in pairs]
        return [replace(x, array=array, known=known) for x, array in arrays]

    # Matrices of later products are then at hand.
    return program.known_first().evaluated(arguments, compute, lambda x: plain(x, True))


@RULES("attention")
def _attention(program: Program, equation: Any, *views: View) -> View:
    inner = replace(program, closed=equation.params["jaxpr"], parameters=0)
    return attended(inner, views, evaluated)


@RULES(SCAN)
def _scan(program: Program, equation: Any, *views: View) -> list[View] | None:
    """Lay out the body, and compute before the scan what is the same in all its steps.

    Where steps hand on a state, all is plain, as that is. Parts of a batch keep their layouts.
    """
    count, carried = jaxprs.scan_counts(equation)
    recurs = program.in_loop or carried > 0
    if recurs and not runs("scan"):
        return None
    body = replace(program.body(equation), prepares=program.prepares or recurs, in_loop=recurs)

    def laid_out(view: View, *first: int) -> View:
        rest = sorted(view.order) if recurs else view.order
        order = (*first, *(axis for axis in rest if axis not in first))
        return View(whole(view, order), order, view.shape)

    def step(constants: list[Any], carry: list[Any], items: list[View]) -> tuple[Any, Any]:
        own = [plain(x, body.prepares) for x in constants]
        results = evaluated(body, [*own, *(plain(x) for x in carry), *items], reread(body))
        return list(map(tensor, results[:carried])), list(map(laid_out, results[carried:]))

    constants, start = (list(map(tensor, x)) for x in (views[:count], views[count:][:carried]))
    stacks = [laid_out(view, 0) for view in views[count + carried :]]
    items = [item_of(stack) for stack in stacks]
    closed, (_, made) = jaxprs.make_jaxpr_and_types(step, constants, start, items)
    parts = split(body.with_closed(closed))
    prepared = parts.prepare(constants)
    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    apart = _parted(body, len(stacks)) if recurs and options["length"] else [False] * len(stacks)
    joined = [None if alone else x.array for x, alone in zip(stacks, apart, strict=True)]

    def turn(carry: list[Any], given: tuple[Any, list[Any]]) -> tuple[list[Any], list[Any]]:
        index, items = given
        pairs = zip(stacks, items, strict=True)
        items = [_item(x.array, index) if item is None else item for x, item in pairs]
        results = parts.call(prepared, [*carry, *items])
        return results[:carried], results[carried:]

    index = jnp.arange(options["length"]) if any(apart) else None
    last, arrays = lax.scan(turn, start, (index, joined), **options)
    return [*map(plain, last), *map(stack_of, made, arrays)]


def _parted(body: Program, count: int) -> list[bool]:
    """Tell of each of the last `count` arguments whether parts of it, or its sums, are read.

    XLA makes a function of a value whose parts are read. It reads the number of the step for each
    number of an item there, and LLVM makes no vectors of that. In 128 steps of an LSTM of 256 with
    one stack for its gates, 8 rows take 79 us a step so, 36 where the item is read before.
    """
    if not runs("items"):
        return [False] * count
    arguments = body.arguments[len(body.arguments) - count :]
    reached = {variable: {variable} for variable in arguments}
    found: set[Any] = set()
    for equation in body.equations:
        origins = {v for x in jaxprs.variables(equation.invars) for v in reached.get(x, ())}
        if primitive(equation) in ("slice", "split"):
            found |= origins
        elif facts(equation).by_item or facts(equation).shapes:
            reached.update((variable, origins) for variable in equation.outvars)
    return [variable in found for variable in arguments]


@uninlined
def _item(stack: Array, index: Array) -> Array:
    starts = (index, *(jnp.zeros_like(index) for _ in stack.shape[1:]))
    return lax.dynamic_slice(stack, starts, (1, *stack.shape[1:])).reshape(stack.shape[1:])
