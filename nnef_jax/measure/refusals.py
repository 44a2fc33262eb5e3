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
    """Find the operation that a compiler refuses, and return an error that names it.

    Each operation is compiled as a separate program. The returned error names the first operation
    that the compiler refuses. If the compiler refuses none of them, `error` is returned.

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
            # An operation with a different refusal is not the cause of `error`.
            if refusal.message == error.message:
                return _error_at(operation, refusal.message, refusal.hint)
    results = compile_for(topology, [*programs.values()])
    for operation, result in zip(programs, results, strict=True):
        if isinstance(result, Refused):
            message = f"the compiler for '{topology.name}' refuses '{operation.kind}'"
            return _error_at(operation, f"{message}: {result.reason}")
    return error


def _distinct(graph: Graph) -> list[Operation]:
    """Return the operations on which the graph's results depend, without repetitions.

    If several operations have the same kind, attributes and types, only the first one is returned.
    Operations without operands are left out.
    """
    operations: dict[str, Operation] = {}
    for operation in graph.operations:
        is_needed = not graph.needed.isdisjoint(operation.writes())
        has_operands = bool(list(operation.reads()))
        if is_needed and has_operands:
            arguments = _comparable((operation.operands, operation.attributes))
            key = repr((operation.kind, operation.rule, arguments))
            operations.setdefault(key, operation)
    return [*operations.values()]


def _comparable(item: Any) -> Any:
    """Convert operands and attributes, so that their `repr` is equal if two operations are equal.

    Tensors are replaced by their types, and graphs by their `id`.
    """
    if isinstance(item, tuple):
        return [*map(_comparable, item)]  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(item, Graph):
        return id(item)
    if isinstance(item, Value):
        return item.type
    return item


def _lowered(operation: Operation, evaluate: Evaluation, platform: str) -> LoweredFunction:
    """Lower a graph with a single operation. The lowered function takes the operands."""
    inputs = tuple(dict.fromkeys(operation.reads()))
    outputs = tuple(operation.writes())
    output_names = tuple(value.name for value in outputs)
    graph = Graph(
        name=operation.kind,
        inputs=inputs,
        outputs=outputs,
        output_names=output_names,
        operations=(operation,),
    )

    def results_of(_parameters: object, *arrays: Any) -> list[Any]:
        no_parameters: dict[str, Any] = {}
        no_state: dict[str, Any] = {}
        tensors = evaluate(graph, no_parameters, no_state, arrays)
        return [tensors[value] for value in outputs]

    # The function of a network has the parameters as its first argument.
    no_parameters = ()
    types = [jax.ShapeDtypeStruct(value.type.shape, value.type.dtype) for value in inputs]
    return lowered_program(network(results_of), (no_parameters, *types), platform)


def _error_at(operation: Operation, message: str, hint: str = "") -> UnsupportedError:
    """Return an error that names the place of an operation in the document."""
    return UnsupportedError(message, span=operation.span, calls=operation.calls, hint=hint)
