"""The function `trim`, which cuts outputs of value-dependent length to their actual items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike, NDArray

from nnef_jax.errors import InputError
from nnef_jax.options import numpy_of, require

# The name of a tensor that tells the length of an output along an axis: OUTPUT.lengthAXIS or
# OUTPUT.placesAXIS. A "length" tensor has the shape [1] and holds the length. A "places" tensor
# holds the indices of the items, in the shape [items, ...] or [..., items], with -1 after the last
# item.
_LENGTH = re.compile(r"(.*)\.(length|places)(\d+)", re.DOTALL)


def length_name(output: str, axis: int, what: str = "length") -> str:
    """Return the name of the tensor to capture for the length of an output along an axis."""
    return f"{output}.{what}{axis}"


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

    Raises InputError for traced arrays, as inside `jax.jit`, and for lengths of other outputs.

    >>> y, lengths = model(x, capture=model.lengths)
    >>> places = nnef_jax.trim(y, lengths)
    """
    require("lengths", lengths, Mapping, "the dict that a call returns with capture=model.lengths")
    is_tuple = isinstance(results, tuple)
    outputs = results if isinstance(results, tuple) else (results,)
    arrays = [_array(x) for x in outputs]
    cuts: dict[int, tuple[int, Any]] = {}  # by index of the output: the axis, and the lengths
    for name, captured in lengths.items():
        match = _LENGTH.fullmatch(name)
        if match is None:
            continue
        output, what, axis_text = match.groups()
        axis = int(axis_text)
        counts = _array(captured)
        if what == "places":
            index_axis = -2 if axis else -1
            counts = (counts >= 0).any(index_axis).sum(-1, keepdims=True)
        index = _index(results, output) if is_tuple else 0
        cuts[index] = axis, counts[..., 0]
    batch_shapes = {counts.shape for _, counts in cuts.values()}
    batch_shape = next(iter(batch_shapes), ())
    has_batch = all(x.shape[: len(batch_shape)] == batch_shape for x in arrays)
    if len(batch_shapes) > 1 or not has_batch:
        raise InputError("the lengths are from another call than the results")

    def trimmed(item: tuple[int, ...]) -> Any:
        """Return the trimmed outputs of one item of the batch.

        `item` has the indices of the item along the batch axes. With fewer indices than batch axes,
        the result is a list over all items that begin with them.
        """
        if len(item) < len(batch_shape):
            extent = batch_shape[len(item)]
            return [trimmed((*item, i)) for i in range(extent)]
        outputs_of_item = [x[item] for x in arrays]
        for index, (axis, counts) in cuts.items():
            axes_before = [slice(None)] * axis
            actual_items = slice(int(counts[item]))
            outputs_of_item[index] = outputs_of_item[index][*axes_before, actual_items]
        return type(results)(*outputs_of_item) if is_tuple else outputs_of_item[0]

    return trimmed(())


def _array(x: ArrayLike) -> NDArray[Any]:
    return numpy_of(x, InputError, "trim takes arrays with values, outside of jax.jit and the like")


def _index(results: Any, output: str) -> int:
    """Return the position of the output with this name. Raises InputError if there is none."""
    try:
        value = results[output]
    except (KeyError, TypeError, IndexError):
        message = f"lengths has output '{output}', which the results do not have"
        raise InputError(message) from None
    return next(i for i, x in enumerate(results) if x is value)
