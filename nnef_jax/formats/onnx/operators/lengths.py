"""Results with as many items as values say: of the largest length there can be, padded."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.operators.attributes import flag
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


def _noted(site: NodeSite, x: Value, axis: int, items: Value) -> Value:
    """Note the number of items, [1], that a tensor has along an axis before padding."""
    site.graph.counts[x] = Count(axis, site.whole(items))
    return x


def _places(site: NodeSite, x: Value) -> Value:
    """Return the places of items that are not 0, [axes,items], and note how many there are.

    A tensor always has the same places: results at them may be joined.
    """
    if x in site.graph.places:
        return site.graph.places[x]
    site.known_shape(x)
    places = site.whole(site.step.non_zero(x))
    is_item = x if site.dtype_of(x) == "bool" else site.step.ne(x, 0)
    total = site.total(site.whole(is_item), range(site.rank(x)))
    site.graph.places[x] = _noted(site, places, 1, site.reshaped(total, (1,)))
    return places


@operator("NonZero")
def _non_zero(site: NodeSite, x: Any) -> Any:
    """Return the places of items that are not 0, an axis of the input in each row."""
    if isinstance(x, Constant):
        return site.constant(np.argwhere(x.array).T, "int64")
    if not site.rank():
        raise InvalidOperation("its input must have axes")
    return _places(site, x)


def _along(site: NodeSite, x: Any) -> tuple[Any, int]:
    """Return the input and the axis along which items lie, without one the flat input."""
    if not site.has_attribute("axis"):
        x = site.step.reshape(x, shape=(-1,), axis_start=0, axis_count=-1)
    return x, site.axis_of("axis", 0, site.rank(x))


@operator("Compress")
def _compress(site: NodeSite, x: Any, condition: Any) -> Any:
    """Return the slices along an axis where a condition holds."""
    x, axis = _along(site, x)
    if isinstance(condition, Constant):
        indices: Any = site.constant(np.flatnonzero(condition.array), "int64")
    else:
        indices = site.squeezed(_places(site, condition), 0)
    return site.last.gather(x, indices, axis=axis)


@operator("Unique")
def _unique(site: NodeSite, x: Any, *, sorts: bool = flag("sorted", True)) -> tuple[Any, ...]:
    """Return the distinct items, with first places, inverse indices and counts."""
    x, axis = _along(site, x)
    x = site.tensor(x)
    site.known_shape(x)
    items, *numbers, count = site.last.unique(x, axis=axis, sorts=sorts)
    first, inverse, often = map(site.whole, numbers)
    first, often = (_noted(site, part, 0, count) for part in (first, often))
    return _noted(site, items, axis, count), first, inverse, often
