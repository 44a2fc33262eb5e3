"""Evaluate a traced function in the layouts and with the kernels that suit a CPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lowering import jaxprs
from lowering.cpu import chunks
from lowering.cpu.attention import attentions, computed, exchanges, may_attend
from lowering.cpu.folding import Product, merged
from lowering.cpu.gates import Gate, gated, may_wait
from lowering.cpu.integers import in_integers
from lowering.cpu.items import parted, scanned
from lowering.cpu.layout import RULES, product
from lowering.cpu.memory import stored
from lowering.cpu.pipeline import runs
from lowering.cpu.rereads import reread
from lowering.cpu.siblings import products, siblings, sums_of_products
from lowering.cpu.sums import totals_of
from lowering.cpu.view import View, plain, tensor, turned, whole
from lowering.cpu.widening import widened
from lowering.jaxprs import is_literal, primitive
from lowering.kernels.levels import NOTE
from lowering.prepare import split

Operand = View | Product | Gate


def evaluated(
    closed: Any,
    known: Sequence[Any],
    free: Sequence[Any],
    *,
    in_chunks: bool = False,
    alone: bool = False,
    role: str = "value",
) -> list[Any]:
    """Evaluate a traced function of parameters and inputs with a CPU's layouts and kernels.

    On one device (`alone`) loops go over what may else be sharded. In a forward or backward pass
    what is costly to compute again is kept in memory.
    """
    closed = widened(in_integers(closed, role), backward=role == "backward")
    if role == "value" and runs("attention") and may_attend(closed.jaxpr):
        closed = jaxprs.spliced(closed, "cpu")
    if in_chunks and runs("chunks"):
        results = chunks.in_chunks(closed, known, free, _evaluate)
        if results is not None:
            return results
    views = [*(plain(x, True) for x in known), *(plain(x, False) for x in free)]
    if role == "backward" and runs("layouts"):
        orders = _orders(closed.jaxpr)
        pairs = zip(closed.jaxpr.invars, views, strict=True)
        views = [turned(view, orders.get(variable, view.order)) for variable, view in pairs]
    way = _Way(role=role, alone=alone)
    return [tensor(view) for view in _evaluate(closed.jaxpr, closed.consts, views, way)]


def _orders(jaxpr: Any) -> dict[Any, tuple[int, ...]]:
    """Map variables that meet convolutions to the order of axes that these compute in.

    What a backward pass reads was computed in it: XLA then drops both transpositions.
    """
    orders: dict[Any, tuple[int, ...]] = {}
    beside: dict[Any, list[Sequence[Any]]] = defaultdict(list)  # what has the same axes
    pending: list[tuple[Any, tuple[int, ...]]] = []
    for equation in jaxpr.eqns:
        if primitive(equation) == jaxprs.CONVOLUTION:
            numbers = equation.params["dimension_numbers"]
            first, second, *spatial = numbers.lhs_spec
            order = (min(first, second), *spatial, max(first, second))
            pending.append((equation.invars[0], order))
            # In a filter's gradient it is the gradient of the result that moves as a filter.
            other = equation.invars[1] if first > second else equation.outvars[0]
            pending.append((other, order))
        elif primitive(equation) in _KEEP_AXES:
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


_KEEP_AXES = frozenset(
    (*jaxprs.ELEMENTWISE, "concatenate", "pad", "select_and_scatter_add", "slice", "split")
)


def folded(closed: Any, known: Sequence[Any], free: Sequence[Any]) -> list[Any]:
    """Return the results with scales and offsets in the filters before them, else as written.

    It suits any platform, and derivatives, which then need no results without scale and offset.
    A filter that is rounded to levels stays one.
    """
    if any(primitive(equation) == NOTE for equation in closed.jaxpr.eqns):
        return jaxprs.as_function(closed)(*known, *free)
    views = [*(plain(x, True) for x in known), *(plain(x, False) for x in free)]
    return [tensor(v) for v in _evaluate(closed.jaxpr, closed.consts, views, _Way(written=True))]


@dataclass(frozen=True, slots=True)
class _Way:
    """Says how to evaluate: in a loop's body, a pass of a derivative, or as it is written.

    `attending` is for the equations of one attention, whose products are `exchanged`. It runs
    `alone` on one device, or else on several.
    """

    in_loop: bool = False
    role: str = "value"
    written: bool = False
    attending: bool = False
    alone: bool = True


_CALL = _Way()


def _evaluate(
    jaxpr: Any, constants: Sequence[Any], arguments: Sequence[View], way: _Way = _CALL
) -> list[View]:
    values: dict[Any, Operand] = dict(zip(jaxpr.invars, arguments, strict=True))
    values.update((v, plain(x, True)) for v, x in zip(jaxpr.constvars, constants, strict=True))
    read_by_all = [*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]
    uses = Counter(jaxprs.variables(read_by_all))
    kept = set[Any]() if way.attending else reread(jaxpr, way.role)

    def read(variable: Any) -> Operand:
        if is_literal(variable):
            aval: Any = variable.aval
            return plain(np.asarray(variable.val, aval.dtype), True)
        return values[variable]

    def compute(equation: Any) -> None:
        operands = [read(v) for v in equation.invars]
        found = _merged(equation, operands)
        if found is None:
            views = [_computed(operand, way) for operand in operands]
            with jaxprs.scope(equation):
                results = _apply(equation, views, way)
        else:
            results = [found]
        for variable, result in zip(equation.outvars, results, strict=True):
            if variable in kept:
                result = _stored(_computed(result, way))
            elif uses[variable] != 1:
                result = _computed(result, way)
            values[variable] = result

    def attend(closed: Any, views: Sequence[View]) -> View:
        return _evaluate(closed.jaxpr, closed.consts, views, replace(way, attending=True))[0]

    # First all that depends on parameters alone: matrices of later products are then at hand.
    later: list[Any] = []
    known = {v for v, view in values.items() if isinstance(view, View) and view.known}
    for equation in jaxpr.eqns:
        if not way.written and all(is_literal(v) or v in known for v in equation.invars):
            compute(equation)
            known.update(equation.outvars)
        else:
            later.append(equation)
    attends = way.role == "value" and not (way.written or way.attending) and runs("attention")
    found = [x for x in attentions(jaxpr) if x.eqns[0].outvars[0] not in known] if attends else []
    ends = {id(x.eqns[-1]): x for x in found}
    groups = {} if way.written else siblings(later, known.__contains__, _same(jaxpr))
    is_backward = way.in_loop and way.role == "backward" and runs("sums")
    joined = sums_of_products(jaxpr, known.__contains__) if is_backward else []
    done = {id(e) for terms in joined for e in terms.steps}
    done |= {id(e) for x in found for e in x.eqns[:-1]}
    sums = {id(terms.add): terms for terms in joined}
    for equation in later:
        if any(variable in values for variable in equation.outvars) or id(equation) in done:
            continue
        if id(equation) in sums:
            terms = sums[id(equation)]
            with jaxprs.scope(equation):
                inputs, matrices = (
                    [_computed(read(e.invars[i]), way) for e in terms.products] for i in (0, 1)
                )
                array = tensor(terms.value(inputs, matrices))
                for variable in terms.others:
                    array = array + tensor(_computed(read(variable), way))
                (values[equation.outvars[0]],) = [plain(array, False)]
            continue
        if id(equation) in ends:
            attention = ends[id(equation)]
            with jaxprs.scope(equation):
                operands = [_computed(read(v), way) for v in attention.reads]
                (values[equation.outvars[0]],) = [
                    computed(attention, operands, attend, alone=way.alone)
                ]
            continue
        group = groups.get(id(equation))
        if group is None:
            compute(equation)
            continue
        with jaxprs.scope(equation):
            input = _computed(read(equation.invars[0]), way)
            matrices = [_computed(read(e.invars[1]), way) for e in group]
            results = products(group, input, matrices, in_loop=way.in_loop)
            for e, view in zip(group, results, strict=True):
                values[e.outvars[0]] = plain(tensor(view), view.known) if way.in_loop else view
    return [_computed(read(variable), way) for variable in jaxpr.outvars]


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


def _computed(operand: Operand, way: _Way) -> View:
    if isinstance(operand, Product):
        return operand.view(way.role, alone=way.alone)
    return operand.view() if isinstance(operand, Gate) else operand


def _stored(view: View) -> View:
    return replace(view, array=stored(whole(view)))


def _merged(equation: Any, operands: list[Operand]) -> View | Product | None:
    ready = [operand for operand in operands if not isinstance(operand, Gate)]
    with jaxprs.scope(equation):
        if len(ready) < len(operands):
            return gated(equation, operands)
        is_folded = primitive(equation) in jaxprs.ARITHMETIC and runs("folding")
        return merged(equation, ready) if is_folded else None


def _apply(equation: Any, views: list[View], way: _Way) -> Sequence[Operand]:
    name = primitive(equation)
    called = jaxprs.called(equation, None if way.written else "cpu")
    if called is not None:
        taken = views[len(views) - len(called.in_avals) :]  # a choice of platform takes its index
        return _evaluate(called.jaxpr, called.consts, taken, way)
    if name == jaxprs.CONVOLUTION and not all(view.known for view in views):
        return [Product(equation, *views, as_written=way.written)]
    if way.written and not all(view.known for view in views):
        return _bind(equation, views)
    if may_wait(equation) and not views[0].known and runs("gates"):
        return [Gate(equation, *views)]
    if name == jaxprs.SCAN and runs("scan"):
        return _scan(equation, views, way)
    if name == jaxprs.PRODUCT and (way.attending or runs("layouts")):
        exchanged = way.attending and exchanges(equation)
        return [product(equation, views, exchanged=exchanged, alone=way.alone)]
    rule = RULES.get(name) if runs("layouts") else None
    result = None if rule is None else rule(equation, views)
    if result is None:
        result = _bind(equation, views)
    return result if isinstance(result, list) else [result]


def _scan(equation: Any, views: Sequence[View], way: _Way) -> list[View]:
    """Lay out the body, and compute before the scan what is the same in all its steps.

    Products in it are not left transposed: the state would be transposed for them, by nine kernels
    of 25 us beside the product of an LSTM's step (8 rows, 256 wide) instead of two of 13.
    """
    params = equation.params
    closed, (count, carried) = params["jaxpr"], jaxprs.scan_counts(equation)
    constants, start, stacks = (
        [tensor(view) for view in part]
        for part in (views[:count], views[count:][:carried], views[count + carried :])
    )
    # What steps only add products to is computed after them.
    jaxpr = closed.jaxpr
    totals = totals_of(jaxpr, count, carried)
    added = {total.place for total in totals}
    kept = [i for i in range(carried) if i not in added]
    found = dict(zip(jaxpr.invars[count + carried :], stacks, strict=True))
    asked = list(dict.fromkeys(v for x in totals for v in x.operands if v not in found))
    inner = jaxprs.changed(
        closed,
        arguments=[v for i, v in enumerate(jaxpr.invars) if i - count not in added],
        results=[*(v for i, v in enumerate(jaxpr.outvars) if i not in added), *asked],
        without=[e for x in totals for e in (x.product, *x.after, x.add)],
    )

    def body(constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        arguments = [plain(x, True) for x in constants]
        arguments += [plain(x, False) for part in inputs for x in part]
        results = _evaluate(inner.jaxpr, inner.consts, arguments, replace(way, in_loop=True))
        return [tensor(view) for view in results]

    items = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in stacks]
    first = [start[i] for i in kept]
    parts = split(body, constants, (first, items))
    prepared = parts.prepare(constants)

    def turn(carry: list[Any], items: list[Any]) -> tuple[list[Any], list[Any]]:
        results = parts.run(prepared, [*carry, *items])
        return results[: len(kept)], results[len(kept) :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, collected = scanned(turn, first, stacks, parted(inner, len(stacks)), **options)
    carry = dict(zip(kept, last, strict=True))
    found.update(zip(asked, collected[len(collected) - len(asked) :], strict=True))
    for total in totals:
        left, right = map(found.__getitem__, total.operands)
        carry[total.place] = total.total(start[total.place], left, right)
    results = [*(carry[i] for i in range(carried)), *collected[: len(collected) - len(asked)]]
    known = all(view.known for view in views)
    return [plain(x, known) for x in results]


def _bind(equation: Any, views: Sequence[View]) -> list[View]:
    """Evaluate the equation as it stands, on tensors in their own layout."""
    known = all(view.known for view in views)
    return [plain(result, known) for result in jaxprs.bind(equation, list(map(tensor, views)))]
