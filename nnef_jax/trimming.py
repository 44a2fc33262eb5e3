"""`trim`: results whose lengths values decide, without what is behind their items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from nnef_jax.errors import InputError
from nnef_jax.options import numpy_of, require

# The name of a tensor [1] that says how long an output is along an axis; or of one with the places
# of items, [items,...] or [...,items], which are -1 behind them.
_LENGTH = re.compile(r"(.*)\.(length|places)(\d+)", re.DOTALL)


def length_name(output: str, axis: int, what: str = "length") -> str:
    """Return the name by which the length of an output along an axis is captured."""
    return f"{output}.{what}{axis}"


def is_length(name: str) -> bool:
    """Tell whether a name is that of a length."""
    return _LENGTH.fullmatch(name) is not None


def trim(results: ArrayLike | tuple[ArrayLike, ...], lengths: Mapping[str, ArrayLike]) -> Any:
    """Return the outputs of a call as numpy arrays, cut to as many items as values say there are.

    Such outputs, of `NonZero` and the like, have the shape of the most items there can be.

    Args:
        results: an array, or the named tuple of several outputs.
        lengths: what the same call captured by `capture=model.lengths`; other captures are passed
            over. Where both are of `jax.vmap` the result is a list, with an item of the batch each.

    Raises InputError for arrays that are traced, as within `jax.jit`, and for lengths that are not
    those of these outputs.

    >>> y, lengths = model(x, capture=model.lengths)
    >>> places = nnef_jax.trim(y, lengths)
    """
    require("lengths", lengths, Mapping, "what a call captured by capture=model.lengths")
    several = isinstance(results, tuple)
    outputs = results if isinstance(results, tuple) else (results,)
    arrays = [_array(x) for x in outputs]
    cuts: dict[int, tuple[int, Any]] = {}
    for name, captured in lengths.items():
        match = _LENGTH.fullmatch(name)
        if match is None:
            continue
        output, what, axis = match[1], match[2], int(match[3])
        counts = _array(captured)
        if what == "places":
            counts = (counts >= 0).any(-2 if axis else -1).sum(-1, keepdims=True)
        cuts[_position(results, output) if several else 0] = axis, counts[..., 0]
    batches = {counts.shape for _, counts in cuts.values()}
    batch = next(iter(batches), ())
    if len(batches) > 1 or any(x.shape[: len(batch)] != batch for x in arrays):
        raise InputError("the lengths are not those of these results, or of another batch")

    def cut(index: tuple[int, ...]) -> Any:
        if len(index) < len(batch):
            return [cut((*index, i)) for i in range(batch[len(index)])]
        items = [x[index] for x in arrays]
        for i, (axis, counts) in cuts.items():
            items[i] = items[i][(*[slice(None)] * axis, slice(int(counts[index])))]
        return type(results)(*items) if several else items[0]

    return cut(())


def _array(x: Any) -> Any:
    return numpy_of(x, InputError, "trim takes arrays with values, outside of jax.jit and the like")


def _position(results: Any, output: str) -> int:
    """Return the position of an output by its name."""
    try:
        value = results[output]
    except (KeyError, TypeError, IndexError):
        raise InputError(f"the results have no output '{output}', which lengths has") from None
    return next(i for i, x in enumerate(results) if x is value)
