"""Adds operations for unsupported operators to a graph that is shown and never run.

Such an operation cannot be computed, and its results have no type. If another operation reads such
a result, the results of that operation have no type either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from lowering.graph import UNTYPED, Graph, Rule, Value
from lowering.location import Span
from nnef_jax.flattening.emission import Emission
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.limits import OPERATION_STEPS

_UNKNOWN = " (unknown)"


def has_untyped(operands: Iterable[object]) -> bool:
    """Tell whether an operand is a tensor without a type, or an array with such a tensor."""
    return any(map(_is_untyped, operands))


def _is_untyped(operand: object) -> bool:
    """Tell whether an operand is a tensor without a type, or an array with such a tensor."""
    if isinstance(operand, list | tuple):
        return has_untyped(operand)  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(operand, Value) and operand.type.dtype == UNTYPED.dtype


def add_untyped(
    graph: Emission, kind: str, operands: Iterable[object], names: Sequence[str], span: Span
) -> list[Value]:
    """Add an operation for an unsupported operator of the document; return its results.

    `names` are the names of the results. The operation reads the tensors and the weights among
    `operands`; other operands are dropped.
    """
    if not names:
        return []  # no other operation could read a result
    reads: list[Value] = []
    for operand in operands:
        if isinstance(operand, Value):
            reads.append(operand)
        elif isinstance(operand, Constant) and operand.label and isinstance(graph, TensorGraph):
            reads.append(graph.tensor(operand, operand.label, span))
    graph.meter.spend(OPERATION_STEPS, "the network", span)
    types = tuple([UNTYPED] * len(names))
    # This rule gives the results no types, and raises an error if the results are computed.
    rule = Rule(kind, lambda: types, _refuse, ("**",), wants_context=False, infer_reads=frozenset())
    operands_by_name = {"inputs": tuple(reads)}
    results = graph.builder.operation(kind, operands_by_name, {}, names, span, rule=rule)
    return [value for value in results if isinstance(value, Value)]


def unknown(operator: str) -> str:
    """Return the kind of the operation that stands for an unsupported operator."""
    return operator + _UNKNOWN


def unknown_operators(graph: Graph) -> list[str]:
    """Return the names of the unsupported operators in a graph, without repetitions."""
    names: list[str] = []
    for operation in graph.operations:
        if has_untyped(operation.writes()) and operation.kind.endswith(_UNKNOWN):
            names.append(operation.kind.removesuffix(_UNKNOWN))
    return list(dict.fromkeys(names))


def _refuse(**_: object) -> NoReturn:
    raise NotImplementedError("the network was read to be shown")
