"""Growing states of loops, such as a state to which each iteration adds a row.

Such a state is padded to its largest possible extent. The loop carries the actual extent as an
additional state. In the body, and after the loop, the state is a list: a tensor whose extent is
counted in a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic, largest_of
from lowering.graph import Value
from lowering.symbol_values import bounds_by_symbols, symbols_in
from nnef_jax.flattening.branch_results import VaryingAxis, as_lists
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import TensorGraph


@dataclass(frozen=True, slots=True)
class GrowingAxis:
    """An axis of a loop's state. Iterations change the extent of the axis.

    Args:
        state: the index of the state.
        axis: the axis.
        step: the largest number of items that an iteration adds.
        least: the padded state has room for at least this number of items. It is 0 if the room
            depends only on `step` and on the extent before the first iteration.
    """

    state: int
    axis: int
    step: int
    least: int = 0


class GrowingStates:
    """The states of a loop, some of which change their extents in each iteration.

    Attributes:
        axes: the axes along which iterations change the extents of states.
        initial: the padded states before the first iteration, then the unpadded extents of `axes`.

    Args:
        site: the place of the loop.
        states: the states before the first iteration.
        limit: the largest number of iterations; infinite if the document does not limit them.
    """

    def __init__(
        self, site: Site[TensorGraph], states: Sequence[Tensor], axes: Sequence[GrowingAxis],
        limit: float,
    ) -> None:  # fmt: skip
        self._site = site
        self._limit = limit
        self.axes: Sequence[GrowingAxis] = axes
        self._varying: list[VaryingAxis] = []
        self._first_extents: list[Any] = []  # the extents of `axes` before the first iteration
        self._most: list[int] = []  # the largest extents of `axes` in the loop
        self._before: Sequence[Value] = ()  # the result of `inside`
        graph = site.graph
        # If the loop has no limit, the number 1 does not matter: `require_limit` refuses axes that
        # grow in each iteration.
        iterations = 1 if limit == math.inf else int(limit)
        padded: list[Value] = [site.tensor(state) for state in states]
        extents: list[Value] = []
        for growing in axes:
            state, axis = growing.state, growing.axis
            extent = graph.shape_of(site.tensor(states[state]))[axis]
            last_extent = largest_of([extent + iterations * growing.step, growing.least])
            extents.append(graph.extent_tensor(extent, site.span))
            most = graph.bound(last_extent)
            padded[state] = graph.padded_to(padded[state], axis, most, site.span)
            self._varying.append(VaryingAxis(state, axis, last_extent))
            self._first_extents.append(extent)
            self._most.append(most)
        self.initial: list[Value] = [*padded, *extents]

    def inside(self, body: RepeatedBody) -> list[Value]:
        """Return the states of the body before an iteration, as lists along the growing axes.

        The states of `body` correspond to `initial`: the padded states, then their extents.
        """
        count = len(self.initial) - len(self.axes)  # the number of states, without the extents
        states = body.inner_states[:count]
        extents = body.inner_states[count:]
        for growing, most_after, extent in zip(self.axes, self._most, extents, strict=True):
            state, axis = growing.state, growing.axis
            # Before an iteration, the last `step` items are padding. The iteration may fill them.
            most = most_after - growing.step
            items = body.at.tensor(body.at.part(states[state], axis, first=0, last=most))
            states[state] = body.graph.listed(items, axis, extent, most, self._site.span)
        self._before = states
        return states

    def grown_axes(self, graph: TensorGraph, after: Sequence[Value]) -> list[GrowingAxis]:
        """Return the axes along which an iteration changes the extents of states.

        `graph` is the graph of the body, and `after` are the states after an iteration. If the
        result is equal to `axes`, the padded states have room for all items.
        """
        initial_most: dict[tuple[int, int], int] = {}  # the keys are (state, axis)
        for growing, extent in zip(self.axes, self._first_extents, strict=True):
            initial_most[growing.state, growing.axis] = graph.bound(extent)
        axes: list[GrowingAxis] = []
        for state, (old, new) in enumerate(zip(self._before, after, strict=True)):
            # A state whose rank changes is refused later, when the loop is added.
            has_other_rank = len(old.type.shape) != len(new.type.shape)
            if has_other_rank or graph.has_shape_of(old, new):
                continue
            extents = zip(graph.shape_of(old), graph.shape_of(new), strict=True)
            for axis, (old_extent, extent) in enumerate(extents):
                if (state, axis) in initial_most:
                    most = initial_most[state, axis]
                    step, least = self._growth(graph, most, old_extent, extent)
                    axes.append(GrowingAxis(state, axis, step, least))
                elif old_extent != extent or graph.counts_here(extent):
                    step = graph.bound(extent) - graph.bound(old_extent)
                    axes.append(GrowingAxis(state, axis, max(step, 0)))
        return axes

    def _growth(
        self, graph: TensorGraph, initial_most: int, old_extent: Any, extent: Any
    ) -> tuple[int, int]:
        """Return the fields `step` and `least` of a growing axis. At least one of them is 0.

        `graph` is the graph of the body. `initial_most` is the largest extent before the first
        iteration. `old_extent` is the extent before an iteration, a symbol. `extent` is the extent
        after this iteration.
        """
        bounds = bounds_by_symbols(extent, [str(old_extent)], graph.symbols.limits)
        step = max(bounds.excess, 0)
        # If `step` is 0, the iterations add nothing, even if `self._limit` is infinite.
        most_by_steps = initial_most + (self._limit * step if step else 0)
        if bounds.number < math.inf and bounds.number <= most_by_steps:
            return 0, int(bounds.number)
        if step < math.inf:
            return int(step), 0
        depends_on_old = symbols_in(old_extent) <= symbols_in(extent)
        if not depends_on_old:
            return 0, graph.bound(extent)
        return max(graph.bound(extent - old_extent), 0), 0  # 2 for n0 and n0 + 2

    def axes_with_one_bound(
        self, graph: TensorGraph, after: Sequence[Value]
    ) -> list[GrowingAxis] | None:
        """Return `axes` with one upper bound of all their extents.

        Axes may exchange their extents, as a transpose does. Then no extent has a bound that is
        relative to its own value before the iteration. But the largest extent of all axes may have
        a bound that is relative to the largest extent before the iteration.

        The arguments are as for `grown_axes`. If the result is equal to `axes`, the padded states
        have room for all items. Return None if there is no such bound, or no such axis.
        """
        if not self.axes:
            return None
        symbols = [str(graph.shape_of(self._before[x.state])[x.axis]) for x in self.axes]
        most = max(map(graph.bound, self._first_extents))
        step = 0.0
        for growing in self.axes:
            shape = graph.shape_of(after[growing.state])
            if len(shape) != len(self._before[growing.state].type.shape):
                return None
            extent = shape[growing.axis]
            bounds = bounds_by_symbols(extent, symbols, graph.symbols.limits)
            if bounds.number < math.inf:
                most = max(most, int(bounds.number))
            else:
                step = max(step, bounds.excess)
        if step:
            if math.inf in (step, self._limit):
                return None
            most += int(step * max(self._limit, 1))
        return [GrowingAxis(x.state, x.axis, int(step), most) for x in self.axes]

    def require_limit(self) -> None:
        """Raise InvalidOperation if a state may grow in each iteration of a loop without limit."""
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
        for growing, most in zip(self.axes, self._most, strict=True):
            state, axis = growing.state, growing.axis
            extent = graph.shape_of(after[state])[axis]
            extents.append(graph.extent_tensor(extent, span))
            padded[state] = graph.padded_to(padded[state], axis, most, span)
        return [*padded, *extents]

    def last_extents(
        self, graph: TensorGraph, after: Sequence[Value], iterations: int
    ) -> list[Any]:
        """Return the extent of each of `axes` after a loop that always has `iterations` iterations.

        The extent is None unless each iteration adds the same number of items, and the padded state
        has no place behind the last item. `graph` is the graph of the body, and
        `after` are the states after an iteration.
        """
        extents: list[Any] = []
        for growing, first_extent in zip(self.axes, self._first_extents, strict=True):
            before_shape = graph.shape_of(self._before[growing.state])
            after_shape = graph.shape_of(after[growing.state])
            step = after_shape[growing.axis] - before_shape[growing.axis]
            has_exact_room = not is_symbolic(step) and step == growing.step and growing.least == 0
            extents.append(first_extent + iterations * step if has_exact_room else None)
        return extents

    def behind(self, results: Sequence[Value], last_extents: Sequence[Any]) -> list[Value]:
        """Return the states after the loop, as lists along the growing axes.

        `results` are the results of the loop: the padded states, then their extents. `last_extents`
        has the extent of each of `axes`, or None if the extent is counted in a run.
        """
        return as_lists(self._site.graph, results, self._varying, self._site.span, last_extents)
