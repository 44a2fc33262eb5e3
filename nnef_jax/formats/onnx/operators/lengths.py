"""Results with as many items as values say: of the largest length there can be, padded."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator


def noted(site: NodeSite, x: Value, axis: int, items: Value) -> Value:
    """Note the number of items, [1], that a tensor has along an axis before padding."""
    site.graph.counts[x] = Count(axis, site.cast(items, site.graph.builder.integer))
    return x


def _places(site: NodeSite, x: Value) -> Value:
    """Return the places of items that are not 0, [axes,items], and note how many there are.

    They are the same each time: what is computed with them may be joined.
    """
    if x in site.graph.places:
        return site.graph.places[x]
    site.known_shape(x)
    integer = site.graph.builder.integer
    found = site.cast(site.insert("non_zero", {"input": x}), integer)
    is_item = x
    if site.dtype_of(x) != "bool":
        is_item = site.insert("ne", {"x": x, "y": site.zero(x)})
    ones = site.cast(is_item, integer)
    axes = tuple(range(site.rank(x)))
    total = site.insert("sum_reduce", {"input": ones}, axes=axes, normalize=False)
    site.graph.places[x] = noted(site, found, 1, site.reshaped(total, (1,)))
    return found


@operator("NonZero")
def _non_zero(site: NodeSite) -> Any:
    """Return the places of items that are not 0, an axis of the input in each row."""
    x = site.operand(0)
    if isinstance(x, Constant):
        return site.constant(np.argwhere(x.array).T, "int64")
    if not site.rank():
        raise InvalidOperation("its input must have axes")
    return _places(site, x)


@operator("Compress")
def _compress(site: NodeSite) -> Any:
    """Return the slices along an axis where a condition holds, by default single items."""
    x, axis = site.operand(0), site.node.attributes.get("axis")
    if axis is None:
        x = site.insert("reshape", {"input": x}, shape=(-1,), axis_start=0, axis_count=-1)
    axis = site.axis(site.int("axis", 0), site.rank(x))
    condition = site.operand(1)
    if isinstance(condition, Constant):
        indices: Any = site.constant(np.flatnonzero(condition.array), "int64")
    else:
        indices = site.insert("squeeze", {"input": _places(site, condition)}, axes=(0,))
    return site.emit("gather", {"input": x, "indices": indices}, axis=axis)


@operator("Unique")
def _unique(site: NodeSite) -> tuple[Any, ...]:
    """Return the distinct items, with first places, inverse indices and counts."""
    x, axis = site.operand(0), site.node.attributes.get("axis")
    if axis is None:
        x = site.insert("reshape", {"input": x}, shape=(-1,), axis_start=0, axis_count=-1)
    axis = site.axis(site.int("axis", 0), site.rank(x))
    x = site.tensor(x)
    site.known_shape(x)
    sorts = site.flag("sorted", True)
    items, first, inverse, often, count = site.emit("unique", {"input": x}, axis=axis, sorts=sorts)
    first, inverse, often = (
        site.cast(found, site.graph.builder.integer) for found in (first, inverse, often)
    )
    return (
        noted(site, items, axis, count),
        noted(site, first, 0, count),
        inverse,
        noted(site, often, 0, count),
    )
