"""Evaluates primitives of jax on padded arrays by rules, see `lowering.padding`.

A rule takes the state of the evaluation, the equation, and the padded operands. It returns the
padded results. An array has at least as many places along an axis as the extent has items. The
items come first. The padding behind them has arbitrary values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.extents import is_symbolic, runs_of
from lowering.facts import facts
from lowering.jaxpr_types import ClosedJaxpr, Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, SCAN, primitive
from lowering.padding_state import NotPaddableError, PaddedState, Shape, shape_of
from lowering.program import Program
from lowering.rewriting import Rules

RULES = Rules()


@RULES("broadcast_in_dim")
def _broadcast(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Broadcast. To an axis without items go ones, so that an infinite number stays out of it."""
    x = operands[0]
    old, new = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    along = dict(zip(equation.params["broadcast_dimensions"], old, strict=True))
    for axis, extent in enumerate(new):
        is_new = is_symbolic(extent) and not is_symbolic(along.get(axis, 1))
        if is_new and jnp.issubdtype(x.dtype, jnp.floating):
            x = jnp.where(state.symbols.value(extent) == 0, jnp.ones((), x.dtype), x)
    return state.bound(equation, [x, *operands[1:]])


@RULES("iota", "transpose", "squeeze", "stack", "optimization_barrier", "bitcast_convert_type",
       "le_to", "lt_to", "levels")  # fmt: skip
@RULES(by_item=True)
def _bound(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate an equation in which no item of a result depends on padding."""
    return state.bound(equation, operands)


@RULES("dim_as_value")
def _dimension(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    dtype = equation.outvars[0].aval.dtype
    return [jnp.asarray(state.symbols.value(equation.params["dim"]), dtype)]


@RULES("counted")
def _counted(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Define a symbol. The padding repeats the first item, so that it is as harmless as an item."""
    x, count = operands
    axis, extent, most = (equation.params[name] for name in ("axis", "extent", "most"))
    state.symbols.define(extent, most, jnp.clip(count, 0, most).astype(jnp.int32))
    return [state.repeated(_with_places(x, axis, most), axis, extent)]


@RULES("filled")
def _filled(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Replace the padding by a number along axes that get a fixed extent, and add places there."""
    (v,), (x,) = equation.invars, operands
    value = jnp.asarray(equation.params["value"], x.dtype)
    for axis, (before, after) in enumerate(zip(shape_of(v), equation.params["shape"], strict=True)):
        if is_symbolic(before) and before != after:
            x = state.hidden(v, x, [axis], value)
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, after - x.shape[axis])
            x = jnp.pad(x, widths, constant_values=value)
    return [x]


@RULES("reshape")
def _reshape(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reshape a padded array.

    If only the first axis of each run of axes is symbolic, the padding still follows the items.
    Otherwise each place of the result looks its item up.
    """
    (x,) = operands
    before, after = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    places = state.symbols.bounds(tuple(after))
    if _keeps_order(before, after):
        return [jnp.reshape(x, places)]
    number = _numbers_of_items(state, after, places)
    index: Any = 0  # of the item among the places of x, in row-major order
    stride = 1
    for axis in reversed(range(len(before))):
        extent = jnp.maximum(jnp.asarray(state.symbols.value(before[axis]), jnp.int32), 1)
        index = index + number % extent * stride
        number = number // extent
        stride = stride * x.shape[axis]
    return [jnp.take(x.reshape(-1), index, mode="clip")]


def _keeps_order(before: Shape, after: Shape) -> bool:
    """Tell whether a reshape of places moves the items of a padded array to their new places."""
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

    `shape` is the shape without padding, and `places` the shape of the result.
    """
    number: Any = jnp.zeros(tuple(places), jnp.int32)
    stride: Any = 1
    for axis in reversed(range(len(shape))):
        number = number + lax.broadcasted_iota(jnp.int32, tuple(places), axis) * stride
        stride = stride * state.symbols.value(shape[axis])
    return number


def _with_places(x: Any, axis: int, count: int) -> Any:
    """Return an array with at least `count` places along an axis. New places are 0."""
    if count <= x.shape[axis]:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, count - x.shape[axis])
    return jnp.pad(x, widths)


@RULES("slice")
def _slice(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    (x,) = operands
    params = equation.params
    strides = params["strides"] or (1,) * x.ndim
    for axis, (start, stride) in enumerate(zip(params["start_indices"], strides, strict=True)):
        extent = shape_of(equation.outvars[0])[axis]
        count = state.symbols.bound(extent)
        size = (count - 1) * stride + 1 if count else 0
        x = _from(state, x, axis, start, size)
        x = lax.slice_in_dim(x, 0, size, stride, axis)
    return [x]


def _from(state: PaddedState, x: Any, axis: int, start: Any, size: int) -> Any:
    """Return `size` places of an array along an axis, from the place `start` on.

    `start` may be symbolic.
    """
    last = state.symbols.bound(start) + size
    if is_symbolic(start):
        x = _with_places(x, axis, last)
        return lax.dynamic_slice_in_dim(x, state.symbols.value(start), size, axis)
    return lax.slice_in_dim(x, start, min(start + size, x.shape[axis]), axis=axis)


@RULES("split")
def _split(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    (x,), axis = operands, equation.params["axis"]
    start: Any = 0
    results: list[Any] = []
    for v in equation.outvars:
        extent = shape_of(v)[axis]
        results.append(_from(state, x, axis, start, state.symbols.bound(extent)))
        start = start + extent
    return results


@RULES("tile")
def _tile(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Repeat the items along axes. The repetitions follow each other without padding."""
    (x,) = operands
    repeats = list(equation.params["reps"])
    for axis, (extent, times) in enumerate(zip(shape_of(equation.invars[0]), repeats, strict=True)):
        if is_symbolic(times) or (is_symbolic(extent) and times != 1):
            count = jnp.maximum(state.symbols.value(extent), 1)
            places = jnp.arange(state.symbols.bound(extent * times)) % count
            x = jnp.take(x, places, axis, mode="clip")
            repeats[axis] = 1
    return [lax.tile(x, tuple(repeats))]


@RULES("rev")
def _reversed(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reverse axes of a padded array, and move the items to the front of the axes again."""
    shape = shape_of(equation.invars[0])
    (x,) = state.bound(equation, operands)
    for axis in equation.params["dimensions"]:
        if is_symbolic(shape[axis]):
            places = x.shape[axis]
            begin = places - state.symbols.value(shape[axis])
            x = lax.dynamic_slice_in_dim(jnp.concatenate([x, x], axis), begin, places, axis)
    return [x]


@RULES("dynamic_slice", "dynamic_update_slice")
def _dynamic(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Take or update a slice. Its start is clamped by the number of items, not of places."""
    is_slice = primitive(equation) == "dynamic_slice"
    first = 1 if is_slice else 2
    shape = shape_of(equation.invars[0])
    sizes = equation.params["slice_sizes"] if is_slice else shape_of(equation.invars[1])
    starts = list(operands[first:])
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if is_symbolic(size) and size != extent:
            raise NotPaddableError(equation)
        last = state.symbols.value(extent - size)
        starts[axis] = jnp.clip(starts[axis], 0, jnp.asarray(last, starts[axis].dtype))
    return state.bound(equation, [*operands[:first], *starts])


@RULES("concatenate")
def _concatenate(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Join padded arrays so that the items of each follow the items of the array before it."""
    axis = equation.params["dimension"]
    (result,) = equation.outvars
    shape = shape_of(result)
    symbolic_axes = [i for i, extent in enumerate(shape) if is_symbolic(extent)]
    # The first array may keep further places along the axis: the others are written there.
    first_cut = 0 if symbolic_axes != [axis] else 1
    for i in range(first_cut, len(operands)):
        operands[i] = state.cut(equation.invars[i], operands[i])
    extents = [shape_of(v)[axis] for v in equation.invars]
    if not any(map(is_symbolic, extents[:-1])):
        operands[0] = state.cut(equation.invars[0], operands[0])
        return state.bound(equation, operands)
    x, *parts = operands
    offset = extents[0]
    places = max(state.symbols.bound(shape_of(result)[axis]), x.shape[axis])
    for extent, part in zip(extents[1:], parts, strict=True):
        places = max(places, state.symbols.bound(offset) + part.shape[axis])
        offset = offset + extent
    x = _with_places(x, axis, places)
    offset = extents[0]
    for extent, part in zip(extents[1:], parts, strict=True):
        x = lax.dynamic_update_slice_in_dim(x, part, state.symbols.value(offset), axis)
        offset = offset + extent
    are_finite = all(map(state.is_finite, equation.invars)) and x.shape[axis]
    repeated = state.repeated_in_derivatives if are_finite else state.repeated
    return [repeated(x, axis, shape[axis])]


@RULES("pad")
def _pad(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    (result,) = equation.outvars
    y = state.bound(equation, operands)[0]
    extents = shape_of(equation.invars[0])
    for axis, (low, _, between) in enumerate(equation.params["padding_config"]):
        if not is_symbolic(extents[axis]):
            continue
        if between or is_symbolic(low):
            raise NotPaddableError(equation)
        y = jnp.where(state.is_item(y, axis, low + extents[axis]), y, operands[1])
    return [state.cut(result, y)]


def _least(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).min


def _largest(dtype: Any) -> Any:
    return np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).max


def _neutral(name: str, dtype: Any) -> Any:
    """Return the number that does not change a reduction's result, such as 0 for "reduce_sum".

    `name` is the name of the reduction.
    """
    is_logical = jnp.issubdtype(dtype, np.bool_)
    if name.endswith(("sum", "or", "xor")):
        return 0
    if name.endswith("prod"):
        return 1
    if name.endswith("and"):
        return is_logical or -1  # -1 has all bits
    if is_logical:
        return name.endswith("min")
    return _least(dtype) if name.endswith("max") else _largest(dtype)


@RULES(removes=True)
def _reduced(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    axes = equation.params[facts(equation).removes]
    (v,), (x,) = equation.invars, operands
    x = state.hidden(v, x, axes, _neutral(primitive(equation), x.dtype))
    return state.bound(equation, [x])


@RULES("cumsum", "cumprod", "cummax", "cummin")
def _running(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    (v,), (x,) = equation.invars, operands
    if equation.params["reverse"]:
        x = state.hidden(v, x, [equation.params["axis"]], _neutral(primitive(equation), x.dtype))
    return state.bound(equation, [x])


@RULES(PRODUCT)
def _product(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Multiply, with 0 in place of padding along summed axes.

    If the padding of one operand is finite, only the other operand's padding is replaced.
    """
    sums, _ = equation.params["dimension_numbers"]
    left, right = equation.invars
    x, y = operands
    if not state.is_finite(left) or state.is_finite(right):
        x = state.hidden(left, x, sums[0], 0)
    if not state.is_finite(right):
        y = state.hidden(right, y, sums[1], 0)
    return state.bound(equation, [x, y])


@RULES(CONVOLUTION)
def _convolution(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Convolve, with 0 in place of the input's padding along spatial axes and channels."""
    numbers = equation.params["dimension_numbers"]
    v, filter = equation.invars
    if any(map(is_symbolic, shape_of(filter))):
        raise NotPaddableError(equation)
    x = state.hidden(v, operands[0], numbers.lhs_spec[1:], 0)
    return state.bound(equation, [x, operands[1]])


@RULES("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _windows(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reduce windows that have a single item along each padded axis."""
    params = equation.params
    for axis, extent in enumerate(shape_of(equation.invars[0])):
        is_single = params["window_dimensions"][axis] == params["window_strides"][axis] == 1
        if is_symbolic(extent) and not (is_single and tuple(params["padding"][axis]) == (0, 0)):
            raise NotPaddableError(equation)
    return state.bound(equation, operands)


@RULES("fft")
def _transformed(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Transform along the last axes, which must not be padded."""
    last_axes = shape_of(equation.invars[0])[-len(equation.params["fft_lengths"]) :]
    if any(map(is_symbolic, last_axes)):
        raise NotPaddableError(equation)
    return state.bound(equation, operands)


@RULES("sort")
def _sorted(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Sort items, and move padding behind them, by a first key that is true for padding."""
    params = equation.params
    axis = params["dimension"]
    extent = shape_of(equation.invars[0])[axis]
    if not is_symbolic(extent):
        return state.bound(equation, operands)
    x = operands[0]
    is_padding = jnp.broadcast_to(~state.is_item(x, axis, extent), x.shape)
    keys = params["num_keys"] + 1
    stable = params["is_stable"]
    arrays = [is_padding, *operands]
    _, *results = lax.sort(arrays, dimension=axis, is_stable=stable, num_keys=keys)
    return results


@RULES("top_k")
def _best(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    (v,), (x,) = equation.invars, operands
    axis = equation.params.get("axis", -1) % x.ndim
    return state.bound(equation, [state.hidden(v, x, [axis], _least(x.dtype))])


@RULES("gather")
def _gather(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Look items up. An index beyond the items is treated as beyond the axis, even at padding."""
    x, indices = operands
    numbers = equation.params["dimension_numbers"]
    shape = shape_of(equation.invars[0])
    sizes = equation.params["slice_sizes"]
    mode = equation.params["mode"]
    for i, axis in enumerate(numbers.start_index_map):
        if not is_symbolic(shape[axis]):
            continue
        last = state.symbols.value(shape[axis] - sizes[axis])
        coordinate = indices[..., i]
        limit = jnp.asarray(last, indices.dtype)
        if mode == lax.GatherScatterMode.CLIP:
            coordinate = jnp.clip(coordinate, 0, limit)
        elif mode == lax.GatherScatterMode.FILL_OR_DROP:
            beyond = jnp.asarray(x.shape[axis], indices.dtype)
            coordinate = jnp.where(coordinate > limit, beyond, coordinate)
        indices = indices.at[..., i].set(coordinate)
    return state.bound(equation, [x, indices])


@RULES("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter_add",
       "scatter_mul", "scatter_min", "scatter_max", "scatter-sub", "scatter_sub")  # fmt: skip
def _scatter(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Write items. Nothing is written for padding of the indices, nor beyond the items of x."""
    x, indices, updates = operands
    extents, index_extents, update_extents = map(shape_of, equation.invars)
    numbers = equation.params["dimension_numbers"]
    windows = iter(numbers.update_window_dims)
    without_window = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    sizes: list[Any] = []  # of the window that an index writes, for each axis of x
    for axis, extent in enumerate(extents):
        size = 1 if axis in without_window else update_extents[next(windows)]
        if is_symbolic(size) and size != extent:
            raise NotPaddableError(equation)
        sizes.append(size)
    is_written: Any = True
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
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return state.bound(equation, [x, indices, updates], mode=mode)


@RULES("cond")
def _branches(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    index, *arguments = operands
    finite = [i for i, v in enumerate(equation.invars[1:]) if state.is_finite(v)]

    def evaluating(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *arguments: state.inner().evaluated(Program(branch), arguments, finite)

    return lax.switch(index, list(map(evaluating, equation.params["branches"])), *arguments)


@RULES(SCAN)
def _scan(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate a loop along an axis. Iterations for padding leave the carry unchanged."""
    length = equation.params["length"]
    body = Program(equation.params["jaxpr"])
    constants, start, stacks = jaxprs.scan_parts(equation, operands)
    if is_symbolic(length):
        most = state.symbols.bound(length)
        is_item = jnp.arange(most) < state.symbols.value(length)

        def step_of_item(*arguments: Any) -> Sequence[Any]:
            body_arguments, is_running = arguments[:-1], arguments[-1]
            results = state.inner().evaluated(body, body_arguments)
            carry = body_arguments[len(constants) : len(constants) + len(start)]
            for i, before in enumerate(carry):
                results[i] = jnp.where(is_running, results[i], before)
            return results

        stacks = [*(lax.slice_in_dim(x, 0, most) for x in stacks), is_item]
        return jaxpr_evaluation.scanned(
            equation, step_of_item, constants, start, stacks, length=most
        )

    def step(*arguments: Any) -> Sequence[Any]:
        return state.inner().evaluated(body, arguments)

    return jaxpr_evaluation.scanned(equation, step, constants, start, stacks)


@RULES("while")
def _while(state: PaddedState, equation: Equation, operands: list[Any]) -> list[Any]:
    """Repeat a body while a condition holds. The carried arrays keep their shapes."""
    condition, body = (Program(equation.params[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    condition_count = equation.params["cond_nconsts"]
    constant_count = condition_count + equation.params["body_nconsts"]
    condition_constants = operands[:condition_count]
    body_constants = operands[condition_count:constant_count]

    def continues(carry: list[Any]) -> Any:
        (result,) = state.inner().evaluated(condition, [*condition_constants, *carry])
        return result

    def next_carry(carry: list[Any]) -> list[Any]:
        return state.inner().evaluated(body, [*body_constants, *carry])

    return lax.while_loop(continues, next_carry, operands[constant_count:])
