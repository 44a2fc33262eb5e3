"""Finds the operations of a graph that a CPU computes in integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import jax
import numpy as np
from jax import Array

from lowering.extents import with_ones
from lowering.graph import Graph, Value

# These operations round numbers to a few levels.
_ROUNDING = frozenset(("min_max_linear_quantize", "zero_point_linear_quantize", "fake_quantize"))


def in_integers(graph: Graph, gains: bool) -> frozenset[str]:
    """Return the names of a graph's operations that are computed in integers.

    The operations include products of stored integers. If `gains` is true, they also include
    products of real numbers that can be rewritten as sums of integer codes.
    """
    names = products_of_bytes(graph)
    return names | sums_of_codes(graph) if gains else names


@lru_cache(maxsize=16)
def sums_of_codes(graph: Graph) -> frozenset[str]:
    """Return the names of operations whose products can be rewritten as sums of integer codes.

    The graph is traced with 1 for unknown extents. If the trace fails, no names are returned.
    """
    if not any(operation.kind in _ROUNDING for operation in graph.operations):
        return frozenset()
    try:
        return frozenset(_names_of_products(graph))
    except Exception:  # for example, the number of items may be wrong for a reshape
        return frozenset()


def products_of_bytes(graph: Graph) -> frozenset[str]:
    """Return the names of operations that multiply stored integers of 8 bits.

    These products are computed in integers on any processor.
    """
    names: set[str] = set()
    for operation in graph.operations:
        if operation.kind not in ("quantized_conv", "quantized_einsum"):
            continue
        left, right = [value.type for value in operation.reads()][:2]
        are_bytes = all(factor.dtype in ("int8", "uint8") for factor in (left, right))
        # A convolution whose filter has one input channel does not multiply bytes.
        is_conv = operation.kind == "quantized_conv"
        has_one_input_channel = is_conv and right.shape[1] == 1
        if are_bytes and not has_one_input_channel:
            names.add(operation.name)
    return frozenset(names)


def _names_of_products(graph: Graph) -> list[str]:
    """Trace a graph, and return the names of operations whose products can use integer codes."""
    # Only a graph that rounds to levels needs these modules.
    from lowering import jaxpr_evaluation, jaxprs
    from lowering.cpu.integers import names_of_products
    from lowering.tracing import Context, trace

    def array_type(value: Value) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(with_ones(value.type.shape), np.dtype(value.type.dtype))

    parameters = {parameter.label: array_type(parameter.value) for parameter in graph.parameters}
    states = {state.label: array_type(state.value) for state in graph.states}
    inputs = list(map(array_type, graph.inputs))
    results = [*graph.outputs, *(state.update for state in graph.states)]

    def evaluate(
        parameters: Mapping[str, Array], states: Mapping[str, Array], inputs: Sequence[Array]
    ) -> list[Array]:
        arrays = trace(graph, Context(), parameters, states, inputs, results)
        return [arrays[value] for value in results]

    closed = jaxpr_evaluation.make_jaxpr(evaluate, parameters, states, inputs)
    return names_of_products(jaxprs.spliced(closed, "cpu"))
