"""Rearrangements and casts of items of any dtype (spec 4.5)."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Ints, Shape, differ, shapes_differ, show, volume, with_extent
from lowering.graph import NARROW, TensorType, is_complex, is_float
from lowering.kernels.broadcast import align, broadcast_shapes, expand
from lowering.kernels.rounding import HALVES, rounded_to
from lowering.ops import require, rules
from lowering.tracing import Context


def _merged(shapes: Sequence[Shape]) -> Shape:
    """Return one shape with all extents that are known in at least one of the shapes.

    For (2, UNKNOWN) and (UNKNOWN, 3) the result is (2, 3). The shapes must be equal except where
    extents are UNKNOWN.
    """
    merged: list[int] = []
    for extents in zip(*shapes, strict=True):
        known_extents = [extent for extent in extents if extent is not UNKNOWN]
        merged.append(known_extents[0] if known_extents else UNKNOWN)
    return tuple(merged)


def _reshape_type(input: TensorType, shape: Ints, axis_start: int, axis_count: int) -> TensorType:
    """Check the arguments of `reshape`, and return the type of its result."""
    rank = len(input.shape)
    _require_reshape(rank, shape, axis_start, axis_count)
    end = rank if axis_count == -1 else axis_start + axis_count
    # This dict maps the index of each 0 in `shape` to the axis whose extent the 0 copies.
    copied = {i: i + axis_start for i, extent in enumerate(shape) if extent == 0}
    if copied:
        last_index = max(copied)
        if copied[last_index] >= rank:
            raise InvalidShape(
                f"'shape' {list(shape)} has a 0 at item {last_index}, but 'input' "
                f"{show(input.shape)} has no axis {copied[last_index]} to copy"
            )
    extents = _with_copies(input.shape, shape, axis_start)
    extents = _inferred(input.shape, range(axis_start, end), extents, set(copied.values()))
    return TensorType(input.shape[:axis_start] + extents + input.shape[end:], input.dtype)


def _require_reshape(rank: int, shape: Ints, axis_start: int, axis_count: int) -> None:
    """Refuse attributes of `reshape` that are out of range. `rank` is the rank of the input."""
    require.rank(shape)
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


def _with_copies(input: Shape, shape: Ints, axis_start: int) -> Shape:
    """Return `shape` with each 0, at index i, replaced by the extent `input[i + axis_start]`."""
    extents = list(shape)
    for i, extent in enumerate(shape):
        if extent == 0:
            extents[i] = input[i + axis_start]
    return tuple(extents)


def _inferred(input: Shape, replaced: range, extents: Shape, copied: set[int]) -> Shape:
    """Return the shape `extents`, with -1 replaced so that the number of items is unchanged.

    `extents` are the new extents in the place of the axes `replaced` of the shape `input`.
    `copied` are the axes whose extents were copied to `extents`. Raises InvalidShape if the
    numbers of items do not agree. For example, (4, -1) in the place of the extents (2, 6) becomes
    (4, 3).
    """
    old_extents = [input[axis] for axis in replaced]
    free = {axis for axis in replaced if _is_free(input[axis])}
    copied_free = {axis for axis in copied if _is_free(input[axis])}
    # If the copied extents are exactly the extents that are unknown or 0, only the other extents
    # are compared. For the extents (?, 6) and the new extents (?, 2, -1), -1 becomes 6 / 2.
    leaves_out_free = free == copied_free and len(free) == sum(map(_is_free, extents))
    if leaves_out_free:
        old_count = volume(extent for extent in old_extents if not _is_free(extent))
        new_count = volume(extent for extent in extents if extent != -1 and not _is_free(extent))
    else:
        is_unknown = any(extent is UNKNOWN for extent in old_extents)
        old_count = UNKNOWN if is_unknown else volume(old_extents)
        new_count = volume(extent for extent in extents if extent != -1 and extent is not UNKNOWN)
    source = show(old_extents)
    hint = "0 copies an extent of the input, -1 is the extent that the other extents leave"
    if -1 not in extents:
        if differ(old_count, new_count):
            message = f"{old_count} items are not {new_count}"
            raise InvalidShape(f"{source} cannot be reshaped to {show(extents)}: {message}", hint)
        return extents
    if new_count == 0 or differ(old_count % new_count, 0):
        message = f"{old_count} items are no multiple of {new_count}"
        raise InvalidShape(f"{source} cannot be reshaped to {show(extents)}: {message}", hint)
    return tuple(old_count // new_count if extent == -1 else extent for extent in extents)


def _is_free(extent: int) -> bool:
    """Tell whether an extent is unknown or 0."""
    return extent is UNKNOWN or extent == 0


def _array(input: Array) -> Array:
    """Return an operand as a jax array, or unchanged if it is a numpy array.

    Numpy rearranges without a compiler. jax would compile a program for each shape of a constant,
    which takes 10 ms or more.
    """
    return input if isinstance(input, np.ndarray) else jnp.asarray(input)


@rules.rule("reshape", _reshape_type)
def reshape(input: Array, shape: Ints, axis_start: int, axis_count: int) -> Array:
    """Reshape `axis_count` axes from `axis_start` on, in row-major order (spec 4.5.1).

    An `axis_count` of -1 means all axes from `axis_start` on. A 0 at index i of `shape` copies
    the extent of the input's axis i + `axis_start`. One entry of `shape` may be -1. It stands
    for the extent that follows from the number of items.
    """
    x = _array(input)
    if 0 in x.shape:  # jax cannot resolve -1 for an empty array
        type = TensorType(x.shape, str(x.dtype))
        return x.reshape(_reshape_type(type, shape, axis_start, axis_count).shape)
    end = x.ndim if axis_count == -1 else axis_start + axis_count
    extents = _with_copies(x.shape, shape, axis_start)
    return x.reshape(x.shape[:axis_start] + extents + x.shape[end:])


def _transpose_type(input: TensorType, axes: Ints) -> TensorType:
    """Check the arguments of `transpose`, and return the type of its result."""
    count = len(axes)
    if count > len(input.shape) or sorted(axes) != list(range(count)):
        raise InvalidOperation(
            f"'axes' must be a permutation of the first axes of 'input' {show(input.shape)}, "
            f"it is {list(axes)}"
        )
    permuted = tuple(input.shape[axis] for axis in axes)
    return TensorType(permuted + input.shape[count:], input.dtype)


@rules.rule("transpose", _transpose_type)
def transpose(input: Array, axes: Ints) -> Array:
    """Permute the first len(axes) axes. The later axes keep their places (spec 4.5.2)."""
    x = _array(input)
    return x.transpose((*axes, *range(len(axes), x.ndim)))


def _squeeze_type(input: TensorType, axes: Ints) -> TensorType:
    """Check the arguments of `squeeze`, and return the type of its result."""
    require.axes(axes, len(input.shape))
    for axis in axes:
        if differ(input.shape[axis], 1):
            raise InvalidShape(
                f"'axes' {list(axes)} of 'input' {show(input.shape)} must have extent 1, "
                f"axis {axis} has {input.shape[axis]}"
            )
    remaining = [extent for axis, extent in enumerate(input.shape) if axis not in axes]
    return TensorType(tuple(remaining), input.dtype)


@rules.rule("squeeze", _squeeze_type)
def squeeze(input: Array, axes: Ints) -> Array:
    """Remove the axes `axes`, which have extent 1."""
    return _array(input).squeeze(axes)


def _unsqueeze_type(input: TensorType, axes: Ints) -> TensorType:
    """Check the arguments of `unsqueeze`, and return the type of its result."""
    rank = len(input.shape) + len(axes)
    require.axes(axes, rank)
    shape = list(input.shape)
    for axis in sorted(axes):
        shape.insert(axis, 1)
    return TensorType(tuple(shape), input.dtype)


@rules.rule("unsqueeze", _unsqueeze_type)
def unsqueeze(input: Array, axes: Ints) -> Array | NDArray[np.generic]:
    """Add axes of extent 1. `axes` has the numbers that the new axes have in the result."""
    x = _array(input)
    if isinstance(x, np.ndarray):
        return np.expand_dims(x, axes)
    return jnp.expand_dims(x, axes)


def _concat_type(values: Sequence[TensorType], axis: int) -> TensorType:
    """Check the arguments of `concat`, and return the type of its result."""
    _require_values(values)
    require.axis(axis, len(values[0].shape))
    # Along the axis, the extents of the values may differ.
    shapes = [with_extent(value.shape, axis, 1) for value in values if len(value.shape) > axis]
    all_have_axis = len(shapes) == len(values)
    if not all_have_axis or any(shapes_differ(shape, shapes[0]) for shape in shapes):
        raise InvalidShape(
            f"'values' must have one shape except along axis {axis}, they have "
            + " and ".join(show(value.shape) for value in values),
            hint="join them along the axis in which they differ, or pad or slice one of them",
        )
    extent = sum(value.shape[axis] for value in values)
    return TensorType(with_extent(_merged(shapes), axis, extent), values[0].dtype)


def _require_values(values: Sequence[TensorType]) -> None:
    """Refuse an empty list of values, and values of different dtypes."""
    if not values:
        raise InvalidShape("'values' must not be empty")
    require.same_dtype(**{f"values[{i}]": value for i, value in enumerate(values)})


@rules.rule("concat", _concat_type)
def concat(values: Sequence[Array], axis: int) -> Array:
    """Join the values along the axis (spec 4.5.3)."""
    dtype = jnp.asarray(values[0]).dtype
    if dtype.name not in NARROW:
        return jnp.concatenate(list(values), axis)
    # On a CPU XLA aborts the process when it joins items of 2 bits.
    wide_dtype = np.float32 if is_float(dtype.name) else np.int8
    wide_values = [jnp.asarray(value).astype(wide_dtype) for value in values]
    return jnp.concatenate(wide_values, axis).astype(dtype)


def _split_type(value: TensorType, axis: int, ratios: Ints) -> list[TensorType]:
    """Check the arguments of `split`, and return the types of its results."""
    require.axis(axis, len(value.shape))
    if not ratios or min(ratios) < 1:
        raise InvalidOperation(f"'ratios' must be positive and not empty, it is {list(ratios)}")
    extent = value.shape[axis]
    if differ(extent % sum(ratios), 0):
        raise InvalidShape(
            f"the sum {sum(ratios)} of 'ratios' must divide the extent {extent} of 'value' "
            f"{show(value.shape)} along axis {axis}"
        )
    shapes = [with_extent(value.shape, axis, part) for part in _parts(extent, ratios)]
    return [TensorType(shape, value.dtype) for shape in shapes]


def _parts(extent: int, ratios: Ints) -> list[int]:
    """Divide an extent into parts that have the ratios. 12 and (1, 2) give [4, 8]."""
    unit = extent // sum(ratios)
    return [unit * ratio for ratio in ratios]


@rules.rule("split", _split_type)
def split(value: Array, axis: int, ratios: Ints) -> list[Array]:
    """Cut the value along the axis into parts whose extents have the `ratios` (spec 4.5.3).

    For an extent of 12 and the ratios (1, 2) the parts have the extents 4 and 8.
    """
    x = jnp.asarray(value)
    return list(lax.split(x, _parts(x.shape[axis], ratios), axis))


def _stack_type(values: Sequence[TensorType], axis: int) -> TensorType:
    """Check the arguments of `stack`, and return the type of its result."""
    _require_values(values)
    require.axis(axis, len(values[0].shape) + 1)
    shapes = [value.shape for value in values]
    if any(shapes_differ(shape, shapes[0]) for shape in shapes):
        raise InvalidShape(
            "'values' must have one shape, they have " + " and ".join(map(show, shapes))
        )
    shape = _merged(shapes)
    return TensorType((*shape[:axis], len(values), *shape[axis:]), values[0].dtype)


@rules.rule("stack", _stack_type)
def stack(values: Sequence[Array], axis: int) -> Array:
    """Join the values along a new axis."""
    return jnp.stack([jnp.asarray(value) for value in values], axis)


def _unstack_type(value: TensorType, axis: int) -> list[TensorType]:
    """Check the arguments of `unstack`, and return the types of its results."""
    require.axis(axis, len(value.shape))
    extent = value.shape[axis]
    if extent is UNKNOWN:
        raise InvalidShape(
            f"the extent of 'value' {show(value.shape)} along axis {axis} must be known: "
            "it is the number of results",
            hint="give the shape of the inputs",
        )
    require.count_of_results(extent)
    return [TensorType(with_extent(value.shape, axis), value.dtype)] * extent


@rules.rule("unstack", _unstack_type)
def unstack(ctx: Context, value: Array, axis: int) -> list[Array]:
    """Return the sub-tensor at each index along the axis. The sub-tensors do not have this axis."""
    x = jnp.asarray(value)
    ctx.unroll(x.shape[axis])  # may raise an error for too many items
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]


def _cast_type(input: TensorType, dtype: str) -> TensorType:
    """Check the arguments of `cast`, and return the type of its result."""
    if is_complex(input.dtype) and not is_complex(dtype):
        raise InvalidOperation(f"{input.dtype} cannot be cast to {dtype}")
    if dtype != "bool" and not jnp.issubdtype(np.dtype(dtype), jnp.number):
        raise InvalidOperation(f"'dtype' must be one of numbers or 'bool', it is '{dtype}'")
    return TensorType(input.shape, dtype)


@rules.rule("cast", _cast_type)
def cast(input: Array | NDArray[np.generic], dtype: str) -> Array:
    """Cast items to another dtype.

    A cast to logical values gives true for non-zero items. A cast of floating-point numbers to
    integers truncates and saturates, and NaN becomes 0. A cast of integers to smaller integers
    wraps around. A cast to 16-bit floats rounds in the same way on every platform. Numbers
    beyond the range of these floats become infinite.
    """
    x = jnp.asarray(input)
    if dtype == "bool":
        return x if x.dtype == jnp.bool_ else x != 0
    if dtype in HALVES and x.dtype != dtype and x.dtype.itemsize > 1:
        return rounded_to(x, dtype)  # numbers of 8 bits need no rounding
    is_from_float = jnp.issubdtype(x.dtype, jnp.floating)
    is_to_integer = jnp.issubdtype(dtype, jnp.integer)
    if not is_from_float or not is_to_integer:
        return x.astype(dtype)
    if jnp.finfo(x.dtype).bits < 32:  # 16 bits cannot hold the limits of integers
        x = x.astype(jnp.float32)
    # XLA's conversion of numbers out of range depends on the platform.
    limits = jnp.iinfo(dtype)
    is_low = x <= float(limits.min)
    is_high = x >= float(limits.max)
    is_inside = (x > float(limits.min)) & (x < float(limits.max))  # false for NaN
    result = jnp.where(is_inside, x, 0.0).astype(dtype)
    result = jnp.where(is_high, np.asarray(limits.max, dtype), result)
    return jnp.where(is_low, np.asarray(limits.min, dtype), result)


def _bitcast_type(input: TensorType, dtype: str) -> TensorType:
    """Check the arguments of `bitcast`, and return the type of its result."""
    before = _bits(input.dtype)
    after = _bits(dtype)
    if before != after:
        raise InvalidOperation(
            f"items of {input.dtype} have {before} bits, those of {dtype} {after}"
        )
    return TensorType(input.shape, dtype)


def _bits(dtype: str) -> int:
    """Return the number of bits of an item. A logical value has 8 bits."""
    if dtype == "bool":
        return 8
    if is_complex(dtype):
        return 8 * np.dtype(dtype).itemsize
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return jnp.iinfo(dtype).bits


@rules.rule("bitcast", _bitcast_type, not_differentiable="it reinterprets bits")
def bitcast(input: Array, dtype: str) -> Array:
    """Reinterpret the bits of each item as an item of another dtype with the same number of bits.

    A logical value is a byte, 0 or 1.
    """
    x = jnp.asarray(input)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    if dtype == "bool":
        return lax.bitcast_convert_type(x, jnp.uint8) != 0
    return lax.bitcast_convert_type(x, dtype)


def _copy_n_type(x: TensorType, times: int) -> list[TensorType]:
    if times < 1:
        raise InvalidOperation(f"'times' must be positive, it is {times}")
    require.count_of_results(times)
    return [x] * times


@rules.rule("copy_n", _copy_n_type)
def copy_n(x: Array, times: int) -> list[Array]:
    """Return a list that contains the input `times` times (spec 4.8.6)."""
    return [jnp.asarray(x)] * times


def _add_n_type(x: Sequence[TensorType]) -> TensorType:
    """Check the arguments of `add_n`, and return the type of its result."""
    if not x:
        return TensorType((1,), "float32")
    operands = {f"x[{number}]": type for number, type in enumerate(x)}
    require.same_dtype(require.floating, **operands)
    shape = broadcast_shapes((1,), *(type.shape for type in x))
    return TensorType(shape, x[0].dtype)


@rules.rule("add_n", _add_n_type)
def add_n(x: Sequence[Array]) -> Array:
    """Return the sum of the operands, which broadcast from the first axis on (spec 4.8.6).

    The sum has at least one axis. Without operands the sum is [0].
    """
    if not x:
        return jnp.zeros((1,), jnp.float32)
    total, *addends = align(*(jnp.asarray(operand) for operand in x))
    for addend in addends:
        total = total + addend
    return expand(total, max(total.ndim, 1))
