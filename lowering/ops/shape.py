"""Operations on shapes (spec 4.5): what they yield are the items of their input, arranged anew.

The items are of any type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, differ, is_symbolic, shapes_differ, show, volume
from lowering.graph import TensorType
from lowering.kernels.broadcast import align, broadcast_shapes, expand
from lowering.ops import rules
from lowering.ops.typing import (
    is_complex,
    require_axes,
    require_integer,
    require_length,
    require_one_integer,
    require_rank,
    require_real,
    require_same_dtype,
)


def _require_axis(axis: int, rank: int) -> None:
    require_axes((axis,), rank, "axis")


def _known(shapes: Sequence[Shape]) -> Shape:
    """What several shapes that do not differ say together."""
    return tuple(
        next((e for e in extents if e is not UNKNOWN), UNKNOWN)
        for extents in zip(*shapes, strict=True)
    )


def _with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


# Reshaping


def _reshape_type(
    input: TensorType, shape: tuple[int, ...], axis_start: int, axis_count: int
) -> TensorType:
    rank = len(input.shape)
    require_rank(shape)
    if not 0 <= axis_start <= rank:
        raise InvalidOperation(f"'axis_start' must lie in [0,{rank}], it is {axis_start}")
    if not -1 <= axis_count <= rank - axis_start:
        raise InvalidOperation(
            f"'axis_count' must be -1 or lie in [0,{rank - axis_start}], it is {axis_count}"
        )
    if min(shape, default=0) < -1 or shape.count(-1) > 1:
        raise InvalidOperation(
            "'shape' must hold extents, 0 for one of the input's and at most one -1, "
            f"it is {list(shape)}"
        )
    end = rank if axis_count == -1 else axis_start + axis_count
    copied = {i: i + axis_start for i, extent in enumerate(shape) if extent == 0}
    if copied and max(copied.values()) >= rank:
        raise InvalidShape(
            f"'shape' {list(shape)} has a 0 at item {max(copied)}, but 'input' {show(input.shape)} "
            f"has no axis {max(copied.values())} to copy"
        )
    items = tuple(
        input.shape[copied[i]] if i in copied else extent for i, extent in enumerate(shape)
    )
    items = _fill(input.shape, range(axis_start, end), items, set(copied.values()))
    return TensorType(input.shape[:axis_start] + items + input.shape[end:], input.dtype)


def _fill(input: Shape, replaced: range, items: Shape, copied: set[int]) -> Shape:
    # Unknown extents, and empty ones, that are copied unchanged stand on both sides and leave the
    # others comparable.
    free = {axis for axis in replaced if _is_free(input[axis])}
    is_copied = free == {axis for axis in copied if _is_free(input[axis])} and len(free) == sum(
        map(_is_free, items)
    )
    is_unknown = any(input[axis] is UNKNOWN for axis in replaced)
    kept = [input[axis] for axis in replaced if not (is_copied and axis in free)]
    have = UNKNOWN if is_unknown and not is_copied else volume(kept)
    want = volume(n for n in items if n != -1 and n is not UNKNOWN and not (is_copied and n == 0))
    source = show(tuple(input[axis] for axis in replaced))
    if -1 not in items:
        if differ(have, want):
            raise InvalidShape(
                f"{source} cannot be reshaped to {show(items)}: {have} items are not {want}",
                hint="0 copies an extent of the input, -1 stands for what is left",
            )
        return items
    if want == 0 or differ(have % want, 0):
        raise InvalidShape(
            f"{source} cannot be reshaped to {show(items)}: {have} items are no multiple of {want}",
            hint="0 copies an extent of the input, -1 stands for what is left",
        )
    return tuple(have // want if extent == -1 else extent for extent in items)


def _is_free(extent: int) -> bool:
    return extent is UNKNOWN or extent == 0


@rules.rule("reshape", _reshape_type)
def reshape(input: Any, shape: tuple[int, ...], axis_start: int, axis_count: int) -> Array:
    """The items in the same row-major order under another shape of `axis_count` axes (spec 4.5.1).

    An item 0 copies the extent as far behind `axis_start`; one -1 stands for the rest.
    """
    x = jnp.asarray(input)
    if 0 in x.shape:  # jax does not say what -1 stands for
        known = TensorType(x.shape, str(x.dtype))
        return x.reshape(_reshape_type(known, shape, axis_start, axis_count).shape)
    end = x.ndim if axis_count == -1 else axis_start + axis_count
    items = tuple(
        x.shape[i + axis_start] if extent == 0 else extent for i, extent in enumerate(shape)
    )
    return x.reshape(x.shape[:axis_start] + items + x.shape[end:])


def _transpose_type(input: TensorType, axes: tuple[int, ...]) -> TensorType:
    count = len(axes)
    if count > len(input.shape) or sorted(axes) != list(range(count)):
        raise InvalidOperation(
            f"'axes' must be a permutation of the first axes of 'input' {show(input.shape)}, "
            f"it is {list(axes)}"
        )
    return TensorType(tuple(input.shape[axis] for axis in axes) + input.shape[count:], input.dtype)


@rules.rule("transpose", _transpose_type)
def transpose(input: Any, axes: tuple[int, ...]) -> Array:
    """The first axes in another order; the others stay (spec 4.5.2)."""
    x = jnp.asarray(input)
    return jnp.transpose(x, (*axes, *range(len(axes), x.ndim)))


def _squeeze_type(input: TensorType, axes: tuple[int, ...]) -> TensorType:
    require_axes(axes, len(input.shape))
    for axis in axes:
        if differ(input.shape[axis], 1):
            raise InvalidShape(
                f"'axes' {list(axes)} of 'input' {show(input.shape)} must have extent 1, "
                f"axis {axis} has {input.shape[axis]}"
            )
    left_out = set(axes)
    return TensorType(tuple(e for i, e in enumerate(input.shape) if i not in left_out), input.dtype)


@rules.rule("squeeze", _squeeze_type)
def squeeze(input: Any, axes: tuple[int, ...]) -> Array:
    """Without the axes, which have extent 1."""
    return jnp.squeeze(jnp.asarray(input), axes)


def _unsqueeze_type(input: TensorType, axes: tuple[int, ...]) -> TensorType:
    rank = len(input.shape) + len(axes)
    require_axes(axes, rank)
    extents, new = iter(input.shape), set(axes)
    return TensorType(tuple(1 if i in new else next(extents) for i in range(rank)), input.dtype)


@rules.rule("unsqueeze", _unsqueeze_type)
def unsqueeze(input: Any, axes: tuple[int, ...]) -> Array:
    """With additional axes of extent 1, counted in the result."""
    return jnp.expand_dims(jnp.asarray(input), axes)


# Splitting and joining


def _concat_type(values: Sequence[TensorType], axis: int) -> TensorType:
    _require_values(values)
    _require_axis(axis, len(values[0].shape))
    others = [_with_extent(value.shape, axis, 1) for value in values]
    if any(shapes_differ(a, b) for a in others for b in others[:1]):
        raise InvalidShape(
            f"'values' must have one shape except along axis {axis}, they have "
            + " and ".join(show(value.shape) for value in values),
            hint="join them along the axis in which they differ, or pad or slice one of them",
        )
    extent = sum(value.shape[axis] for value in values)
    return TensorType(_with_extent(_known(others), axis, extent), values[0].dtype)


def _require_values(values: Sequence[TensorType]) -> None:
    if not values:
        raise InvalidShape("'values' must not be empty")
    require_same_dtype(**{f"values[{i}]": value for i, value in enumerate(values)})


@rules.rule("concat", _concat_type)
def concat(values: Sequence[Any], axis: int) -> Array:
    """The values one behind the other along the axis (spec 4.5.3)."""
    return jnp.concatenate(list(values), axis)


def _split_type(value: TensorType, axis: int, ratios: tuple[int, ...]) -> list[TensorType]:
    _require_axis(axis, len(value.shape))
    if not ratios or min(ratios) < 1:
        raise InvalidOperation(f"'ratios' must be positive and not empty, it is {list(ratios)}")
    extent = value.shape[axis]
    if differ(extent % sum(ratios), 0):
        raise InvalidShape(
            f"the sum {sum(ratios)} of 'ratios' must divide the extent {extent} of 'value' "
            f"{show(value.shape)} along axis {axis}"
        )
    shapes = [_with_extent(value.shape, axis, part) for part in _parts(extent, ratios)]
    return [TensorType(shape, value.dtype) for shape in shapes]


def _parts(extent: int, ratios: tuple[int, ...]) -> list[int]:
    unit = extent // sum(ratios)
    return [unit * ratio for ratio in ratios]


@rules.rule("split", _split_type)
def split(value: Any, axis: int, ratios: tuple[int, ...]) -> list[Array]:
    """Parts of the value along the axis, their extents in the given ratios (spec 4.5.3)."""
    x = jnp.asarray(value)
    return list(lax.split(x, _parts(x.shape[axis], ratios), axis))


def _stack_type(values: Sequence[TensorType], axis: int) -> TensorType:
    _require_values(values)
    _require_axis(axis, len(values[0].shape) + 1)
    shapes = [value.shape for value in values]
    if any(shapes_differ(shape, shapes[0]) for shape in shapes):
        raise InvalidShape(
            "'values' must have one shape, they have " + " and ".join(map(show, shapes))
        )
    shape = _known(shapes)
    return TensorType((*shape[:axis], len(values), *shape[axis:]), values[0].dtype)


@rules.rule("stack", _stack_type)
def stack(values: Sequence[Any], axis: int) -> Array:
    """The values side by side along a new axis."""
    return jnp.stack([jnp.asarray(value) for value in values], axis)


def _unstack_type(value: TensorType, axis: int) -> list[TensorType]:
    _require_axis(axis, len(value.shape))
    extent = value.shape[axis]
    if extent is UNKNOWN:
        raise InvalidShape(
            f"the extent of 'value' {show(value.shape)} along axis {axis} must be known: "
            "it is the number of results",
            hint="give the shape of the inputs",
        )
    return [TensorType(value.shape[:axis] + value.shape[axis + 1 :], value.dtype)] * extent


@rules.rule("unstack", _unstack_type)
def unstack(value: Any, axis: int) -> list[Array]:
    """The sub-tensors along the axis, without it."""
    x = jnp.asarray(value)
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


# Selecting and extending


def _slice_type(
    input: TensorType,
    axes: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    stride: tuple[int, ...],
) -> TensorType:
    require_axes(axes, len(input.shape))
    require_length("begin", begin, len(axes), "axes")
    require_length("end", end, len(axes), "axes")
    if stride:
        require_length("stride", stride, len(axes), "axes")
    if 0 in stride:
        raise InvalidOperation(f"'stride' must not be 0, it is {list(stride)}")
    shape = list(input.shape)
    for axis, b, e, step in zip(axes, begin, end, stride or (1,) * len(axes), strict=True):
        extent = shape[axis]
        if UNKNOWN in (b, e, step, extent):
            shape[axis] = UNKNOWN
            continue
        first, last = _bounds(b, e, step, extent)
        if not (0 <= first <= last if step > 0 else last <= first < extent):
            raise InvalidShape(
                f"'begin' {b}, 'end' {e} and 'stride' {step} are no range in the "
                f"{extent} items of 'input' {show(input.shape)} along axis {axis}",
                hint="bounds below 0 count from the end; a forward range with the end 0 goes to it",
            )
        shape[axis] = -((first - last) // step)
    return TensorType(tuple(shape), input.dtype)


def _bounds(begin: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """The index of the first item and the one past the last, -1 where item 0 is the last."""
    first = begin + extent if begin < 0 else min(begin, extent)
    if end == 0 and step > 0:
        return first, extent
    last = end + extent if end < 0 else min(end, extent)
    return max(first, -1), max(last, -1)


@rules.rule("slice", _slice_type)
def slice_(
    input: Any,
    axes: tuple[int, ...],
    begin: tuple[int, ...],
    end: tuple[int, ...],
    stride: tuple[int, ...],
) -> Array:
    """Every `stride`-th item from `begin` to before `end` along each axis.

    Bounds below 0 count from the end, bounds beyond it are the end, and so is the `end` 0 of a
    forward range. A negative stride goes backwards; to include item 0 its `end` is -extent - 1.
    """
    x = jnp.asarray(input)
    for axis, b, e, step in zip(axes, begin, end, stride or (1,) * len(axes), strict=True):
        if any(map(is_symbolic, (b, e, x.shape[axis]))):  # which jax compares where it has to
            bounds = slice(b, None if step > 0 and not is_symbolic(e) and e == 0 else e, step)
            x = x[(slice(None),) * axis + (bounds,)]
            continue
        first, last = _bounds(b, e, step, x.shape[axis])
        if step < 0:
            x = lax.rev(x, (axis,))
            first, last = x.shape[axis] - 1 - first, x.shape[axis] - 1 - last
        x = lax.slice_in_dim(x, first, last, abs(step), axis)
    return x


def _dynamic_slice_type(input: TensorType, start: TensorType, length: int, axis: int) -> TensorType:
    require_one_integer(start=start)
    _require_axis(axis, len(input.shape))
    extent = input.shape[axis]
    if length < 0 or length > extent:
        raise InvalidShape(
            f"the length must lie in [0,{extent}], the extent of 'input' {show(input.shape)} along "
            f"axis {axis}, it is {length}"
        )
    return TensorType(_with_extent(input.shape, axis, length), input.dtype)


@rules.rule("dynamic_slice", _dynamic_slice_type)
def dynamic_slice(input: Any, start: Any, length: int, axis: int) -> Array:
    """`length` items along the axis from item `start` on, which depends on the data.

    A `start` below 0 counts from the end. Items past the end are NaN; the least number in signed
    integers, the greatest in unsigned ones, true in logical values.
    """
    first = jnp.asarray(start).reshape(())
    return jnp.take(jnp.asarray(input), first + jnp.arange(length, dtype=first.dtype), axis=axis)


def _triangle_type(input: TensorType, k: TensorType, upper: bool) -> TensorType:
    require_one_integer(k=k)
    if len(input.shape) < 2:
        raise InvalidShape(f"'input' must have two axes or more, its shape is {show(input.shape)}")
    return input


@rules.rule("triangle", _triangle_type)
def triangle(input: Any, k: Any, upper: bool) -> Array:
    """The items of the last two axes on diagonal k and above it, or below it; 0 elsewhere.

    Item [row,column] is on diagonal column - row. k may depend on the data.
    """
    x = jnp.asarray(input)
    limit = jnp.asarray(k).reshape(())
    rows, columns = (lax.broadcasted_iota(limit.dtype, x.shape[-2:], axis) for axis in (0, 1))
    kept = columns - rows >= limit if upper else columns - rows <= limit
    return jnp.where(kept, x, jnp.zeros_like(x))


def _tile_type(input: TensorType, repeats: tuple[int, ...]) -> TensorType:
    require_length("repeats", repeats, len(input.shape), "axes of 'input'")
    if any(times < 0 for times in repeats):
        raise InvalidOperation(f"'repeats' must not be negative, it is {list(repeats)}")
    return TensorType(tuple(e * r for e, r in zip(input.shape, repeats, strict=True)), input.dtype)


@rules.rule("tile", _tile_type)
def tile(input: Any, repeats: tuple[int, ...]) -> Array:
    """The input repeated along its axes."""
    return jnp.tile(jnp.asarray(input), repeats)


_PAD_MODES = {"replicate": "edge", "reflect": "reflect", "reflect-even": "symmetric"}


def _pad_type(
    input: TensorType, padding: tuple[tuple[int, int], ...], border: str, value: float
) -> TensorType:
    require_length("padding", padding, len(input.shape), "axes of 'input'")
    if border != "constant" and border not in _PAD_MODES:
        raise InvalidOperation(
            "'border' must be 'constant', 'replicate', 'reflect' or 'reflect-even', "
            f"it is '{border}'"
        )
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
        mirrored = {"reflect": extent - 1, "reflect-even": extent}.get(border)
        if mirrored is not None and max(before, after) > mirrored:
            raise InvalidShape(
                f"'padding' {(before, after)} along axis {axis} is more than the {mirrored} items "
                f"that border '{border}' can mirror in 'input' {show(input.shape)}"
            )
    shape = tuple(p + extent + q for (p, q), extent in zip(padding, input.shape, strict=True))
    return TensorType(shape, input.dtype)


@rules.rule("pad", _pad_type)
def pad(input: Any, padding: tuple[tuple[int, int], ...], border: str, value: float) -> Array:
    """The input with items before and after it along each axis (border modes: spec 4.3).

    The value of border 'constant' is cast to the type of the items.
    """
    x = jnp.asarray(input)
    if border == "constant":
        fill = cast(np.float32(value), x.dtype.name)
        return lax.pad(x, fill, [(before, after, 0) for before, after in padding])
    return jnp.pad(x, padding, mode=_PAD_MODES[border])


def _gather_type(input: TensorType, indices: TensorType, axis: int) -> TensorType:
    require_integer(indices=indices)
    _require_axis(axis, len(input.shape))
    shape = input.shape[:axis] + indices.shape + input.shape[axis + 1 :]
    return TensorType(shape, input.dtype)


@rules.rule("gather", _gather_type)
def gather(input: Any, indices: Any, axis: int) -> Array:
    """The sub-tensors at the indices along the axis, whose place the axes of the indices take.

    Negative indices count from the end; an index beyond the axis yields NaN.
    """
    return jnp.take(jnp.asarray(input), jnp.asarray(indices), axis=axis)


def _broadcast_type(input: TensorType, shape: tuple[int, ...]) -> TensorType:
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"'shape' must not be negative, it is {list(shape)}")
    return TensorType(_whole_shape(input.shape, shape), input.dtype)


def _whole_shape(input: Shape, shape: Shape) -> Shape:
    rank = max(len(input), len(shape))
    return broadcast_shapes(*((1,) * (rank - len(s)) + tuple(s) for s in (input, shape)))


@rules.rule("broadcast", _broadcast_type)
def broadcast(input: Any, shape: tuple[int, ...]) -> Array:
    """The input repeated along its axes of extent 1, and along new ones before them, to a shape.

    The shapes are matched from the last axis. Where `shape` has 1 the extent of the input stays.
    """
    x = jnp.asarray(input)
    return jnp.broadcast_to(x, _whole_shape(x.shape, shape))


# Types and lists


def _cast_type(input: TensorType, dtype: str) -> TensorType:
    if is_complex(input.dtype) and not is_complex(dtype):
        raise InvalidOperation(f"{input.dtype} cannot be cast to {dtype}")
    return TensorType(input.shape, dtype)


@rules.rule("cast", _cast_type)
def cast(input: Any, dtype: str) -> Array:
    """The values as another type: non-zero is true; reals are cut off to the integer towards 0.

    Reals beyond the integers become the nearest one, NaN becomes 0; integers beyond another type
    lose their upper bits.
    """
    x = jnp.asarray(input)
    if dtype == "bool":
        return x != 0
    if not (jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer)):
        return x.astype(dtype)
    if jnp.finfo(x.dtype).bits < 32:  # the limits of integers are beyond it
        x = x.astype(jnp.float32)
    # What XLA makes of numbers out of range depends on the platform.
    limits = jnp.iinfo(dtype)
    lowest, highest = float(limits.min), float(limits.max)
    inside = (x > lowest) & (x < highest)
    result = jnp.where(inside, x, 0.0).astype(dtype)
    result = jnp.where(x >= highest, np.asarray(limits.max, dtype), result)
    return jnp.where(x <= lowest, np.asarray(limits.min, dtype), result)


def _copy_n_type(x: TensorType, times: int) -> list[TensorType]:
    if times < 1:
        raise InvalidOperation(f"'times' must be positive, it is {times}")
    return [x] * times


@rules.rule("copy_n", _copy_n_type)
def copy_n(x: Any, times: int) -> list[Array]:
    """The same values under several names (spec 4.8.6)."""
    return [jnp.asarray(x)] * times


def _add_n_type(x: Sequence[TensorType]) -> TensorType:
    if not x:
        return TensorType((1,), "float32")
    operands = {f"x[{i}]": item for i, item in enumerate(x)}
    require_real(**operands)
    require_same_dtype(**operands)
    return TensorType(broadcast_shapes((1,), *(item.shape for item in x)), x[0].dtype)


@rules.rule("add_n", _add_n_type)
def add_n(x: Sequence[Any]) -> Array:
    """The sum of all, broadcast from the left; of none a 0 of shape [1] (spec 4.8.6)."""
    if not x:
        return jnp.zeros((1,), jnp.float32)
    total, *others = align(*(jnp.asarray(item) for item in x))
    for item in others:
        total = total + item
    return expand(total, max(total.ndim, 1))
