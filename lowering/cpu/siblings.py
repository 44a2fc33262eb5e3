"""Make one product of several: of one input with many matrices, or of terms of a sum."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from lowering import jaxprs
from lowering.cpu.pipeline import runs
from lowering.cpu.products import is_narrow, is_real, is_turned, is_turned_in_loop, product
from lowering.cpu.view import View, plain, whole
from lowering.jaxprs import PRODUCT, is_literal, primitive


def siblings(
    equations: Iterable[Any], is_known: Callable[[Any], bool], same: Mapping[Any, Any]
) -> dict[int, list[Any]]:
    """Return groups of products of one input, by id(equation); `same` unites equal variables."""
    groups: dict[Any, list[Any]] = defaultdict(list)
    for equation in equations:
        if primitive(equation) == PRODUCT and _is_layer(equation, is_known):
            ((sums, _), _) = equation.params["dimension_numbers"]
            params = equation.params
            kind = params["precision"], params["preferred_element_type"]
            input = equation.invars[0]
            own = None if runs("siblings") else id(equation)
            groups[same.get(input, input), sums, kind, own].append(equation)
    return {id(e): group for group in groups.values() for e in group}


class Terms(NamedTuple):
    """A sum of products with matrices of parameters: `add` is its last step."""

    add: Any
    products: Sequence[Any]
    after: Sequence[Any]  # equations between a product and the sum, alike for all
    others: Sequence[Any]  # variables that are added too
    steps: Sequence[Any]  # all equations that it stands for, but `add`

    def value(self, inputs: Sequence[View], matrices: Sequence[View]) -> View:
        """Return the sum of the products, as one product."""
        rows: list[Any] = []
        columns: list[Any] = []
        for equation, input, matrix in zip(self.products, inputs, matrices, strict=True):
            (((left,), (right,)), _) = equation.params["dimension_numbers"]
            free = [axis for axis in range(len(input.shape)) if axis != left]
            rows.append(whole(input, (*free, left)))
            columns.append(whole(matrix, (right, 1 - right)))
        x = jnp.concatenate(rows, axis=-1)
        params = _kind(self.products[0])
        array = product(x, jnp.concatenate(columns), x.ndim - 1, params, turned=False)
        for equation in self.after:
            (array,) = jaxprs.bind(equation, [array])
        return plain(array, False)


def sums_of_products(jaxpr: Any, is_known: Callable[[Any], bool]) -> list[Terms]:
    """Find sums of products that one product can compute.

    Each term has an input and a matrix of its own, and nothing but the sum reads it.
    """
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    read_by_all = [*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]
    uses = Counter(jaxprs.variables(read_by_all))

    def own(variable: Any) -> Any:
        single = not is_literal(variable) and uses[variable] == 1
        return made.get(variable) if single else None

    found: list[Terms] = []
    taken: set[int] = set()
    for equation in reversed(jaxpr.eqns):
        if primitive(equation) not in _SUMS or id(equation) in taken:
            continue
        steps: list[Any] = []
        products: list[Any] = []
        others: list[Any] = []
        chains: list[list[Any]] = []
        pending = list(equation.invars)
        while pending:
            variable = pending.pop()
            step = own(variable)
            if step is not None and primitive(step) in _SUMS:
                steps.append(step)
                pending += step.invars
                continue
            chain: list[Any] = []
            while step is not None and primitive(step) in jaxprs.SHAPING:
                chain.insert(0, step)
                step = own(step.invars[0])
            if step is not None and primitive(step) == PRODUCT and _is_layer(step, is_known):
                products.append(step)
                chains.append(chain)
            else:
                others.append(variable)
        taken.update(map(id, steps))
        kinds = {
            str((_kind(e), e.outvars[0].aval, [(c.primitive, c.params) for c in chain]))
            for e, chain in zip(products, chains, strict=True)
        }
        if len(products) > 1 and len(kinds) == 1:
            steps += [e for chain in chains for e in chain]
            found.append(Terms(equation, products, chains[0], others, [*steps, *products]))
    return found


_SUMS = ("add", "add_any")


def _kind(equation: Any) -> dict[str, Any]:
    return {name: equation.params[name] for name in ("precision", "preferred_element_type")}


def _is_layer(equation: Any, is_known: Callable[[Any], bool]) -> bool:
    input, matrix = equation.invars
    (left_sums, _), (batch, _) = equation.params["dimension_numbers"]
    return (
        not is_literal(input)
        and not is_known(input)
        and is_known(matrix)
        and len(left_sums) == 1
        and not batch
        and len(matrix.aval.shape) == 2
    )


def products(
    group: Sequence[Any], input: View, matrices: Sequence[View], *, in_loop: bool = False
) -> list[View]:
    """Return the results of all equations of a group."""
    ((left_sums, _), _) = group[0].params["dimension_numbers"]
    sums = [e.params["dimension_numbers"][0][1][0] for e in group]
    counts = [m.shape[1 - axis] for m, axis in zip(matrices, sums, strict=True)]
    axis = input.position(left_sums[0])
    x = whole(input)
    params = _kind(group[0])
    depth, width = x.shape[axis], sum(counts)
    rows = x.size // max(depth, 1)
    if in_loop and rows > 1:
        # XLA undoes what no slice keeps apart: an LSTM of 32 rows takes 73 ms then, 47 as written.
        turned = len(group) > 1 and is_turned_in_loop(rows, depth, width)
    else:
        narrow = is_narrow(x, params["preferred_element_type"])
        turned = is_real(x) and is_turned(rows, width, depth=depth, narrow=narrow)
    orders = [(1 - axis, axis) if turned else (axis, 1 - axis) for axis in sums]
    parts = [whole(m, order) for m, order in zip(matrices, orders, strict=True)]
    matrix = jnp.concatenate(parts, axis=1 - turned) if len(parts) > 1 else parts[0]
    array = product(x, matrix, axis, params, turned)
    free = [axis for axis in input.order if axis != left_sums[0]]
    ranked = sorted(free)
    order = [ranked.index(axis) for axis in free]
    order.insert(0 if turned else len(free), len(free))
    along = order.index(len(free))
    views: list[View] = []
    start = 0
    for equation, count in zip(group, counts, strict=True):
        stop = start + count
        part = lax.slice_in_dim(array, start, stop, axis=along)
        views.append(View(part, tuple(order), tuple(equation.outvars[0].aval.shape), False))
        start = stop
    return views
