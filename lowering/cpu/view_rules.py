"""Rules of primitives on views; what has no rule takes plain tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.contexts import runs
from lowering.cpu import products
from lowering.cpu.convolutions import convolution
from lowering.cpu.memory import apart
from lowering.cpu.pending_view import Order, View, arranged, common_order, plain, tensor, whole
from lowering.cpu.pooling import maximum_gradient, window_reduction
from lowering.cpu.products import (
    is_narrow,
    is_real,
    is_turned,
    over_rows,
    row_product,
    sums_of_channels,
)
from lowering.cpu.reductions import is_by_lanes, sums_of_rows
from lowering.cpu.rows import apart_in_rows, in_rows, may_be_in_rows, repeated, row_of
from lowering.extents import at_least
from lowering.facts import facts
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive
from lowering.kernels.precision import left_operand
from lowering.passes.siblings import is_layer, kind_of
from lowering.program import Program, Rules

# A rule returns the results of an equation, given views of its operands, or None: take it as it is.
RULES = Rules()


def view_of(equation: Any, array: Any, order: Order) -> View:
    """Return the view of an equation's result as an array in an order of axes."""
    return View(array, order, tuple(equation.outvars[0].aval.shape))


def _bind(equation: Any, arrays: Sequence[Any], **changed: Any) -> Any:
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
    return view_of(equation, _bind(equation, arrays), order)


def _apart(view: View) -> View:
    """Return the view of an array that loops over rows make, whatever loop reads it."""
    return replace(view, array=apart_in_rows(view.array)) if view.in_rows else view


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
    return _bind(equation, rows).reshape(shape)


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


@RULES("squeeze")
def _squeeze(program: Program, equation: Any, view: View) -> View:
    removed = equation.params["dimensions"]
    array = lax.squeeze(view.array, [view.position(axis) for axis in removed])
    return view_of(equation, array, _ranks(axis for axis in view.order if axis not in removed))


def _ranks(axes: Iterable[int]) -> Order:
    axes = list(axes)
    return tuple(sorted(axes).index(axis) for axis in axes)


@RULES(removes=True)
def _reduction(program: Program, equation: Any, view: View, *others: View) -> View | None:
    if others:
        return None
    axes, x = equation.params["axes"], whole(_apart(view))
    positions = tuple(sorted(view.position(axis) for axis in axes))
    is_sum = primitive(equation) == "reduce_sum"
    if is_sum and _is_by_channel(x, positions):
        array = sums_of_channels(x, kept=x.ndim - 1 - len(axes))
    elif is_sum and positions == (x.ndim - 1,) and is_by_lanes(x):  # as in a layer norm
        array = sums_of_rows(x)
    else:
        array = _bind(equation, [x], axes=positions)
    return view_of(equation, array, _ranks(axis for axis in view.order if axis not in axes))


_MANY = 16 << 10  # items to sum that are worth a product

# Sums of one tensor that are. Microseconds by reduction and by products, for 128 sums over 16 rows
# of 64 items 87 and 43, over 49 rows 68 and 55; for 512 sums over 49 rows 212 and 323, for 1024
# over 16 rows 182 and 302, for 8192 over 8 rows 543 and 1128.
_FEW = 128


def _is_by_channel(x: Any, positions: Sequence[int]) -> bool:
    """Tell whether axes before the last are summed: in a mean of positions, a bias's derivative."""
    kept = x.ndim - 1 - len(positions)
    return (
        len(positions) > 0
        and tuple(positions) == tuple(range(kept, x.ndim - 1))
        and x.dtype == jnp.float32
        and at_least(math.prod(x.shape), _MANY)
        and at_least(_FEW, math.prod(x.shape[:kept]))
        and runs("gradients")
    )


@RULES(along=True)
def _along(program: Program, equation: Any, *views: View) -> list[View]:
    """Work along one axis of tensors in a common order."""
    name, order = facts(equation).along, common_order(views)
    axis = order.index(equation.params[name])
    found = _bind(equation, [whole(view, order) for view in views], **{name: axis})
    arrays = found if equation.primitive.multiple_results else [found]
    pairs = zip(arrays, equation.outvars, strict=True)
    return [View(x, order, tuple(variable.aval.shape)) for x, variable in pairs]


@RULES(per_axis=True)
def _by_axis(program: Program, equation: Any, view: View, *scalars: View) -> View | None:
    """Put parameters for each axis in the order of the array's."""
    if any(x.shape for x in scalars):
        return None
    changed = {
        name: tuple(equation.params[name][axis] for axis in view.order)
        for name in facts(equation).per_axis
        if equation.params[name] is not None
    }
    array = _bind(equation, [whole(view), *(x.array for x in scalars)], **changed)
    return view_of(equation, array, view.order)


@RULES("rev")
def _rev(program: Program, equation: Any, view: View) -> View:
    axes = tuple(view.position(axis) for axis in equation.params["dimensions"])
    return view_of(equation, _bind(equation, [whole(view)], dimensions=axes), view.order)


@RULES(PRODUCT)
def _product(program: Program, equation: Any, left: View, right: View) -> View:
    """Multiply two tensors, in the layouts that they have."""
    if is_layer(equation, program.known):
        return _layer(program, equation, left, right)
    (left_sums, right_sums), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left_axes = [axis for axis in left.order if axis not in (*left_sums, *left_batch)]
    right_axes = [axis for axis in right.order if axis not in (*right_sums, *right_batch)]
    sums = equation.params["preferred_element_type"]
    if sums is not None and sums != left.array.dtype:
        order = (*left_batch, *left_axes, *left_sums)
        left = View(left_operand(whole(left, order), sums), order, left.shape, left.known)
    row = _row(equation, left, right) or _rows(equation, left, right)
    # Operands of one device alone are sharded by no axis.
    found = row or (_matrix_gradient(equation, left, right) if program.is_alone else None)
    if found is not None:
        return found
    numbers = (
        (tuple(map(left.position, left_sums)), tuple(map(right.position, right_sums))),
        (tuple(map(left.position, left_batch)), tuple(map(right.position, right_batch))),
    )
    array = _bind(equation, [whole(left), whole(right)], dimension_numbers=numbers)
    # Axes of the result: those of the batch, then the others of the left operand, the right one's.
    count, before = len(left_batch), len(left_batch) + len(left_axes)
    order = (
        *range(count),
        *(count + i for i in _ranks(left_axes)),
        *(before + i for i in _ranks(right_axes)),
    )
    return view_of(equation, array, order)


def _layer(program: Program, equation: Any, input: View, matrix: View) -> View:
    """Multiply by a matrix of parameters; some rows by many columns are transposed.

    A matrix that varies from call to call is taken as it lies. So is a large one that programs of
    other shapes read: each layout would be a copy of it, and for 32 to 48 rows of 1024 by 1024
    alone the other one takes 0.67 to 0.87 of the time.
    In a loop the result is transposed back at once. It is transposed there only where no more than
    slices read it: XLA undoes what these do not keep apart, and an LSTM of 32 rows takes 73 ms
    then, 47 as written.
    """
    ((left,), (right,)), _ = equation.params["dimension_numbers"]
    (result,), kind = equation.outvars, kind_of(equation)
    axis, x = input.position(left), whole(input)
    depth, width = x.shape[axis], matrix.shape[1 - right]
    rows = x.size // max(depth, 1)
    is_shared = matrix.known and program.is_open and not program.in_loop
    is_as_it_lies = is_shared and depth * width >= products.COPIED
    if program.in_loop and rows > 1:
        is_parted = program.readers(result) == {"slice"}
        turned = is_parted and is_turned(rows, depth, width)
    elif is_as_it_lies:
        turned = matrix.order[-1] == right and runs("turned")
    elif matrix.known:
        narrow = is_narrow(x, kind["preferred_element_type"])
        turned = is_real(x) and is_turned(rows, depth, width, narrow=narrow)
    else:  # it varies from call to call: it is taken as it lies
        is_few = at_least(min(depth, width), rows)
        turned = matrix.order[-1] == right and is_few and runs("turned")
    is_moved, order = matrix.known and not is_as_it_lies, matrix.order
    if is_moved:
        order = (1 - right, right) if turned else (right, 1 - right)
    y = whole(matrix, order)
    if is_moved and not turned and products.is_paired(x, axis, width):
        array = products.pairs(x, axis, y, kind)
    elif is_as_it_lies and not turned and products.is_shared_out(x, axis, width):
        array = products.shared_out(x, axis, y, kind)
    else:
        array = products.product(x, axis, y, order.index(right), kind, turned=turned)
    free = [a for a in input.order if a != left]
    order = list(_ranks(free))
    order.insert(0 if turned else len(free), len(free))
    view = view_of(equation, array, tuple(order))
    return plain(tensor(view)) if program.in_loop else view


def _row(equation: Any, left: View, right: View) -> View | None:
    """Multiply a single row by a matrix that is no parameter's, where that takes a form of its own.

    Products with parameters are those of `siblings`.
    """
    ((_, right_sums), (batch, _)) = equation.params["dimension_numbers"]
    if len(right.shape) != 2 or len(right_sums) != 1 or batch or right.known:
        return None
    (axis,), params = right_sums, equation.params
    depth, columns = right.shape[axis], right.shape[1 - axis]
    sums = params["preferred_element_type"]
    is_row = math.prod(left.shape) == depth and is_real(left.array)
    if not is_row or not is_turned(1, depth, columns, narrow=is_narrow(left.array, sums)):
        return None
    kind = {name: params[name] for name in ("precision", "preferred_element_type")}
    row, order = whole(left).reshape(-1), right.order
    array = row_product(row, whole(right), order.index(axis), kind)
    return plain(array.reshape(equation.outvars[0].aval.shape))


def _rows(equation: Any, left: View, right: View) -> View | None:
    """Multiply a single row of each item of a batch of several axes, as a batch of one axis.

    XLA transposes the other operand of several: 12 heads of 1024 keys in 2.5 ms, read in 0.13.
    """
    ((sums, right_sums), (batch, right_batch)) = equation.params["dimension_numbers"]
    count, last = len(batch), len(left.shape) - 1
    if (
        count < 2
        or sums != (last,)
        or len(right.shape) != count + 2
        or right.order[:count] != batch
        or not batch == right_batch == tuple(range(count))
        or math.prod(left.shape[count:last]) != 1
    ):
        return None
    row, matrix, items = tensor(left), whole(right), math.prod(left.shape[:count])
    # Of bfloat16 a library computes two rows, XLA a loop over widened copies of one.
    rows = 1 + is_narrow(left.array, equation.params["preferred_element_type"])
    row = jnp.broadcast_to(row.reshape(items, 1, row.shape[-1]), (items, rows, row.shape[-1]))
    operands = row, matrix.reshape(items, *matrix.shape[count:])
    numbers = ((2,), (right.position(right_sums[0]) - count + 1,)), ((0,), (0,))
    array = _bind(equation, operands, dimension_numbers=numbers)[:, :1]
    return plain(array.reshape(equation.outvars[0].aval.shape))


def _matrix_gradient(equation: Any, left: View, right: View) -> View | None:
    """Sum over all axes but the last of both, as in the gradient of a matrix.

    Where these are several, XLA transposes an operand in one loop with what computes it: 25088 rows
    of 384 items with the derivative of gelu take 130 ms, 20 in their own layout.
    """
    (sums, batch), precision = equation.params["dimension_numbers"], equation.params["precision"]
    places = [
        [view.position(axis) for axis in axes]
        for view, axes in zip((left, right), sums, strict=True)
    ]
    leading = list(range(len(left.shape) - 1))
    if (
        any(batch)
        or not leading
        or places != [leading, leading]
        or len(right.shape) != len(left.shape)
        or not equation.outvars[0].aval.size
        or not left.array.dtype == equation.outvars[0].aval.dtype == jnp.float32
        or not runs("gradients")
    ):
        return None
    x, y = (whole(view).reshape(-1, view.shape[view.order[-1]]) for view in (left, right))
    return plain(over_rows(x, y, precision, alone=True))


@RULES("reshape")
def _reshape(program: Program, equation: Any, view: View, *extents: View) -> View | None:
    shape = tuple(equation.params["new_sizes"])
    if extents or equation.params["dimensions"] is not None:
        return None
    groups = None if view.is_plain else reshaped_runs(view.shape, shape)
    if groups is None:
        return plain(lax.reshape(tensor(view), shape))
    # Axes of a run come together where the last of them is.
    groups.sort(key=lambda group: view.position(group[0][-1]) if group[0] else -1)
    order = tuple(axis for _, new in groups for axis in new)
    array = whole(view, tuple(axis for old, _ in groups for axis in old))
    return View(lax.reshape(array, [shape[axis] for axis in order]), order, shape)


def reshaped_runs(
    old: tuple[int, ...], new: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """Pair runs of axes with those that a reshape makes of them.

    Return None for an empty tensor, and where open extents do not tell.
    """
    if math.prod(old) == 0:
        return None
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, other = i, j
        left, i = (old[i], i + 1) if i < len(old) else (1, i)
        right, j = (new[j], j + 1) if j < len(new) else (1, j)
        while left != right:
            if i < len(old) and at_least(right, left):
                left, i = left * old[i], i + 1
            elif j < len(new) and at_least(left, right):
                right, j = right * new[j], j + 1
            else:
                return None
        groups.append((tuple(range(first, i)), tuple(range(other, j))))
    return groups


@RULES("reduce_window_max", "reduce_window_sum")
def _window(program: Program, equation: Any, *views: View) -> View | list[View] | None:
    first, *others = views
    operands = [_apart(first), *others]
    found = window_reduction(equation, operands)
    if found is None:
        return _by_axis(program, equation, *operands)
    if not may_be_in_rows(program, found.array.shape):
        return found
    return replace(found, array=apart(found.array))


@RULES("select_and_scatter_add")
def _maximum_gradient(program: Program, equation: Any, *views: View) -> View | None:
    return maximum_gradient(equation, views)


@RULES(CONVOLUTION)
def _convolution(program: Program, equation: Any, input: View, filter: View) -> View | None:
    is_early = input.known and filter.known
    return None if is_early else convolution(program, equation, input, filter)


# These rules bind the equation as it is where all operands are plain.
_FOLLOWING = (
    None, _elementwise, _broadcast_in_dim, _squeeze, _reduction, _along, _by_axis, _rev, _reshape
)  # fmt: skip


def stays(equation: Any) -> bool:
    """Tell whether rules compute what an equation says where all operands are plain."""
    return RULES.of(equation) in _FOLLOWING and primitive(equation) != "reduce_sum"
