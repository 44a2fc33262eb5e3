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


def count_of_results(step: PaddedOperation) -> ResultPadding:
    """Return the `Count` of the results of an operation that reads padded tensors.

    Return None if the results are not padded. Return `TRACE_RULE` if only a trace of the
    operation's rule can show whether they are. The function may replace operands in `step`, for
    example by operands with other padding.

    Raises InvalidOperation if the operation would take padding for items.
    """
    follow = _FOLLOWED.get(step.kind)
    first_items = step.first_count.items
    counts_differ = any(count.items is not first_items for count in step.counts.values())
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
    position = axes.index(count.axis)
    begin = step.attributes["begin"][position]
    end = step.attributes["end"][position]
    stride = step.attributes["stride"][position]
    if begin != 0 or stride != 1:
        raise step.refusal()
    extent = step.shape("input")[count.axis]
    goes_to_end = end in (0, UNKNOWN) or end >= extent
    if goes_to_end:
        return count
    if end < 0:
        raise step.refusal()
    return step.at_most(count.axis, count, end)


def _gathered(step: PaddedOperation) -> ResultPadding:
    """Return the `Count` of the result of a gather with padded indices or a padded input."""
    axis = step.attributes["axis"]
    input_count = step.counts.get("input")
    index_count = step.counts.get("indices")
    if index_count:
        if input_count and input_count.axis != axis:
            raise step.refusal()
        return Count(axis + index_count.axis, index_count.items)
    if input_count is None:
        raise step.refusal()
    if input_count.axis != axis:
        return TRACE_RULE
    indices = _constant(step, step.operands["indices"])
    if indices is None:
        return None  # computed indices refer to items, never to padding
    takes_first_items = indices.ndim == 1 and np.array_equal(indices, np.arange(len(indices)))
    if not takes_first_items:
        raise step.refusal()
    return step.at_most(axis, input_count, len(indices))


def _constant(step: PaddedOperation, x: Value) -> Any:
    """Return the items of `x` if it is a constant of the graph, or None if it is computed."""
    for operation in step.graph.builder.operations:
        if operation.kind == "constant" and x in operation.results:
            attributes = dict(operation.attributes)
            items = np.array(attributes["value"]).reshape(-1)
            # A single item may stand for all items of the constant.
            all_items = np.broadcast_to(items, (volume(x.type.shape),))
            return all_items.reshape(x.type.shape)
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
    if step.kind not in ("gather_nd", "scatter_nd"):
        return False
    last_axis = len(step.shape("indices")) - 1
    return axis == last_axis


def _scattered(step: PaddedOperation) -> None:
    """Replace the padding of the indices of a scatter by an index at which nothing is written."""
    indices = step.counts.get("indices")
    if indices is None or not step.counts.keys() <= {"indices", "updates"}:
        raise step.refusal()
    updates = step.counts.get("updates", indices)
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
    least, greatest = step.ends("input")
    neutral_numbers = {
        "sum_reduce": 0, "mean_reduce": 0, "any_reduce": 0, "product_reduce": 1, "all_reduce": 1,
        "max_reduce": least, "argmax_reduce": least,
        "min_reduce": greatest, "argmin_reduce": greatest,
    }  # fmt: skip
    step.mask("input", neutral_numbers[step.kind])
    # The mean divides by the padded extent, so the items are multiplied by extent / count first.
    if step.kind == "mean_reduce":
        x = step.operands["input"]
        dtype = x.type.dtype
        item_count = step.insert("cast", {"input": count.items}, dtype=dtype)
        padded_extent = float(x.type.shape[count.axis])
        extent = step.insert("constant", {}, shape=(1,), value=(padded_extent,), dtype=dtype)
        factor = step.insert("div", {"x": extent, "y": item_count})
        factor = step.spread(factor, len(x.type.shape))
        step.operands["input"] = step.insert("mul", {"x": x, "y": factor})
    return None


def _top_k(step: PaddedOperation) -> ResultPadding:
    """Set the padding along the axis of a top-k operation to the number that it chooses last.

    Return the `Count` of the result.
    """
    count = step.require_only("input")
    if count.axis != step.attributes["axis"]:
        return TRACE_RULE
    least, greatest = step.ends("input")
    chosen_last = least if step.attributes["largest"] else greatest
    step.mask("input", chosen_last)
    return step.at_most(count.axis, count, step.attributes["k"])


def _regions(step: PaddedOperation) -> Count:
    """Return the `Count` of the result of a pool of padded regions.

    Along the padded axis, the result has an item for each region.
    """
    rois = step.require_only("rois", "batch_index")
    batch_index = step.counts["batch_index"]
    if rois.axis != 0 or batch_index.axis != 0:
        raise step.refusal()
    return step.first_count


def _nonzero(step: PaddedOperation) -> None:
    """Set the padding of the input to 0, because the operation searches for nonzero items."""
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
    "gather": _gathered, "non_zero": _nonzero, "slice": _sliced, "topk": _top_k,
}  # fmt: skip
