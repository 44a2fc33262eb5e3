"""What kinds do with a padded axis that they work along, or that chooses items.

Every other kind has its rule traced, and the table of axes asked: padding stays beside the items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from lowering.extents import UNKNOWN, volume
from lowering.graph import Value
from nnef_jax.flattening.counts import Count, PaddedOperation

TABLE: Final = "table"  # says that the table of axes is to be asked
Place = Count | Literal["table"] | None
_FAR = 2**31 - 1  # an index beyond any axis


def followed(step: PaddedOperation) -> Place:
    """Return where the axis is in the results, None if it ends; raise where padding is read."""
    follow = _FOLLOWED.get(step.kind)
    differ = any(count.items is not step.first.items for count in step.counts.values())
    if differ and follow is not _gathered:
        raise step.refusal()
    return follow(step) if follow else TABLE


def _sliced(step: PaddedOperation) -> Place:
    """Take the first items of an axis, no more than there are."""
    count, axes = step.only("input"), list(step.attributes["axes"])
    if count.axis not in axes:
        return TABLE
    i, extent = axes.index(count.axis), step.shape("input")[count.axis]
    begin, end, stride = (step.attributes[n][i] for n in ("begin", "end", "stride"))
    if (begin, stride) != (0, 1):
        raise step.refusal()
    if end in (0, UNKNOWN) or end >= extent:
        return count
    if end < 0:
        raise step.refusal()
    return step.at_most(count.axis, count, end)


def _gathered(step: PaddedOperation) -> Place:
    """Follow an axis of indices to what they name, or one of what they choose from."""
    axis, counts = step.attributes["axis"], step.counts
    source, indices = counts.get("input"), counts.get("indices")
    if indices and (source is None or source.axis == axis):
        return Count(axis + indices.axis, indices.items)
    if source is None or indices:
        raise step.refusal()
    if source.axis != axis:
        return TABLE
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


def _gathered_at(step: PaddedOperation) -> Count:
    """Follow an axis of coordinates, or of indices of single items, to what they name."""
    count = step.only("indices")
    last = len(step.shape("indices")) - (1 if step.kind == "gather_nd" else 0)
    if count.axis >= last or step.attributes.get("batch_dims", 0):
        raise step.refusal()
    return count


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


def _reduced(step: PaddedOperation) -> Place:
    """Pad a reduced axis with the neutral item of the reduction."""
    count, axes = step.only("input"), step.attributes["axes"]
    if count.axis not in axes:
        return TABLE
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


def _best(step: PaddedOperation) -> Place:
    """Choose along an axis, whose padding is chosen last of all."""
    count, axis = step.only("input"), step.attributes["axis"]
    if axis != count.axis:
        return TABLE
    least, most = step.ends("input")
    step.mask("input", least if step.attributes["largest"] else most)
    return step.at_most(axis, count, step.attributes["k"])


def _regions(step: PaddedOperation) -> Count:
    """Follow regions of images to what is in them."""
    if step.only("rois", "batch_index").axis or step.counts["batch_index"].axis:
        raise step.refusal()
    return step.first


def _chosen(step: PaddedOperation) -> None:
    """Put 0 behind the items of a tensor that is searched for others."""
    step.only("input")
    step.mask("input", 0)


def _adapted(step: PaddedOperation) -> Place:
    """Divide positions into as many windows as an attribute says, whatever their number."""
    if step.first.axis > 1:
        raise step.refusal()
    return TABLE


def _entered(step: PaddedOperation) -> Place:
    """Refuse an operation whose graph was made before, with the padding's extent as a number."""
    raise step.refusal()


_FOLLOWED: dict[str, Callable[[PaddedOperation], Place]] = {
    **dict.fromkeys((
        "all_reduce", "any_reduce", "argmax_reduce", "argmin_reduce", "max_reduce", "mean_reduce",
        "min_reduce", "product_reduce", "sum_reduce",
    ), _reduced),
    **dict.fromkeys(("gather_elements", "gather_nd"), _gathered_at),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    **dict.fromkeys(("max_roi_pool", "roi_align"), _regions),
    **dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool"), _adapted),
    **dict.fromkeys(("branch", "loop", "scan"), _entered),
    "gather": _gathered, "non_zero": _chosen, "slice": _sliced, "topk": _best,
}  # fmt: skip
