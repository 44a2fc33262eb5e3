"""Meanings of NonZero, Compress and Unique, whose results have a computed number of items.

The results are padded to the largest possible number of items.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.counts import Count
from nnef_jax.flattening.operators.attributes import flag
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


def _noted(site: NodeSite, x: Value, axis: int, items: Value) -> Value:
    """Note the number of items along the padded axis of `x`, and return `x`.

    `items` is the number, as a tensor of shape (1,). The items after them are padding.
    """
    site.graph.counts[x] = Count(axis, site.as_integer(items))
    return x


def _nonzero_indices(site: NodeSite, x: Value) -> Value:
    """Return the indices of nonzero items of `x`, of shape (axes, items), and note their number.

    The indices are computed only once for each tensor. Therefore all tensors that are gathered at
    these indices share one number of items.
    """
    if x in site.graph.nonzero_indices:
        return site.graph.nonzero_indices[x]
    site.known_shape(x)
    indices = site.as_integer(site.step.non_zero(x))
    is_item = x if site.dtype_of(x) == "bool" else site.step.ne(x, 0)
    total = site.total(site.as_integer(is_item), range(site.rank(x)))
    site.graph.nonzero_indices[x] = _noted(site, indices, 1, site.reshaped(total, (1,)))
    return indices


@operator("NonZero")
def _non_zero(site: NodeSite, x: Tensor) -> Any:
    """Return the indices of nonzero items. The result has a row for each axis of the input."""
    if isinstance(x, Constant):
        return site.constant(np.argwhere(x.array).T, "int64")
    if not site.rank():
        raise InvalidOperation("its input must have axes")
    return _nonzero_indices(site, x)


def _along(site: NodeSite, x: Tensor) -> tuple[Any, int]:
    """Return `x` and the number of the axis that the attribute `axis` names.

    If the node does not have the attribute, return `x` reshaped to a vector, and 0.
    """
    if not site.has_attribute("axis"):
        x = site.step.reshape(x, shape=(-1,), axis_start=0, axis_count=-1)
    return x, site.axis_of("axis", 0, site.rank(x))


@operator("Compress")
def _compress(site: NodeSite, x: Tensor, condition: Tensor) -> Any:
    """Select the slices of `x` along an axis for which `condition` is true.

    `condition` has an item for each slice.
    """
    x, axis = _along(site, x)
    if isinstance(condition, Constant):
        indices: Any = site.constant(np.flatnonzero(condition.array), "int64")
    else:
        indices = site.squeezed(_nonzero_indices(site, condition), 0)
    return site.last.gather(x, indices, axis=axis)


@operator("Unique")
def _unique(site: NodeSite, x: Tensor, *, sorts: bool = flag("sorted", True)) -> tuple[Any, ...]:
    """Find the distinct items of `x`, and return four tensors.

    They are the distinct items, the index of the first occurrence of each distinct item, the index
    of the distinct item for each item of `x`, and the number of occurrences of each distinct item.
    If `sorts`, the distinct items are sorted.
    """
    x, axis = _along(site, x)
    x = site.tensor(x)
    site.known_shape(x)
    items, *numbers, count = site.last.unique(x, axis=axis, sorts=sorts)
    first, inverse, frequency = map(site.as_integer, numbers)
    first = _noted(site, first, 0, count)
    frequency = _noted(site, frequency, 0, count)
    return _noted(site, items, axis, count), first, inverse, frequency
