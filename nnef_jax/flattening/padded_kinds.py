"""Rules to follow a padded axis through the operations that work along it or index it.

A rule is chosen by the kind of the operation. Operations of all other kinds are traced, and
`batch_axes` follows the axis through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from lowering.extents import UNKNOWN, volume
from lowering.graph import Value
from nnef_jax.flattening.counts import Count, PaddedOperation

TRACE_RULE: Final = "table"  # says that `batch_axes` must follow the axis
ResultPadding = Count | Literal["table"] | None
_FAR = 2**31 - 1  # an index that is beyond every axis


def followed(step: PaddedOperation) -> ResultPadding:
    """Return the `Count` of the results of an operation that reads padded tensors.

    Return None if the results are not padded, and `TRACE_RULE` if the operation's rule must be
    traced to find out. Operands in `step` may be replaced, for example by operands with other
    padding.

    Raises InvalidOperation if the operation would take padding for items.
    """
    follow = _FOLLOWED.get(step.kind)
    counts_differ = any(count.items is not step.first_count.items for count in step.counts.values())
    if counts_differ and follow is not _gathered:
        raise step.refusal()
    return follow(step) if follow else TRACE_RULE


def _sliced(step: PaddedOperation) -> ResultPadding:
    """Return the `Count` of the result of a slice of a padded tensor.

    Along the padded axis, the slice must begin with the first item and have stride 1.
    """
    count = step.require_only("input")
    axes = list(step.attributes["axes"])
    if count.axis not in axes:
        return TRACE_RULE
    i = axes.index(count.axis)
    extent = step.shape("input")[count.axis]
    begin, end, stride = (step.attributes[n][i] for n in ("begin", "end", "stride"))
    if (begin, stride) != (0, 1):
        raise step.refusal()
    if end in (0, UNKNOWN) or end >= extent:
        return count
    if end < 0:
        raise step.refusal()
    return step.at_most(count.axis, count, end)


def _gathered(step: PaddedOperation) -> ResultPadding:
    """Return the `Count` of the result of a gather with padded indices or a padded input."""
    axis = step.attributes["axis"]
    source = step.counts.get("input")
    indices = step.counts.get("indices")
    if indices and (source is None or source.axis == axis):
        return Count(axis + indices.axis, indices.items)
    if source is None or indices:
        raise step.refusal()
    if source.axis != axis:
        return TRACE_RULE
    constant = _constant(step, step.operands["indices"])
    if constant is None:
        return None  # computed indices refer to items, never to padding
    takes_first_items = constant.ndim == 1 and np.array_equal(constant, np.arange(len(constant)))
    if not takes_first_items:
        raise step.refusal()
    return step.at_most(axis, source, len(constant))


def _constant(step: PaddedOperation, x: Value) -> Any:
    """Return the items of `x` if it is a constant of the graph, or None if it is computed."""
    for operation in step.graph.builder.operations:
        if operation.kind == "constant" and x in operation.results:
            items = np.array(dict(operation.attributes)["value"]).reshape(-1)
            return np.broadcast_to(items, (volume(x.type.shape),)).reshape(x.type.shape)
    return None


def _gathered_at(step: PaddedOperation) -> Count:
    """Return the `Count` of the result of a gather with padded indices.

    Along the padded axis, the result has an item for each index.
    """
    count = step.require_only("indices")
    if _is_within_index(step, count.axis) or step.attributes.get("batch_dims", 0):
        raise step.refusal()
    return count


def _is_within_index(step: PaddedOperation, axis: int) -> bool:
    """Tell whether the numbers of an index lie along `axis` of the indices.

    This is so for the last axis of the indices of gather_nd and scatter_nd.
    """
    is_spread = step.kind in ("gather_nd", "scatter_nd")
    return is_spread and axis == len(step.shape("indices")) - 1


def _scattered(step: PaddedOperation) -> None:
    """Replace the padding of the indices of a scatter by an index at which nothing is written."""
    other_counts = {**step.counts}
    indices = other_counts.pop("indices", None)
    updates = other_counts.pop("updates", indices)
    if indices is None or updates is None or other_counts:
        raise step.refusal()
    if _is_within_index(step, indices.axis) or updates.axis != indices.axis:
        raise step.refusal()
    step.mask("indices", _FAR)


def _reduced(step: PaddedOperation) -> ResultPadding:
    """Set the padding along a reduced axis to a number that does not change the result.

    The number is 0 for sums, for example, and the smallest number of the dtype for maxima.
    """
    count = step.require_only("input")
    if count.axis not in step.attributes["axes"]:
        return TRACE_RULE
    if step.attributes.get("normalize") or step.attributes.get("last"):
        raise step.refusal()
    least, most = step.ends("input")
    neutral = {
        "sum_reduce": 0, "mean_reduce": 0, "any_reduce": 0, "product_reduce": 1, "all_reduce": 1,
        "max_reduce": least, "argmax_reduce": least, "min_reduce": most, "argmin_reduce": most,
    }  # fmt: skip
    step.mask("input", neutral[step.kind])
    # The mean divides by the padded extent, so the items are multiplied by extent / count first.
    if step.kind == "mean_reduce":
        x = step.operands["input"]
        items = step.insert("cast", {"input": count.items}, dtype=x.type.dtype)
        constant = {"shape": (1,), "value": (float(x.type.shape[count.axis]),)}
        extent = step.insert("constant", {}, **constant, dtype=x.type.dtype)
        factor = step.spread(step.insert("div", {"x": extent, "y": items}), len(x.type.shape))
        step.operands["input"] = step.insert("mul", {"x": x, "y": factor})
    return None


def _best(step: PaddedOperation) -> ResultPadding:
    """Set the padding along the axis of a top-k operation to the number that is chosen last.

    Return the `Count` of the result.
    """
    count = step.require_only("input")
    if count.axis != step.attributes["axis"]:
        return TRACE_RULE
    least, most = step.ends("input")
    chosen_last = least if step.attributes["largest"] else most
    step.mask("input", chosen_last)
    return step.at_most(count.axis, count, step.attributes["k"])


def _regions(step: PaddedOperation) -> Count:
    """Return the `Count` of the result of a pool of padded regions.

    Along the padded axis, the result has an item for each region.
    """
    if step.require_only("rois", "batch_index").axis or step.counts["batch_index"].axis:
        raise step.refusal()
    return step.first_count


def _nonzero(step: PaddedOperation) -> None:
    """Set the padding to 0 in the tensor whose nonzero items an operation searches."""
    step.require_only("input")
    step.mask("input", 0)


def _adapted(step: PaddedOperation) -> ResultPadding:
    """Raise InvalidOperation if an adaptive pool has a padded spatial axis.

    The windows of such a pool cover the axis with its padding.
    """
    if step.first_count.axis > 1:
        raise step.refusal()
    return TRACE_RULE


def _entered(step: PaddedOperation) -> ResultPadding:
    """Raise InvalidOperation, because the body of the operation is built for the padded extent."""
    raise step.refusal()


_FOLLOWED: dict[str, Callable[[PaddedOperation], ResultPadding]] = {
    **dict.fromkeys((
        "all_reduce", "any_reduce", "argmax_reduce", "argmin_reduce", "max_reduce", "mean_reduce",
        "min_reduce", "product_reduce", "sum_reduce",
    ), _reduced),
    **dict.fromkeys(("gather_elements", "gather_nd"), _gathered_at),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scattered),
    **dict.fromkeys(("max_roi_pool", "roi_align"), _regions),
    **dict.fromkeys(("adaptive_avg_pool", "adaptive_max_pool"), _adapted),
    **dict.fromkeys(("branch", "loop", "scan"), _entered),
    "gather": _gathered, "non_zero": _nonzero, "slice": _sliced, "topk": _best,
}  # fmt: skip
