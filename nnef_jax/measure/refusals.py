"""Finds the operation of a network that the compiler for a device refuses."""

from __future__ import annotations

from typing import Any

import jax

from lowering import network
from lowering.graph import Graph, Operation, Value
from nnef_jax.errors import UnsupportedError
from nnef_jax.measure.topologies import Topology
from nnef_jax.measure.unattached import LoweredFunction, Refused, compile_for, lowered_program
from nnef_jax.workings import Evaluation


def located(
    error: UnsupportedError, graph: Graph, evaluate: Evaluation, topology: Topology
) -> UnsupportedError:
    """Return an error that names the first operation that the compiler refuses by itself.

    If there is no such operation, return `error`.

    Args:
        error: the compiler's refusal of the whole network.
        graph: the network, without open extents.
        evaluate: a function that computes the tensors of a graph.
        topology: the devices.
    """
    programs: dict[Operation, LoweredFunction] = {}
    for operation in _distinct(graph):
        try:
            programs[operation] = _lowered(operation, evaluate, topology.chip.platform)
        except UnsupportedError as refusal:
            if refusal.message == error.message:
                return _error_at(operation, refusal.message, refusal.hint)
    results = compile_for(topology, [*programs.values()])
    for operation, result in zip(programs, results, strict=True):
        if isinstance(result, Refused):
            message = f"the compiler for '{topology.name}' refuses '{operation.kind}'"
            return _error_at(operation, f"{message}: {result.reason}")
    return error


def _distinct(graph: Graph) -> list[Operation]:
    """Return the operations on which results depend, without repetitions.

    Of several operations with the same kind, attributes and types, the result has only the first.
    """
    operations: dict[str, Operation] = {}
    for operation in graph.operations:
        is_needed = not graph.needed.isdisjoint(operation.writes())
        has_operands = bool(list(operation.reads()))
        if is_needed and has_operands:
            items = operation.operands, operation.attributes
            key = repr((operation.kind, operation.rule, _comparable(items)))
            operations.setdefault(key, operation)
    return [*operations.values()]


def _comparable(item: Any) -> Any:
    """Return operands or attributes in a form in which two operations can be compared.

    Tensors are replaced by their types, and graphs by their `id`.
    """
    if isinstance(item, tuple):
        return [*map(_comparable, item)]  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(item, Graph):
        return id(item)
    return item.type if isinstance(item, Value) else item


def _lowered(operation: Operation, evaluate: Evaluation, platform: str) -> LoweredFunction:
    """Lower a single operation, as a function of its operands, for a platform."""
    inputs = tuple(dict.fromkeys(operation.reads()))
    outputs = tuple(operation.writes())
    graph = Graph(operation.kind, inputs, outputs, tuple(x.name for x in outputs), (operation,))

    def run(_: object, *arrays: Any) -> list[Any]:
        tensors = evaluate(graph, {}, {}, arrays)
        return [tensors[x] for x in outputs]

    types = [jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in inputs]
    return lowered_program(network(run), ((), *types), platform)


def _error_at(operation: Operation, message: str, hint: str = "") -> UnsupportedError:
    return UnsupportedError(message, span=operation.span, calls=operation.calls, hint=hint)
