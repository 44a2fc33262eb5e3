"""Chooses the parameters to train: floating-point parameters that are no norm's statistics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from typing import Any

from lowering.graph import Graph, Operation, Value, is_float, values_of

_NORM = "batch_normalization"
_STATISTICS = ("mean", "variance")  # operands of a batch normalisation
_CARRIED = "initial"  # the operand of a loop that each iteration changes


def trained_labels(graph: Graph) -> Set[str]:
    """Return the labels of the parameters that an optimizer should train.

    These are the floating-point parameters from which no statistics are computed. Statistics are
    the operands `mean` and `variance` of batch normalisations, if they depend only on parameters.
    Statistics of a batch, which depend on inputs, do not count.
    """
    statistics = _statistics(graph, [parameter.value for parameter in graph.parameters])
    return {
        parameter.label
        for parameter in graph.parameters
        if is_float(parameter.value.type.dtype) and parameter.value not in statistics
    }


def _statistics(graph: Graph, constants: Collection[Value]) -> Set[Value]:
    """Return the values from which statistics of normalisations are computed.

    The result has only values that depend on nothing but `constants`.
    """
    constant = set(constants)
    for operation in graph.operations:
        if constant.issuperset(operation.reads()):
            constant.update(operation.writes())
    statistics: set[Value] = set()
    for operation in reversed(graph.operations):
        if operation.kind == _NORM:
            operands = dict(operation.operands)
            for name in _STATISTICS:
                statistics.update(values_of(operands.get(name, ())))
        statistics.update(_read_by_bodies(operation, constant))
        results = set(operation.writes())
        if results <= constant and not statistics.isdisjoint(results):
            statistics.update(operation.reads())
    return statistics & constant


def _read_by_bodies(operation: Operation, constant: Set[Value]) -> Iterator[Value]:
    """Yield the operands that are statistics in a body of the operation, such as that of a loop.

    A body is a graph that the operation repeats or chooses. Its inputs stand for the last operands
    of the operation. `constant` are the values that depend only on parameters and constants.
    """
    operands = [(name, x) for name, operand in operation.operands for x in _items(operand)]
    for _, body in operation.attributes:
        if not isinstance(body, Graph):
            continue
        count = len(body.inputs)
        pairs = list(zip(body.inputs, operands[len(operands) - count :], strict=True))
        constants = [inner for inner, (name, x) in pairs if name != _CARRIED and x in constant]
        statistics = _statistics(body, constants)
        for inner, (_, operand) in pairs:
            if inner in statistics:
                yield operand


def _items(operand: Any) -> Iterator[Any]:
    if isinstance(operand, tuple):
        for item in operand:  # pyright: ignore[reportUnknownVariableType]
            yield from _items(item)
    else:
        yield operand
