"""Meanings of operators that select or move items: slices, pads, scatters, one-hot, top-k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering import rounding
from lowering.errors import InvalidOperation
from nnef_jax.flattening.along_axes import cropped, sliced
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
    axes = site.axes("axes", 3) or tuple(range(len(begins)))
    steps = site.integers(4) if site.has(4) else [1] * len(begins)
    windows = dict(zip(axes, zip(begins, ends, steps, strict=True), strict=True))
    return sliced(site, x, windows)


@operator("Pad", since=11)
def _pad(site: NodeSite, x: Tensor, *, mode: str = _MODE) -> Any:
    """Pad a tensor. A negative number of padding removes items at the end of an axis instead."""
    axes = site.axes("axes", 3)
    if axes is None:
        axes = tuple(range(site.rank()))
    value = site.operand(2) if site.has(2) else 0.0
    return _padded(site, x, _around(site, site.integers(1), axes), mode, value)


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
    return _padded(site, x, _around(site, pads, range(site.rank())), mode, value)


def _around(site: NodeSite, pads: Sequence[int], axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return a pair (before, after) of padding for each axis of input 0.

    `pads` has the numbers before all of `axes`, then the numbers after all of `axes`. Axes that are
    not in `axes` get (0, 0).
    """
    if len(pads) != 2 * len(axes):
        raise InvalidOperation(f"'pads' must have {2 * len(axes)} items, it has {len(pads)}")
    around = [(0, 0)] * site.rank()
    for i, a in enumerate(axes):
        around[a] = (pads[i], pads[i + len(axes)])
    return around


def _padded(
    site: NodeSite, x: Tensor, around: Sequence[tuple[int, int]], mode: str, value: Operand
) -> Any:
    """Pad a tensor by `around`, which has a pair (before, after) for each axis.

    A negative number removes items at this end of the axis. `mode` says which items the padding
    has: `value` in the mode "constant".
    """
    x = cropped(site, x, dict(enumerate(around)))
    padding = [(max(before, 0), max(after, 0)) for before, after in around]
    if mode == "wrap":
        return site.last.copy(_wrapped(site, x, padding))
    if mode != "constant":
        return site.last.pad(x, padding=padding, border=_BORDERS[mode], value=0.0)
    literal = _as_literal(value)
    if not isinstance(literal, Tensor):
        return site.last.pad(x, padding=padding, border="constant", value=literal)
    zeros = {"padding": padding, "border": "constant", "value": 0.0}
    is_inside = site.step.constant(shape=site.known_shape(x), value=(True,), dtype="bool")
    is_inside = site.step.pad(is_inside, **zeros)
    x = site.step.pad(x, **zeros)
    return site.last.select(is_inside, x, site.reshaped(literal, ()))


def _wrapped(site: NodeSite, x: Tensor, padding: Sequence[tuple[int, int]]) -> Any:
    """Pad each axis of a tensor by the items at the other end of the axis.

    `padding` has a pair (before, after) for each axis.
    """
    shape = site.known_shape(x)
    for i, (before, after) in enumerate(padding):
        if before or after:
            extent = shape[i]
            site.spend(before + after + extent)
            indices = np.arange(-before, extent + after) % max(extent, 1)
            x = site.step.gather(x, site.constant(indices, "int64"), axis=i)
    return x


def _as_literal(value: Operand) -> Operand:
    """Return a constant with a single item as a Python number, if float32 represents it exactly.

    Any other operand is returned unchanged.
    """
    if isinstance(value, Constant) and value.array.size == 1:
        number = value.array.reshape(-1)[0].item()
        is_exact = float(rounding.saturated(number, np.float32)) == number
        if is_exact or math.isnan(number):
            return float(number)
    return value


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

    `starts` has, for each sequence of the batch, the position of the first item that is written. In
    the mode "circular", an update that reaches the end of the axis continues at the start of the
    axis.
    """
    step = site.step
    shape = site.known_shape()
    length = site.known_shape(1)[axis]
    if axis == 0:
        raise InvalidOperation("'axis' must not be 0, the batch")
    # `index` has shape (batch, positions). For each position of the cache along the axis, it is the
    # index of the item of the update that is written there. Where the update has no such item, the
    # cache keeps its value.
    index: Any = site.positions(shape[axis], 1, 2)
    if starts is not None:
        index = step.sub(index, site.unsqueezed(site.as_integer(starts), (1,)))
        if mode == "circular":
            index = floored_mod(site, index, shape[axis], step)
    index = step.broadcast(index, shape=(shape[0], shape[axis]))
    is_new = step.and_(step.ge(index, 0), step.lt(index, length))
    moved = step.gather_in_batches(update, step.select(is_new, index, 0), axis=axis, batch_dims=1)
    is_new = site.unsqueezed(is_new, [i for i in range(site.rank()) if i not in (0, axis)])
    return site.last.select(is_new, moved, cache)


@operator("OneHot")
def _one_hot(site: NodeSite, indices: Tensor, *, axis: int = integer("axis", -1)) -> Any:
    """Return a one-hot of indices along a new axis.

    Input 1 is the extent of the axis. Input 2 has two numbers: the number at all other positions,
    and the number at the position of the index.
    """
    step = site.step
    depth = site.integer(1)
    rank = site.rank() + 1
    axis = site.axis(axis, rank)
    indices = site.unsqueezed(site.as_integer(site.tensor(indices)), (axis,))
    indices = step.select(step.lt(indices, 0), step.add(indices, depth), indices)
    is_hot = step.eq(indices, site.positions(depth, axis, rank))
    values: list[Tensor] = []
    for i in range(2):
        value = sliced(site, site.operand(2), {0: (i, i + 1, 1)}, final=False)
        values.append(site.reshaped(value, (1,) * rank))
    off, on = values
    return site.last.select(is_hot, on, off)


@operator("TopK", since=10)
def _top_k(
    site: NodeSite,
    x: Tensor,
    *,
    axis: int = axis("axis", -1),
    largest: bool = flag("largest", True),
) -> tuple[Any, Any]:
    return _extremes(site, x, site.integer(1), axis, largest=largest)


@operator("TopK")
def _top_k_by_attribute(
    site: NodeSite, x: Tensor, *, k: int = integer("k"), axis: int = axis("axis", -1)
) -> tuple[Any, Any]:
    return _extremes(site, x, k, axis, largest=True)


def _extremes(site: NodeSite, x: Tensor, k: int, axis: int, *, largest: bool) -> tuple[Any, Any]:
    """Return the k largest items along an axis, or the smallest ones, and their indices.

    The items are the largest ones if `largest`.
    """
    values, indices = site.last.topk(x, k=k, axis=axis, largest=largest)
    return values, site.as_integer(indices)
