"""Items by where they are: slices, gathers, scatters, padding, the largest ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering import rounding
from lowering.errors import InvalidOperation
from nnef_jax.flattening.along_axes import cropped, sliced
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.arithmetic import floored_mod
from nnef_jax.formats.onnx.operators.registry import operator

_BORDERS = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "wrap"}


@operator("Slice")
def _slice(site: NodeSite, x: Any) -> Any:
    """Cut windows along axes; bounds beyond an axis are cut to it."""
    if site.version < 10:
        begins, ends = list(site.ints("starts")), list(site.ints("ends"))
    else:
        begins, ends = site.integers(1), site.integers(2)
    axes = site.axes(3) or tuple(range(len(begins)))
    steps = site.integers(4) if site.has(4) else [1] * len(begins)
    windows = dict(zip(axes, zip(begins, ends, steps, strict=True), strict=True))
    return sliced(site, x, windows)


@operator("Pad")
def _pad(site: NodeSite, x: Any) -> Any:
    """Put items around; where there are to be fewer than none, cut items off before."""
    rank = site.rank()
    if site.version < 11:
        pads, axes = site.ints("paddings" if site.version < 2 else "pads"), None
        value: Any = site.number("value", 0.0)
    else:
        pads, axes = site.integers(1), site.axes(3)
        value = site.operand(2) if site.has(2) else 0.0
    axes = tuple(range(rank)) if axes is None else axes
    if len(pads) != 2 * len(axes):
        raise InvalidOperation(f"'pads' must have {2 * len(axes)} items, it has {len(pads)}")
    around = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        around[axis] = (pads[i], pads[i + len(axes)])
    return _padded(site, x, around, site.choice("mode", *_BORDERS, default="constant"), value)


def _padded(
    site: NodeSite, x: Any, around: Sequence[tuple[int, int]], mode: str, value: Any = 0.0
) -> Any:
    """Return a tensor with items put around it, or taken away where that is negative."""
    x = cropped(site, x, dict(enumerate(around)))
    around = [(max(p, 0), max(q, 0)) for p, q in around]
    if mode == "wrap":
        shape = site.known_shape(x)
        for axis, (p, q) in enumerate(around):
            if p or q:
                site.spend(p + q + shape[axis])
                places = np.arange(-p, shape[axis] + q) % max(shape[axis], 1)
                x = site.step.gather(x, site.constant(places, "int64"), axis=axis)
        return site.last.copy(x)
    given: dict[str, Any] = {"padding": around, "border": _BORDERS[mode]}
    if isinstance(value, Constant) and value.array.size == 1:
        number = value.array.reshape(-1)[0].item()
        if float(rounding.saturated(number, np.float32)) == number or number != number:
            value = float(number)
    if isinstance(value, float) or mode != "constant":
        return site.last.pad(x, **given, value=value if mode == "constant" else 0.0)
    inside = site.step.constant(shape=site.known_shape(x), value=(True,), dtype="bool")
    inside, x = (site.step.pad(part, **given, value=0.0) for part in (inside, x))
    return site.last.select(inside, x, site.reshaped(value, ()))


@operator("TensorScatter")
def _tensor_scatter(site: NodeSite, cache: Any, update: Any, starts: Any = None) -> Any:
    """Put an update into a cache from a place on, which each item of the batch has of its own."""
    step, axis = site.step, site.axis_of("axis", -2)
    shape, length = site.known_shape(), site.known_shape(1)[axis]
    if axis == 0:
        raise InvalidOperation("'axis' must not be 0, that is the batch")
    is_circular = site.choice("mode", "linear", "circular", default="linear") == "circular"
    turns: Any = site.places(shape[axis], 1, 2)
    if starts is not None:
        turns = step.sub(turns, site.unsqueezed(site.whole(starts), (1,)))
        turns = floored_mod(site, turns, shape[axis], step) if is_circular else turns
    turns = step.broadcast(turns, shape=(shape[0], shape[axis]))
    is_new = step.and_(step.ge(turns, 0), step.lt(turns, length))
    moved = step.gather_in_batches(update, step.select(is_new, turns, 0), axis=axis, batch_dims=1)
    is_new = site.unsqueezed(is_new, [i for i in range(site.rank()) if i not in (0, axis)])
    return site.last.select(is_new, moved, cache)


@operator("OneHot")
def _one_hot(site: NodeSite, indices: Any) -> Any:
    """Put the second value at indices along a new axis, the first one elsewhere."""
    step, rank, depth = site.step, site.rank() + 1, site.integer(1)
    axis = site.axis_of("axis", -1, rank)
    indices = site.unsqueezed(site.whole(site.tensor(indices)), (axis,))
    indices = step.select(step.lt(indices, 0), step.add(indices, depth), indices)
    is_hot = step.eq(indices, site.places(depth, axis, rank))
    off, on = (
        site.reshaped(sliced(site, site.operand(2), {0: (i, i + 1, 1)}, final=False), (1,) * rank)
        for i in range(2)
    )
    return site.last.select(is_hot, on, off)


@operator("TopK")
def _top_k(site: NodeSite, x: Any) -> tuple[Any, Any]:
    """Return the largest or smallest items along an axis, and their places."""
    k = site.integer(1) if site.has(1) else site.int("k")
    axis, largest = site.axis_of("axis", -1), site.flag("largest", True)
    values, places = site.last.topk(x, k=k, axis=axis, largest=largest)
    return values, site.whole(places)
