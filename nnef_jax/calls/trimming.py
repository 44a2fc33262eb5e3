"""The function `trim`, which cuts outputs of value-dependent length to their actual items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import ArrayLike, NDArray

from nnef_jax.errors import InputError
from nnef_jax.options import numpy_of, require

# The name of a tensor that tells the length of an output along an axis: OUTPUT.lengthAXIS or
# OUTPUT.placesAXIS. A "length" tensor has the shape [1] and holds the length. A "places" tensor
# holds the indices of the items, in the shape [items, ...] or [..., items], with -1 after the last
# item.
_LENGTH = re.compile(r"(.*)\.(length|places)(\d+)", re.DOTALL)


def length_name(output: str, axis: int, content: str = "length") -> str:
    """Return the name of the tensor that tells the length of an output along an axis.

    `content` is "length" if the tensor holds the length, or "places" if it holds indices of items.
    """
    return f"{output}.{content}{axis}"


def is_length(name: str) -> bool:
    """Tell whether a tensor with this name holds the length of an output."""
    return _LENGTH.fullmatch(name) is not None


def trim(results: ArrayLike | tuple[ArrayLike, ...], lengths: Mapping[str, ArrayLike]) -> Any:
    """Return the outputs of a call as numpy arrays, cut to their actual number of items.

    Operations such as `NonZero` have outputs of value-dependent length. In the result of a call
    such an output has the shape for the largest possible number of items.

    Args:
        results: an array, or the named tuple of several outputs.
        lengths: the captures of the same call with `capture=model.lengths`; other captures are
            ignored. If `results` and `lengths` have a batch axis from `jax.vmap`, `trim` returns a
            list with an element for each item of the batch.

    Raises InputError for traced arrays, as inside `jax.jit`, and for the length of an output
    that `results` does not have.

    >>> y, lengths = model(x, capture=model.lengths)
    >>> places = nnef_jax.trim(y, lengths)
    """
    require("lengths", lengths, Mapping, "the dict that a call returns with capture=model.lengths")
    is_tuple = isinstance(results, tuple)
    outputs = results if isinstance(results, tuple) else (results,)
    arrays = [_array(x) for x in outputs]
    cuts = _cuts(results, lengths)
    batch_shapes = {cut.item_counts.shape for cut in cuts}
    batch_shape = next(iter(batch_shapes), ())
    has_batch = all(x.shape[: len(batch_shape)] == batch_shape for x in arrays)
    if len(batch_shapes) > 1 or not has_batch:
        raise InputError("the lengths are from another call than the results")

    def trimmed(batch_indices: tuple[int, ...]) -> Any:
        """Return the trimmed outputs at these indices of the batch axes.

        If there are fewer indices than batch axes, return a list with an element for each index
        along the next batch axis.
        """
        if len(batch_indices) < len(batch_shape):
            extent = batch_shape[len(batch_indices)]
            return [trimmed((*batch_indices, i)) for i in range(extent)]
        outputs_of_item = [x[batch_indices] for x in arrays]
        for cut in cuts:
            axes_before = [slice(None)] * cut.axis
            actual_items = slice(int(cut.item_counts[batch_indices]))
            output = outputs_of_item[cut.output]
            outputs_of_item[cut.output] = output[*axes_before, actual_items]
        return type(results)(*outputs_of_item) if is_tuple else outputs_of_item[0]

    return trimmed(())


class _Cut(NamedTuple):
    """A cut of one output along one axis. `output` is the index of the output."""

    output: int
    axis: int
    item_counts: NDArray[Any]  # actual number of items along the axis, for each batch item


def _cuts(results: Any, lengths: Mapping[str, ArrayLike]) -> list[_Cut]:
    """Return the cuts of outputs to the captured lengths.

    `results` and `lengths` are the arguments of `trim`. Captures that are no lengths have no cut.
    """
    cuts: list[_Cut] = []
    for name, captured in lengths.items():
        match = _LENGTH.fullmatch(name)
        if match is None:
            continue
        output, content, axis_text = match.groups()
        axis = int(axis_text)
        length = _array(captured)
        if content == "places":
            # Each item has several indices, along the last axis in the shape [items, ...], and
            # along the axis before it in the shape [..., items]. An item exists if at least one of
            # its indices is not -1.
            index_axis = -1 if axis == 0 else -2
            exists = (length >= 0).any(index_axis)
            length = exists.sum(-1, keepdims=True)
        index = _index(results, output) if isinstance(results, tuple) else 0
        cuts.append(_Cut(index, axis, item_counts=length[..., 0]))
    return cuts


def _array(x: ArrayLike) -> NDArray[Any]:
    """Return a result of a call as a numpy array. Raises InputError for a traced array."""
    return numpy_of(x, InputError, "trim takes arrays with values, outside of jax.jit and the like")


def _index(results: Any, output: str) -> int:
    """Return the position of the output with this name. Raises InputError if there is none."""
    try:
        named_result = results[output]
    except (KeyError, TypeError, IndexError):
        message = f"lengths has output '{output}', which the results do not have"
        raise InputError(message) from None
    return next(index for index, result in enumerate(results) if result is named_result)
