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
    arguments: dict[str, Any] = {n: mapped(x, _type) for n, x in operation.operands}
    arguments |= {name: with_ones(attribute) for name, attribute in operation.attributes}
    arguments["result"] = mapped(operation.results[0], _type)
    if "**" not in rule.work_reads:
        arguments = {name: x for name, x in arguments.items() if name in rule.work_reads}
    return rule.work(**{python_name(name): x for name, x in arguments.items()})


def total(graph: Graph) -> int:
    """Return the number of multiply-adds of all operations of a graph together."""
    return sum([multiply_adds(operation) for operation in graph.operations])


def is_mostly_bfloat16(graph: Graph, precision: lax.PrecisionLike) -> bool:
    """Tell whether most multiply-adds of a graph are in bfloat16.

    An operation is in bfloat16 if one of its results is bfloat16, and all operations are in
    bfloat16 if `precision` asks for it.
    """
    if is_bfloat16(precision):
        return True
    narrow = list(filter(_is_narrow, graph.operations))
    return bool(narrow) and 2 * sum(map(multiply_adds, narrow)) > total(graph)


def _is_narrow(operation: Operation) -> bool:
    return any(value.type.dtype == "bfloat16" for value in operation.writes())


def _type(operand: Value | Scalar) -> TensorType:
    if isinstance(operand, Value):
        return TensorType(with_ones(operand.type.shape), operand.type.dtype)
    return TensorType((), np.asarray(operand).dtype.name)
