"""States of loops whose extents change in an iteration, such as a state that gets a row each time.

Such a state is padded to the most items that it can have, and its extent is a further state. In the
body, and after the loop, the state is a list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    Args:
        state: the index of the state.
        axis: the axis.
        step: the largest number of items that an iteration adds.
        least: the largest number of items after an iteration, if this number does not depend on the
            number of items before the iteration. Otherwise 0.
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
            state, axis = growing.state, growing.axis
            extent = graph.shape_of(site.tensor(states[state]))[axis]
            most_after_loop = graph.bound(extent) + iterations * growing.step
            most = max(most_after_loop, growing.least)
            extents.append(graph.extent_tensor(extent, site.span))
            padded[state] = graph.padded_to(padded[state], axis, most, site.span)
            self._varying.append(VaryingAxis(state, axis, most))
        self.initial: list[Value] = [*padded, *extents]

    def inside(self, body: RepeatedBody) -> list[Value]:
        """Return the states of the body before an iteration, as lists along the growing axes.

        The states of `body` are `initial`: the padded states, then their extents.
        """
        count = len(self.initial) - len(self.axes)  # of the states without their extents
        states = body.inner_states[:count]
        extents = body.inner_states[count:]
        for growing, varying, extent in zip(self.axes, self._varying, extents, strict=True):
            state, axis = growing.state, growing.axis
            # The last `step` places are empty before the iteration, which may fill these places.
            most = varying.most - growing.step
            items = body.at.tensor(body.at.part(states[state], axis, first=0, last=most))
            states[state] = body.graph.listed(items, axis, extent, most, self._site.span)
        return states

    def grown_axes(
        self, graph: TensorGraph, before: Sequence[Value], after: Sequence[Value]
    ) -> list[GrowingAxis]:
        """Return the axes along which an iteration changes the extents of states.

        `graph` is the graph of the body, and `before` and `after` are the states before and after
        the iteration. If the result is equal to `axes`, the padded states have room for all items.
        """
        earlier_axes = {(growing.state, growing.axis) for growing in self.axes}
        axes: list[GrowingAxis] = []
        for state, (old, new) in enumerate(zip(before, after, strict=True)):
            # A state with another rank is refused when the loop is added.
            has_other_rank = len(old.type.shape) != len(new.type.shape)
            if has_other_rank or graph.has_shape_of(old, new):
                continue
            extents = zip(graph.shape_of(old), graph.shape_of(new), strict=True)
            for axis, (old_extent, extent) in enumerate(extents):
                if (state, axis) in earlier_axes:
                    axes.append(_growing_further(graph, state, axis, old_extent, extent))
                elif old_extent != extent or graph.counts_here(extent):
                    step = graph.bound(extent) - graph.bound(old_extent)
                    axes.append(GrowingAxis(state, axis, max(step, 0)))
        return axes

    def require_limit(self) -> None:
        """Raise InvalidOperation if each iteration may add items to a state, without a limit."""
        for growing in self.axes:
            if growing.step and self._limit == math.inf:
                raise InvalidOperation(
                    f"axis {growing.axis} of state {growing.state} gets items in each iteration, "
                    "and the number of iterations has no upper bound"
                )

    def padded(self, graph: TensorGraph, after: Sequence[Value]) -> list[Value]:
        """Return the padded states after an iteration, then their extents, as in `initial`.

        `graph` is the graph of the body, and `after` are the states after the iteration.
        """
        padded = list(after)
        extents: list[Value] = []
        span = self._site.span
        for varying in self._varying:
            state, axis = varying.result, varying.axis
            extent = graph.shape_of(after[state])[axis]
            extents.append(graph.extent_tensor(extent, span))
            padded[state] = graph.padded_to(padded[state], axis, varying.most, span)
        return [*padded, *extents]

    def behind(self, results: Sequence[Value]) -> list[Value]:
        """Return the states after the loop, as lists along the growing axes.

        `results` are the results of the loop: the padded states, then their extents.
        """
        return as_lists(self._site.graph, results, self._varying, self._site.span)


def _growing_further(
    graph: TensorGraph, state: int, axis: int, old_extent: Any, extent: Any
) -> GrowingAxis:
    """Return the growing axis of a state that is already a list along this axis.

    `old_extent` and `extent` are the extents before and after an iteration.
    """
    depends_on_old = symbols_in(old_extent) <= symbols_in(extent)
    if not depends_on_old:
        return GrowingAxis(state, axis, step=0, least=graph.bound(extent))
    step = graph.bound(extent - old_extent)  # 2 for n0 and n0 + 2
    return GrowingAxis(state, axis, max(step, 0))
