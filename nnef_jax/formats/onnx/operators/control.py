"""Functions for If and Loop, the operators that run a graph if or while a condition is true."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic
from lowering.graph import Value
from nnef_jax.errors import NnefError, SemanticError, UnsupportedError
from nnef_jax.flattening.loops import Iteration, add_loop
from nnef_jax.flattening.operators.attributes import attribute
from nnef_jax.flattening.repetition import RepeatedBody, add_choice, flattened_branches
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.document import ModelGraph
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_State = Tensor | list[Any]  # a state of a loop; a list is a sequence of tensors
_ENDLESS = 1 << 31  # a loop with this limit, or a larger one, counts as a loop without a limit
_MOST_UNROLLED = 1024  # the largest number of iterations that are unrolled
# If flattening a loop to a scan raises an error, the loop is unrolled instead. A loop with more
# iterations than this number is not unrolled.
_MOST_RETRIED = 64
_BODY = attribute("body", "subgraph")


@operator("If")
def _if(
    site: NodeSite,
    condition: Tensor,
    *,
    then: ModelGraph = attribute("then_branch", "subgraph"),
    otherwise: ModelGraph = attribute("else_branch", "subgraph"),
) -> tuple[Any, ...]:
    """Compute one of two graphs: `then` if the condition is true, else `otherwise`."""
    if isinstance(condition, Constant):
        graph = then if condition.array.any() else otherwise
        no_inputs: dict[str, Any] = {}
        return tuple(site.flatten_subgraph(graph, site.graph, no_inputs))
    then_body = site.graph.body()
    else_body = site.graph.body()
    flatteners = [
        partial(site.flatten_subgraph, then, then_body, {}),
        partial(site.flatten_subgraph, otherwise, else_body, {}),
    ]
    hint_to_fix = site.graph.hint_to_fix(condition)
    then_outputs, else_outputs = flattened_branches(flatteners, hint_to_fix)
    lengths = [_length(x) for x in then_outputs]
    else_lengths = [_length(x) for x in else_outputs]
    if lengths != else_lengths:
        # Sequences of different lengths need a constant condition. The condition of this node is
        # computed in a run, so `known` raises InvalidOperation, with a hint how to make the
        # condition a constant.
        site.known(0)
    then_tensors = _tensors_of(replace(site, graph=then_body), then_outputs)
    else_tensors = _tensors_of(replace(site, graph=else_body), else_outputs)
    is_then = site.reshaped(site.cast(condition, "bool"), ())
    bodies = [then_body, else_body]
    values = add_choice(site, site.emit, is_then, bodies, [then_tensors, else_tensors])
    return _with_sequences(values, lengths)


def _with_sequences(tensors: Iterable[Any], lengths: Iterable[int | None]) -> tuple[Any, ...]:
    """Group tensors into the outputs of a node, which are tensors and sequences of tensors.

    `lengths` has, for each output, the length of the sequence, or None for a tensor. For example,
    the tensors a, b, c and the lengths 2, None become [a, b], c.
    """
    next_tensors = iter(tensors)
    outputs: list[Any] = []
    for length in lengths:
        if length is None:
            outputs.append(next(next_tensors))
        else:
            outputs.append([next(next_tensors) for _ in range(length)])
    return tuple(outputs)


def _length(output: _State) -> int | None:
    """Return the length of an output that is a sequence, or None for an output that is a tensor."""
    return len(output) if isinstance(output, list) else None


def _tensors_of(body_site: NodeSite, outputs: Sequence[_State]) -> list[Value]:
    """Return the tensors in the outputs of a body as a flat list.

    An output that is a sequence has several tensors. `body_site` is a site in the body's graph.
    """
    tensors: list[Value] = []
    for output in outputs:
        items = output if isinstance(output, list) else [output]
        tensors += map(body_site.tensor, items)
    return tensors


@operator("Loop")
def _loop(
    site: NodeSite,
    count: Tensor | None = None,
    begins: Tensor | None = None,
    *,
    body: ModelGraph = _BODY,
) -> tuple[Any, ...]:
    """Repeat a body while a condition is true, but at most `count` times.

    `begins` is the condition before the first iteration. The body computes the condition for the
    next iteration. The node's inputs after the first two are the states.
    """
    states = list(site.operands[2:])
    # The inputs of the body are the number of the iteration, the condition and the states. The
    # outputs of the body are the condition, the states, and outputs that are stacked.
    if len(body.inputs) != 2 + len(states) or len(body.outputs) < 1 + len(states):
        raise InvalidOperation(
            f"its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs for "
            f"{len(states)} states"
        )
    limit = math.inf  # an upper bound of the number of iterations, known before a run
    if isinstance(count, Constant):
        count_item = count.array.reshape(-1)[0]
        if is_symbolic(count_item):
            # A run computes the count, for example from the length of a list.
            count = site.tensor(count)
        else:
            # Exporters of `while` write the largest integer for a loop without a limit.
            limit = max(int(count_item), 0) if count_item < _ENDLESS else math.inf
            count = None if limit == math.inf else count
    if isinstance(begins, Constant):
        if not begins.array.any():
            limit = 0
        begins = None  # `limit` is 0 if this condition is false
    always_continues = _continues(site, body, states)
    has_known_limit = limit == 0 or not isinstance(count, Value)
    if always_continues is False and has_known_limit:
        # The condition is false after the first iteration. Therefore the loop has at most one
        # iteration. The condition need not be read to end the loop, so it is assumed to be true.
        limit = min(limit, 1)
        always_continues = True
    ends_by_count = begins is None and always_continues
    if ends_by_count and limit < math.inf:
        return _counted(site, body, states, int(limit))
    if ends_by_count and count is None:
        # The condition may become false when the shapes of states change.
        unrolled = _unrolled(site, body, states, math.inf)
        if unrolled is not None:
            return unrolled
    return _uncounted(site, body, states, count, begins, limit)


def _uncounted(
    site: NodeSite, body: ModelGraph, states: Sequence[_State], count: Tensor | None,
    begins: Tensor | None, limit: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Run a loop whose number of iterations depends on computed values.

    Return the last states, then the stacked outputs. The arguments are as for `_as_loop`, but a
    state may be a sequence. Raises InvalidOperation if the graph cannot have such a loop.
    """
    has_sequences = any(isinstance(state, list) for state in states)
    stacks_outputs = len(body.outputs) > 1 + len(states)
    failure: NnefError | InvalidOperation | None = None
    if not has_sequences:
        try:
            return _as_loop(site, body, states, count, begins, limit)
        except (SemanticError, UnsupportedError, InvalidOperation) as error:
            if not stacks_outputs:
                raise
            failure = error
    # Input 0 is the number of iterations, and input 1 is the condition before the first iteration.
    for i in (0, 1):
        if site.has(i):
            # Raises InvalidOperation for a computed input, with a hint how to make the input a
            # constant.
            site.known(i)
    if failure is not None:
        raise failure
    raise InvalidOperation(
        "the number of its iterations depends on values, and with it the size of a result"
    )


def _as_loop(
    site: NodeSite, body: ModelGraph, states: Sequence[Any], count: Tensor | None,
    begins: Tensor | None, limit: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Add a loop to the graph; return the last states, then the stacked outputs.

    The loop ends when its condition is false, at the latest after `count` iterations.

    Args:
        site: the node of the loop.
        body: the body.
        states: the states before the first iteration, which are tensors.
        count: the largest number of iterations, or None.
        begins: the condition before the first iteration. None stands for true.
        limit: the largest number of iterations that the document states, or infinity.
    """

    def flatten(
        repetition: RepeatedBody, number: Value, inner_states: Sequence[Value]
    ) -> Iteration:
        inputs = _inputs(site, body, number, inner_states)
        condition, *results = site.flatten_subgraph(body, repetition.graph, inputs)
        values = [repetition.at.tensor(result) for result in results]
        # The outputs of all iterations are joined along a new axis 0.
        outputs = [repetition.at.unsqueezed(x, (0,)) for x in values[len(states) :]]
        return Iteration(condition, values[: len(states)], outputs, [("full", 0, 1)] * len(outputs))

    if isinstance(count, Value):
        count = site.as_integer(count)
        if not site.graph.bounds.is_count(count):
            count = site.step.max(count, 0)  # no iteration runs for a negative count
    last_states, stacked = add_loop(site, states, flatten, count, begins, limit)
    return (*last_states, *stacked)


def _inputs(
    site: NodeSite, body: ModelGraph, iteration: Tensor, states: Sequence[_State]
) -> dict[str, Any]:
    """Return a dict from names in the body of a loop to the inputs of the body.

    The inputs are the number of the iteration, the condition (always True), and the states.
    """
    names = [port.name for port in body.inputs]
    condition = site.constant(True, "bool")
    return dict(zip(names, [iteration, condition, *states], strict=True))


def _continues(site: NodeSite, body: ModelGraph, states: Sequence[_State]) -> bool | None:
    """Return the condition that the body of a loop computes, or None if it is not a constant.

    The condition may depend on inputs of the network, and is then no constant. `states` are the
    states before the first iteration.
    """
    # The graph of `trial` is not added to the outer graph. It only serves to find the condition.
    trial = RepeatedBody(site)
    inner_states: list[Any] = []
    for state in states:
        if isinstance(state, Value):
            inner_states.append(trial.outer_input(state))
        else:
            inner_states.append(_as_state(trial, state))
    inputs = _inputs(site, body, trial.turn(), inner_states)
    # The first output of the body is the condition.
    condition_graph = replace(body, outputs=body.outputs[:1])
    (condition,) = site.flatten_subgraph(condition_graph, trial.graph, inputs)
    if not isinstance(condition, Constant):
        return None
    return bool(condition.array.any())


def _as_state(body: RepeatedBody, state: _State) -> Any:
    """Return a state of a loop as a computed tensor of the body, even if the state is a constant.

    A constant would be right only in the first iteration, since iterations may change the state. A
    state that is a sequence becomes a sequence of computed tensors.
    """
    if isinstance(state, list):
        return [_as_state(body, item) for item in state]
    return body.state(state)


def _counted(
    site: NodeSite, body: ModelGraph, states: Sequence[_State], count: int
) -> tuple[Any, ...]:
    """Run a body `count` times; return the last states, then the stacked outputs.

    The body becomes a scan, if possible. Otherwise the nodes of the body are added once for each
    iteration. A scan cannot run the body if states are sequences or change their shapes, or if
    shapes depend on the number of the iteration.
    """
    tensors = [state for state in states if not isinstance(state, list)]
    has_sequences = len(tensors) < len(states)
    results = None
    try:
        if not has_sequences:
            results = _as_scan(site, body, tensors, count)
    except (SemanticError, UnsupportedError):
        # Shapes may depend on the number of the iteration, which is known in unrolled iterations.
        if count > _MOST_RETRIED:
            raise
    if results is None:
        results = _unrolled(site, body, states, count)
    if results is None:
        results = _uncounted(site, body, states, count=None, begins=None, limit=count)
    return results


def _as_scan(
    site: NodeSite, body: ModelGraph, states: Sequence[Tensor], count: int
) -> tuple[Any, ...] | None:
    """Add a scan that runs a body `count` times; return the last states, then the stacked outputs.

    Return None if a scan cannot run the body. A scan cannot run a body with results that are
    sequences, with lists whose number of items the body computes, or with states that change their
    shapes.
    """
    repetition = RepeatedBody(site)
    inner_states = [repetition.state(state) for state in states]
    inputs = _inputs(site, body, repetition.iteration(count), inner_states)
    _, *results = site.flatten_subgraph(body, repetition.graph, inputs)  # without the condition
    if any(isinstance(result, list) for result in results):
        return None
    values = [repetition.at.tensor(result) for result in results]
    if any(map(repetition.graph.is_counted_here, values)):
        return None
    after = values[: len(states)]
    outputs = values[len(states) :]
    for new_state, old_state in zip(after, repetition.inner_states, strict=True):
        if not repetition.graph.has_shape_of(new_state, old_state):
            return None
    # The outputs of all iterations are joined along a new axis 0, one slice for each iteration.
    with_axis = [repetition.at.unsqueezed(output, (0,)) for output in outputs]
    modes = [("full", 0, 1)] * len(with_axis)
    return tuple(repetition.scan(after, with_axis, modes))


def _unrolled(
    site: NodeSite, body: ModelGraph, states: Sequence[_State], count: float
) -> tuple[Any, ...] | None:
    """Add the nodes of a body `count` times; return the last states, then the stacked outputs.

    The unrolling ends earlier if the condition is false after an iteration. Return None if the
    condition is a computed tensor. A condition may be a constant, such as a comparison of shapes.
    """
    state_count = len(states)
    # The body's outputs are the condition, the states, and the outputs that are stacked.
    output_ports = body.outputs[1 + state_count :]
    if output_ports and count == 0:
        raise InvalidOperation("it has no iterations, from which a result would have its shape")
    values_by_output: list[list[Tensor]] = [[] for _ in output_ports]
    for i in range(int(min(count, _MOST_UNROLLED + 1))):
        if i == _MOST_UNROLLED:
            raise InvalidOperation(
                f"a state changes its shape, or is a sequence, in each of {count} iterations",
                f"at most {_MOST_UNROLLED} such iterations are unrolled",
            )
        iteration = site.constant(i, "int64")
        inputs = _inputs(site, body, iteration, states)
        condition, *results = site.flatten_subgraph(body, site.graph, inputs)
        states = results[:state_count]
        outputs = results[state_count:]
        for values, output in zip(values_by_output, outputs, strict=True):
            values.append(output)
        if not isinstance(condition, Constant):
            return None
        if not condition.array.any():
            break
    stacked = [site.step.stack(values, axis=0) for values in values_by_output]
    return (*states, *stacked)
