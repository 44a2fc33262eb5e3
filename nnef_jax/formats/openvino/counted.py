"""Tensors with as many items along an axis as values say: padded to the most there can be.

The axis is followed from layer to layer. One that would take padding for items raises. What is
behind the items is -1 in whole numbers and NaN in real ones at outputs of the network, and anything
inside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import volume
from lowering.graph import Value, is_float, is_integer
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.folding import evaluated
from nnef_jax.formats.openvino.layer_graph import Count
from nnef_jax.formats.openvino.layer_site import LayerSite, derived, ends_of
from nnef_jax.formats.openvino.layers import Meaning
from nnef_jax.formats.openvino.operations import FUNCTIONS, PAIRS

Counts = Mapping[int, Count]  # of a layer's inputs
_FAR = 2**31 - 1  # an index beyond any axis


def followed(site: LayerSite, meaning: Meaning) -> Any:
    """Return a layer's results, and note which of their axes are counted."""
    known = site.graph.counts
    counts = {
        i: known[x]
        for i, x in enumerate(site.operands if known else ())
        if isinstance(x, Value) and x in known
    }
    if not counts:
        return meaning(site)
    count = next(iter(counts.values()))
    if site.layer.kind in ("shapeof", "shape"):
        return _shape(site, count)
    follow = _FOLLOWED.get(site.layer.kind)
    differ = any(other.items is not count.items for other in counts.values())
    if follow is None or (differ and follow is not _gathered):
        _refuse(counts)
    where = follow(site, counts)
    results = meaning(site)
    if where is not None:
        found = where if isinstance(where, Count) else Count(where, count.items)
        known.update(
            dict.fromkeys(results if isinstance(results, list | tuple) else [results], found)
        )
    return results


def ended(site: LayerSite, x: Value) -> Value:
    """Return an output of the network, whose padding can be told from its items."""
    count = site.graph.counts.get(x)
    if count is None or count.marked:
        return x
    dtype = x.type.dtype
    signed = is_integer(dtype) and not dtype.startswith("u")
    return _masked(site, x, count, np.nan if is_float(dtype) else -1 if signed else 0)


def _require(is_followed: bool, counts: Counts) -> None:
    if not is_followed:
        _refuse(counts)


def _refuse(counts: Counts) -> NoReturn:
    """Raise InvalidOperation: a layer would take padding for items."""
    i, count = next(iter(counts.items()))
    raise InvalidOperation(
        f"axis {count.axis} of input {i} has as many items as values say, and is padded: the layer "
        "would take padding for items",
        "cut the network before it",
    )


def _masked(site: LayerSite, x: Value, count: Count, padding: Any) -> Value:
    rank = len(x.type.shape)
    places = site.places(site.known_shape(x)[count.axis], count.axis, rank)
    items = site.reshaped(count.items, (1,) * rank)
    dtype = x.type.dtype
    padding = bool(padding) if dtype == "bool" else (float if is_float(dtype) else int)(padding)
    other = site.step.constant(shape=(1,) * rank, value=(padding,), dtype=dtype)
    return site.step.select(site.step.lt(places, items), x, other)


def _replace(site: LayerSite, i: int, x: Value) -> None:
    site.operands = [x if k == i else other for k, other in enumerate(site.operands)]


def _shape(site: LayerSite, count: Count) -> Value:
    """Return the shape that the tensor has without its padding, which the network computes."""
    shape = site.known_shape()
    parts: list[Any] = [
        count.items if i == count.axis else derived(np.array([n])) for i, n in enumerate(shape)
    ]
    return parts[0] if len(parts) == 1 else site.last.concat(parts, axis=0)


# What layers do to the axis: each returns where it is in the results, None if it ends.


def _items(site: LayerSite, counts: Counts) -> int:
    """Follow an axis through a layer that computes item by item, which broadcasts as numpy."""
    rank = max(len(site.shape(i)) for i in range(len(site.operands)) if site.has(i))
    places = {count.axis + rank - len(site.shape(i)) for i, count in counts.items()}
    for i in range(len(site.operands)):
        if site.has(i) and i not in counts:
            shape = (1,) * (rank - len(site.shape(i))) + tuple(site.shape(i))
            _require(all(shape[place] == 1 for place in places), counts)
    _require(len(places) == 1, counts)
    return places.pop()


def _moved(site: LayerSite, counts: Counts) -> int | Count:
    """Follow an axis through a layer that moves items: numbers along it show where it goes.

    If the first ones alone are left, there are at most so many items.
    """
    shape, others = site.known_shape(), site.operands[1:]
    known = [x for x in others if isinstance(x, Constant)]
    _require(set(counts) == {0} and len(known) == len(others) - others.count(None), counts)
    axis = counts[0].axis
    site.spend(volume(shape) // 4)
    numbers = np.arange(shape[axis], dtype=np.int32).reshape([-1] + [1] * (len(shape) - axis - 1))
    whole = np.broadcast_to(numbers, shape)
    found = evaluated(site, [whole, *(x.array for x in known)])
    places = {_along(part, shape[axis]) for part in found or [whole[..., :0]]}
    place = places.pop()
    if places or place is None:
        _refuse(counts)
    left = (found or [whole])[0].shape[place]
    return place if left == shape[axis] else _at_most(site, place, counts[0], left)


def _at_most(site: LayerSite, axis: int, count: Count, most: int) -> Count:
    dtype = count.items.type.dtype
    limit = site.step.constant(shape=(1,), value=(most,), dtype=dtype)
    return Count(axis, site.step.min(count.items, limit))


def _along(numbers: np.ndarray, count: int) -> int | None:
    """Return the axis along which there are the numbers from 0 on, if need be not up to a count."""
    for least in (count, 1):
        for axis, extent in enumerate(numbers.shape):
            wanted = np.arange(extent).reshape([-1] + [1] * (numbers.ndim - axis - 1))
            if least <= extent <= count and np.array_equal(
                numbers, np.broadcast_to(wanted, numbers.shape)
            ):
                return axis
    return None


def _gathered(site: LayerSite, counts: Counts) -> int | Count | None:
    if isinstance(site.operand(1), Constant):
        return _moved(site, counts)
    axis = site.axis(site.integers(2)[0])
    _require(not site.int("batch_dims", 0), counts)
    if 1 in counts and (0 not in counts or counts[0].axis == axis):
        return Count(axis + counts[1].axis, counts[1].items)
    _require(set(counts) == {0}, counts)
    if counts[0].axis == axis:
        return None  # places that the network computes are those of items
    return counts[0].axis + (0 if counts[0].axis < axis else len(site.shape(1)) - 1)


def _gathered_at(site: LayerSite, counts: Counts) -> int:
    """Follow an axis of coordinates, or of indices of single items, to what they name."""
    last = len(site.shape(1)) - (1 if site.layer.kind == "gathernd" else 0)
    _require(set(counts) == {1} and not site.int("batch_dims", 0), counts)
    _require(counts[1].axis < last, counts)
    return counts[1].axis


def _scattered(site: LayerSite, counts: Counts) -> None:
    """Write items alone: padding goes beyond the axis, where nothing is written."""
    kind = site.layer.kind
    last = len(site.shape(1)) - (1 if kind == "scatterndupdate" else 0)
    _require({1} <= set(counts) <= {1, 2} and counts[1].axis < last, counts)
    place = counts[1].axis + (site.axis(site.integers(3)[0]) if kind == "scatterupdate" else 0)
    _require(2 not in counts or counts[2].axis == place, counts)
    _replace(site, 1, _masked(site, site.tensor(1), counts[1], _FAR))


def _product(site: LayerSite, counts: Counts) -> int:
    """Follow rows of the left matrix to the rows of the product."""
    left, right = len(site.shape(0)), len(site.shape(1))
    rows = left - 1 if site.flag("transpose_a") else left - 2
    _require(set(counts) == {0} and min(left, right) > 1 and counts[0].axis == rows, counts)
    return max(left, right) - 2


_LEAST, _MOST = -np.inf, np.inf
_NEUTRAL = {
    "reducesum": 0, "reducemean": 0, "reducel1": 0, "reducel2": 0, "reducesumsquare": 0,
    "reducelogsum": 0, "reduceprod": 1, "reducemax": _LEAST, "reducelogsumexp": _LEAST,
    "reducemin": _MOST, "reducelogicalor": 0, "reducelogicaland": 1,
}  # fmt: skip


def _reduced(site: LayerSite, counts: Counts) -> int | None:
    """Follow an axis that stays; one that is reduced has items that change nothing behind."""
    axes, axis = {site.axis(a) for a in site.integers(1)}, counts[0].axis
    if axis not in axes:
        return axis if site.flag("keep_dims") else axis - sum(a < axis for a in axes)
    x, neutral = site.tensor(0), cast("Any", _NEUTRAL[site.layer.kind])
    if not np.isfinite(neutral):
        neutral = ends_of(x.type.dtype)[neutral > 0]
    if site.layer.kind == "reducemean":  # over all that is there, padding too
        share = site.step.cast(counts[0].items, dtype=x.type.dtype)
        share = site.reshaped(share, (1,) * len(x.type.shape))
        x = site.step.div(site.step.mul(x, float(x.type.shape[axis])), share)
    _replace(site, 0, _masked(site, x, counts[0], neutral))
    return None


def _beside(site: LayerSite, counts: Counts) -> int:
    """Follow an axis through a layer that joins items of another one."""
    _require(set(counts) == {0} and site.axis_of("axis", 1) != counts[0].axis, counts)
    return counts[0].axis


def _best(site: LayerSite, counts: Counts) -> int | Count:
    """Follow an axis through TopK, which takes what is behind the items last of all."""
    axis, x = site.axis_of("axis"), site.tensor(0)
    if set(counts) != {0} or axis != counts[0].axis:
        return _beside(site, counts)
    _require(site.choice("sort", "value", "index", "none", default="value") != "index", counts)
    last = ends_of(x.type.dtype)[site.text("mode", "max") != "max"]
    _replace(site, 0, _masked(site, x, counts[0], last))
    return _at_most(site, axis, counts[0], site.integers(1)[0])


def _joined(site: LayerSite, counts: Counts) -> int:
    axes = {count.axis for count in counts.values()}
    _require(len(counts) == len(site.operands) and len(axes) == 1, counts)
    _require(site.axis_of("axis") not in axes, counts)
    return axes.pop()


_ITEMS = (
    *map(str.lower, (*FUNCTIONS, *PAIRS)), "clamp", "convert", "convertlike", "elu", "floormod",
    "gelu", "hsigmoid", "isfinite", "isinf", "logicalxor", "mish", "mod", "relu", "round", "select",
    "softsign", "squareddifference", "swish",
)  # fmt: skip
_MOVES = (
    "broadcast", "reshape", "slice", "split", "squeeze", "stridedslice", "tile", "transpose",
    "unsqueeze", "variadicsplit",
)  # fmt: skip
_FOLLOWED: dict[str, Callable[[LayerSite, Counts], int | Count | None]] = {
    **dict.fromkeys(_ITEMS, _items),
    **dict.fromkeys(_MOVES, _moved),
    **dict.fromkeys(_NEUTRAL, _reduced),
    **dict.fromkeys(("scatterndupdate", "scatterupdate", "scatterelementsupdate"), _scattered),
    "gather": _gathered, "gathernd": _gathered_at, "gatherelements": _gathered_at,
    "matmul": _product, "concat": _joined, "softmax": _beside, "logsoftmax": _beside,
    "topk": _best,
}  # fmt: skip
