"""Evaluate a traced function in the layouts and with the kernels that suit a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lowering import jaxprs
from lowering.cpu import chunks
from lowering.cpu.folding import Product, merged, product
from lowering.cpu.layout import RULES
from lowering.cpu.pipeline import runs
from lowering.cpu.siblings import products, siblings
from lowering.cpu.view import View, plain, tensor
from lowering.jaxprs import is_literal, primitive
from lowering.prepare import split

Operand = View | Product


def evaluated(
    closed: Any, known: Sequence[Any], free: Sequence[Any], *, in_chunks: bool
) -> list[Any]:
    """Return the results of a traced function of parameters and of inputs."""
    if in_chunks and runs("chunks"):
        results = chunks.in_chunks(closed, known, free, _evaluate)
        if results is not None:
            return results
    views = [*(plain(x, True) for x in known), *(plain(x, False) for x in free)]
    return [tensor(view) for view in _evaluate(closed.jaxpr, closed.consts, views)]


def _evaluate(
    jaxpr: Any, constants: Sequence[Any], arguments: Sequence[View], *, in_loop: bool = False
) -> list[View]:
    values: dict[Any, Operand] = dict(zip(jaxpr.invars, arguments, strict=True))
    values.update((v, plain(x, True)) for v, x in zip(jaxpr.constvars, constants, strict=True))
    read_by_all = [*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]
    uses = Counter(jaxprs.variables(read_by_all))

    def read(variable: Any) -> Operand:
        if is_literal(variable):
            aval: Any = variable.aval
            return plain(np.asarray(variable.val, aval.dtype), True)
        return values[variable]

    def compute(equation: Any) -> None:
        with jaxprs.scope(equation):
            results = _apply(equation, [read(v) for v in equation.invars], in_loop)
        for variable, result in zip(equation.outvars, results, strict=True):
            if isinstance(result, Product) and uses[variable] != 1:
                result = result.view()
            values[variable] = result

    # First all that depends on parameters alone: matrices of later products are then at hand.
    later: list[Any] = []
    known = {variable for variable, view in values.items() if view.known}
    for equation in jaxpr.eqns:
        if all(is_literal(v) or v in known for v in equation.invars):
            compute(equation)
            known.update(equation.outvars)
        else:
            later.append(equation)
    groups = siblings(later, known.__contains__, _same(jaxpr))
    for equation in later:
        if any(variable in values for variable in equation.outvars):
            continue
        group = groups.get(id(equation))
        if group is None:
            compute(equation)
            continue
        with jaxprs.scope(equation):
            input = _computed(read(equation.invars[0]))
            matrices = [_computed(read(e.invars[1])) for e in group]
            for e, view in zip(group, products(group, input, matrices), strict=True):
                values[e.outvars[0]] = plain(tensor(view), view.known) if in_loop else view
    return [_computed(read(variable)) for variable in jaxpr.outvars]


def _same(jaxpr: Any) -> dict[Any, Any]:
    """Map a variable that is computed as another one to the first of these."""
    first: dict[Any, Any] = {}
    same: dict[Any, Any] = {}
    for equation in jaxpr.eqns:
        if primitive(equation) in jaxprs.SHAPING:
            operands = tuple(id(v) if is_literal(v) else same.get(v, v) for v in equation.invars)
            key = equation.primitive, operands, tuple(sorted(equation.params.items(), key=str))
            (result,) = equation.outvars
            same[result] = first.setdefault(key, result)
    return same


def _computed(operand: Operand) -> View:
    return operand.view() if isinstance(operand, Product) else operand


def _apply(equation: Any, operands: list[Operand], in_loop: bool) -> Sequence[Operand]:
    name = primitive(equation)
    if name in jaxprs.ARITHMETIC and runs("folding"):
        found = merged(equation, operands)
        if found is not None:
            return [found]
    views = [_computed(operand) for operand in operands]
    if name == jaxprs.CALL:
        closed = equation.params["jaxpr"]
        return _evaluate(closed.jaxpr, closed.consts, views, in_loop=in_loop)
    if name == jaxprs.SCAN and runs("scan"):
        return _scan(equation, views)
    if name == jaxprs.CONVOLUTION:
        found = product(equation, *views)
        if found is not None:
            return [found]
    rule = RULES.get(name) if runs("layouts") else None
    result = None if rule is None else rule(equation, views)
    if result is None:
        result = _bind(equation, views)
    return result if isinstance(result, list) else [result]


def _scan(equation: Any, views: Sequence[View]) -> list[View]:
    """Lay out the body, and compute before the scan what depends on parameters alone.

    Products in it are not left transposed: the state would be transposed for them, by nine kernels
    of 25 us beside the product of an LSTM's step (8 rows, 256 wide) instead of two of 13.
    """
    params = equation.params
    closed, (count, carried) = params["jaxpr"], jaxprs.scan_counts(equation)
    constants, first, scanned = views[:count], views[count:][:carried], views[count + carried :]
    fixed = [i for i, view in enumerate(constants) if view.known]

    def body(parameters: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        free, carry, items = inputs
        known, rest = iter(parameters), iter(free)
        arguments = [
            plain(next(known), True) if v.known else plain(next(rest), False) for v in constants
        ]
        arguments += [plain(x, False) for x in (*carry, *items)]
        results = _evaluate(closed.jaxpr, closed.consts, arguments, in_loop=True)
        return [tensor(view) for view in results]

    parameters = [tensor(constants[i]) for i in fixed]
    free = [tensor(view) for view in constants if not view.known]
    start, stacks = [tensor(view) for view in first], [tensor(view) for view in scanned]
    items = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in stacks]
    parts = split(body, parameters, (free, start, items), differentiable=True)
    prepared = parts.prepare(parameters)

    def turn(carry: list[Any], items: list[Any]) -> tuple[list[Any], list[Any]]:
        results = parts.run(prepared, [*free, *carry, *items])
        return results[:carried], results[carried:]

    last, collected = jax.lax.scan(
        turn,
        start,
        stacks,
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    known = all(view.known for view in views)
    return [plain(x, known) for x in (*last, *collected)]


def _bind(equation: Any, views: Sequence[View]) -> list[View]:
    """Evaluate the equation as it stands, on tensors in their own layout."""
    known = all(view.known for view in views)
    return [plain(result, known) for result in jaxprs.bind(equation, list(map(tensor, views)))]
