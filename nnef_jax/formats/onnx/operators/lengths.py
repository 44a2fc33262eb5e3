"""Functions for NonZero, Compress and Unique, whose results have a computed number of items.

The results are padded to the largest possible number of items.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import has_symbols
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import flag
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


def _nonzero_indices(site: NodeSite, x: Value) -> Value:
    """Return the indices of nonzero items of `x`, as a padded tensor of shape (axes, items).

    The indices are computed only once for each `x`. Therefore all tensors that are gathered at
    these indices have the same number of items.
    """
    if x in site.graph.nonzero_indices:
        return site.graph.nonzero_indices[x]
    padded_indices = site.as_integer(site.step.non_zero(x))
    is_nonzero = x if site.dtype_of(x) == "bool" else site.step.ne(x, 0)
    item_count = site.total(site.as_integer(is_nonzero), range(site.rank(x)))
    item_count = site.reshaped(site.as_integer(item_count), (1,))
    indices = site.listed(padded_indices, axis=1, count=item_count)
    site.graph.nonzero_indices[x] = indices
    return indices


@operator("NonZero")
def _non_zero(site: NodeSite, x: Tensor) -> Any:
    """Return the indices of nonzero items. The result has a row for each axis of the input."""
    if isinstance(x, Constant) and not has_symbols(x.array.tolist()):
        return site.constant(np.argwhere(x.array).T, "int64")
    if site.rank() == 0:
        raise InvalidOperation("its input must have axes")
    return _nonzero_indices(site, site.tensor(x))


def _with_axis(site: NodeSite, x: Tensor) -> tuple[Any, int]:
    """Return `x` and the axis in the attribute `axis`.

    If the node does not have the attribute, return `x` reshaped to a vector, and the axis 0.
    """
    if not site.has_attribute("axis"):
        x = site.step.reshape(x, shape=(-1,), axis_start=0, axis_count=-1)
    return x, site.axis_of("axis", 0, rank=site.rank(x))


@operator("Compress")
def _compress(site: NodeSite, x: Tensor, condition: Tensor) -> Any:
    """Select slices of `x` along an axis.

    `condition` is a vector with an item for each slice. The item is true if the slice is selected.
    If the node does not have the attribute `axis`, the slices are the items of `x`.
    """
    x, axis = _with_axis(site, x)
    if isinstance(condition, Constant):
        indices: Any = site.constant(np.flatnonzero(condition.array), "int64")
    else:
        indices = site.squeezed(_nonzero_indices(site, condition), 0)
    return site.last.gather(x, indices, axis=axis)


@operator("Unique")
def _unique(site: NodeSite, x: Tensor, *, sorts: bool = flag("sorted", True)) -> tuple[Any, ...]:
    """Return four tensors about the distinct items of `x`.

    For `x` with the items 7, 5, 7, the results are:

    - the distinct items: 5, 7 if `sorts`, otherwise 7, 5;
    - the index of the first occurrence of each distinct item: 1, 0 if `sorts`;
    - for each item of `x`, the index of its distinct item: 1, 0, 1 if `sorts`;
    - the number of occurrences of each distinct item: 1, 2 if `sorts`.
    """
    x, axis = _with_axis(site, x)
    x = site.tensor(x)
    site.known_shape(x)  # raises ExtentNeeded for an open extent
    items, first, inverse, frequency, count = site.step.unique(x, axis=axis, sorts=sorts)
    # All results but `inverse` are padded, and become lists of `count` items.
    items = site.listed(items, axis, count)
    first = site.listed(site.as_integer(first), axis=0, count=count)
    frequency = site.listed(site.as_integer(frequency), axis=0, count=count)
    return items, first, site.as_integer(inverse), frequency
