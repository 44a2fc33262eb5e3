"""Adds loops to a graph. A computed count or condition ends a loop, and its states may grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic
from lowering.graph import Value
from nnef_jax.flattening.growing_states import GrowingAxis, GrowingStates
from nnef_jax.flattening.repetition import LAST, Outputs, RepeatedBody
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph

_MOST_JOINED = 65_536  # iterations of a loop with joined outputs
# A loop with an upper bound takes as many steps as the bound. A loop with a larger bound gets no
# bound, unless the sizes of its results depend on the bound.
_MOST_STEPS = 1024
# The body of a loop is flattened repeatedly to find out which states grow. The limit of repetitions
# is this number plus the number of states, since a growing state may become another state in the
# next iteration.
_MOST_PASSES = 4


@dataclass(frozen=True, slots=True)
class Iteration:
    """The results of a loop's body after one iteration. All tensors are in the body's graph.

    Args:
        continues: whether there is a next iteration. The tensor has one item.
        states: the states.
        outputs: further results.
        modes: says for each of `outputs` how the loop's output is made from all iterations, as in
            `RepeatedBody.add`.
    """

    continues: Tensor
    states: Sequence[Value]
    outputs: Sequence[Value]
    modes: Outputs

    @property
    def always_continues(self) -> bool:
        """Tell whether the condition is the constant true."""
        return isinstance(self.continues, Constant) and bool(self.continues.array.all())


# A function of this type flattens the body of a loop. Its arguments are the body, the number of the
# iteration, and the states before the iteration.
FlattenBody = Callable[[RepeatedBody, Value, Sequence[Value]], Iteration]


def add_loop(
    site: Site[TensorGraph], states: Sequence[Tensor], flatten: FlattenBody, count: Tensor | None,
    condition: Tensor | None, limit: float,
) -> tuple[list[Value], list[Value]]:  # fmt: skip
    """Add a loop to the graph; return the last states, and the other outputs.

    The loop ends when its condition is false, at the latest after `count` iterations. A state whose
    extent changes in an iteration becomes a list, and so does an output that is joined. But if the
    number of iterations is known, a result has the shape that follows from this number.

    Args:
        site: the layer or node of the loop.
        states: the states before the first iteration.
        flatten: flattens the body. It may be called several times.
        count: the largest number of iterations, an integer tensor with one item. A negative number
            stands for `limit`, and so does None.
        condition: the condition before the first iteration, a tensor with one item. None stands for
            true.
        limit: an upper bound of the number of iterations, or infinity.
    """
    most = _most_iterations(site, count, limit)
    grown, body, iteration = _with_room(site, states, flatten, most)
    after = grown.padded(body.graph, iteration.states)
    outputs = iteration.outputs
    joins_outputs = any(mode != LAST for mode in iteration.modes)
    # Lists of joined outputs read the number of iterations, which is one more output.
    numbers = [body.at.step.add(body.loop_inputs[0], 1)] if joins_outputs else []
    bound = most if joins_outputs or grown.axes else limit
    has_bound = bound <= (_MOST_JOINED if joins_outputs else _MOST_STEPS)
    if joins_outputs and not has_bound:
        raise InvalidOperation(
            "the number of its iterations depends on values, and with it the size of a result that "
            f"is joined from all iterations: it has no upper bound of at most {_MOST_JOINED}",
            "make the loop's largest number of iterations a constant",
        )
    # Only derivatives in reverse mode need `most` if the loop has no bound.
    has_derivatives = not has_bound and most <= _MOST_JOINED
    results = body.add(
        site.insert if joins_outputs else site.emit,
        continue_condition=[body.at.cast(iteration.continues, "bool")],
        after=after,
        values=[*after, *outputs, *numbers],
        output_modes=[*[LAST] * len(after), *iteration.modes, *[LAST] * len(numbers)],
        start=_start_of_loop(site, count, condition, limit),
        limit=int(bound) if has_bound else -1,
        most=int(most) if has_derivatives else -1,
    )
    ends_by_limit = not isinstance(count, Value) and condition is None
    is_counted = ends_by_limit and iteration.always_continues and limit < math.inf
    last_extents: Sequence[Any] = ()
    if is_counted:
        last_extents = grown.last_extents(body.graph, iteration.states, int(limit))
    last_states = grown.behind(results[: len(after)], last_extents)
    last_outputs = results[len(after) : len(after) + len(outputs)]
    if joins_outputs and not is_counted:
        number = site.reshaped(results[-1], (1,))
        last_outputs = _with_counts(site, body.graph, iteration, last_outputs, number)
    return last_states, last_outputs


def _most_iterations(site: Site[TensorGraph], count: Tensor | None, limit: float) -> float:
    """Return the largest possible number of iterations. The arguments are as for `add_loop`."""
    bounds = site.graph.bounds
    if not isinstance(count, Value) or not bounds.is_count(count):
        return limit
    largest_count = bounds.most(count)
    # The bound may be an open extent. Arrays with room for that many items are not supported.
    if largest_count is None or is_symbolic(largest_count):
        return limit
    return min(limit, largest_count)


def _with_counts(
    site: Site[TensorGraph], graph: TensorGraph, iteration: Iteration, outputs: Sequence[Value],
    number: Value,
) -> list[Value]:  # fmt: skip
    """Return the outputs of a loop. Joined outputs become lists.

    Args:
        site: the layer or node of the loop.
        graph: the graph of the body.
        iteration: the results of the body.
        outputs: the outputs of the loop, in which joined outputs are padded.
        number: the number of iterations, of shape (1,).
    """
    lists: list[Value] = []
    for item, output, mode in zip(iteration.outputs, outputs, iteration.modes, strict=True):
        if mode == LAST:
            lists.append(output)
            continue
        _, axis, direction = mode
        if direction < 0:
            raise InvalidOperation(
                "the number of iterations is computed, and results are joined from the end"
            )
        extent: Any = graph.shape_of(item)[axis]
        if is_symbolic(extent):
            extent = site.graph.extent_tensor(extent, site.span)
        is_single = isinstance(extent, int) and extent == 1
        count = number if is_single else site.step.mul(number, extent)
        lists.append(site.listed(output, axis, count))
    return lists


def _with_room(
    site: Site[TensorGraph], states: Sequence[Tensor], flatten: FlattenBody, most: float
) -> tuple[GrowingStates, RepeatedBody, Iteration]:
    """Flatten the body of a loop; return the loop's states, the body, and the body's results.

    A state whose extent changes in an iteration becomes a list in the body. A list has room for a
    largest number of items. The body is flattened again until the room of each list is large
    enough. `most` is the largest number of iterations.
    """
    axes: list[GrowingAxis] = []
    for find_axes in (GrowingStates.grown_axes, GrowingStates.axes_with_one_bound):
        for _ in range(_MOST_PASSES + len(states)):
            grown = GrowingStates(site, states, axes, most)
            body = RepeatedBody(site)
            for state in grown.initial:
                body.state(state)
            iteration = flatten(body, body.turn(most), grown.inside(body))
            new_axes = find_axes(grown, body.graph, iteration.states)
            if new_axes is None:
                break
            if new_axes == axes:
                grown.require_limit()
                return grown, body, iteration
            axes = new_axes
    place = f"axis {axes[0].axis} of state {axes[0].state}" if axes else "a state"
    raise InvalidOperation(
        f"no bound is known for the number of items of {place}, whose extent changes in each "
        "iteration"
    )


def _start_of_loop(
    site: Site[TensorGraph], count: Tensor | None, condition: Tensor | None, limit: float
) -> dict[str, Any]:
    """Return the operands "count" and "condition" of a loop: tensors without axes, or literals.

    The arguments are as for `add_loop`.
    """
    largest_count: Any
    if isinstance(count, Value):
        largest_count = site.reshaped(site.cast(count, site.graph.builder.integer), ())
    elif limit == math.inf:
        largest_count = int(np.iinfo(site.graph.builder.integer).max)
    else:
        largest_count = int(limit)
    first_condition: Any = True
    if condition is not None:
        first_condition = site.reshaped(site.cast(condition, "bool"), ())
    return {"count": largest_count, "condition": first_condition}
