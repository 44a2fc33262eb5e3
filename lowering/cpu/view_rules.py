"""Move axes of views by rules of primitives; an equation without a rule takes plain tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering import jaxprs
from lowering.cpu.memory import apart
from lowering.cpu.pending_view import Order, View, arranged, common_order, plain, tensor, whole
from lowering.cpu.rows import apart_in_rows, in_rows, may_be_in_rows, repeated, row_of
from lowering.extents import runs_of
from lowering.facts import facts, renumbered
from lowering.jaxprs import primitive
from lowering.program import Program, Rules

# A rule returns the results of an equation, given views of its operands, or None: take it as it is.
RULES = Rules()


def view_of(equation: Any, array: Any, order: Order) -> View:
    """Return the view of an equation's result as an array in an order of axes."""
    return View(array, order, tuple(equation.outvars[0].aval.shape))


def bind(equation: Any, arrays: Sequence[Any], **changed: Any) -> Any:
    """Bind the primitive of an equation to arrays, with changed parameters."""
    return equation.primitive.bind(*arrays, **(equation.params | changed))


@RULES(by_item=True)
def _elementwise(program: Program, equation: Any, *views: View) -> View:
    """Apply an elementwise operation, transposing as few items as possible."""
    order = common_order(views)
    arrays = [arranged(view, order) if view.order else view.array for view in views]
    full = [x.shape for x in arrays if x.ndim]
    if primitive(equation) in ("add_any", "select_n", "clamp") and full:  # of one shape, or scalars
        widest = tuple(map(max, zip(*full, strict=True)))
        arrays = [jnp.broadcast_to(x, widest) if x.ndim else x for x in arrays]
    known, shape = [view.known for view in views], max(map(jnp.shape, arrays), key=math.prod)
    if order != tuple(sorted(order)) and not all(known) and may_be_in_rows(program, shape):
        found = _by_rows(equation, arrays, known, shape)
        if found is not None:
            return replace(view_of(equation, found, order), in_rows=True)
    return view_of(equation, bind(equation, arrays), order)


def in_any_loop(view: View) -> View:
    """Return the view of an array that loops over rows make, whatever loop reads it."""
    return replace(view, array=apart_in_rows(view.array), in_rows=False) if view.in_rows else view


def _by_rows(
    equation: Any, arrays: Sequence[Any], known: Sequence[bool], shape: tuple[int, ...]
) -> Any:
    """Apply an elementwise operation to rows of a shape; None where operands are none of it."""
    rows: list[Any] = []
    count = row_of(shape)
    for x, is_known in zip(arrays, known, strict=True):
        if jnp.ndim(x) and x.shape != shape:
            is_spread = all(n in (1, whole) for n, whole in zip(x.shape, shape, strict=True))
            if math.prod(x.shape[1:-1]) != 1 or not is_spread:
                return None
            x = repeated(x, count) if x.shape[-1] == shape[-1] else x
            x = x if is_known else apart(x)
        else:
            x = in_rows(x, count) if jnp.ndim(x) else x
        rows.append(x)
    return bind(equation, rows).reshape(shape)


@RULES("transpose")
def _transpose(program: Program, equation: Any, view: View) -> View:
    permutation = equation.params["permutation"]
    return view_of(equation, view.array, tuple(permutation.index(axis) for axis in view.order))


@RULES("broadcast_in_dim")
def _broadcast_in_dim(program: Program, equation: Any, view: View, *extents: View) -> View | None:
    if extents:  # which jax.export keeps open
        return None
    rank, axes = len(equation.params["shape"]), equation.params["broadcast_dimensions"]
    new = tuple(axis for axis in range(rank) if axis not in axes)
    # A plain tensor stays plain, as the gradient of a matrix wants its operands.
    if view.is_plain and list(axes) == sorted(axes):
        return view_of(equation, lax.expand_dims(view.array, new), tuple(range(rank)))
    # New axes go in front: their place does not matter while their extent is 1.
    array = lax.expand_dims(view.array, tuple(range(len(new))))
    return view_of(equation, array, (*new, *(axes[axis] for axis in view.order)))


@RULES(removes=True, along=True, across=True, per_axis=True)
def moved(program: Program, equation: Any, *views: View) -> list[View] | None:
    """Work in the order that moves the fewest items, by parameters that are renumbered for it."""
    order, fact = common_order(views), facts(equation)
    if any(view.order and len(view.order) < len(order) for view in views):
        return None
    params = renumbered(equation, [places_in(order) if view.order else () for view in views])
    if params is None:
        return None
    if fact.reduces and fact.removes:
        views = tuple(map(in_any_loop, views))
    take = arranged if fact.shapes else whole  # what is broadcast may stay so
    arrays = [take(view, order) if view.order else view.array for view in views]
    removed = equation.params[fact.removes] if fact.removes else ()
    left = ranks(axis for axis in order if axis not in removed)
    results = jaxprs.bind(equation, arrays, **params)
    shapes = [tuple(v.aval.shape) for v in equation.outvars]
    return [View(x, left, shape) for x, shape in zip(results, shapes, strict=True)]


def places_in(order: Order) -> list[tuple[int]]:
    """Return where each axis is in an order of axes."""
    return [(order.index(axis),) for axis in range(len(order))]


def ranks(axes: Iterable[int]) -> Order:
    """Return the order of axes that are left, numbered anew."""
    axes = list(axes)
    return tuple(sorted(axes).index(axis) for axis in axes)


@RULES("reshape")
def _reshape(program: Program, equation: Any, view: View, *extents: View) -> View | None:
    shape = tuple(equation.params["new_sizes"])
    if extents or equation.params["dimensions"] is not None:
        return None
    groups = None if view.is_plain else runs_of(view.shape, shape)
    if groups is None:
        return plain(lax.reshape(tensor(view), shape))
    # Axes of a run come together where the last of them is.
    groups.sort(key=lambda group: view.position(group[0][-1]) if group[0] else -1)
    order = tuple(axis for _, new in groups for axis in new)
    array = whole(view, tuple(axis for old, _ in groups for axis in old))
    return View(lax.reshape(array, [shape[axis] for axis in order]), order, shape)


# These rules bind the equation as it is where all operands are plain.
_FOLLOWING = None, _elementwise, _broadcast_in_dim, moved, _reshape


def stays(equation: Any) -> bool:
    """Tell whether rules compute what an equation says where all operands are plain."""
    return RULES.of(equation) in _FOLLOWING
