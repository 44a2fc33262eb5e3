"""Operations on shapes that tract reads in another way than NNEF, or adds to it.

Axes may count from the end, extents may be 0, and the items may be of any type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, Shape, is_symbolic, show
from lowering.graph import TensorType
from lowering.kernels.broadcast import broadcast_shapes
from lowering.kernels.windows import Padding
from lowering.ops import rules
from lowering.ops.tract.elementwise import cast
from lowering.ops.tract.tensors import range_ as known_range
from lowering.ops.tract.typing import (
    normal_axes,
    normal_axis,
    require_one,
    require_one_integer,
    require_ordered,
)
from lowering.ops.typing import require_length, require_same_dtype
from lowering.static import is_static

Ints = tuple[int, ...]


def _new_axes(axes: Ints, rank: int) -> Ints:
    """The axes added one by one from the lowest, as axes of the result; one may be named twice."""
    rank += len(axes)
    places: list[int] = []
    for axis in sorted(normal_axis(axis, rank) for axis in axes):
        places.append(max(axis, places[-1] + 1) if places else axis)
    return tuple(places)


def _axes_from_the_end(kind: str, normal: Callable[[Ints, int], Ints]) -> None:
    rule = rules[kind]

    def infer(input: TensorType, axes: Ints) -> TensorType:
        inferred = rule.infer(input, normal(axes, len(input.shape)))
        assert isinstance(inferred, TensorType)
        return inferred

    def lower(input: Any, axes: Ints) -> Array:
        return rule.lower(input, normal(axes, np.ndim(input)))

    rules.rule(f"tract.{kind}", infer)(lower)


_axes_from_the_end("transpose", normal_axes)
_axes_from_the_end("squeeze", normal_axes)
_axes_from_the_end("unsqueeze", _new_axes)


# Selecting


def _slice_type(input: TensorType, axes: Ints, begin: Ints, end: Ints, stride: Ints) -> TensorType:
    shape = list(input.shape)
    axes = normal_axes(axes, len(shape))
    require_length("begin", begin, len(axes), "axes")
    require_length("end", end, len(axes), "axes")
    if stride:
        require_length("stride", stride, len(axes), "axes")
    if 0 in stride:
        raise InvalidOperation(f"'stride' must not be 0, it is {list(stride)}")
    for axis, b, e, step in zip(axes, begin, end, stride or (1,) * len(axes), strict=True):
        if UNKNOWN in (b, e, step, shape[axis]):
            shape[axis] = UNKNOWN
            continue
        first, last, _ = _between(b, e).indices(shape[axis])
        if step < 0 and first > last:
            raise InvalidShape(
                f"'begin' {b} lies behind 'end' {e} in the {shape[axis]} items of 'input' "
                f"{show(input.shape)} along axis {axis}",
                hint="with a negative stride too 'begin' is the lower bound: what lies between "
                "the bounds is taken backwards",
            )
        shape[axis] = -(-max(last - first, 0) // abs(step))
    return TensorType(tuple(shape), input.dtype)


def _between(begin: int, end: int) -> slice:
    # Python has the same bounds, but for the end.
    return slice(begin, None if end == 0 else end)


@rules.rule("tract.slice", _slice_type)
def slice_(input: Any, axes: Ints, begin: Ints, end: Ints, stride: Ints) -> Array:
    """Every `stride`-th item from `begin` to before `end` along each axis; there may be none.

    Bounds below 0 count from the end, and so does the `end` 0, which is the end itself; bounds
    beyond an end are the end. With a negative stride the items between the bounds are taken from
    the last one backwards.
    """
    x = jnp.asarray(input)
    bounds, steps = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    axes = normal_axes(axes, x.ndim)
    for axis, b, e, step in zip(axes, begin, end, stride or (1,) * len(axes), strict=True):
        bounds[axis], steps[axis] = _between(b, e), slice(None, None, step)
    return x[tuple(bounds)][tuple(steps)]


def _downsample_type(input: TensorType, axis: int, stride: int, modulo: int) -> TensorType:
    if modulo < 0:
        raise InvalidOperation(f"'modulo' must not be negative, it is {modulo}")
    if stride == 0:
        raise InvalidOperation("'stride' must not be 0")
    axis = normal_axis(axis, len(input.shape))
    return _slice_type(input, (axis,), (modulo,), (0,), (stride,))


@rules.rule("tract_core_downsample", _downsample_type)
def downsample(input: Any, axis: int, stride: int, modulo: int) -> Array:
    """Every `stride`-th item along the axis from item `modulo` on.

    With a negative stride the same items without the first `modulo` are taken from the last one
    backwards.
    """
    return slice_(input, (axis,), (modulo,), (0,), (stride,))


def _dyn_slice_type(
    input: TensorType, start: TensorType, end: TensorType, len: int, axis: int
) -> TensorType:
    require_one_integer(start=start)
    return _cut_type(input, len, axis)


def _cut_type(input: TensorType, length: int, axis: int) -> TensorType:
    axis = normal_axis(axis, len(input.shape))
    extent = input.shape[axis]
    if length < 0 or length > extent:
        raise InvalidShape(
            f"'len' must lie in [0,{extent}], the extent of 'input' {show(input.shape)} along axis "
            f"{axis}, it is {length}"
        )
    return TensorType((*input.shape[:axis], length, *input.shape[axis + 1 :]), input.dtype)


@rules.rule("tract_core_dyn_slice", _dyn_slice_type)
def dyn_slice(input: Any, start: Any, end: Any, len: int, axis: int) -> Array:
    """`len` items along the axis from item `start` on, which depends on the data.

    `len` says where they end, `end` is not read. A `start` below 0 counts from the end. Items past
    the end are NaN; the least number in signed integers, the greatest in unsigned ones, true in
    logical values.
    """
    first = jnp.asarray(start).reshape(())
    return jnp.take(jnp.asarray(input), first + jnp.arange(len, dtype=first.dtype), axis=axis)


def _trilu_type(input: TensorType, k: TensorType, upper: bool) -> TensorType:
    require_one_integer(k=k)
    if len(input.shape) < 2:
        raise InvalidShape(f"'input' must have two axes or more, its shape is {show(input.shape)}")
    return input


@rules.rule("tract_core_trilu", _trilu_type)
def trilu(input: Any, k: Any, upper: bool) -> Array:
    """The items of the last two axes on diagonal k and above it, or below it; 0 elsewhere.

    Item [row,column] is on diagonal column - row. k may depend on the data.
    """
    x = jnp.asarray(input)
    limit = jnp.asarray(k).reshape(())
    rows, columns = (lax.broadcasted_iota(limit.dtype, x.shape[-2:], axis) for axis in (0, 1))
    kept = columns - rows >= limit if upper else columns - rows <= limit
    return jnp.where(kept, x, jnp.zeros_like(x))


# Extending


def _tile_type(input: TensorType, repeats: Ints) -> TensorType:
    require_length("repeats", repeats, len(input.shape), "axes of 'input'")
    if any(times < 0 for times in repeats):
        raise InvalidOperation(f"'repeats' must not be negative, it is {list(repeats)}")
    return TensorType(tuple(e * r for e, r in zip(input.shape, repeats, strict=True)), input.dtype)


rules.rule("tract.tile", _tile_type)(rules["tile"].lower)


def _border(border: str) -> str:
    return "replicate" if border == "replicated" else border


def _pad_type(input: TensorType, padding: Padding, border: str, value: float) -> TensorType:
    require_length("padding", padding, len(input.shape), "axes of 'input'")
    cut, added = _cut(padding), _added(padding)
    kept = tuple(extent - p - q for (p, q), extent in zip(cut, input.shape, strict=True))
    if any(extent < 0 for extent in kept):
        raise InvalidShape(
            f"'padding' {list(padding)} cuts off more items than 'input' {show(input.shape)} has"
        )
    pairs = zip(added, kept, strict=True)
    if border != "constant" and any(extent == 0 and max(pair) > 0 for pair, extent in pairs):
        raise InvalidShape(f"there is nothing in {show(kept)} to pad with border '{border}'")
    real = TensorType(kept, "float32")  # NNEF pads these only
    inferred = rules["pad"].infer(real, added, _border(border), value)
    assert isinstance(inferred, TensorType)
    return TensorType(inferred.shape, input.dtype)


def _is_cut(items: int) -> bool:
    return not is_symbolic(items) and items < 0


def _cut(padding: Padding) -> Padding:
    return tuple((-p if _is_cut(p) else 0, -q if _is_cut(q) else 0) for p, q in padding)


def _added(padding: Padding) -> Padding:
    return tuple((0 if _is_cut(p) else p, 0 if _is_cut(q) else q) for p, q in padding)


@rules.rule("tract.pad", _pad_type)
def pad(input: Any, padding: Padding, border: str, value: float) -> Array:
    """The input with items before and after it along each axis.

    The borders are 'constant' (the value, cast to the type of the input), 'reflect' and
    'replicated', which NNEF calls 'replicate'. A negative number cuts off items, before others are
    added, as in ONNX.
    """
    x = jnp.asarray(input)
    x = x[tuple(slice(p, -q or None) for p, q in _cut(padding))]
    padding = _added(padding)
    if border == "constant":
        fill = cast(np.float32(value), x.dtype.name)
        return lax.pad(x, fill, [(before, after, 0) for before, after in padding])
    return rules["pad"].lower(x, padding, _border(border), value)


def _whole_shape(input: Shape, shape: Ints) -> Shape:
    rank = max(len(input), len(shape))
    return broadcast_shapes(*((1,) * (rank - len(s)) + tuple(s) for s in (input, shape)))


def _broadcast_type(input: TensorType, shape: Ints) -> TensorType:
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"'shape' must not be negative, it is {list(shape)}")
    return TensorType(_whole_shape(input.shape, shape), input.dtype)


@rules.rule("tract_core_broadcast", _broadcast_type)
def broadcast(input: Any, shape: Ints) -> Array:
    """The input repeated along its axes of extent 1, and along new ones before them, to a shape.

    The shapes are matched from the last axis. Where `shape` has 1 the extent of the input stays.
    """
    x = jnp.asarray(input)
    return jnp.broadcast_to(x, _whole_shape(x.shape, shape))


def _range_type(start: TensorType, end: TensorType, step: TensorType) -> TensorType:
    require_ordered(start=start, end=end, step=step)
    require_same_dtype(start=start, end=end, step=step)
    require_one(start=start, end=end, step=step)
    return TensorType((UNKNOWN,), start.dtype)


@rules.rule("tract_core_range", _range_type)
def range_(start: Any, end: Any, step: Any) -> NDArray[np.generic]:
    """The numbers from `start` in steps to before `end`, all three of them known; maybe none.

    Raises InvalidShape where one of them depends on the data, for their number would too.
    """
    if not is_static((start, end, step)):
        raise InvalidShape(
            "'start', 'end' and 'step' must be known when the network is compiled",
            hint="they may follow from the shapes of the inputs, not from their values",
        )
    first, last, by = (np.asarray(x).item() for x in (start, end, step))
    if by == 0:
        raise InvalidOperation("'step' must not be 0")
    return known_range(first, last, by, start.dtype.name)
