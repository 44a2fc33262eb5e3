"""Make one product of those of one input with several matrices of parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.cpu.pipeline import runs
from lowering.cpu.products import is_turned, product
from lowering.cpu.view import View, whole
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


def products(group: Sequence[Any], input: View, matrices: Sequence[View]) -> list[View]:
    """Return the results of all equations of a group."""
    ((left_sums, _), _) = group[0].params["dimension_numbers"]
    columns = [
        whole(matrix, (sums, 1 - sums))
        for matrix, sums in zip(
            matrices, (e.params["dimension_numbers"][0][1][0] for e in group), strict=True
        )
    ]
    matrix = jnp.concatenate(columns, axis=1) if len(columns) > 1 else columns[0]
    axis = input.position(left_sums[0])
    x = whole(input)
    params = {name: group[0].params[name] for name in ("precision", "preferred_element_type")}
    turned = is_turned(x.size // x.shape[axis], matrix.shape[1])
    array = product(x, matrix, axis, params, turned)
    free = [axis for axis in input.order if axis != left_sums[0]]
    ranked = sorted(free)
    order = [ranked.index(axis) for axis in free]
    order.insert(0 if turned else len(free), len(free))
    along = order.index(len(free))
    views: list[View] = []
    start = 0
    for equation, column in zip(group, columns, strict=True):
        stop = start + column.shape[1]
        part = lax.slice_in_dim(array, start, stop, axis=along)
        views.append(View(part, tuple(order), tuple(equation.outvars[0].aval.shape), False))
        start = stop
    return views
