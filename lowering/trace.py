"""Walks a graph once under JAX tracing: named scopes, notes on errors, captured intermediates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from lowering.extents import is_symbolic
from lowering.graph import Graph, Operand, Operation, Result, Value
from lowering.registry import Registry, Rule, python_name
from lowering.static import is_static, on_host


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may know beside its arguments."""

    precision: jax.lax.PrecisionLike = (
        None  # of matrix products and convolutions; None is jax's default
    )
    registry: Registry = field(default_factory=Registry)  # for rules that trace a graph themselves


def trace(
    graph: Graph,
    registry: Registry,
    context: Context,
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    inputs: Sequence[Any],
) -> dict[Value, Any]:
    """Every value of the graph, from parameters and states by label and the inputs in order.

    Under `jax.jit` what nobody reads is left out by XLA. What depends on constants alone is a numpy
    array.
    """
    context = replace(context, registry=registry)
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    values.update((p.value, parameters[p.label]) for p in graph.parameters)
    values.update((s.value, states[s.label]) for s in graph.states)
    for operation in graph.operations:
        try:
            results = _apply(operation, registry[operation.kind], context, values)
        except Exception as error:
            error.add_note(_note(operation))
            raise
        for declared, result in zip(operation.results, results, strict=True):
            _assign(declared, result, values)
    return values


def _apply(
    operation: Operation, rule: Rule, context: Context, values: Mapping[Value, Any]
) -> Sequence[Any]:
    operands = {name: _read(operand, values) for name, operand in operation.operands}
    arguments = {python_name(n): x for n, x in (operands | dict(operation.attributes)).items()}
    if rule.wants_context:
        arguments["ctx"] = context
    if is_static(tuple(operands.values())) and not _has_symbolic(operation.attributes):
        result = on_host(lambda: rule.lower(**arguments))
    else:
        with jax.named_scope(operation.name):
            result = rule.lower(**arguments)
    return result if isinstance(result, tuple) else (result,)


def _has_symbolic(attribute: Any) -> bool:
    """Whether an extent that jax.export keeps symbolic is in an attribute, or in one of several."""
    if isinstance(attribute, tuple):
        return any(map(_has_symbolic, attribute))  # pyright: ignore[reportUnknownArgumentType]
    return is_symbolic(attribute)


def _read(operand: Operand, values: Mapping[Value, Any]) -> Any:
    match operand:
        case Value():
            return values[operand]
        case tuple():
            return [_read(item, values) for item in operand]
        case _:
            return operand


def _assign(declared: Result, result: Any, values: dict[Value, Any]) -> None:
    if isinstance(declared, Value):
        values[declared] = result
    else:
        values.update(zip(declared, result, strict=True))


def _note(operation: Operation) -> str:
    types = ", ".join(str(value.type) for value in operation.reads())
    place = f"{operation.span}: " if operation.span else ""
    return f"{place}{operation.name} = {operation.kind}({types})"
