"""States of loops whose extents change in an iteration, such as a state that gets a row each time.

Such a state is padded to the most items that it can have, and its extent is a further state. In the
body, and behind the loop, the state is a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lowering.errors import InvalidOperation
from lowering.graph import Value
from lowering.symbol_values import symbols_in
from nnef_jax.flattening.branch_results import VaryingAxis, as_lists
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import TensorGraph


@dataclass(frozen=True, slots=True)
class GrowingAxis:
    """An axis of a state whose extent iterations change.

    An iteration adds at most `step` items, or has a result of at most `least` items, however many
    items the state had before.
    """

    state: int
    axis: int
    step: int
    least: int = 0


class GrowingStates:
    """The states of a loop, some of which change their extents in each iteration.

    Attributes:
        axes: the axes along which iterations change the extents of states.
        initial: the padded states before the first iteration, then their extents along `axes`.

    Args:
        site: the place of the loop.
        states: the states before the first iteration.
        limit: the largest number of iterations; infinite if it is not known.
    """

    def __init__(
        self, site: Site[TensorGraph], states: Sequence[Tensor], axes: Sequence[GrowingAxis],
        limit: float,
    ) -> None:  # fmt: skip
        self._site = site
        self._limit = limit
        self.axes: Sequence[GrowingAxis] = axes
        self._varying: list[VaryingAxis] = []
        graph = site.graph
        # Without a limit, `require_limit` refuses axes that get items in each iteration.
        iterations = 1 if limit == math.inf else int(limit)
        padded: list[Value] = [site.tensor(state) for state in states]
        extents: list[Value] = []
        for growing in axes:
            extent = graph.shape_of(site.tensor(states[growing.state]))[growing.axis]
            most = max(graph.bound(extent) + iterations * growing.step, growing.least)
            extents.append(graph.extent_tensor(extent, site.span))
            padded[growing.state] = graph.padded_to(
                padded[growing.state], growing.axis, most, site.span
            )
            self._varying.append(VaryingAxis(growing.state, growing.axis, most))
        self.initial: list[Value] = [*padded, *extents]

    def inside(self, body: RepeatedBody) -> list[Value]:
        """Return the states before an iteration in the body, to which `initial` were added."""
        count = len(self.initial) - len(self.axes)
        states = body.inner_states[:count]
        extents = body.inner_states[count:]
        for growing, varying, extent in zip(self.axes, self._varying, extents, strict=True):
            # Before an iteration, there is room for the items that the iteration adds.
            most = varying.most - growing.step
            room = body.at.tensor(body.at.part(states[growing.state], growing.axis, 0, most))
            states[growing.state] = body.graph.listed(
                room, growing.axis, extent, most, self._site.span
            )
        return states

    def grown_axes(
        self, graph: TensorGraph, before: Sequence[Value], after: Sequence[Value]
    ) -> list[GrowingAxis]:
        """Return the axes along which an iteration changes the extents of states.

        `graph` is the graph of the body, and `before` and `after` are the states before and after
        the iteration. The axes are equal to those of this object if there is room for all items.
        States that change their rank are left out: they are refused when the loop is added.
        """
        listed = {(growing.state, growing.axis) for growing in self.axes}
        axes: list[GrowingAxis] = []
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            if len(old.type.shape) != len(new.type.shape) or graph.has_shape_of(old, new):
                continue
            extents = zip(graph.shape_of(old), graph.shape_of(new), strict=True)
            for axis, (old_extent, extent) in enumerate(extents):
                is_listed = (i, axis) in listed
                if not is_listed and old_extent == extent and not graph.counts_here(extent):
                    continue
                if is_listed and not symbols_in(old_extent) <= symbols_in(extent):
                    axes.append(GrowingAxis(i, axis, step=0, least=graph.bound(extent)))
                elif is_listed:
                    step = graph.bound(extent - old_extent)
                    axes.append(GrowingAxis(i, axis, max(step, 0)))
                else:
                    step = graph.bound(extent) - graph.bound(old_extent)
                    axes.append(GrowingAxis(i, axis, max(step, 0)))
        return axes

    def require_limit(self) -> None:
        """Raise InvalidOperation if an axis gets items in each of an unknown number of turns."""
        for growing in self.axes:
            if growing.step and self._limit == math.inf:
                raise InvalidOperation(
                    f"axis {growing.axis} of state {growing.state} gets items in each iteration, "
                    "and the number of iterations has no upper bound"
                )

    def padded(self, graph: TensorGraph, after: Sequence[Value]) -> list[Value]:
        """Return the states after an iteration in the form of `initial`, in the graph of a body."""
        padded = list(after)
        extents: list[Value] = []
        for varying in self._varying:
            extent = graph.shape_of(after[varying.result])[varying.axis]
            extents.append(graph.extent_tensor(extent, self._site.span))
            padded[varying.result] = graph.padded_to(
                padded[varying.result], varying.axis, varying.most, self._site.span
            )
        return [*padded, *extents]

    def behind(self, results: Sequence[Value]) -> list[Value]:
        """Return the states behind the loop, from its results in the form of `initial`."""
        return as_lists(self._site.graph, results, self._varying, self._site.span)
