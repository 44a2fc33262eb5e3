"""Move axes of views by rules; an equation without a rule takes tensors in their own layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxprs
from lowering.cpu.memory import apart
from lowering.cpu.pending_view import Order, View, arranged, common_order, full_array, plain, tensor
from lowering.cpu.rows import apart_in_rows, in_rows, may_be_in_rows, repeated, row_of
from lowering.extents import runs_of
from lowering.facts import facts, renumbered
from lowering.jaxpr_types import Equation
from lowering.jaxprs import primitive
from lowering.program import Program, Rules

# A rule takes a program, its equation, and views of the operands. It returns views of the results,
# or None if the equation needs tensors in their own layout.
RULES = Rules()


def view_of(equation: Equation, array: Array, order: Order) -> View:
    """Return the view of an equation's result, whose array has an order of axes."""
    return View(array, order, tuple(equation.outvars[0].aval.shape))


def bind(equation: Equation, arrays: Sequence[Array], **changed: Any) -> Array:
    """Return the result of an equation's primitive on arrays, with changed parameters."""
    return equation.primitive.bind(*arrays, **(equation.params | changed))


@RULES(by_item=True)
def _elementwise(program: Program, equation: Equation, *views: View) -> View:
    """Compute an elementwise operation, and transpose as few items as possible."""
    order = common_order(views)
    arrays = [arranged(view, order) if view.order else view.array for view in views]
    full = [x.shape for x in arrays if x.ndim]
    # These primitives need operands of one shape, or scalars.
    if primitive(equation) in ("add_any", "select_n", "clamp") and full:
        widest = tuple(map(max, zip(*full, strict=True)))
        arrays = [jnp.broadcast_to(x, widest) if x.ndim else x for x in arrays]
    are_early = [view.is_early for view in views]
    shape = max(map(jnp.shape, arrays), key=math.prod)
    if order != tuple(sorted(order)) and not all(are_early) and may_be_in_rows(program, shape):
        array = _by_rows(equation, arrays, are_early, shape)
        if array is not None:
            return replace(view_of(equation, array, order), in_rows=True)
    return view_of(equation, bind(equation, arrays), order)


def in_any_loop(view: View) -> View:
    """Return the view of an array that any loop may read, though loops over rows compute it."""
    return replace(view, array=apart_in_rows(view.array), in_rows=False) if view.in_rows else view


def _by_rows(
    equation: Equation, arrays: Sequence[Array], are_early: Sequence[bool], shape: tuple[int, ...]
) -> Array | None:
    """Compute an elementwise operation on rows; None if operands do not broadcast to rows."""
    rows: list[Array] = []
    count = row_of(shape)
    for x, is_early in zip(arrays, are_early, strict=True):
        if jnp.ndim(x) and x.shape != shape:
            is_spread = all(n in (1, extent) for n, extent in zip(x.shape, shape, strict=True))
            if math.prod(x.shape[1:-1]) != 1 or not is_spread:
                return None
            x = repeated(x, count) if x.shape[-1] == shape[-1] else x
            x = x if is_early else apart(x)
        else:
            x = in_rows(x, count) if jnp.ndim(x) else x
        rows.append(x)
    return bind(equation, rows).reshape(shape)


@RULES("transpose")
def _transpose(program: Program, equation: Equation, view: View) -> View:
    permutation = equation.params["permutation"]
    return view_of(equation, view.array, tuple(permutation.index(axis) for axis in view.order))


@RULES("broadcast_in_dim")
def _broadcast_in_dim(
    program: Program, equation: Equation, view: View, *extents: View
) -> View | None:
    if extents:  # symbolic extents of the result, in jax.export
        return None
    rank, axes = len(equation.params["shape"]), equation.params["broadcast_dimensions"]
    new = tuple(axis for axis in range(rank) if axis not in axes)
    # A plain tensor stays plain: the gradient of a matrix multiplies plain tensors.
    if view.is_plain and list(axes) == sorted(axes):
        return view_of(equation, lax.expand_dims(view.array, new), tuple(range(rank)))
    # New axes go in front: while their extent is 1 their position does not matter.
    array = lax.expand_dims(view.array, tuple(range(len(new))))
    return view_of(equation, array, (*new, *(axes[axis] for axis in view.order)))


@RULES(removes=True, along=True, across=True, per_axis=True)
def moved(program: Program, equation: Equation, *views: View) -> list[View] | None:
    """Compute an equation in the order of axes that moves the fewest items.

    Its parameters are renumbered for that order.
    """
    order, fact = common_order(views), facts(equation)
    if any(view.order and len(view.order) < len(order) for view in views):
        return None
    params = renumbered(equation, [places_in(order) if view.order else () for view in views])
    if params is None:
        return None
    if fact.reduces and fact.removes:
        views = tuple(map(in_any_loop, views))
    take = arranged if fact.shapes else full_array  # broadcast arrays may keep extent 1
    arrays = [take(view, order) if view.order else view.array for view in views]
    removed = equation.params[fact.removes] if fact.removes else ()
    result_order = ranks(axis for axis in order if axis not in removed)
    results = jaxprs.bind(equation, arrays, **params)
    shapes = [tuple(v.aval.shape) for v in equation.outvars]
    return [View(x, result_order, shape) for x, shape in zip(results, shapes, strict=True)]


def places_in(order: Order) -> list[tuple[int]]:
    """Return the position of each axis in an order of axes."""
    return [(order.index(axis),) for axis in range(len(order))]


def ranks(axes: Iterable[int]) -> Order:
    """Return the order of axes after they are numbered anew from 0: (5, 2, 3) to (2, 0, 1)."""
    axes = list(axes)
    return tuple(sorted(axes).index(axis) for axis in axes)


@RULES("reshape")
def _reshape(program: Program, equation: Equation, view: View, *extents: View) -> View | None:
    shape = tuple(equation.params["new_sizes"])
    if extents or equation.params["dimensions"] is not None:
        return None
    groups = None if view.is_plain else runs_of(view.shape, shape)
    if groups is None:
        return plain(lax.reshape(tensor(view), shape))
    # A run of axes is put where its last axis is.
    groups.sort(key=lambda group: view.position(group[0][-1]) if group[0] else -1)
    order = tuple(axis for _, new in groups for axis in new)
    array = full_array(view, tuple(axis for old, _ in groups for axis in old))
    return View(lax.reshape(array, [shape[axis] for axis in order]), order, shape)


# These rules, and no rule, bind an equation unchanged if all its operands are plain.
_UNCHANGING = None, _elementwise, _broadcast_in_dim, moved, _reshape


def stays(equation: Equation) -> bool:
    """Tell whether an equation is bound unchanged if all its operands are plain."""
    return RULES.of(equation) in _UNCHANGING
