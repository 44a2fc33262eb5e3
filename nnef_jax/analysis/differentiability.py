"""Checks whether rounding or integers make the derivatives of a network 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lowering.graph import Graph, Operation, Value, is_float
from lowering.ops import FAMILIES
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.workings import rounds_straight_through

QUANTIZES = tuple(kind for kind in FAMILIES["quantize"] if kind.endswith("_quantize"))
_ROUNDS = (*QUANTIZES, "round")


def require_derivative(
    model: Model, graph: Graph, sources: Iterable[Value], results: Iterable[Value]
) -> None:
    """Raise InputError if every path from `sources` to `results` stops derivatives.

    A path stops derivatives if it passes through rounding or integers.
    """
    rounding_kinds = () if rounds_straight_through(model) else _ROUNDS
    stop = _stopping_operation(graph, sources, results, kinds=rounding_kinds)
    if stop is None:
        return
    reason = "is rounded" if stop.kind in rounding_kinds else "is of integers"
    hint = "occlusion and feature_ablation need no derivatives"
    # With kinds=() the search ignores rounding, and only integers stop derivatives. If no operation
    # is found, rounding is the cause, and straight-through gradients help.
    stop_by_integers = _stopping_operation(graph, sources, results, kinds=())
    if stop_by_integers is None:
        hint = 'load(..., quantization="ste") passes derivatives straight through rounding'
    message = f"all derivatives are 0: '{stop.name}' {reason}"
    raise InputError(message, span=stop.span, hint=hint)


def _stopping_operation(
    graph: Graph, sources: Iterable[Value], results: Iterable[Value], kinds: Sequence[str]
) -> Operation | None:
    """Return the first operation that stops all derivatives between `sources` and `results`.

    An operation stops derivatives if its kind, such as "round", is in `kinds`, or if all its
    results are integers.
    The result is None if some path from `sources` to `results` avoids all such operations.
    """
    with_derivative = set(sources)
    first_stop: Operation | None = None
    for operation in graph.operations:
        if with_derivative.isdisjoint(operation.reads()):
            continue
        real_results = [value for value in operation.writes() if is_float(value.type.dtype)]
        stops = not real_results or operation.kind in kinds
        if not stops:
            with_derivative.update(real_results)
        elif first_stop is None:
            first_stop = operation
    has_path = not with_derivative.isdisjoint(results)
    return None if has_path else first_stop


def require_derivatives(model: Model, graph: Graph, sources: Iterable[Value]) -> None:
    """Raise InputError if every path from one of `sources` to the outputs passes through rounding.

    All derivatives of the outputs with respect to this source would then be 0.
    """
    if rounds_straight_through(model):
        return  # Derivatives pass through rounding.
    connected = _differentiable(graph, avoided=())
    connected_without_rounding = _differentiable(graph, avoided=_ROUNDS)
    for value in sources:
        is_stopped_by_rounding = value in connected and value not in connected_without_rounding
        if is_stopped_by_rounding:
            require_derivative(model, graph, [value], graph.outputs)


def _differentiable(graph: Graph, avoided: Sequence[str]) -> set[Value]:
    """Return the tensors that are connected to an output by a path of floating-point tensors.

    A path must not contain an operation whose kind, such as "round", is in `avoided`.
    """
    connected = {value for value in graph.outputs if is_float(value.type.dtype)}
    for operation in reversed(graph.operations):
        if operation.kind in avoided:
            continue
        leads_to_output = not connected.isdisjoint(operation.writes())
        if leads_to_output:
            connected.update(value for value in operation.reads() if is_float(value.type.dtype))
    return connected
