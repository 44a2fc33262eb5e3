"""Operators with graphs: If, Loop, Scan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import shapes_differ
from lowering.graph import Value
from nnef_jax.errors import SemanticError, ShapeError
from nnef_jax.flattening.operators.attributes import attribute, integer
from nnef_jax.flattening.repetition import LAST, RepeatedBody, both, branch
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.document import ModelGraph
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_State = Tensor | list[Any]  # a list is a sequence of tensors
_MOST_UNROLLED = 1024  # iterations
_MOST_RETRIED = 64  # iterations; more are not unrolled after an error in one body for all
_BODY = attribute("body", "subgraph")


@operator("If")
def _if(
    site: NodeSite,
    condition: Tensor,
    *,
    then: ModelGraph = attribute("then_branch", "subgraph"),
    otherwise: ModelGraph = attribute("else_branch", "subgraph"),
) -> tuple[Any, ...]:
    """Compute one of two graphs, by a condition."""
    if isinstance(condition, Constant):
        graph = then if condition.array.any() else otherwise
        return tuple(site.within(graph, site.graph, {}))
    inner = [site.graph.body() for _ in range(2)]
    pairs = zip((then, otherwise), inner, strict=True)
    makes = [partial(site.within, x, graph, {}) for x, graph in pairs]
    outputs = both(makes, site.graph.fixing(condition))
    sizes = [[len(x) if isinstance(x, list) else None for x in results] for results in outputs]
    if sizes[0] != sizes[1]:
        site.known(0)  # raises: the condition is computed
    flat = [
        [_result(replace(site, graph=graph), x) for x in _flat(results)]
        for graph, results in zip(inner, outputs, strict=True)
    ]
    chosen = site.reshaped(site.cast(condition, "bool"), ())
    values = branch(site.emit, chosen, inner, flat)
    items = iter(values if isinstance(values, list | tuple) else [values])
    return tuple(next(items) if n is None else [next(items) for _ in range(n)] for n in sizes[0])


def _flat(results: Sequence[Tensor | list[Any]]) -> list[Any]:
    return [y for x in results for y in (x if isinstance(x, list) else [x])]


def _result(at: NodeSite, x: Tensor) -> Value:
    """Return an output of a node's graph as a tensor of that graph.

    Raises InvalidOperation if it is padded.
    """
    value = at.tensor(x)
    if value in at.graph.counts:
        raise InvalidOperation(
            "how many items a result of its graph has depends on values",
            "a graph of a node may have such tensors inside, its ends may not",
        )
    return value


@operator("Loop")
def _loop(
    site: NodeSite,
    count: Tensor | None = None,
    begins: Tensor | None = None,
    *,
    body: ModelGraph = _BODY,
) -> tuple[Any, ...]:
    """Repeat at most `count` times, and as long as the condition is true."""
    states = list(site.operands[2:])
    if len(body.inputs) != 2 + len(states) or len(body.outputs) < 1 + len(states):
        raise InvalidOperation(
            f"its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs for "
            f"{len(states)} states"
        )
    limit = int(count.array.reshape(-1)[0]) if isinstance(count, Constant) else math.inf
    if isinstance(begins, Constant):
        limit = limit if begins.array.any() else 0
        begins = None
    limit = max(limit, 0)
    goes_on = _goes_on(site, body, states)
    if goes_on is False and (limit < 1 or not isinstance(count, Value)):
        limit, goes_on = min(limit, 1), True  # one iteration: its condition is not read
    if begins is None and goes_on and limit < math.inf:
        return _counted(site, body, states, int(limit))
    if any(isinstance(x, list) for x in states) or len(body.outputs) > 1 + len(states):
        for i in (0, 1):
            if site.has(i):
                site.known(i)
        raise InvalidOperation(
            "how often it is repeated depends on values, and so does the size of a result"
        )
    repetition = RepeatedBody(site)
    inside = [repetition.state(x) for x in states]
    inputs = _inputs(site, body, repetition.turn(None), inside)
    going, *after = site.within(body, repetition.graph, inputs)
    integer = site.graph.builder.integer
    most: Any = int(np.iinfo(integer).max) if limit == math.inf else int(limit)
    if isinstance(count, Value):
        most = site.reshaped(site.whole(count), ())
    starts: Any = True if begins is None else site.reshaped(site.cast(begins, "bool"), ())
    at, operands = repetition.at, {"count": most, "condition": starts}
    after = [_result(at, x) for x in after]
    bound = int(limit) if limit <= _MOST_UNROLLED else -1
    how, going = [LAST] * len(after), at.cast(going, "bool")
    return tuple(repetition.add(site.emit, [going], after, after, how, operands, bound))


def _inputs(
    site: NodeSite, body: ModelGraph, turn: Tensor, states: Sequence[_State]
) -> dict[str, Any]:
    """Return the inputs of a body by name: number of the iteration, true condition, states."""
    names = [port.name for port in body.inputs]
    return dict(zip(names, [turn, site.constant(True, "bool"), *states], strict=True))


def _goes_on(site: NodeSite, body: ModelGraph, states: Sequence[_State]) -> bool | None:
    """Return the condition after an iteration, None if it is computed."""
    trial = RepeatedBody(site)
    inside = [trial.seen(x) if isinstance(x, Value) else _opened(trial, x) for x in states]
    inputs = _inputs(site, body, trial.turn(None), inside)
    (going,) = site.within(replace(body, outputs=body.outputs[:1]), trial.graph, inputs)
    return bool(going.array.any()) if isinstance(going, Constant) else None


def _opened(trial: RepeatedBody, x: _State) -> Any:
    """Return a known state as a computed one: iterations may change it."""
    return [_opened(trial, y) for y in x] if isinstance(x, list) else trial.state(x)


def _counted(
    site: NodeSite, body: ModelGraph, states: Sequence[_State], count: int
) -> tuple[Any, ...]:
    """Add a scan of `count` iterations, or the nodes of each iteration.

    Iterations are unrolled if states are sequences or change their shapes, or if the number of the
    iteration decides shapes.
    """
    tensors = [x for x in states if not isinstance(x, list)]
    if len(tensors) == len(states):
        try:
            return _as_scan(site, body, tensors, count) or _unrolled(site, body, states, count)
        except (SemanticError, ShapeError):
            if count > _MOST_RETRIED:
                raise
    return _unrolled(site, body, states, count)


def _as_scan(
    site: NodeSite, body: ModelGraph, states: Sequence[Tensor], count: int
) -> tuple[Any, ...] | None:
    """Add a scan. Return None if results of the body are sequences or states change shapes."""
    repetition = RepeatedBody(site)
    inside = [repetition.state(x) for x in states]
    inputs = _inputs(site, body, repetition.turn(count), inside)
    _, *results = site.within(body, repetition.graph, inputs)
    if any(isinstance(x, list) for x in results):
        return None
    values = [_result(repetition.at, x) for x in results]
    after, outputs = values[: len(states)], values[len(states) :]
    pairs = zip(after, repetition.before, strict=True)
    if any(shapes_differ(x.type.shape, y.type.shape) for x, y in pairs):
        return None
    stacked = [repetition.at.unsqueezed(x, (0,)) for x in outputs]
    return tuple(repetition.scan(after, stacked, [("full", 0, 1)] * len(stacked)))


def _unrolled(
    site: NodeSite, body: ModelGraph, states: Sequence[_State], count: int
) -> tuple[Any, ...]:
    if count > _MOST_UNROLLED:
        raise InvalidOperation(
            f"a state changes its shape, or is a sequence, in each of {count} iterations",
            f"at most {_MOST_UNROLLED} of these are written out one by one",
        )
    outputs: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(states) :]]
    if outputs and not count:
        raise InvalidOperation("without iterations a result has no shape")
    for i in range(count):
        turn = site.constant(i, "int64")
        _, *results = site.within(body, site.graph, _inputs(site, body, turn, states))
        states = results[: len(states)]
        for values, x in zip(outputs, results[len(states) :], strict=True):
            values.append(x)
    return (*states, *(site.step.stack(values, axis=0) for values in outputs))


def _require_inputs(site: NodeSite, count: int) -> None:
    """Raise InvalidOperation unless a scan can have `count` scanned inputs."""
    if not 0 < count <= len(site.operands):
        raise InvalidOperation(f"'num_scan_inputs' is {count}, it has {len(site.operands)} inputs")


@operator("Scan", since=9)
def _scan(
    site: NodeSite, *, count: int = integer("num_scan_inputs"), body: ModelGraph = _BODY
) -> tuple[Any, ...]:
    _require_inputs(site, count)
    tensors, kinds = [*map(site.operand, range(len(site.operands)))], ("axes", "directions")
    first = len(tensors) - count
    zeros = [0] * (len(body.outputs) - first)
    inputs = (site.ints(f"scan_input_{x}", [0] * count) for x in kinds)
    outputs = (site.ints(f"scan_output_{x}", zeros) for x in kinds)
    pairs = (list(zip(*ends, strict=True)) for ends in (inputs, outputs))
    return _scanned(site, body, tensors[:first], tensors[first:], *pairs)


def _scanned(
    site: NodeSite, graph: ModelGraph, states: Sequence[Tensor], scanned: Sequence[Tensor],
    cuts: Sequence[tuple[int, int]], joints: Sequence[tuple[int, int]],
) -> tuple[Any, ...]:  # fmt: skip
    """Add a scan of a graph; return the last states and the outputs.

    `cuts` are (axis, direction) of the scanned tensors, `joints` those of the outputs. The
    direction 1 is from the end.
    """
    body = RepeatedBody(site)
    inside: list[Value] = [body.state(x) for x in states]
    for x, (axis, way) in zip(scanned, cuts, strict=True):
        inside.append(body.item(x, site.axis(axis, site.rank(x)), reverse=bool(way)))
    names = [port.name for port in graph.inputs]
    results = site.within(graph, body.graph, dict(zip(names, inside, strict=True)))
    values = [_result(body.at, x) for x in results]
    after, outputs = values[: len(states)], values[len(states) :]
    how: list[tuple[str, int, int]] = []
    for i, (axis, way) in enumerate(joints):
        axis = site.axis(axis, len(outputs[i].type.shape) + 1)
        outputs[i] = body.at.unsqueezed(outputs[i], (axis,))
        how.append(("full", axis, -1 if way else 1))
    return tuple(body.scan(after, outputs, how))


@operator("Scan")
def _scan_8(
    site: NodeSite, *, count: int = integer("num_scan_inputs"), body: ModelGraph = _BODY
) -> tuple[Any, ...]:
    """Scan each sequence of tensors [batch,time,...]."""
    _require_inputs(site, count)
    first = len(site.operands) - count - 1
    tensors = [site.tensor(i) for i in range(1, len(site.operands))]
    batch, time = site.known_shape(tensors[-1])[:2]
    if site.has(0) and any(n != time for n in site.integers(0)):
        raise InvalidOperation("sequences of several lengths in a batch are not supported")
    site.spend(batch * len(body.nodes))
    cuts = [(0, way) for way in site.ints("directions", [0] * count)]
    joints = [(0, 0)] * (len(body.outputs) - first)
    results: list[tuple[Any, ...]] = []
    for i in range(batch):
        items = [site.squeezed(site.part(x, 0, i, i + 1), 0) for x in tensors]
        results.append(_scanned(site, body, items[:first], items[first:], cuts, joints))
    return tuple(site.step.stack([*values], axis=0) for values in zip(*results, strict=True))
