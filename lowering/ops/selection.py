"""Slices, padding, repetition and other selections of items of any dtype (spec 4.5)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import (
    UNKNOWN,
    Ints,
    Shape,
    ceil_div,
    is_known,
    is_symbolic,
    show,
    volume,
    with_extent,
)
from lowering.graph import TensorType, is_float
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.rounding import saturated
from lowering.kernels.windows import BORDERS, PAD_MODES, Padding
from lowering.ops import require, rules
from lowering.ops.shape import cast


def _slice_type(input: TensorType, axes: Ints, begin: Ints, end: Ints, stride: Ints) -> TensorType:
    """Check the arguments of `slice`, and return the type of its result."""
    require.axes(axes, len(input.shape))
    require.length("begin", begin, len(axes), "axes")
    require.length("end", end, len(axes), "axes")
    if stride:
        require.length("stride", stride, len(axes), "axes")
    if 0 in stride:
        raise InvalidOperation(f"'stride' must not be 0, it is {list(stride)}")
    shape = list(input.shape)
    steps = stride or (1,) * len(axes)
    for axis, first, stop, step in zip(axes, begin, end, steps, strict=True):
        extent = shape[axis]
        if UNKNOWN in (first, stop, step, extent):
            shape[axis] = UNKNOWN
            continue
        first_index, stop_index = _bounds(first, stop, step, extent)
        if step > 0:
            is_range = 0 <= first_index <= stop_index
        else:
            is_range = stop_index <= first_index < extent
        if not is_range:
            raise InvalidShape(
                f"'begin' {first}, 'end' {stop} and 'stride' {step} are no range in the "
                f"{extent} items of 'input' {show(input.shape)} along axis {axis}",
                hint="bounds below 0 count from the end; a forward range with the end 0 goes to it",
            )
        shape[axis] = ceil_div(stop_index - first_index, step)
    return TensorType(tuple(shape), input.dtype)


def _bounds(begin: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """Return the first index of a slice, and the index at which the slice stops.

    `begin` and `end` may be negative, and then count from the end. The results count from the
    start, and the second one is excluded. A slice that goes backwards to item 0 stops at -1.
    """

    def from_start(bound: int) -> int:
        return bound + extent if bound < 0 else min(bound, extent)

    first = from_start(begin)
    if end == 0 and step > 0:
        return first, extent  # here the end 0 stands for the end of the axis
    return max(first, -1), max(from_start(end), -1)


@rules.rule("slice", _slice_type)
def slice_(input: Array, axes: Ints, begin: Ints, end: Ints, stride: Ints) -> Array:
    """Return every `stride`-th item from `begin` to before `end` along each of the axes.

    `begin`, `end` and `stride` have an item for each axis in `axes`. Bounds below 0 count from
    the end, and bounds are clamped to the axis. With a positive stride an `end` of 0 is the end
    of the axis. A negative stride goes backwards, and an `end` of -extent - 1 then includes
    item 0.
    """
    x = jnp.asarray(input)
    steps = stride or (1,) * len(axes)
    for axis, first, stop, step in zip(axes, begin, end, steps, strict=True):
        extent = x.shape[axis]
        if any(map(is_symbolic, (first, stop, extent))):
            x = _symbolic_slice(x, axis, first, stop, step)
            continue
        first_index, stop_index = _bounds(first, stop, step, extent)
        if step < 0:
            # Reverse the axis, and count the indices from its other end.
            x = lax.rev(x, (axis,))
            first_index = extent - 1 - first_index
            stop_index = extent - 1 - stop_index
        # A stride of at least the extent takes only the first item. Larger strides are replaced by
        # the extent, since XLA's strides must fit int64.
        largest_step = max(extent, 1)
        x = lax.slice_in_dim(x, first_index, stop_index, min(abs(step), largest_step), axis)
    return x


def _symbolic_slice(x: Array, axis: int, first: int, stop: int, step: int) -> Array:
    """Slice x along one axis, if a bound or the extent is symbolic.

    If the step is positive, a `stop` of 0 is the end of the axis.
    """
    is_to_end = step > 0 and not is_symbolic(stop) and stop == 0
    bounds = slice(first, None if is_to_end else stop, step)
    earlier_axes = (slice(None),) * axis
    return x[(*earlier_axes, bounds)]


def _dynamic_slice_type(input: TensorType, start: TensorType, length: int, axis: int) -> TensorType:
    """Check the arguments of `dynamic_slice`, and return the type of its result."""
    require.one_integer(start=start)
    require.axis(axis, len(input.shape))
    extent = input.shape[axis]
    if length < 0 or length > extent:
        raise InvalidShape(
            f"the length must lie in [0,{extent}], the extent of 'input' {show(input.shape)} along "
            f"axis {axis}, it is {length}"
        )
    return TensorType(with_extent(input.shape, axis, length), input.dtype)


@rules.rule("dynamic_slice", _dynamic_slice_type)
def dynamic_slice(input: Array, start: Array, length: int, axis: int) -> Array:
    """Return `length` items along the axis from the index `start` on. `start` may be traced.

    A negative index counts from the end. An index beyond the axis reads NaN from a floating-point
    tensor, the least number from signed integers, the greatest number from unsigned integers, and
    true from logical values.
    """
    first = jnp.asarray(start).reshape(())
    return jnp.take(jnp.asarray(input), first + jnp.arange(length, dtype=first.dtype), axis=axis)


def _triangle_type(input: TensorType, k: TensorType) -> TensorType:
    require.one_integer(k=k)
    if len(input.shape) < 2:
        raise InvalidShape(f"'input' must have two axes or more, its shape is {show(input.shape)}")
    return input


@rules.rule("triangle", _triangle_type)
def triangle(input: Array, k: Array, upper: bool) -> Array:
    """Keep one triangle of each matrix, and set all other items to 0. `k` may be traced.

    If `upper` is true, the items (row, column) with column - row >= k stay. If `upper` is false,
    the items with column - row <= k stay.
    """
    x = jnp.asarray(input)
    limit = jnp.asarray(k).reshape(())
    matrix_shape = x.shape[-2:]
    rows = lax.broadcasted_iota(limit.dtype, matrix_shape, 0)
    columns = lax.broadcasted_iota(limit.dtype, matrix_shape, 1)
    diagonal = columns - rows
    stays = diagonal >= limit if upper else diagonal <= limit
    return jnp.where(stays, x, jnp.zeros_like(x))


def _tile_type(input: TensorType, repeats: Ints) -> TensorType:
    """Check the arguments of `tile`, and return the type of its result."""
    require.length("repeats", repeats, len(input.shape), "axes of 'input'")
    if any(times < 0 for times in repeats):
        raise InvalidOperation(f"'repeats' must not be negative, it is {list(repeats)}")
    pairs = zip(input.shape, repeats, strict=True)
    return TensorType(tuple(extent * times for extent, times in pairs), input.dtype)


@rules.rule("tile", _tile_type)
def tile(input: Array, repeats: Ints) -> Array:
    """Repeat the input `repeats[i]` times along axis i."""
    return jnp.tile(jnp.asarray(input), repeats)


def _pad_type(input: TensorType, padding: Padding, border: str) -> TensorType:
    """Check the arguments of `pad`, and return the type of its result."""
    require.length("padding", padding, len(input.shape), "axes of 'input'")
    require.one_of("border", border, BORDERS)
    for axis, ((before, after), extent) in enumerate(zip(padding, input.shape, strict=True)):
        if min(before, after) < 0:
            raise InvalidOperation(
                f"'padding' must not be negative, along axis {axis} it is {(before, after)}",
                hint="`slice` cuts items off",
            )
        if border != "constant" and extent == 0 and max(before, after) > 0:
            raise InvalidShape(
                f"there is nothing in {show(input.shape)} to pad with border '{border}'"
            )
        # This is the largest number of items that a border mirrors. 'reflect' leaves the item at
        # the edge out, and 'reflect-even' mirrors all items. The value None is for borders that
        # mirror no items.
        mirror_count = {"reflect": extent - 1, "reflect-even": extent}.get(border)
        if mirror_count is not None and max(before, after) > mirror_count:
            raise InvalidShape(
                f"'padding' {(before, after)} along axis {axis} is more than the {mirror_count} "
                f"items that border '{border}' can mirror in 'input' {show(input.shape)}"
            )
    shape: list[int] = []
    for (before, after), extent in zip(padding, input.shape, strict=True):
        shape.append(before + extent + after)
    return TensorType(tuple(shape), input.dtype)


@rules.rule("pad", _pad_type)
def pad(input: Array, padding: Padding, border: str, value: float) -> Array:
    """Add items before and after each axis, as the border mode says (spec 4.3).

    `padding` has a pair (before, after) for each axis. The border 'constant' adds `value`,
    which is cast to the input's dtype.
    """
    x = jnp.asarray(input)
    if border == "constant":
        # `saturated` keeps a large value finite. The cast is for integers and logical values.
        float_dtype = x.dtype if is_float(x.dtype.name) else np.float32
        fill = cast(saturated(value, float_dtype), x.dtype.name)
        return lax.pad(x, fill, [(before, after, 0) for before, after in padding])
    if not x.ndim:
        return x  # a scalar has no axes to pad
    return jnp.pad(x, padding, mode=PAD_MODES[border])


def _gather_type(input: TensorType, indices: TensorType, axis: int) -> TensorType:
    require.integer(indices=indices)
    require.axis(axis, len(input.shape))
    reads_items = is_known(indices.shape) and volume(indices.shape) > 0
    if input.shape[axis] == 0 and reads_items:
        raise InvalidShape(
            f"axis {axis} of 'input' {show(input.shape)} has no items, so that 'indices' must be "
            f"empty, they have the shape {show(indices.shape)}"
        )
    return TensorType(with_extent(input.shape, axis, *indices.shape), input.dtype)


@rules.rule("gather", _gather_type)
def gather(input: Array, indices: Array, axis: int) -> Array:
    """Return the sub-tensors at indices along an axis. The axes of `indices` replace `axis`.

    A negative index counts from the end. An index beyond the axis reads NaN from a
    floating-point tensor.
    """
    x, indices = jnp.asarray(input), jnp.asarray(indices)
    if x.shape[axis] == 0:
        # There are no items, so the indices, which may be a list, have no items either.
        axis %= x.ndim
        return jnp.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    return jnp.take(x, indices, axis=axis)


def _broadcast_type(input: TensorType, shape: Ints) -> TensorType:
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"'shape' must not be negative, it is {list(shape)}")
    return TensorType(_right_aligned_shape(input.shape, shape), input.dtype)


def _right_aligned_shape(input: Shape, shape: Shape) -> Shape:
    """Return the shape to which two shapes broadcast, matched from the last axis on."""
    rank = max(len(input), len(shape))
    preceded_input = (1,) * (rank - len(input)) + input
    preceded_shape = (1,) * (rank - len(shape)) + tuple(shape)
    return broadcast_shapes(preceded_input, preceded_shape)


@rules.rule("broadcast", _broadcast_type)
def broadcast(input: Array, shape: Ints) -> Array:
    """Broadcast the input and `shape` to each other from the last axis on.

    Where `shape` has a 1, the result has the extent of the input.
    """
    x = jnp.asarray(input)
    return jnp.broadcast_to(x, _right_aligned_shape(x.shape, shape))
