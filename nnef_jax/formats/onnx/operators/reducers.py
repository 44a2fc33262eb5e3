"""Functions for reductions along axes: sums, extremes and the indices of extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowering.graph import is_integer
from nnef_jax.flattening.along_axes import REDUCTIONS, reduced
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.operators.attributes import axis, flag
from nnef_jax.flattening.operators.registry import Meaning
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator


def _axes(site: NodeSite) -> tuple[int, ...]:
    """Return the axes that a node reduces.

    If the node gives no axes, all axes are reduced, or none if the node sets the attribute
    `noop_with_empty_axes`.
    """
    axes = site.axes("axes", 1)
    if axes:
        return tuple(sorted(set(axes)))
    if site.flag("noop_with_empty_axes"):
        return ()
    return tuple(range(site.rank()))


def _reduction_meaning(steps: tuple[str, str, str]) -> Meaning:
    """Return the function that flattens a reduction.

    `steps` is a value of `REDUCTIONS`. It has the names of three operations: the operation before
    the reduction, the reduction, and the operation after the reduction. The name "" stands for no
    operation.
    """
    _, kind, kind_after = steps

    def meaning(site: NodeSite, x: Tensor, *, keeps_axes: bool) -> Any:
        """Reduce x. If `keeps_axes`, the reduced axes have extent 1, otherwise they are removed."""
        axes = _axes(site)
        is_empty = any(site.shape()[axis] == 0 for axis in axes)
        if is_empty and kind in ("max_reduce", "min_reduce"):
            is_maximum = kind == "max_reduce"
            return _extreme_of_empty(site, axes, largest=is_maximum, keeps_axes=keeps_axes)
        dtype = site.dtype_of()
        has_root_or_logarithm = kind_after != ""
        if has_root_or_logarithm and is_integer(dtype):
            # Roots and logarithms are computed in real numbers, and cast to integers at the end.
            x = site.cast(x, site.computation_dtype("float64"))
            return reduced(site, x, axes, steps, keeps_axes=keeps_axes, result_dtype=dtype)
        return reduced(site, x, axes, steps, keeps_axes=keeps_axes)

    return meaning


for _name, _steps in REDUCTIONS.items():
    operator(f"Reduce{_name}", keeps_axes=flag("keepdims", True))(_reduction_meaning(_steps))


def _extreme_of_empty(
    site: NodeSite, axes: tuple[int, ...], *, largest: bool, keeps_axes: bool
) -> Any:
    """Return the maximum (if `largest`) or the minimum along axes that have no items.

    The maximum of no items is the smallest number of the dtype. The minimum of no items is the
    largest number. If `keeps_axes`, the axes remain with extent 1.
    """
    dtype = site.dtype_of()
    least, greatest = (-math.inf, math.inf) if site.is_real() else ends_of(dtype)
    item = least if largest else greatest
    shape: list[int] = []
    for index, extent in enumerate(site.known_shape()):
        if index not in axes:
            shape.append(extent)
        elif keeps_axes:
            shape.append(1)
    return site.last.constant(shape=shape, value=(item,), dtype=dtype)


def _extreme_index_meaning(kind: str) -> Meaning:
    """Return the function for an operator that returns the index of the extreme along an axis.

    `kind` is the kind of the operation, such as "argmax_reduce".
    """

    def meaning(site: NodeSite, x: Tensor, *, axis: int, last: bool, keeps_axes: bool) -> Any:
        """Return the index of the extreme along `axis`.

        If several items are extreme, return the last index if `last`, otherwise the first index.
        """
        # A step is a tuple: the kind of an operation, the operands after x, and the attributes.
        steps: list[Any] = [
            (kind, [], {"axes": (axis,), "last": last}),
            ("cast", [], {"dtype": site.graph.builder.integer}),
        ]
        if not keeps_axes:
            steps.append(("squeeze", [], {"axes": (axis,)}))
        return site.chain(x, *steps)

    return meaning


for _name, _kind in (("ArgMax", "argmax_reduce"), ("ArgMin", "argmin_reduce")):
    operator(
        _name,
        axis=axis("axis", 0),
        last=flag("select_last_index"),
        keeps_axes=flag("keepdims", True),
    )(_extreme_index_meaning(_kind))


@operator("Hardmax", since=13)
def _hardmax(site: NodeSite, x: Tensor, *, axis: int = axis("axis", -1)) -> Any:
    """Return 1 for the largest item along an axis, and 0 for all other items."""
    return _first_largest(site, x, (axis,))


@operator("Hardmax")
def _hardmax_from_axis(site: NodeSite, x: Tensor, *, axis: int = axis("axis", 1)) -> Any:
    """Return 1 for the largest item along `axis` and all later axes, and 0 for all other items."""
    return _first_largest(site, x, range(axis, site.rank()))


def _first_largest(site: NodeSite, x: Tensor, axes: Sequence[int]) -> Any:
    """Return 1 for the largest item along axes, and 0 for all other items.

    If several items are equal to the largest one, only the first of them gets 1.
    """
    # `indices` has an item for each position along the axes: the flat index of the position. For
    # example, axes of extents 2 and 3 have the indices [[0, 1, 2], [3, 4, 5]]. All other axes of
    # `indices` have extent 1.
    index_shape = [1] * site.rank()
    for reduced_axis in axes:
        index_shape[reduced_axis] = site.known_shape()[reduced_axis]
    indices: Any = site.positions(site.volume(index_shape))
    indices = site.reshaped(indices, index_shape)
    first = site.as_integer(site.step.argmax_reduce(x, axes=tuple(axes)))
    is_first = site.step.eq(indices, first)
    return site.last.cast(is_first, dtype=site.dtype_of())
