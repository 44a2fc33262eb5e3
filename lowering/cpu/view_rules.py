"""Move axes of views by rules. An equation without a rule takes tensors in their own layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering import jaxpr_evaluation
from lowering.cpu.memory import unfused
from lowering.cpu.pending_view import Order, View, arranged, common_order, full_array, plain, tensor
from lowering.cpu.rows import in_rows, may_be_in_rows, positions_in_row, repeated, unfused_in_rows
from lowering.extents import runs_of
from lowering.facts import facts, renumbered
from lowering.jaxpr_types import Equation
from lowering.jaxprs import primitive
from lowering.program import Program
from lowering.rewriting import Rules

# A rule takes a program, its equation, and views of the operands. It returns views of the results,
# or None if the equation needs tensors in their own layout.
RULES = Rules()


def view_of(equation: Equation, array: Array, order: Order) -> View:
    """Return the view of an equation's result.

    `array` holds the result, and its axis j is axis `order[j]` of the result.
    """
    return View(array, order, tuple(equation.outvars[0].aval.shape))


def bind(equation: Equation, arrays: Sequence[Array], **changed: Any) -> Array:
    """Apply an equation's primitive to arrays, with the parameters `changed` replaced."""
    return equation.primitive.bind(*arrays, **(equation.params | changed))


@RULES(by_item=True)
def _elementwise(program: Program, equation: Equation, *views: View) -> View:
    """Compute an elementwise operation on arrays that are first brought to one order of axes.

    In this order the fewest items have to be transposed.
    """
    order = common_order(views)
    arrays = _in_order(views, order)
    takes_one_shape = primitive(equation) in ("add_any", "select_n", "clamp")
    if takes_one_shape:
        arrays = _in_one_shape(arrays)
    are_early = [view.is_early for view in views]
    shape = max(map(jnp.shape, arrays), key=math.prod)
    # Convolutions put the channels last, which transposes the order of most networks.
    is_transposed = order != tuple(sorted(order))
    if is_transposed and not all(are_early) and may_be_in_rows(program, shape):
        result = _by_rows(equation, arrays, are_early, shape)
        if result is not None:
            return replace(view_of(equation, result, order), in_rows=True)
    return view_of(equation, bind(equation, arrays), order)


def _in_order(
    views: Sequence[View], order: Order, array_of: Callable[[View, Order], Array] = arranged
) -> list[Array]:
    """Return the arrays of views, transposed to `order`. Scalars have no axes and stay unchanged.

    `array_of(view, order)` transposes an array.
    """
    return [array_of(view, order) if view.order else view.array for view in views]


def _in_one_shape(arrays: Sequence[Array]) -> list[Array]:
    """Broadcast arrays of one rank to their common shape. Scalars stay unchanged.

    Some primitives need operands of one shape, or scalars.
    """
    shapes = [array.shape for array in arrays if array.ndim]
    if not shapes:
        return list(arrays)
    widest = tuple(map(max, zip(*shapes, strict=True)))
    return [jnp.broadcast_to(array, widest) if array.ndim else array for array in arrays]


def in_any_loop(view: View) -> View:
    """Return a view for a loop that does not go over rows.

    If loops over rows compute the array of the view, XLA is kept from fusing these loops with the
    loop that reads the array.
    """
    if not view.in_rows:
        return view
    return replace(view, array=unfused_in_rows(view.array), in_rows=False)


def _by_rows(
    equation: Equation, arrays: Sequence[Array], are_early: Sequence[bool], shape: tuple[int, ...]
) -> Array | None:
    """Compute an elementwise operation on rows of several positions, with a result of `shape`.

    None is returned if an operand does not broadcast to rows. `are_early` tells for each
    operand whether it is computed before all calls or before a loop.
    """
    operands: list[Array] = []
    count = positions_in_row(shape)
    for array, is_early in zip(arrays, are_early, strict=True):
        if jnp.ndim(array) == 0:
            operands.append(array)
            continue
        if array.shape == shape:
            operands.append(in_rows(array, count))
            continue
        # Other operands, such as a bias, must have one position: (batch or 1, 1, 1, channels or 1).
        extents = zip(array.shape, shape, strict=True)
        is_broadcast = all(extent in (1, result_extent) for extent, result_extent in extents)
        has_one_position = math.prod(array.shape[1:-1]) == 1
        if not is_broadcast or not has_one_position:
            return None
        has_channels = array.shape[-1] == shape[-1]
        row = repeated(array, count) if has_channels else array
        operands.append(row if is_early else unfused(row))
    return bind(equation, operands).reshape(shape)


@RULES("transpose")
def _transpose(program: Program, equation: Equation, view: View) -> View:
    """Change the order of axes of the view. The array stays unchanged."""
    permutation = equation.params["permutation"]
    # Axis i of the result is axis permutation[i] of the operand.
    order = tuple(permutation.index(axis) for axis in view.order)
    return view_of(equation, view.array, order)


@RULES("broadcast_in_dim")
def _broadcast_in_dim(
    program: Program, equation: Equation, view: View, *extents: View
) -> View | None:
    """Add axes of extent 1 to the array. Along these axes the view repeats the items."""
    if extents:
        return None  # under jax.export the operands `extents` are symbolic extents of the result
    rank = len(equation.params["shape"])
    axes = equation.params["broadcast_dimensions"]
    added = tuple(axis for axis in range(rank) if axis not in axes)
    # A plain tensor stays plain, since the gradient of a matrix multiplies plain tensors.
    if view.is_plain and list(axes) == sorted(axes):
        return view_of(equation, lax.expand_dims(view.array, added), tuple(range(rank)))
    # Added axes go in front. Their position does not matter while their extent is 1.
    array = lax.expand_dims(view.array, tuple(range(len(added))))
    moved_axes = [axes[axis] for axis in view.order]
    return view_of(equation, array, (*added, *moved_axes))


@RULES(removes=True, along=True, across=True, per_axis=True)
def moved(program: Program, equation: Equation, *views: View) -> list[View] | None:
    """Compute an equation on arrays that are first brought to one order of axes.

    In this order the fewest items have to be transposed. The parameters of the equation are
    renumbered for the order. None is returned if this is impossible.
    """
    order = common_order(views)
    properties = facts(equation)
    are_of_one_rank = all(len(view.order) in (0, len(order)) for view in views)  # or scalars
    if not are_of_one_rank:
        return None
    params = renumbered(equation, [new_axes_in(order) if view.order else () for view in views])
    if params is None:
        return None
    if properties.reduces and properties.removes:
        # The loop of a reduction does not go over rows.
        views = tuple(map(in_any_loop, views))
    # If the equation only moves items, broadcast arrays keep extent 1.
    array_of = arranged if properties.shapes else full_array
    arrays = _in_order(views, order, array_of)
    removed = equation.params[properties.removes] if properties.removes else ()
    result_order = ranks(axis for axis in order if axis not in removed)
    results = jaxpr_evaluation.bind(equation, arrays, **params)
    views_of_results: list[View] = []
    for result, array in zip(equation.outvars, results, strict=True):
        views_of_results.append(View(array, result_order, tuple(result.aval.shape)))
    return views_of_results


def new_axes_in(order: Order) -> list[tuple[int]]:
    """Return, for each axis from 0 on, a tuple with the position of the axis in `order`.

    (2, 0, 1) gives [(1,), (2,), (0,)]. `renumbered` takes tuples, since an axis may become several
    axes.
    """
    return [(order.index(axis),) for axis in range(len(order))]


def ranks(axes: Iterable[int]) -> Order:
    """Number axes again from 0 on, without gaps: (5, 2, 3) becomes (2, 0, 1)."""
    in_order = list(axes)
    ascending = sorted(in_order)
    return tuple(ascending.index(axis) for axis in in_order)


@RULES("reshape")
def _reshape(program: Program, equation: Equation, view: View, *extents: View) -> View | None:
    """Reshape the array in its own order of axes if possible, and otherwise reshape the tensor.

    The array can be reshaped in its order if each run of old axes becomes a run of new axes. For
    example, (2, 3, 8) becomes (6, 2, 4): the run (2, 3) becomes 6, and 8 becomes (2, 4).
    """
    shape = tuple(equation.params["new_sizes"])
    has_symbolic_extents = len(extents) > 0
    transposes_too = equation.params["dimensions"] is not None
    if has_symbolic_extents or transposes_too:
        return None
    # A group has old axes, and the new axes that replace the old axes.
    groups = None if view.is_plain else runs_of(view.shape, shape)
    if groups is None:
        return plain(lax.reshape(tensor(view), shape))

    def position_of_group(group: tuple[Sequence[int], Sequence[int]]) -> int:
        """Return the index of the array's axis that is the last old axis of a group.

        A group has old axes, and the new axes that replace them. A group without old axes has the
        position -1, so that it comes first.
        """
        old_axes, _ = group
        return view.position(old_axes[-1]) if old_axes else -1

    old_order: list[int] = []
    order: list[int] = []
    for old_axes, new_axes in sorted(groups, key=position_of_group):
        old_order += old_axes
        order += new_axes
    array = full_array(view, tuple(old_order))
    new_array = lax.reshape(array, [shape[axis] for axis in order])
    return View(new_array, tuple(order), shape)


# These rules evaluate an equation unchanged if all its operands have their own layout. None stands
# for the case that an equation has no rule. Such an equation is evaluated unchanged too.
_UNCHANGING = None, _elementwise, _broadcast_in_dim, moved, _reshape


def stays(equation: Equation) -> bool:
    """Tell whether an equation is evaluated unchanged if all its operands have their own layout."""
    return RULES.rule_for(equation) in _UNCHANGING
