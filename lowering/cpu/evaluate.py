"""Evaluate a program in the layouts and with the kernels that suit a CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from lowering import jaxprs
from lowering.ablation import runs
from lowering.cpu import chunks
from lowering.cpu.attention import attentions, computed, exchanges
from lowering.cpu.convolutions import convolution
from lowering.cpu.items import parted, scanned
from lowering.cpu.layout import layer, product, rule_for
from lowering.cpu.memory import stored
from lowering.cpu.rereads import reread
from lowering.cpu.view import View, plain, tensor, turned, whole
from lowering.facts import facts
from lowering.jaxprs import is_literal, primitive
from lowering.passes.siblings import is_layer
from lowering.prepare import split
from lowering.program import Program
from lowering.targets.target import Target


def run(program: Program, target: Target) -> Program:
    """Lay tensors out as kernels want them, and choose kernels."""

    def evaluated(*arguments: Any) -> list[Any]:
        known = arguments[: program.parameters]
        free = arguments[program.parameters :]
        if program.role == "value" and program.is_alone and runs("chunks"):
            results = chunks.in_chunks(program.closed, known, free, _evaluate_part(program))
            if results is not None:
                return results
        views = [plain(x, program.prepares) for x in known] + [plain(x, False) for x in free]
        if program.role == "backward" and runs("layouts"):
            orders = _orders(program)
            pairs = zip(program.arguments, views, strict=True)
            views = [turned(view, orders.get(variable, view.order)) for variable, view in pairs]
        return [tensor(view) for view in _evaluate(program, views)]

    return program.retraced(evaluated)


def _evaluate_part(program: Program) -> chunks.Evaluate:
    def evaluate(closed: Any, parameters: int, views: Sequence[View]) -> list[View]:
        own = [replace(view, known=program.prepares) for view in views[:parameters]]
        part = replace(program, closed=closed, parameters=parameters)
        return _evaluate(part, [*own, *views[parameters:]])

    return evaluate


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
    program: Program, arguments: Sequence[View], *, attending: bool = False
) -> list[View]:
    """Evaluate a program; `attending` is for the equations of one attention."""
    values: dict[Any, View] = dict(zip(program.arguments, arguments, strict=True))
    constants = zip(program.closed.jaxpr.constvars, program.closed.consts, strict=True)
    values.update((variable, plain(x, True)) for variable, x in constants)
    kept = set[Any]() if attending else reread(program)

    def read(variable: Any) -> View:
        if is_literal(variable):
            return plain(np.asarray(variable.val, variable.aval.dtype), True)
        return values[variable]

    def place(equation: Any, results: Sequence[View]) -> None:
        for variable, view in zip(equation.outvars, results, strict=True):
            is_stored = variable in kept
            values[variable] = replace(view, array=stored(whole(view))) if is_stored else view

    def attend(closed: Any, views: Sequence[View]) -> View:
        inner = replace(program, closed=jaxprs.spliced(closed, "cpu"), parameters=0)
        return _evaluate(inner, views, attending=True)[0]

    attends = program.role == "value" and not attending and runs("attention")
    found = attentions(program.closed.jaxpr) if attends else []
    found = [x for x in found if x.eqns[0].outvars[0] not in program.prepared]
    ends = {id(x.eqns[-1]): x for x in found}
    inside = {id(e) for x in found for e in x.eqns[:-1]}
    # First all that depends on parameters alone: matrices of later products are then at hand.
    for equation in sorted(program.equations, key=program.is_late):
        if id(equation) in inside:
            continue
        attention = ends.get(id(equation))
        with jaxprs.scope(equation):
            if attention is not None:
                operands = [read(v) for v in attention.reads]
                place(equation, [computed(attention, operands, attend, alone=program.is_alone)])
            else:
                views = [read(v) for v in equation.invars]
                place(equation, _apply(program, equation, views, attending))
    return [read(variable) for variable in program.results]


def _apply(program: Program, equation: Any, views: list[View], attending: bool) -> Sequence[View]:
    name = primitive(equation)
    if name == jaxprs.CONVOLUTION and not all(view.known for view in views):
        return [convolution(program, equation, *views)]
    if name == jaxprs.SCAN and runs("scan"):
        return _scan(program, equation, views)
    if name == jaxprs.PRODUCT and is_layer(equation, program.prepared):
        return [layer(program, equation, *views)]
    if name == jaxprs.PRODUCT and (attending or runs("layouts")):
        exchanged = attending and exchanges(equation)
        return [product(equation, views, exchanged=exchanged, alone=program.is_alone)]
    rule = rule_for(equation) if runs("layouts") else None
    result = None if rule is None else rule(equation, views)
    if result is None:
        result = _bind(equation, views)
    return result if isinstance(result, list) else [result]


def _scan(program: Program, equation: Any, views: Sequence[View]) -> list[View]:
    """Lay out the body, and compute before the scan what is the same in all its steps."""
    params, body = equation.params, program.body(equation)
    count, carried = jaxprs.scan_counts(equation)
    constants, start, stacks = (
        [tensor(view) for view in part]
        for part in (views[:count], views[count:][:carried], views[count + carried :])
    )

    def step(constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        arguments = [plain(x, True) for x in constants]
        arguments += [plain(x, False) for part in inputs for x in part]
        return [tensor(view) for view in _evaluate(body, arguments)]

    items = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in stacks]
    parts = split(body.with_closed(jax.make_jaxpr(step)(constants, (start, items))))
    prepared = parts.prepare(constants)

    def turn(carry: list[Any], items: list[Any]) -> tuple[list[Any], list[Any]]:
        results = parts.run(prepared, [*carry, *items])
        return results[:carried], results[carried:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, collected = scanned(turn, start, stacks, parted(body, len(stacks)), **options)
    known = all(view.known for view in views)
    return [plain(x, known) for x in (*last, *collected)]


def _bind(equation: Any, views: Sequence[View]) -> list[View]:
    """Evaluate the equation as it stands, on tensors in their own layout."""
    known = all(view.known for view in views)
    return [plain(result, known) for result in jaxprs.bind(equation, list(map(tensor, views)))]
