"""Defines links between axes: which axes of operands and of results correspond to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple


class AxisPart(NamedTuple):
    """A factor of an axis's extent.

    For an axis of 3 * 4 * 8 items, `before=3` and `extent=4` stand for the factor 4.

    Args:
        axis: the number of the axis.
        before: the product of the factors that precede this factor.
        extent: the number of items of the factor.
    """

    axis: int
    before: int
    extent: int


def axis_number(axis: int | AxisPart) -> int:
    """Return the number of an axis, which may be given as an `AxisPart` of it."""
    return axis.axis if isinstance(axis, AxisPart) else axis


Run = tuple[int | AxisPart, ...]  # consecutive axes, or parts of axes
LinkKind = Literal["apart", "sum", "lookup"]  # see `AxisLink.kind`


class AxisLink(NamedTuple):
    """Axes of operands and of results that correspond to each other.

    Args:
        operands: maps the index of an operand to its linked axes. Operands that lack the axis are
            left out.
        results: maps the index of a result to its linked axes. The map is empty if no result has
            the axis.
        kind: "apart" if items stay apart along the axis. "sum" if a result has the sum, product or
            maximum of the items along the axis. "lookup" if another operand selects some of the
            items along the axis.
    """

    operands: Mapping[int, Run]
    results: Mapping[int, Run] = {}
    kind: LinkKind = "apart"

    @property
    def is_of_parts(self) -> bool:
        """Tell whether the link has only a part of an operand's axis, such as channel groups."""
        for run in self.operands.values():
            if any(isinstance(axis, AxisPart) for axis in run):
                return True
        return False

    def single(self) -> tuple[dict[int, int], dict[int, int]] | None:
        """Return a map from operands to linked axes, and a map from results to linked axes.

        Operands and results are given by their index. None is returned if an operand or a result
        is linked by a part of an axis, or by several axes.
        """
        operands = _single(self.operands)
        results = _single(self.results)
        if operands is None or results is None:
            return None
        return operands, results


def _single(runs: Mapping[int, Run]) -> dict[int, int] | None:
    """Return the linked axis of each operand or result, if each has exactly one whole linked axis.

    `runs` maps the index of an operand or result to its linked axes. None is returned if one of
    them has several linked axes, or a part of an axis.
    """
    axes: dict[int, int] = {}
    for index, run in runs.items():
        if len(run) != 1:
            return None
        (axis,) = run
        if isinstance(axis, AxisPart):
            return None
        axes[index] = axis
    return axes


class LinkedAxes(NamedTuple):
    """Which axes of an equation's operands and results correspond to each other.

    Nothing is known about axes without a link.

    Args:
        links: the axes that pass from operands to results, or are summed.
        constant_axes: the axes of the first result along which all items are equal, whatever the
            operands are.
        weights: the indices of operands that may be the weights of a product or lookup.
    """

    links: Sequence[AxisLink]
    constant_axes: frozenset[int] = frozenset()
    weights: tuple[int, ...] = ()


UNLINKED = LinkedAxes(())
