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
    """Return the number of an axis. The axis may be given as an `AxisPart`."""
    return axis.axis if isinstance(axis, AxisPart) else axis


Run = tuple[int | AxisPart, ...]  # consecutive axes, or parts of axes
LinkKind = Literal["apart", "sum", "lookup"]  # see `AxisLink.kind`


class AxisLink(NamedTuple):
    """Axes of operands and of results that correspond to each other.

    Args:
        operands: maps the index of an operand to its linked axes. Operands without a linked axis
            are left out.
        results: maps the index of a result to its linked axes. The map is empty if no result has
            a linked axis.
        kind: "apart" if items stay apart along the axis. "sum" if a result has the sum, product or
            maximum of the items along the axis. "lookup" if another operand selects some of the
            items along the axis.
    """

    operands: Mapping[int, Run]
    results: Mapping[int, Run] = {}
    kind: LinkKind = "apart"

    @property
    def is_of_parts(self) -> bool:
        """Tell whether the link has a part of an operand's axis, such as groups of channels."""
        for run in self.operands.values():
            if any(isinstance(axis, AxisPart) for axis in run):
                return True
        return False

    def single(self) -> tuple[dict[int, int], dict[int, int]] | None:
        """Return the link with one axis, instead of a run, for each operand and each result.

        The first map maps the index of each operand to the linked axis. The second map does so for
        each result. None is returned if the run of an operand or a result has several axes, or a
        part of an axis.
        """
        operands = _single(self.operands)
        results = _single(self.results)
        if operands is None or results is None:
            return None
        return operands, results


def _single(runs: Mapping[int, Run]) -> dict[int, int] | None:
    """Return a map with the axis of each run, instead of the run.

    For {0: (2,)} the result is {0: 2}. None is returned if a run has several axes, or a part of
    an axis.
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
        links: the links between axes of operands and axes of results, and the links of summed or
            looked up axes.
        constant_axes: the axes of the first result along which all items are equal, whatever the
            operands are.
        weights: the indices of operands that may be the weights of a product or lookup.
    """

    links: Sequence[AxisLink]
    constant_axes: frozenset[int] = frozenset()
    weights: tuple[int, ...] = ()


UNLINKED = LinkedAxes(())
