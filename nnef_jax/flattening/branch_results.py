"""Results of branches: an extent may differ between the branches, or be counted in a branch.

Such results are padded in the branches, which also return the extents. After the choice, the
results are lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowering.extents import is_known, is_symbolic, largest_of
from lowering.graph import Value
from lowering.location import Span
from nnef_jax.flattening.tensor_graph import TensorGraph


@dataclass(frozen=True, slots=True)
class VaryingAxis:
    """An axis of a result whose extent depends on the branch.

    Args:
        result: the index of the result.
        axis: the axis.
        limit: an extent that the axis exceeds in no branch.
    """

    result: int
    axis: int
    limit: Any


def with_extents(
    graphs: Sequence[TensorGraph], results: Sequence[Sequence[Value]], span: Span | None
) -> tuple[list[list[Value]], list[VaryingAxis]]:
    """Pad the results of branches to common shapes, and return the unpadded extents too.

    Args:
        graphs: the graph of each branch, to which operations are added.
        results: the results of each branch.
        span: the place of the choice in the document.

    Returns:
        The padded results of each branch, followed by the extent of each varying axis, a tensor of
            shape (1,); and the varying axes.
    """
    padded = [list(branch_results) for branch_results in results]
    varying: list[VaryingAxis] = []
    extents_by_branch: list[list[Value]] = [[] for _ in graphs]
    for i in range(len(padded[0])):
        values = [branch_results[i] for branch_results in padded]  # result i of each branch
        for axis in _varying_axes(graphs, values):
            extents = [graph.shape_of(x)[axis] for graph, x in zip(graphs, values, strict=True)]
            limit = largest_of(extents)
            most = graphs[0].bound(limit)
            varying.append(VaryingAxis(i, axis, limit))
            for branch, graph in enumerate(graphs):
                extent = graph.extent_tensor(extents[branch], span)
                extents_by_branch[branch].append(extent)
                padded[branch][i] = graph.padded_to(padded[branch][i], axis, most, span)
    pairs = zip(padded, extents_by_branch, strict=True)
    return [branch_results + extents for branch_results, extents in pairs], varying


def _varying_axes(graphs: Sequence[TensorGraph], values: Sequence[Value]) -> list[int]:
    """Return the axes along which a result has different extents in the branches.

    Axes whose extent is counted in a branch are returned too. `values` has the result of each
    branch.
    """
    if len({x.type for x in values}) == 1 and is_known(values[0].type.shape):
        return []
    if len({(x.type.dtype, len(x.type.shape)) for x in values}) > 1:
        return []  # results of several dtypes or ranks are refused when the choice is added
    for graph, x in zip(graphs, values, strict=True):
        if graph.symbolic is None and not is_known(x.type.shape):
            return []  # open extents without symbols cannot be compared
    shapes = [graph.shape_of(x) for graph, x in zip(graphs, values, strict=True)]
    axes: list[int] = []
    for axis in range(len(shapes[0])):
        extents = [shape[axis] for shape in shapes]
        are_different = len(set(extents)) > 1
        pairs = zip(graphs, extents, strict=True)
        if are_different or any(graph.counts_here(extent) for graph, extent in pairs):
            axes.append(axis)
    return axes


def as_lists(
    graph: TensorGraph, results: Sequence[Value], varying: Sequence[VaryingAxis],
    span: Span | None, last_extents: Sequence[Any] = (),
) -> list[Value]:  # fmt: skip
    """Return the results of a choice or loop as lists, with counted extents along `varying`.

    `graph` is the graph that has the choice or loop. `results` has the padded results, followed by
    the extent of each axis in `varying`. `last_extents` may have the same extents as numbers or
    symbols, or None for an extent that only a run knows.
    """
    count = len(results) - len(varying)  # the number of results, without the extents
    lists = list(results[:count])
    for j, varying_axis in enumerate(varying):
        i, axis, limit = varying_axis.result, varying_axis.axis, varying_axis.limit
        extent = last_extents[j] if last_extents else None
        if extent is None:
            lists[i] = graph.listed(lists[i], axis, results[count + j], limit, span)
        elif is_symbolic(extent):
            lists[i] = graph.counted(lists[i], axis, extent, span)
    return lists
