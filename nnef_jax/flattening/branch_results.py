"""Results of branches that have other extents in each branch, or as many items as a branch counts.

Such results are padded in the branches, which also return the extents. Behind the choice, the
results are lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowering.extents import is_known
from lowering.graph import Value
from lowering.location import Span
from nnef_jax.flattening.tensor_graph import TensorGraph


@dataclass(frozen=True, slots=True)
class VaryingAxis:
    """An axis of a result whose extent depends on the branch. It has at most `most` items."""

    result: int
    axis: int
    most: int


def with_extents(
    graphs: Sequence[TensorGraph], results: Sequence[Sequence[Value]], span: Span | None
) -> tuple[list[list[Value]], list[VaryingAxis]]:
    """Pad the results of branches to the same shapes, and add their extents to the results.

    Args:
        graphs: the graph of each branch, to which operations are added.
        results: the results of each branch.
        span: the place of the choice in the document.

    Returns the results of each branch, followed by an extent of shape (1,) for each of the axes
    that are also returned.
    """
    padded = [list(values) for values in results]
    varying: list[VaryingAxis] = []
    extents_by_branch: list[list[Value]] = [[] for _ in graphs]
    for result in range(len(padded[0])):
        values = [values[result] for values in padded]
        for axis in _varying_axes(graphs, values):
            extents = [graph.shape_of(x)[axis] for graph, x in zip(graphs, values, strict=True)]
            bounds = [graph.bound(n) for graph, n in zip(graphs, extents, strict=True)]
            most = max(bounds)
            varying.append(VaryingAxis(result, axis, most))
            for branch, graph in enumerate(graphs):
                count = graph.extent_tensor(extents[branch], span)
                extents_by_branch[branch].append(count)
                x = graph.padded_to(padded[branch][result], axis, most, span)
                padded[branch][result] = x
    pairs = zip(padded, extents_by_branch, strict=True)
    return [values + extents for values, extents in pairs], varying


def _varying_axes(graphs: Sequence[TensorGraph], values: Sequence[Value]) -> list[int]:
    """Return the axes along which a result has another extent in each branch, or a counted one.

    `values` has the result of each branch.
    """
    is_same = len({x.type for x in values}) == 1 and is_known(values[0].type.shape)
    # Results of other dtypes or ranks are refused when the choice is added.
    are_alike = len({(x.type.dtype, len(x.type.shape)) for x in values}) == 1
    have_shapes = True
    for graph, x in zip(graphs, values, strict=True):
        have_shapes &= graph.symbolic is not None or is_known(x.type.shape)
    if is_same or not are_alike or not have_shapes:
        return []
    shapes = [graph.shape_of(x) for graph, x in zip(graphs, values, strict=True)]
    axes: list[int] = []
    for axis in range(len(shapes[0])):
        extents = [shape[axis] for shape in shapes]
        counts_here = [graph.counts_here(n) for graph, n in zip(graphs, extents, strict=True)]
        if len(set(extents)) > 1 or any(counts_here):
            axes.append(axis)
    return axes


def as_lists(
    graph: TensorGraph, results: Sequence[Value], varying: Sequence[VaryingAxis], span: Span | None
) -> list[Value]:
    """Return the results of a choice as lists.

    `graph` is the graph around the branches, and `results` has the results of the choice, followed
    by the extent for each axis in `varying`.
    """
    count = len(results) - len(varying)
    lists = list(results[:count])
    for place, extent in zip(varying, results[count:], strict=True):
        x = lists[place.result]
        lists[place.result] = graph.listed(x, place.axis, extent, place.most, span)
    return lists
