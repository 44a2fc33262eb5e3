"""Counts the multiply-adds of operations and graphs by the `work` functions of rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from lowering.extents import with_ones
from lowering.graph import Graph, Operation, Scalar, TensorType, Value, mapped, python_name
from lowering.kernels.precision import is_bfloat16
from lowering.ops import rules


def multiply_adds(operation: Operation) -> int:
    """Return the number of multiply-adds of an operation. Unknown extents count as 1."""
    rule = operation.rule or rules[operation.kind]
    if rule.work is None:
        return 0
    arguments: dict[str, Any] = {}
    for name, operand in operation.operands:
        arguments[name] = mapped(operand, _type)
    for name, attribute in operation.attributes:
        arguments[name] = with_ones(attribute)
    arguments["result"] = mapped(operation.results[0], _type)
    reads_all = "**" in rule.work_reads
    names = [name for name in arguments if reads_all or name in rule.work_reads]
    return rule.work(**{python_name(name): arguments[name] for name in names})


def total(graph: Graph) -> int:
    """Return the number of multiply-adds of all operations of a graph together."""
    return sum([multiply_adds(operation) for operation in graph.operations])


def is_mostly_bfloat16(graph: Graph, precision: lax.PrecisionLike) -> bool:
    """Tell whether most multiply-adds of a graph are in bfloat16.

    An operation is in bfloat16 if one of its results is bfloat16. If `precision` asks for bfloat16,
    all operations are in bfloat16.
    """
    if is_bfloat16(precision):
        return True
    narrow = list(filter(_is_narrow, graph.operations))
    if not narrow:
        return False  # the usual case, in which no work is counted
    narrow_work = sum(map(multiply_adds, narrow))
    return 2 * narrow_work > total(graph)


def _is_narrow(operation: Operation) -> bool:
    """Tell whether an operation has a result in bfloat16."""
    return any(value.type.dtype == "bfloat16" for value in operation.writes())


def _type(operand: Value | Scalar) -> TensorType:
    """Return the type of a tensor or literal, with 1 in place of unknown extents."""
    if isinstance(operand, Value):
        return TensorType(with_ones(operand.type.shape), operand.type.dtype)
    return TensorType((), np.asarray(operand).dtype.name)
