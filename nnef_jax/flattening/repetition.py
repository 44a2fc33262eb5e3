"""Builds the bodies of scans, loops and branches, and adds these operations to a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Graph, TensorType, Value
from nnef_jax.errors import LimitError, NnefError
from nnef_jax.flattening.branch_results import as_lists, with_extents
from nnef_jax.flattening.emission import ByName
from nnef_jax.flattening.site import Operand, Site, Tensor
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph

# The attribute `outputs` of `scan` and `loop` has three items for each output. The first is a mode:
# "full", for instance, joins the tensors of all iterations. The second is the axis of the join. The
# third is the chunk, which is negative if the tensors are joined in reverse order.
Outputs = Sequence[tuple[str, int, int]]
LAST = ("last", 0, 1)  # the output is the tensor of the last iteration: nothing is joined
_Body = TypeVar("_Body")


class RepeatedBody:
    """The body of a scan or loop under construction.

    `at` is the site that adds operations to the body. The outer graph is the graph around the body.
    A tensor of the outer graph has the same value in every iteration.
    """

    def __init__(self, site: Site[TensorGraph]) -> None:
        self.site = site
        self.graph: TensorGraph = site.graph.body()
        self.at: Any = replace(cast("Any", site), graph=self.graph)  # a site of the class of `site`
        # Inputs of the body for slices of outer tensors, and for the number of the iteration.
        self.loop_inputs: list[Value] = []
        self.inner_states: list[Value] = []  # the body's inputs for the states
        # Outer tensors: the states before the first iteration.
        self.initial_states: list[Value] = []
        # For each slice: the outer tensor, the axis and the chunk (the slice's extent, see `part`).
        self.scanned: list[tuple[Value, int, int]] = []

    def _new_input(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        """Add an input to the graph of the body."""
        return self.graph.builder.input(name, TensorType(tuple(shape), dtype))

    def outer_input(self, x: Operand | None) -> Any:
        """Return the body's input for a tensor of the graph around the body.

        A constant, which needs no input, is returned unchanged.
        """
        return self.graph.input_for(x) if isinstance(x, Value) else x

    def part(self, x: Tensor, axis: int, chunk: int, name: str = "") -> Value:
        """Cut a tensor of the outer graph into slices; return the slice of the current iteration.

        A slice has abs(chunk) items along the axis. If `chunk` is negative, the first slice is at
        the end of the axis.
        """
        tensor = self.site.tensor(x)
        self.scanned.append((tensor, axis, chunk))
        part_shape = list(tensor.type.shape)
        part_shape[axis] = abs(chunk)
        name = name or f"part_{len(self.loop_inputs)}"
        part = self._new_input(name, part_shape, tensor.type.dtype)
        self.loop_inputs.append(part)
        return part

    def item(self, x: Tensor, axis: int, *, reverse: bool = False) -> Value:
        """Return item i of a tensor along an axis, where i is the number of the iteration.

        The result lacks this axis. If `reverse`, the first iteration has the last item.
        """
        chunk = -1 if reverse else 1
        part = self.part(x, axis, chunk)
        return self.at.insert("squeeze", {"input": part}, axes=(axis,))

    def turn(self, limit: float = math.inf) -> Value:
        """Return the number of the current iteration of a loop, counted from 0.

        A loop passes the number to its body as an input. `limit` is the largest number of
        iterations.
        """
        number = self._new_input("turn", (), self.graph.builder.integer)
        self.loop_inputs.append(number)
        most = None if limit == math.inf else max(int(limit) - 1, 0)
        self.graph.bounds.declare(number, most, is_count=True)
        return number

    def iteration(self, count: int) -> Value:
        """Return the number of the current iteration of a scan of `count` iterations."""
        self.site.spend(count)
        numbers = Constant(np.arange(count, dtype=np.int64), self.graph.TYPES["i"], derived=True)
        number = self.item(numbers, 0)
        self.graph.bounds.declare(self.loop_inputs[-1], count - 1, is_count=True)
        return number

    def state(self, x: Tensor) -> Value:
        """Add a state to the body; return the state before the current iteration.

        `x` is the state before the first iteration.
        """
        initial_state = self.site.tensor(x)
        self.initial_states.append(initial_state)
        name = f"state_{len(self.inner_states)}"
        state = self._new_input(name, initial_state.type.shape, initial_state.type.dtype)
        self.graph.declare(state, initial_state)
        self.inner_states.append(state)
        return state

    def scan(
        self, after: Sequence[Tensor], values: Sequence[Tensor], output_modes: Outputs
    ) -> list[Value]:
        """Add a scan to the outer graph; return the last states, then the outputs of `values`.

        `after` are the states after an iteration. `values` are tensors of the body that become
        outputs. For each of these, `output_modes` says how the output is made from all iterations.
        """
        last_states = [LAST] * len(after)
        return self.add(
            self.site.emit,
            continue_condition=[],
            after=after,
            values=[*after, *values],
            output_modes=[*last_states, *output_modes],
        )

    def add(
        self,
        add_operation: Callable[..., Any],
        continue_condition: Sequence[Tensor],
        after: Sequence[Tensor],
        values: Sequence[Tensor],
        output_modes: Outputs,
        start: ByName | None = None,
        limit: int = -1,
        most: int = -1,
    ) -> list[Value]:
        """Add a scan or a loop to the graph around the body; return the outputs of `values`.

        Args:
            add_operation: adds the operation, as `site.emit` does.
            continue_condition: a list of one tensor of bool without axes: the condition of a loop
                after an iteration. The list is empty for a scan.
            after: the states after an iteration.
            values: the tensors of the body whose values are outputs.
            output_modes: says for each of `values` how the tensors of all iterations become an
                output. These are the items of the attribute `outputs` of the operation.
            start: the operands "count" and "condition" of a loop. None for a scan.
            limit: the largest number of iterations of a loop. -1 stands for no limit.
            most: the largest number of iterations of a loop without `limit`, for derivatives in
                reverse mode. -1 stands for an unknown number.
        """
        results_of_body = (*continue_condition, *after, *values)
        body_outputs = [self.at.tensor(x) for x in results_of_body]
        if any(map(self.graph.is_counted_here, body_outputs)):
            raise InvalidOperation(
                "the number of items of a result of its body depends on values",
                "such tensors may be inside a body, but not be its results",
            )
        captured = self.graph.captured  # maps inputs of the body to outer tensors
        body_inputs = [*self.loop_inputs, *captured, *self.inner_states]
        body = finished_body(self.graph, body_inputs, body_outputs)
        if start is None:
            kind = "scan"
            scanned, axes, chunks = zip(*self.scanned, strict=True)
            operands: dict[str, Any] = {"scanned": scanned}
            attributes = {"axes": axes, "chunks": chunks, "skip": 0}
        else:
            kind = "loop"
            operands = {**start}
            attributes = {"limit": limit}
            if limit < 0 <= most:
                attributes["most"] = most
        operands |= {"full": [*captured.values()], "initial": self.initial_states}
        attributes |= {"body": body, "outputs": tuple(output_modes)}
        outputs = add_operation(kind, operands, **attributes)
        return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def flattened_branches(flatteners: Sequence[Callable[[], _Body]], hint_to_fix: str) -> list[_Body]:
    """Flatten the two branches of a choice, and return their results.

    `flatteners` has a function for each branch, which flattens the branch when it is called. If
    only one branch can be flattened, the error of the other branch has the hint `hint_to_fix`. The
    hint says how to make the condition a constant.

    Raises InvalidOperation or NnefError if a branch cannot be flattened.
    """
    bodies: list[_Body] = []
    errors: list[InvalidOperation | NnefError] = []
    for flatten in flatteners:
        try:
            bodies.append(flatten())
        except LimitError:
            raise  # even if the other branch can be flattened
        except (InvalidOperation, NnefError) as error:
            errors.append(error)
    if not errors:
        return bodies
    error = errors[0]
    other_branch_fits = len(bodies) > 0
    if other_branch_fits and hint_to_fix:
        hint = f"the other branch fits, and the condition is computed: {hint_to_fix}"
        error.hint = f"{hint}; {error.hint}" if error.hint else hint
    raise error


def add_choice(
    site: Site[TensorGraph],
    add_operation: Callable[..., Any],
    condition: Value,
    graphs: Sequence[TensorGraph],
    results: Sequence[Sequence[Value]],
) -> list[Value]:
    """Add a `branch`, which runs one of two bodies; return the results.

    A result whose extents depend on the body becomes a list, whose extents are counted in a run.

    Args:
        site: the layer or node that has the bodies.
        add_operation: adds the operation, as `site.emit` does.
        condition: the condition, a tensor of bool without axes.
        graphs: the graphs of the two bodies, under construction.
        results: the outputs of each body.
    """
    outputs_by_body, varying_axes = with_extents(graphs, results, site.span)
    captured: list[Value] = []  # tensors of the outer graph that a body reads
    for graph in graphs:
        captured += graph.captured.values()
    outer_values = list(dict.fromkeys(captured))
    bodies: list[Graph] = []
    for graph, outputs in zip(graphs, outputs_by_body, strict=True):
        inputs = [graph.input_for(value, value.name) for value in outer_values]
        bodies.append(finished_body(graph, inputs, outputs))
    then_body, else_body = bodies
    operands = {"condition": condition, "operands": outer_values}
    try:
        values = add_operation("branch", operands, then_body=then_body, else_body=else_body)
    except InvalidOperation as error:
        outer = graphs[0].outer
        if outer and not error.hint:
            error.hint = outer.hint_to_fix(condition)
        raise
    values = list(values) if isinstance(values, list | tuple) else [values]
    return as_lists(site.graph, values, varying_axes, site.span)


def finished_body(graph: TensorGraph, inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
    """Finish the graph of a body that has the inputs `inputs` and the outputs `outputs`."""
    input_names = [value.name for value in inputs]
    output_names = [f"{i}_{value.name}" for i, value in enumerate(outputs)]
    return graph.builder.graph("body", outputs, output_names, input_names)
