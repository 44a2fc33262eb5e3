"""Functions for the operator Scan, which runs a graph for each slice of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import attribute, integer
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.document import ModelGraph
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

_BODY = attribute("body", "subgraph")


def _require_inputs(site: NodeSite, count: int) -> None:
    """Raise InvalidOperation if a Scan has fewer than `count` inputs, or if `count` is below 1.

    `count` is the number of scanned inputs.
    """
    if not 0 < count <= len(site.operands):
        raise InvalidOperation(f"'num_scan_inputs' is {count}, it has {len(site.operands)} inputs")


@operator("Scan", since=9)
def _scan(
    site: NodeSite, *, count: int = integer("num_scan_inputs"), body: ModelGraph = _BODY
) -> tuple[Any, ...]:
    """Run a body for each slice of the scanned inputs. `count` is the number of these inputs.

    The first inputs of the node are the states, and its last inputs are the scanned inputs.
    """
    _require_inputs(site, count)
    tensors = [site.operand(i) for i in range(len(site.operands))]
    state_count = len(tensors) - count
    states = tensors[:state_count]
    scanned = tensors[state_count:]
    output_count = len(body.outputs) - state_count

    def axes_and_directions(side: str, tensor_count: int) -> list[tuple[int, int]]:
        """Return a pair (axis, direction) for each scanned input or output.

        `side` is "input" or "output".
        """
        axes = site.ints(f"scan_{side}_axes", [0] * tensor_count)
        directions = site.ints(f"scan_{side}_directions", [0] * tensor_count)
        return list(zip(axes, directions, strict=True))

    cuts = axes_and_directions("input", count)
    stacks = axes_and_directions("output", output_count)
    return _scanned(site, body, states, scanned, cuts, stacks)


def _scanned(
    site: NodeSite, graph: ModelGraph, states: Sequence[Tensor], scanned: Sequence[Tensor],
    cuts: Sequence[tuple[int, int]], stacks: Sequence[tuple[int, int]],
) -> tuple[Any, ...]:  # fmt: skip
    """Add a scan of a graph; return the last states, then the stacked outputs.

    A direction of 1 begins at the end of an axis, and a direction of 0 at its start.

    Args:
        site: the node of the scan.
        graph: the graph that is run in each iteration.
        states: the states before the first iteration.
        scanned: the tensors that are cut into one slice for each iteration.
        cuts: a pair (axis, direction) for each scanned tensor.
        stacks: a pair (axis, direction) for each output.
    """
    body = RepeatedBody(site)
    inner_tensors: list[Value] = [body.state(state) for state in states]
    for tensor, (axis, direction) in zip(scanned, cuts, strict=True):
        axis = site.axis(axis, site.rank(tensor))
        inner_tensors.append(body.item(tensor, axis, reverse=bool(direction)))
    names = [port.name for port in graph.inputs]
    inputs = dict(zip(names, inner_tensors, strict=True))
    results = site.flatten_subgraph(graph, body.graph, inputs)
    values = [body.at.tensor(result) for result in results]
    after = values[: len(states)]
    outputs = values[len(states) :]
    modes: list[tuple[str, int, int]] = []
    for i, (axis, direction) in enumerate(stacks):
        rank = len(outputs[i].type.shape) + 1  # the rank with the new axis
        axis = site.axis(axis, rank)
        outputs[i] = body.at.unsqueezed(outputs[i], (axis,))
        chunk = -1 if direction else 1  # one item for each iteration; -1 begins at the end
        modes.append(("full", axis, chunk))
    return tuple(body.scan(after, outputs, modes))


@operator("Scan")
def _scan_8(
    site: NodeSite, *, count: int = integer("num_scan_inputs"), body: ModelGraph = _BODY
) -> tuple[Any, ...]:
    """Scan each sequence of a batch separately, as in version 8.

    The inputs are the lengths of the sequences, the states of shape (batch, ...), and `count`
    scanned inputs of shape (batch, time, ...).
    """
    _require_inputs(site, count)
    tensors = [site.tensor(i) for i in range(1, len(site.operands))]  # without the lengths
    state_count = len(tensors) - count
    batch, time = site.known_shape(tensors[-1])[:2]
    lengths = site.integers(0) if site.has(0) else []
    if any(length != time for length in lengths):
        raise InvalidOperation("sequences of different lengths in a batch are not supported")
    site.spend(batch * len(body.nodes))
    # Pairs (axis, direction). Time is axis 0 of a sequence.
    cuts = [(0, direction) for direction in site.ints("directions", [0] * count)]
    stacks = [(0, 0)] * (len(body.outputs) - state_count)
    results_by_sequence: list[tuple[Any, ...]] = []
    for i in range(batch):
        parts = [site.part(tensor, axis=0, first=i, last=i + 1) for tensor in tensors]
        tensors_of_sequence = [site.squeezed(part, 0) for part in parts]
        states = tensors_of_sequence[:state_count]
        scanned = tensors_of_sequence[state_count:]
        results_by_sequence.append(_scanned(site, body, states, scanned, cuts, stacks))
    stacked: list[Any] = []
    for values in zip(*results_by_sequence, strict=True):
        stacked.append(site.step.stack([*values], axis=0))
    return tuple(stacked)
