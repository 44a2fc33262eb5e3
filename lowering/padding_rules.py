"""Evaluates primitives of jax on padded arrays by rules, see `lowering.padding`.

A rule takes the state of the evaluation, the equation, and the padded operands. It returns the
padded results. Along an axis, an array may be longer than the value of the extent. The items come
first. The places behind them are padding, which has arbitrary values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.extents import is_symbolic, runs_of
from lowering.facts import facts
from lowering.jaxpr_types import Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive
from lowering.padding_state import (
    NotPaddableError,
    PaddedState,
    Shape,
    least,
    neutral,
    shape_of,
    with_places,
)
from lowering.rewriting import Rules

RULES = Rules()


@RULES("broadcast_in_dim")
def _broadcast(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Broadcast an array. If an axis becomes symbolic and has no items, broadcast the number 1.

    The padding of the result counts as finite if the operand has no padding, see `is_finite`. An
    infinity in this padding does no harm if it is an item too: the item makes a product with the
    result infinite in any case. Without items there is only padding, which must be finite.
    """
    x = operands[0]
    before, after = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    # Maps axes of the result to the extents of the operand. An added axis counts as extent 1.
    extent_before = dict(zip(equation.params["broadcast_dimensions"], before, strict=True))
    for axis, extent in enumerate(after):
        becomes_symbolic = is_symbolic(extent) and not is_symbolic(extent_before.get(axis, 1))
        if becomes_symbolic and jnp.issubdtype(x.dtype, jnp.floating):
            has_no_items = state.symbols.value(extent) == 0
            x = jnp.where(has_no_items, jnp.ones((), x.dtype), x)
    return state.bind_bounded(equation, [x, *operands[1:]])


@RULES("iota", "transpose", "squeeze", "stack", "optimization_barrier", "reshard",
       "bitcast_convert_type", "le_to", "lt_to", "levels")  # fmt: skip
def _unaffected(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate an equation in which no item of a result depends on padding."""
    return state.bind_bounded(equation, operands)


@RULES(by_item=True)
def _by_item(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate an elementwise equation."""
    return state.bind_by_item(equation, operands)


@RULES("dim_as_value")
def _dimension(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Return the value of an extent as a scalar."""
    dtype = equation.outvars[0].aval.dtype
    return [jnp.asarray(state.symbols.value(equation.params["dim"]), dtype)]


@RULES("counted")
def _counted(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Define the value of a symbol, and return an array with this number of items along an axis.

    The padding repeats the first item, so that the padding is as harmless as an item.
    """
    x, count = operands
    params = equation.params
    axis, extent, most = params["axis"], params["extent"], params["most"]
    state.symbols.define(extent, most, jnp.clip(count, 0, most).astype(jnp.int32))
    return [state.repeated(with_places(x, axis, most), axis, extent)]


@RULES("filled")
def _filled(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Give symbolic axes a fixed extent. A given value fills padding and added positions."""
    (v,), (x,) = equation.invars, operands
    value = jnp.asarray(equation.params["value"], x.dtype)
    extents = zip(shape_of(v), equation.params["shape"], strict=True)
    for axis, (extent, new_extent) in enumerate(extents):
        if is_symbolic(extent) and extent != new_extent:
            x = state.with_padding(v, x, [axis], value)
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, new_extent - x.shape[axis])
            x = jnp.pad(x, widths, constant_values=value)
    return [x]


@RULES("reshape")
def _reshape(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reshape a padded array.

    All items and the padding are reshaped at once if this keeps the padding behind the items.
    Otherwise the item for each place of the result is looked up.
    """
    (x,) = operands
    before, after = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    places = state.symbols.bounds(tuple(after))
    if _keeps_padding_behind(before, after):
        return [jnp.reshape(x, places)]
    number = _numbers_of_items(state, after, places)
    # Find the item with this number in x: the coordinates of the item are the remainders of the
    # number, from the last axis to the first. `index` is the row-major index in the padded x.
    index: Any = 0
    stride = 1
    for axis in reversed(range(len(before))):
        extent = jnp.maximum(jnp.asarray(state.symbols.value(before[axis]), jnp.int32), 1)
        coordinate = number % extent
        index = index + coordinate * stride
        number = number // extent
        stride = stride * x.shape[axis]
    items = jnp.take(x.reshape(-1), index, mode="clip")
    return [state.without_derivatives(equation.outvars[0], items)]


def _keeps_padding_behind(before: Shape, after: Shape) -> bool:
    """Tell whether a reshape of a padded array keeps the padding behind the items.

    In each run of axes that is reshaped into other axes, only the first axis may be symbolic, as in
    the reshape of (n, 2, 3) to (n, 6). In (2, n), padding lies between items.
    """
    runs = runs_of(before, after)
    if runs is None:
        return False
    for axes_before, axes_after in runs:
        for shape, axes in ((before, axes_before), (after, axes_after)):
            extents = [shape[axis] for axis in axes if shape[axis] != 1]
            if any(map(is_symbolic, extents[1:])):
                return False
    return True


def _numbers_of_items(state: PaddedState, shape: Shape, places: Sequence[int]) -> Array:
    """Return the number of the item at each place of a padded array, in row-major order.

    `shape` is the shape without padding, and `places` is the shape of the result. For the shape
    (2, 3) and the places (2, 4), the numbers are [[0, 1, 2, 3], [3, 4, 5, 6]].
    """
    number: Any = jnp.zeros(tuple(places), jnp.int32)
    stride: Any = 1
    for axis in reversed(range(len(shape))):
        number = number + lax.broadcasted_iota(jnp.int32, tuple(places), axis) * stride
        stride = stride * state.symbols.value(shape[axis])
    return number


@RULES("slice")
def _slice(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Slice along axes. The start of a slice may be symbolic."""
    (x,) = operands
    starts = equation.params["start_indices"]
    strides = equation.params["strides"] or (1,) * x.ndim
    for axis, extent in enumerate(shape_of(equation.outvars[0])):
        count = state.symbols.bound(extent)
        stride = strides[axis]
        size = (count - 1) * stride + 1 if count else 0  # from the first item to the last
        x = state.part(x, axis, starts[axis], size)
        x = lax.slice_in_dim(x, 0, size, stride, axis)
    return [x]


@RULES("split")
def _split(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Split an axis into parts, each of which begins behind the items of the part before it."""
    (x,) = operands
    axis = equation.params["axis"]
    start: Any = 0
    results: list[Any] = []
    for v in equation.outvars:
        extent = shape_of(v)[axis]
        results.append(state.part(x, axis, start, state.symbols.bound(extent)))
        start = start + extent
    return results


@RULES("tile")
def _tile(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Repeat the items along axes. The repetitions follow each other without padding."""
    (x,) = operands
    repeats = list(equation.params["reps"])
    for axis, extent in enumerate(shape_of(equation.invars[0])):
        times = repeats[axis]
        is_list_repeated = is_symbolic(extent) and times != 1
        if is_list_repeated or is_symbolic(times):
            count = jnp.maximum(state.symbols.value(extent), 1)
            places = jnp.arange(state.symbols.bound(extent * times)) % count  # 0, 1, 2, 0, 1, 2
            x = jnp.take(x, places, axis, mode="clip")
            repeats[axis] = 1  # so that `lax.tile` does not repeat the axis again
    return [lax.tile(x, tuple(repeats))]


@RULES("rev")
def _reversed(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reverse axes of a padded array, and move the items to the front of the axes again."""
    shape = shape_of(equation.invars[0])
    (x,) = state.bind_bounded(equation, operands)
    for axis in equation.params["dimensions"]:
        if is_symbolic(shape[axis]):
            places = x.shape[axis]
            # The items are behind the padding now. Take as many places as before, but from the
            # first item on.
            begin = places - state.symbols.value(shape[axis])
            x = lax.dynamic_slice_in_dim(jnp.concatenate([x, x], axis), begin, places, axis)
    return [x]


@RULES("dynamic_slice", "dynamic_update_slice")
def _dynamic(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Take or update a slice. The start is clamped to the items, so that it avoids padding."""
    if primitive(equation) == "dynamic_slice":
        array_count = 1  # one operand precedes the starts: the array
        sizes = equation.params["slice_sizes"]
    else:
        array_count = 2  # the array and the update
        sizes = shape_of(equation.invars[1])
    arrays, starts = operands[:array_count], operands[array_count:]
    for axis, extent in enumerate(shape_of(equation.invars[0])):
        size = sizes[axis]
        if is_symbolic(size) and size != extent:
            raise NotPaddableError(equation)
        last = state.symbols.value(extent - size)
        starts[axis] = jnp.clip(starts[axis], 0, jnp.asarray(last, starts[axis].dtype))
    return state.bind_bounded(equation, [*arrays, *starts])


@RULES("concatenate")
def _concatenate(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Join padded arrays so that the items of each follow the items of the array before it."""
    axis = equation.params["dimension"]
    shape = shape_of(equation.outvars[0])
    extents = [shape_of(v)[axis] for v in equation.invars]
    has_padding_between = any(map(is_symbolic, extents[:-1]))
    symbolic_axes = [i for i, extent in enumerate(shape) if is_symbolic(extent)]
    v, *part_variables = equation.invars
    x, *parts = operands
    parts = [state.cut(w, part) for w, part in zip(part_variables, parts, strict=True)]
    if not (has_padding_between and symbolic_axes == [axis]):
        x = state.cut(v, x)  # otherwise the parts are written to the places beyond the bounds
    if not has_padding_between:
        return state.bind_bounded(equation, [x, *parts])
    offsets: list[Any] = []  # the number of items before each part
    offset = extents[0]
    places = max(state.symbols.bound(shape[axis]), x.shape[axis])
    for extent, part in zip(extents[1:], parts, strict=True):
        offsets.append(offset)
        places = max(places, state.symbols.bound(offset) + part.shape[axis])
        offset = offset + extent
    x = with_places(x, axis, places)
    for offset, part in zip(offsets, parts, strict=True):
        x = lax.dynamic_update_slice_in_dim(x, part, state.symbols.value(offset), axis)
    has_places = x.shape[axis] > 0
    if has_places and all(map(state.is_finite, equation.invars)):
        return [state.repeated_in_derivatives(x, axis, shape[axis])]
    return [state.repeated(x, axis, shape[axis])]


@RULES("pad")
def _pad(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Add items before and behind the items of axes. The new items replace padding."""
    new_item = operands[1]
    (y,) = state.bind_bounded(equation, operands)
    extents = shape_of(equation.invars[0])
    for axis, (low, _, between) in enumerate(equation.params["padding_config"]):
        if not is_symbolic(extents[axis]):
            continue
        if between or is_symbolic(low):
            raise NotPaddableError(equation)
        is_before_padding = state.is_item(y, axis, low + extents[axis])
        y = jnp.where(is_before_padding, y, new_item)
    return [state.cut(equation.outvars[0], y)]


@RULES(removes=True)
def _reduced(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reduce axes, with a neutral number as padding, such as 0 for a sum."""
    axes = equation.params[facts(equation).removes]
    (v,), (x,) = equation.invars, operands
    x = state.with_padding(v, x, axes, neutral(primitive(equation), x.dtype))
    return state.bind_bounded(equation, [x])


@RULES("cumsum", "cumprod", "cummax", "cummin")
def _running(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Compute running sums or the like. If they run backwards, neutral numbers replace padding.

    Otherwise they replace padding in derivatives only: the derivative of a running product
    multiplies derivatives by padding.
    """
    (v,), (x,) = equation.invars, operands
    axes = [equation.params["axis"]]
    padding = neutral(primitive(equation), x.dtype)
    if equation.params["reverse"]:
        x = state.with_padding(v, x, axes, padding)
    else:
        x = state.with_padding_in_derivatives(v, x, axes, padding, x)
    return state.bind_bounded(equation, [x])


@RULES(PRODUCT)
def _product(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Multiply, with 0 as padding along summed axes.

    If the padding of one operand is finite, only the other operand's padding is replaced: a finite
    number times 0 is 0.
    """
    (x_axes, y_axes), _ = equation.params["dimension_numbers"]
    left, right = equation.invars
    x, y = operands
    is_x_finite, is_y_finite = state.is_finite(left), state.is_finite(right)
    if is_y_finite or not is_x_finite:
        x = state.with_padding(left, x, x_axes, 0)
    if not is_y_finite:
        y = state.with_padding(right, y, y_axes, 0)
    # The derivative of a product also sums over the axes that the product does not sum.
    new_x, new_y = x, y
    if not is_x_finite:
        new_x = state.with_padding_in_derivatives(left, x, {*range(x.ndim)} - {*x_axes}, 0, y)
    if not is_y_finite:
        new_y = state.with_padding_in_derivatives(right, y, {*range(y.ndim)} - {*y_axes}, 0, x)
    return state.bind_bounded(equation, [new_x, new_y])


@RULES(CONVOLUTION)
def _convolution(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Convolve, with 0 as the input's padding along channels and spatial axes."""
    v, filter_variable = equation.invars
    x, filter = operands
    if any(map(is_symbolic, shape_of(filter_variable))):
        raise NotPaddableError(equation)
    batch_axis, *summed_axes = equation.params["dimension_numbers"].lhs_spec
    x = state.with_padding(v, x, summed_axes, 0)
    if not state.is_finite(v):
        # The derivative by the filter also sums over the batch.
        x = state.with_padding_in_derivatives(v, x, [batch_axis], 0, filter)
    return state.bind_bounded(equation, [x, filter])


@RULES("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _windows(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reduce windows that have a single item along each symbolic axis."""
    params = equation.params
    for axis, extent in enumerate(shape_of(equation.invars[0])):
        size, stride = params["window_dimensions"][axis], params["window_strides"][axis]
        padding = tuple(params["padding"][axis])
        keeps_items = size == 1 and stride == 1 and padding == (0, 0)
        if is_symbolic(extent) and not keeps_items:
            raise NotPaddableError(equation)
    return state.bind_bounded(equation, operands)


@RULES("fft")
def _transformed(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Transform along the last axes, which must not be symbolic."""
    axis_count = len(equation.params["fft_lengths"])
    extents = shape_of(equation.invars[0])[-axis_count:]
    if any(map(is_symbolic, extents)):
        raise NotPaddableError(equation)
    return state.bind_bounded(equation, operands)


@RULES("sort")
def _sorted(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Sort items, and keep padding behind them by a first key that is true for padding."""
    params = equation.params
    axis = params["dimension"]
    extent = shape_of(equation.invars[0])[axis]
    if not is_symbolic(extent):
        return state.bind_bounded(equation, operands)
    x = operands[0]
    is_padding = jnp.broadcast_to(~state.is_item(x, axis, extent), x.shape)
    keys = params["num_keys"] + 1
    stable = params["is_stable"]
    arrays = [is_padding, *operands]
    _, *results = lax.sort(arrays, dimension=axis, is_stable=stable, num_keys=keys)
    return results


@RULES("top_k")
def _best(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Choose the largest items. The padding becomes the least number, and so is not chosen."""
    (v,), (x,) = equation.invars, operands
    axis = equation.params.get("axis", -1) % x.ndim
    x = state.with_padding(v, x, [axis], least(x.dtype))
    return state.bind_bounded(equation, [x])


@RULES("gather")
def _gather(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Look items up by their indices. An index that points to padding is out of range."""
    x, indices = operands
    shape = shape_of(equation.invars[0])
    sizes = equation.params["slice_sizes"]
    if 0 in x.shape:  # a list that never has items: no index is in range
        return [jnp.zeros(state.symbols.bounds(tuple(shape_of(equation.outvars[0]))), x.dtype)]
    mode = equation.params["mode"]
    for i, axis in enumerate(equation.params["dimension_numbers"].start_index_map):
        if not is_symbolic(shape[axis]):
            continue
        coordinate = indices[..., i]
        last = jnp.asarray(state.symbols.value(shape[axis] - sizes[axis]), indices.dtype)
        if mode == lax.GatherScatterMode.CLIP:
            coordinate = jnp.clip(coordinate, 0, last)
        elif mode == lax.GatherScatterMode.FILL_OR_DROP:
            beyond = jnp.asarray(x.shape[axis], indices.dtype)
            coordinate = jnp.where(coordinate > last, beyond, coordinate)
        indices = indices.at[..., i].set(coordinate)
    return state.bind_bounded(equation, [x, indices])


@RULES("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter_add",
       "scatter_mul", "scatter_min", "scatter_max", "scatter-sub", "scatter_sub")  # fmt: skip
def _scatter(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Write updates at indices. An update is dropped if its index points to or lies in padding."""
    x, indices, updates = operands
    extents, index_extents, update_extents = map(shape_of, equation.invars)
    numbers = equation.params["dimension_numbers"]
    window_axes = iter(numbers.update_window_dims)
    axes_without_window = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    sizes: list[Any] = []  # the window's extent along each axis of x; each index writes one window
    for axis, extent in enumerate(extents):
        size = 1 if axis in axes_without_window else update_extents[next(window_axes)]
        if is_symbolic(size) and size != extent:
            raise NotPaddableError(equation)
        sizes.append(size)
    is_written: Any = True  # false for padding of the indices
    for axis, extent in enumerate(index_extents[:-1]):
        if is_symbolic(extent):
            is_written &= state.is_item(indices, axis, extent)[..., 0]
    is_clipped = equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP
    for i, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        coordinate = indices[..., i]
        last = jnp.asarray(state.symbols.value(extents[axis] - sizes[axis]), indices.dtype)
        if is_clipped:
            coordinate = jnp.clip(coordinate, 0, last)
        has_place = is_written & (coordinate <= last)
        beyond = jnp.asarray(x.shape[axis], indices.dtype)
        indices = indices.at[..., i].set(jnp.where(has_place, coordinate, beyond))
    # Updates with an index beyond an axis are dropped.
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return state.bind_bounded(equation, [x, indices, updates], mode=mode)
