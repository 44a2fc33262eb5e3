"""Adds operations without a rule to a network that is shown and not run.

Their results have no type. Nor have results of operations that read these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from lowering.graph import UNTYPED, Graph, Rule, Value
from lowering.location import Span
from nnef_jax.flattening.emission import Emission
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph
from nnef_jax.limits import OPERATION

_UNKNOWN = " (unknown)"


def has_untyped(operands: Iterable[Any]) -> bool:
    """Tell whether there is a tensor without a type among operands, or in lists of them."""
    return any(
        has_untyped(x) if isinstance(x, list | tuple) else _is_untyped(x)  # pyright: ignore[reportUnknownArgumentType]
        for x in operands
    )


def _is_untyped(x: Any) -> bool:
    return isinstance(x, Value) and x.type.dtype == UNTYPED.dtype


def add_untyped(
    graph: Emission, kind: str, operands: Iterable[Any], names: Sequence[str], span: Span
) -> list[Value]:
    """Add an operation of a kind of the document's; return results of these names.

    The operation reads the tensors among the operands, and constants that are weights.
    """
    if not names:
        return []
    if isinstance(graph, TensorGraph):
        weights = (x if not _is_weight(x) else graph.tensor(x, x.label, span) for x in operands)
        operands = [*weights]
    graph.meter.spend(OPERATION, "the network", span)
    types = tuple([UNTYPED] * len(names))
    rule = Rule(kind, lambda: types, _refuse, ("**",), wants_context=False, infer_reads=frozenset())
    reads = tuple(x for x in operands if isinstance(x, Value))
    results = graph.builder.operation(kind, {"inputs": reads}, {}, names, span, rule=rule)
    return [value for value in results if isinstance(value, Value)]


def _is_weight(x: Any) -> bool:
    return isinstance(x, Constant) and bool(x.label)


def unknown(operator: str) -> str:
    """Return the kind of operations whose operator is not supported."""
    return operator + _UNKNOWN


def unknown_operators(graph: Graph) -> list[str]:
    """Return the operators of a graph that are not supported, each once."""
    kinds = (x.kind for x in graph.operations if has_untyped(x.writes()))
    operators = (kind.removesuffix(_UNKNOWN) for kind in kinds if kind.endswith(_UNKNOWN))
    return list(dict.fromkeys(operators))


def _refuse(**_: Any) -> NoReturn:
    raise NotImplementedError("the network was read to be shown")
