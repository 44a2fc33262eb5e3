"""Chooses the parameters to train: floating-point ones, without statistics of normalisations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from typing import Any

from lowering.graph import Graph, Operation, Value, is_float, values_of

_NORM = "batch_normalization"
_STATISTICS = ("mean", "variance")  # These are names of operands of a batch normalisation.
# A loop has this operand. It holds the first values of the tensors that each iteration changes.
_CARRIED = "initial"


def trained_labels(graph: Graph) -> Set[str]:
    """Return the labels of the parameters that an optimizer should train.

    They are the floating-point parameters that are not statistics. Statistics are the parameters
    from which the operands `mean` and `variance` of batch normalisations are computed. An operand
    that depends on inputs is a statistic of one batch, and is ignored.
    """
    statistics = _statistics(graph, [parameter.value for parameter in graph.parameters])
    labels: set[str] = set()
    for parameter in graph.parameters:
        value = parameter.value
        if is_float(value.type.dtype) and value not in statistics:
            labels.add(parameter.label)
    return labels


def _statistics(graph: Graph, constants: Collection[Value]) -> Set[Value]:
    """Return the values from which statistics of normalisations are computed.

    Only constant values are returned: `constants`, and the values that depend on nothing else.
    """
    all_constants = set(constants)
    for operation in graph.operations:
        if all_constants.issuperset(operation.reads()):
            all_constants.update(operation.writes())
    statistics: set[Value] = set()
    # The operands of an operation that computes a statistic are statistics too. The operations are
    # visited from last to first, so that an operation that reads a statistic is visited before the
    # operation that computes the statistic.
    for operation in reversed(graph.operations):
        if operation.kind == _NORM:
            operands = dict(operation.operands)
            for name in _STATISTICS:
                statistics.update(values_of(operands.get(name, ())))
        statistics.update(_statistics_in_bodies(operation, all_constants))
        results = set(operation.writes())
        is_statistic = not statistics.isdisjoint(results)
        if is_statistic and results <= all_constants:
            statistics.update(operation.reads())
    return statistics & all_constants


def _statistics_in_bodies(operation: Operation, constants: Set[Value]) -> Iterator[Value]:
    """Yield the operands that are statistics in a body of the operation, such as a loop's body.

    A body is a graph that the operation repeats or chooses. Its inputs stand for the last operands
    of the operation. `constants` are the values that depend only on parameters and constants.
    """
    operands: list[Any] = []
    # These are the indices of the operands that a loop changes in each iteration.
    carried: set[int] = set()
    for name, operand in operation.operands:
        for item in _items(operand):
            if name == _CARRIED:
                carried.add(len(operands))
            operands.append(item)
    for _, body in operation.attributes:
        if not isinstance(body, Graph):
            continue
        # With 5 operands and 3 inputs of the body, operands 2, 3 and 4 stand for the inputs.
        first_index = len(operands) - len(body.inputs)
        constant_inputs: list[Value] = []
        for index, body_input in enumerate(body.inputs, start=first_index):
            if index not in carried and operands[index] in constants:
                constant_inputs.append(body_input)
        statistics = _statistics(body, constant_inputs)
        for index, body_input in enumerate(body.inputs, start=first_index):
            if body_input in statistics:
                yield operands[index]


def _items(operand: Any) -> Iterator[Any]:
    """Yield the items of an operand. The items of nested tuples are yielded one by one."""
    if isinstance(operand, tuple):
        for item in operand:  # pyright: ignore[reportUnknownVariableType]
            yield from _items(item)
    else:
        yield operand
