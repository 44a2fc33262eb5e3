"""Items put where indices say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowering.graph import Value, is_integer
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import everywhere, opsets
from nnef_jax.formats.openvino.site import Site

_REDUCTIONS = {"none": "none", "sum": "add", "prod": "mul", "min": "min", "max": "max"}
_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "min": np.inf, "max": -np.inf}


@opsets("ScatterElementsUpdate")
def _scatter_elements(site: Site) -> Value:
    """Put single items at indices along an axis, joined with what is there if so asked."""
    x, indices, updates = (site.tensor(i) for i in range(3))
    axis = site.axis(site.integers(3)[0])
    reduction = site.choice("reduction", *_REDUCTIONS, "mean", default="none")
    keeps_first = site.flag("use_init_val", True)

    def scattered(add: Any, start: Value, items: Value, how: str) -> Value:
        given = {"input": start, "indices": indices, "updates": items}
        return add("scatter_elements", given, axis=axis, reduction=how)

    def filled(item: float, like: Value = updates) -> Value:
        dtype = x.type.dtype
        if is_integer(dtype):
            ends = np.iinfo(dtype)
            item = int(np.clip(item, ends.min, ends.max))
        shape = site.known_shape(like)
        return site.insert("constant", {}, shape=shape, value=(item,), dtype=dtype)

    if reduction == "none":
        return scattered(site.emit, x, updates, "none")
    if not keeps_first:
        x = scattered(site.insert, x, filled(_NEUTRAL[reduction]), "none")
    if reduction != "mean":
        return scattered(site.emit, x, updates, _REDUCTIONS[reduction])
    total = scattered(site.insert, x, updates, "add")
    count = scattered(site.insert, filled(0, x), filled(1), "add")
    one = site.insert("constant", {}, shape=(), value=(1,), dtype=x.type.dtype)
    count = site.insert("add" if keeps_first else "max", {"x": count, "y": one})
    return site.emit("div", {"x": total, "y": count})


@opsets("ScatterNDUpdate")
def _scatter_nd(site: Site) -> Value:
    """Put slices at coordinates, joined with what is there if so asked."""
    reduction = site.choice("reduction", *_REDUCTIONS, "sub", default="none")
    updates = site.tensor(2)
    if reduction == "sub":
        reduction, updates = "sum", site.insert("neg", {"x": updates})
    given = {"input": site.tensor(0), "indices": site.tensor(1), "updates": updates}
    return site.emit("scatter_nd", given, reduction=_REDUCTIONS[reduction])


@everywhere("ScatterUpdate")
def _scatter_update(site: Site) -> Value:
    """Put slices at indices along an axis."""
    x, indices, updates = (site.tensor(i) for i in range(3))
    axis = site.axis(site.integers(3)[0])
    rank, count = len(x.type.shape), len(indices.type.shape)
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved = site.transposed(x, order)
    back = [*range(axis, axis + count), *range(axis), *range(axis + count, rank - 1 + count)]
    changes = site.transposed(updates, back)
    places = site.insert("unsqueeze", {"input": indices}, axes=(count,))
    given = {"input": moved, "indices": places, "updates": changes}
    if axis == 0:
        return site.emit("scatter_nd", given, reduction="none")
    found = site.insert("scatter_nd", given, reduction="none")
    return site.emit("transpose", {"input": found}, axes=tuple(int(i) for i in np.argsort(order)))


@opsets("SliceScatter")
def _slice_scatter(site: Site) -> Value:
    """Put updates where `Slice` would take items from."""
    start, stop, step = (site.integers(i) for i in (2, 3, 4))
    shape = site.known_shape()
    axes = [site.axis(a) for a in site.integers(5)] if site.has(5) else list(range(len(start)))
    site.spend(sum(shape[a] for a in axes))
    places = [
        np.arange(shape[a])[slice(b, e, s)]
        for a, b, e, s in zip(axes, start, stop, step, strict=True)
    ]
    return _placed(site, site.tensor(0), site.tensor(1), list(zip(axes, places, strict=True)))


def _placed(
    site: Site, x: Value, updates: Value, places: Sequence[tuple[int, np.ndarray]]
) -> Value:
    """Put updates at places along axes, one axis after the other."""
    (axis, at), *rest = places
    indices = Constant(at, "i64", derived=True)
    if rest:
        part = site.insert("gather", {"input": x, "indices": indices}, axis=axis)
        updates = _placed(site, part, updates, rest)
    shape = [1] * len(x.type.shape)
    shape[axis] = len(at)
    along = site.insert(
        "broadcast",
        {"input": Constant(at.reshape(shape), "i64", derived=True)},
        shape=updates.type.shape,
    )
    given = {"input": x, "indices": along, "updates": updates}
    return site.emit("scatter_elements", given, axis=axis, reduction="none")
