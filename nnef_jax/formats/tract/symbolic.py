"""Shapes of tensors inside a network while `jax.export` keeps extents of its inputs symbolic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lowering.graph import Graph, Value
from lowering.registry import Registry
from lowering.trace import Context, trace


def symbolic_shape(
    graph: Graph, registry: Registry, shapes: Mapping[Value, Sequence[Any]]
) -> tuple[Any, ...]:
    """The shape of the only output of a graph, given those of its inputs."""

    def struct(value: Value) -> jax.ShapeDtypeStruct:
        shape = tuple(shapes.get(value, value.type.shape))
        return jax.ShapeDtypeStruct(shape, jnp.dtype(value.type.dtype))

    def output(parameters: Any, states: Any, inputs: Sequence[Any]) -> Any:
        values = trace(graph, registry, Context(), parameters, states, inputs)
        return jnp.asarray(values[graph.outputs[0]])

    parameters = {p.label: struct(p.value) for p in graph.parameters}
    states = {s.label: struct(s.value) for s in graph.states}
    return jax.eval_shape(output, parameters, states, [struct(x) for x in graph.inputs]).shape
