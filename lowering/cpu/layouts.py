"""Evaluate a program in the layouts and with the kernels that suit a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import jax

from lowering import jaxprs
from lowering.ablation import runs
from lowering.cpu.blocks import attended
from lowering.cpu.convolutions import convolution
from lowering.cpu.items import parted, scanned
from lowering.cpu.memory import stored
from lowering.cpu.rereads import reread
from lowering.cpu.rules import RULES
from lowering.cpu.view import View, item_of, plain, stack_of, tensor, turned, whole
from lowering.facts import facts
from lowering.jaxprs import CONVOLUTION, SCAN, is_literal, primitive
from lowering.prepare import split
from lowering.program import Program
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Lay tensors out as kernels want them, and choose kernels."""

    def evaluated(*arguments: Any) -> list[Any]:
        known = arguments[: program.parameters]
        free = arguments[program.parameters :]
        views = [plain(x, program.prepares) for x in known] + [plain(x, False) for x in free]
        if program.role == "backward":
            orders = _orders(program)
            pairs = zip(program.arguments, views, strict=True)
            views = [turned(view, orders.get(variable, view.order)) for variable, view in pairs]
        return [tensor(view) for view in _evaluate(program, views, reread(program))]

    return program.retraced(evaluated)


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


def _evaluate(
    program: Program, arguments: Sequence[View], kept: Collection[Any] = ()
) -> list[View]:
    """Evaluate a program on views, and keep some variables in memory."""

    def compute(equation: Any, views: list[View]) -> Sequence[View]:
        rule = RULES.find(equation)
        found = None if rule is None else rule(program, equation, views)
        if found is None:
            found = _bind(equation, views)
        pairs = zip(equation.outvars, found if isinstance(found, list) else [found], strict=True)
        return [replace(x, array=stored(whole(x))) if v in kept else x for v, x in pairs]

    # Matrices of later products are then at hand.
    return program.known_first().evaluated(arguments, compute, lambda x: plain(x, True))


def _bind(equation: Any, views: Sequence[View]) -> list[View]:
    """Evaluate the equation as it stands, on tensors in their own layout."""
    known = all(view.known for view in views)
    return [plain(result, known) for result in jaxprs.bind(equation, list(map(tensor, views)))]


@RULES(CONVOLUTION)
def _convolution(program: Program, equation: Any, views: Sequence[View]) -> View | None:
    return None if all(view.known for view in views) else convolution(program, equation, *views)


@RULES("attention")
def _attention(program: Program, equation: Any, views: Sequence[View]) -> View:
    inner = replace(program, closed=equation.params["jaxpr"], parameters=0)
    return attended(inner, views, _evaluate)


@RULES(SCAN)
def _scan(program: Program, equation: Any, views: Sequence[View]) -> list[View] | None:
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
        return View(whole(view, order), order, view.shape, False)

    def step(constants: list[Any], carry: list[Any], items: list[View]) -> tuple[Any, Any]:
        own = [plain(x, body.prepares) for x in constants]
        results = _evaluate(body, [*own, *(plain(x, False) for x in carry), *items], reread(body))
        return list(map(tensor, results[:carried])), list(map(laid_out, results[carried:]))

    constants, start = (list(map(tensor, x)) for x in (views[:count], views[count:][:carried]))
    stacks = [laid_out(view, 0) for view in views[count + carried :]]
    items = [item_of(stack) for stack in stacks]
    closed, (_, made) = jax.make_jaxpr(step, return_shape=True)(constants, start, items)
    parts = split(body.with_closed(closed))
    prepared = parts.prepare(constants)

    def turn(carry: list[Any], items: list[Any]) -> tuple[list[Any], list[Any]]:
        results = parts.run(prepared, [*carry, *items])
        return results[:carried], results[carried:]

    options = {name: equation.params[name] for name in ("length", "reverse", "unroll")}
    apart = parted(body, len(stacks)) if recurs else [False] * len(stacks)
    last, arrays = scanned(turn, start, [stack.array for stack in stacks], apart, **options)
    known = all(view.known for view in views)
    collected = [stack_of(item, array) for item, array in zip(made, arrays, strict=True)]
    return [plain(x, known) for x in last] + [replace(x, known=known) for x in collected]
