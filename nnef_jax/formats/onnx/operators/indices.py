"""Functions for operators that select or move items: slices, pads, scatters, one-hot, top-k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering import rounding
from lowering.errors import InvalidOperation
from nnef_jax.flattening.along_axes import cropped, sliced
from nnef_jax.flattening.list_padding import padded_lists
from nnef_jax.flattening.operators.attributes import axis, flag, integer, integers, number, word
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.arithmetic import floored_mod
from nnef_jax.formats.onnx.operators.registry import operator

_BORDERS = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "wrap"}
_MODE = word("mode", *_BORDERS)


@operator("Slice", since=10)
def _slice(site: NodeSite, x: Tensor) -> Any:
    """Slice a tensor along axes. Bounds beyond an axis are clipped to the axis."""
    return _slice_by_attributes(site, x, begins=site.integers(1), ends=site.integers(2))


@operator("Slice")
def _slice_by_attributes(
    site: NodeSite,
    x: Tensor,
    *,
    begins: Sequence[int] = integers("starts"),
    ends: Sequence[int] = integers("ends"),
) -> Any:
    """Slice a tensor along axes. Bounds beyond an axis are clipped to the axis.

    `begins` and `ends` have a bound for each sliced axis. The axes are in input 3 or in the
    attribute `axes`, and the steps are in input 4.
    """
    axes = site.axes("axes", 3) or tuple(range(len(begins)))
    steps = site.integers(4) if site.has(4) else [1] * len(begins)
    bounds = zip(begins, ends, steps, strict=True)
    bounds_by_axis = dict(zip(axes, bounds, strict=True))
    return sliced(site, x, bounds_by_axis)


@operator("Pad", since=11)
def _pad(site: NodeSite, x: Tensor, *, mode: str = _MODE) -> Any:
    """Pad a tensor at the ends of axes. A negative number, such as -2, removes 2 items instead."""
    axes = site.axes("axes", 3)
    if axes is None:
        axes = tuple(range(site.rank()))
    value = site.operand(2) if site.has(2) else 0.0
    padding = _padding_of_axes(site, site.integers(1), axes)
    return _padded(site, x, padding, mode, value)


@operator("Pad", since=2, pads=integers("pads"))
@operator("Pad", pads=integers("paddings"))
def _pad_by_attributes(
    site: NodeSite,
    x: Tensor,
    *,
    pads: Sequence[int],
    value: float = number("value", 0.0),
    mode: str = _MODE,
) -> Any:
    """Pad a tensor, as before version 11.

    `pads` has the numbers before all axes, then the numbers after all axes. For example, 1, 2, 3, 4
    pads axis 0 by (1, 3) and axis 1 by (2, 4).
    """
    padding = _padding_of_axes(site, pads, range(site.rank()))
    return _padded(site, x, padding, mode, value)


def _padding_of_axes(
    site: NodeSite, pads: Sequence[int], axes: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the padding of input 0: a pair (before, after) for each axis.

    `pads` has the numbers before the padded axes, then the numbers after the padded axes. All other
    axes get (0, 0). For example, `pads` 1, 2, 3, 4 and `axes` 0, 2 become (1, 3), (0, 0), (2, 4).
    """
    count = len(axes)
    if len(pads) != 2 * count:
        raise InvalidOperation(f"'pads' must have {2 * count} items, it has {len(pads)}")
    padding = [(0, 0)] * site.rank()
    for padded_axis, before, after in zip(axes, pads[:count], pads[count:], strict=True):
        padding[padded_axis] = (before, after)
    return padding


def _padded(
    site: NodeSite, x: Tensor, signed_padding: Sequence[tuple[int, int]], mode: str, value: Operand
) -> Any:
    """Pad a tensor by `signed_padding`, which has a pair (before, after) for each axis.

    A negative number removes items. For example, (-2, 1) removes the first 2 items of an axis and
    adds 1 item at its end. `mode` is a key of `_BORDERS`. In the mode "constant", added items are
    equal to `value`.
    """
    item = _as_literal(value)
    item = site.reshaped(item, ()) if isinstance(item, Tensor) else item
    x, signed_padding = padded_lists(site, x, signed_padding, _BORDERS[mode], item)
    if site.graph.is_list(x) and not any(map(any, signed_padding)):
        return site.last.copy(x)
    x = cropped(site, x, dict(enumerate(signed_padding)))
    padding = [(max(before, 0), max(after, 0)) for before, after in signed_padding]
    if mode == "wrap":
        return site.last.copy(_wrapped(site, x, padding))
    if mode != "constant":
        return site.last.pad(x, padding=padding, border=_BORDERS[mode], value=0.0)
    literal = _as_literal(value)
    if not isinstance(literal, Tensor):
        return site.last.pad(x, padding=padding, border="constant", value=literal)
    # The value is a tensor. The input is padded by zeros, which are then replaced by the value.
    zero_padding = {"padding": padding, "border": "constant", "value": 0.0}
    ones = site.step.constant(shape=site.known_shape(x), value=(True,), dtype="bool")
    is_inside = site.step.pad(ones, **zero_padding)
    padded = site.step.pad(x, **zero_padding)
    return site.last.select(is_inside, padded, site.reshaped(literal, ()))


def _wrapped(site: NodeSite, x: Tensor, padding: Sequence[tuple[int, int]]) -> Any:
    """Pad each end of an axis by items from the opposite end.

    `padding` has a pair (before, after) for each axis.
    """
    shape = site.known_shape(x)
    for padded_axis, (before, after) in enumerate(padding):
        if before == 0 and after == 0:
            continue
        extent = shape[padded_axis]
        site.spend(before + after + extent)
        # An axis of 3 items that gets 2 items before and 1 item after has the indices
        # 1, 2, 0, 1, 2, 0. An axis without items must not divide by 0.
        indices = np.arange(-before, extent + after) % max(extent, 1)
        x = site.step.gather(x, site.constant(indices, "int64"), axis=padded_axis)
    return x


def _as_literal(value: Operand) -> Operand:
    """Return a constant with a single item as a Python number, if float32 represents it exactly.

    Any other operand is returned unchanged.
    """
    if not isinstance(value, Constant) or value.array.size != 1:
        return value
    number = value.array.reshape(-1)[0].item()
    # float32 represents NaN, but NaN is not equal to itself.
    is_exact = math.isnan(number) or float(rounding.saturated(number, np.float32)) == number
    return float(number) if is_exact else value


@operator("TensorScatter")
def _tensor_scatter(
    site: NodeSite,
    cache: Tensor,
    update: Tensor,
    starts: Tensor | None = None,
    *,
    axis: int = axis("axis", -2),
    mode: str = word("mode", "linear", "circular"),
) -> Any:
    """Write `update` into `cache` along an axis, and return the new cache.

    Axis 0 is the batch. `starts` has a position for each sequence of the batch: the position in the
    cache at which the update starts. In the mode "circular", an update that reaches the end of the
    axis continues at the start of the axis.
    """
    step = site.step
    shape = site.known_shape()
    batch = shape[0]
    cache_length = shape[axis]
    update_length = site.known_shape(1)[axis]
    if axis == 0:
        raise InvalidOperation("'axis' must not be 0, the batch")
    index = _index_in_update(site, starts, cache_length, is_circular=mode == "circular")
    index = step.broadcast(index, shape=(batch, cache_length))
    # The cache keeps its items at the positions for which the update has no item.
    is_new = step.and_(step.ge(index, 0), step.lt(index, update_length))
    valid_index = step.select(is_new, index, 0)
    new_items = step.gather_in_batches(update, valid_index, axis=axis, batch_dims=1)
    # `is_new` has shape (batch, positions). All other axes of the cache are inserted, with extent
    # 1.
    new_axes = [i for i in range(site.rank()) if i not in (0, axis)]
    return site.last.select(site.unsqueezed(is_new, new_axes), new_items, cache)


def _index_in_update(
    site: NodeSite, starts: Tensor | None, cache_length: int, *, is_circular: bool
) -> Any:
    """Return an index into the update for each position of a cache.

    The result has shape (batch, positions) or (1, positions). For example, an update of 2 items
    starts at position 1 of 4 positions. The indices are [-1, 0, 1, 2]. If `is_circular`, the
    indices are [3, 0, 1, 2]. Only the indices 0 and 1 stand for items of the update.
    """
    index: Any = site.positions(cache_length, axis=1, rank=2)
    if starts is None:
        return index
    index = site.step.sub(index, site.unsqueezed(site.as_integer(starts), (1,)))
    if is_circular:
        index = floored_mod(site, index, cache_length, last=site.step)
    return index


@operator("OneHot")
def _one_hot(site: NodeSite, indices: Tensor, *, axis: int = integer("axis", -1)) -> Any:
    """Encode indices along a new axis, on which one position is "on" and all others are "off".

    Input 1 is the extent of the axis. Input 2 has two numbers: the number for all positions that
    are off, then the number for the position that is on.
    """
    step = site.step
    depth = site.integer(1)
    rank = site.rank() + 1
    axis = site.axis(axis, rank)
    index = site.unsqueezed(site.as_integer(site.tensor(indices)), (axis,))
    is_negative = step.lt(index, 0)  # A negative index counts from the end.
    index = step.select(is_negative, step.add(index, depth), index)
    is_on = step.eq(index, site.positions(depth, axis, rank))
    off_and_on: list[Tensor] = []
    for i in range(2):
        number = sliced(site, site.operand(2), {0: (i, i + 1, 1)}, final=False)
        off_and_on.append(site.reshaped(number, (1,) * rank))
    off_number, on_number = off_and_on
    return site.last.select(is_on, on_number, off_number)


@operator("TopK", since=10)
def _top_k(
    site: NodeSite,
    x: Tensor,
    *,
    axis: int = axis("axis", -1),
    largest: bool = flag("largest", True),
) -> tuple[Any, Any]:
    """Return the k largest or smallest items along an axis, and their indices. Input 1 is k."""
    k = site.integer(1)
    return _extremes(site, x, k, axis, largest=largest)


@operator("TopK")
def _top_k_by_attribute(
    site: NodeSite, x: Tensor, *, k: int = integer("k"), axis: int = axis("axis", -1)
) -> tuple[Any, Any]:
    """Return the k largest items along an axis, and their indices, as before version 10."""
    return _extremes(site, x, k, axis, largest=True)


def _extremes(site: NodeSite, x: Tensor, k: int, axis: int, *, largest: bool) -> tuple[Any, Any]:
    """Return the k largest items along an axis, and their indices along the axis.

    If `largest` is False, return the k smallest items instead.
    """
    values, indices = site.last.topk(x, k=k, axis=axis, largest=largest)
    return values, site.as_integer(indices)
