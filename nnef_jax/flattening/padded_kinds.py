"""Follows a padded axis through operations, by kind: its place in the results, or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowering.extents import UNKNOWN, volume
from lowering.graph import Value
from lowering.ops import BY_ITEM
from nnef_jax.flattening.counts import Count, PaddedOperation
from nnef_jax.flattening.emission import Given

_FAR = 2**31 - 1  # an index beyond any axis


def followed(step: PaddedOperation) -> Count | None:
    """Return where the axis is in the results, None if it ends; raise where padding is read."""
    follow = _FOLLOWED.get(step.kind)
    differ = any(count.items is not step.first.items for count in step.counts.values())
    if follow is None or (differ and follow is not _gathered):
        raise step.refusal()
    where = follow(step)
    return Count(where, step.first.items) if isinstance(where, int) else where


def _items(step: PaddedOperation) -> int:
    """Follow an axis through an operation item by item; shapes are matched from the first axis."""
    axes = {count.axis for count in step.counts.values()}
    axis = axes.pop()
    for name, x in step.operands.items():
        if isinstance(x, Value) and name not in step.counts:
            axes |= {-1} if x.type.shape[axis : axis + 1] not in ((), (1,)) else set()
    if axes:
        raise step.refusal()
    return axis


def _moved(step: PaddedOperation) -> int | Count:
    """Follow an axis through an operation that moves items."""
    name, count = next(iter(step.counts.items()))
    axis, shape, given = count.axis, step.shape(name), step.attributes
    found: int | Count | None = axis
    match step.kind:
        case "transpose":
            axes = tuple(given["axes"])
            found = axes.index(axis) if axis < len(axes) else axis
        case "squeeze":
            gone = given["axes"]
            found = None if axis in gone else axis - sum(a < axis for a in gone)
        case "unsqueeze":
            rank = len(shape) + len(given["axes"])
            found = [i for i in range(rank) if i not in given["axes"]][axis]
        case "reshape":
            found = _reshaped(shape, axis, given)
        case "broadcast":
            wanted, behind = given["shape"], len(shape) - axis
            found = axis + max(len(wanted) - len(shape), 0)
            if behind <= len(wanted) and wanted[-behind] not in (1, shape[axis]):
                found = None
        case "slice":
            found = _sliced(step, count, shape[axis])
        case "tile":
            found = axis if given["repeats"][axis] == 1 else None
        case "pad":
            found = axis if tuple(given["padding"][axis]) == (0, 0) else None
        case _:  # split
            found = axis if given["axis"] != axis else None
    if found is None:
        raise step.refusal()
    return found


def _reshaped(shape: Sequence[int], axis: int, given: Given) -> int | None:
    """Return which axis has what one had: there are as many items before it, and along it."""
    start, count = given["axis_start"], given["axis_count"]
    end = len(shape) if count == -1 else start + count
    wanted = [shape[start + i] if n == 0 else n for i, n in enumerate(given["shape"])]
    if -1 in wanted:
        known = volume(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = volume(shape[start:end]) // max(known, 1)
    wanted = [*shape[:start], *wanted, *shape[end:]]
    places = (i for i, n in enumerate(wanted) if n == shape[axis])
    return next((i for i in places if volume(wanted[:i]) == volume(shape[:axis])), None)


def _sliced(step: PaddedOperation, count: Count, extent: int) -> int | Count | None:
    axes = list(step.attributes["axes"])
    if count.axis not in axes:
        return count.axis
    i = axes.index(count.axis)
    begin, end, stride = (step.attributes[n][i] for n in ("begin", "end", "stride"))
    if (begin, stride) != (0, 1):
        return None
    if end in (0, UNKNOWN) or end >= extent:
        return count.axis
    return step.at_most(count.axis, count, end) if end > 0 else None


def _gathered(step: PaddedOperation) -> int | Count | None:
    """Follow an axis of indices to what they name, or one of what they choose from."""
    axis, counts = step.attributes["axis"], step.counts
    source, indices = counts.get("input"), counts.get("indices")
    if indices and (source is None or source.axis == axis):
        return Count(axis + indices.axis, indices.items)
    if source is None or indices:
        raise step.refusal()
    if source.axis != axis:
        return source.axis + (0 if source.axis < axis else len(step.shape("indices")) - 1)
    known = _constant(step, step.operands["indices"])
    if known is None:
        return None  # places that the network computes are those of items
    if len(known.shape) != 1 or not np.array_equal(known, np.arange(len(known))):
        raise step.refusal()
    return step.at_most(axis, source, len(known))


def _constant(step: PaddedOperation, x: Value) -> Any:
    """Return the items of a tensor that stands in the graph, None if it does not."""
    for operation in step.graph.builder.operations:
        if operation.kind == "constant" and x in operation.results:
            given = dict(operation.attributes)
            return np.broadcast_to(
                np.array(given["value"]).reshape(-1), (volume(x.type.shape),)
            ).reshape(x.type.shape)
    return None


def _gathered_at(step: PaddedOperation) -> int:
    """Follow an axis of coordinates, or of indices of single items, to what they name."""
    count = step.only("indices")
    last = len(step.shape("indices")) - (1 if step.kind == "gather_nd" else 0)
    if count.axis >= last or step.attributes.get("batch_dims", 0):
        raise step.refusal()
    return count.axis


def _scattered(step: PaddedOperation) -> None:
    """Write items alone: padding goes beyond the axis, where nothing is written."""
    counts = {**step.counts}
    count = counts.pop("indices", None)
    updates = counts.pop("updates", count)
    last = len(step.shape("indices")) - (1 if step.kind == "scatter_nd" else 0)
    if count is None or updates is None or counts:
        raise step.refusal()
    if count.axis >= last or updates.axis != count.axis:
        raise step.refusal()
    step.mask("indices", _FAR)


def _product(step: PaddedOperation) -> int:
    """Follow rows of the left matrix to the rows of the product."""
    left = "A" if step.kind == "matmul" else "input"
    count, rank = step.only(left), len(step.shape(left))
    rows = rank - 1 if step.attributes.get("transposeA") else rank - 2
    if rank < 2 or count.axis != rows:
        raise step.refusal()
    return rank - 2


def _reduced(step: PaddedOperation) -> int | None:
    """Follow an axis that stays; one that is reduced has items that change nothing behind."""
    count, axes = step.only("input"), step.attributes["axes"]
    if count.axis not in axes:
        return count.axis
    if step.attributes.get("normalize") or step.attributes.get("last"):
        raise step.refusal()
    least, most = step.ends("input")
    neutral = {
        "sum_reduce": 0, "mean_reduce": 0, "any_reduce": 0, "product_reduce": 1, "all_reduce": 1,
        "max_reduce": least, "argmax_reduce": least, "min_reduce": most, "argmin_reduce": most,
    }  # fmt: skip
    step.mask("input", neutral[step.kind])
    if step.kind == "mean_reduce":  # over all that is there, padding too
        x = step.operands["input"]
        share = step.insert("cast", {"input": count.items}, dtype=x.type.dtype)
        constant = {"shape": (1,), "value": (float(x.type.shape[count.axis]),)}
        extent = step.insert("constant", {}, **constant, dtype=x.type.dtype)
        factor = step.spread(step.insert("div", {"x": extent, "y": share}), len(x.type.shape))
        step.operands["input"] = step.insert("mul", {"x": x, "y": factor})
    return None


def _beside(step: PaddedOperation) -> int:
    """Follow an axis through an operation that joins items of other ones."""
    count, given = step.only("x"), step.attributes
    if count.axis in given.get("axes", (given.get("axis"),)):
        raise step.refusal()
    return count.axis


def _best(step: PaddedOperation) -> int | Count:
    """Follow an axis through a choice, which takes what is behind the items last of all."""
    count, axis = step.only("input"), step.attributes["axis"]
    if axis != count.axis:
        return count.axis
    least, most = step.ends("input")
    step.mask("input", least if step.attributes["largest"] else most)
    return step.at_most(axis, count, step.attributes["k"])


def _joined(step: PaddedOperation) -> int:
    axes = {count.axis for count in step.counts.values()}
    given = step.attributes["axis"]
    if len(step.counts) < len(step.operands["values"]) or len(axes) > 1 or given in axes:
        raise step.refusal()
    return axes.pop()


def _regions(step: PaddedOperation) -> int:
    """Follow regions of images to what is in them."""
    if step.only("rois", "batch_index").axis or step.counts["batch_index"].axis:
        raise step.refusal()
    return 0


def _chosen(step: PaddedOperation) -> None:
    """Have nothing behind the items of what is searched for items."""
    step.only("input")
    step.mask("input", 0)


def _batched(step: PaddedOperation) -> int:
    """Follow the batch through layers that compute each item of it alone."""
    if any(count.axis or name in ("filter", "bias") for name, count in step.counts.items()):
        raise step.refusal()
    return 0


_FOLLOWED: dict[str, Callable[[PaddedOperation], int | Count | None]] = {
    **dict.fromkeys((*BY_ITEM, "bitcast"), _items),
    **dict.fromkeys((
        "broadcast", "pad", "reshape", "slice", "split", "squeeze", "tile", "transpose",
        "unsqueeze",
    ), _moved),
    **dict.fromkeys((
        "all_reduce", "any_reduce", "argmax_reduce", "argmin_reduce", "max_reduce", "mean_reduce",
        "min_reduce", "product_reduce", "sum_reduce",
    ), _reduced),
    **dict.fromkeys(("gather_elements", "gather_nd"), _gathered_at),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    **dict.fromkeys(("linear", "matmul"), _product),
    **dict.fromkeys(("log_softmax", "softmax"), _beside),
    **dict.fromkeys(("avg_pool", "conv", "max_pool"), _batched),
    **dict.fromkeys(("max_roi_pool", "roi_align"), _regions),
    "gather": _gathered, "concat": _joined, "topk": _best, "non_zero": _chosen,
}  # fmt: skip
