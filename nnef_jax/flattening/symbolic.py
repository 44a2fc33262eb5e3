"""Infers shapes with the symbolic extents of `jax.export` while a graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering import Context, GraphBuilder, trace
from lowering.extents import UNKNOWN, Shape, is_symbolic
from lowering.graph import Graph, Operation, TensorType, Value


@dataclass(slots=True)
class SymbolicShapes:
    """Infers the shapes of a graph's tensors while symbolic extents stand for open extents.

    The type of a tensor in the graph has UNKNOWN in the place of a symbolic extent.
    """

    builder: GraphBuilder
    # The shape and dtype of each tensor. If tracing computes a tensor on the host, its array.
    _structs: dict[Value, Any] = field(default_factory=dict[Value, Any])
    _traced: int = 0  # the number of traced operations

    def declare(self, value: Value, shape: Sequence[int]) -> None:
        """Set the shape of an input or a variable."""
        self._structs[value] = _struct(value, shape)

    def shape_of(self, value: Value) -> Shape:
        """Return the shape of a tensor. Operations are traced up to the one that computes it."""
        while value not in self._structs and self._traced < len(self.builder.operations):
            self._trace(self.builder.operations[self._traced])
            self._traced += 1
        return tuple(self._struct_of(value).shape)

    def _struct_of(self, value: Value) -> Any:
        """Return the shape and dtype of a tensor, or its array if tracing computed it."""
        struct = self._structs.get(value)
        return _struct(value, value.type.shape) if struct is None else struct

    def _trace(self, operation: Operation) -> None:
        """Trace an operation, and note the shapes of its results.

        If the host computes a result during the trace, the result is noted instead of its shape.
        """
        reads = tuple(dict.fromkeys(operation.reads()))
        writes = tuple(operation.writes())
        graph = Graph("", reads, writes, tuple(x.name for x in writes), (operation,))
        operands = [self._struct_of(value) for value in reads]
        traced_operands = [x for x in operands if not isinstance(x, np.ndarray)]

        def compute_results(tracers: Sequence[jax.Array]) -> list[jax.Array]:
            waiting = iter(tracers)
            arrays = [x if isinstance(x, np.ndarray) else next(waiting) for x in operands]
            result_by_value = trace(graph, Context(), {}, {}, arrays, writes)
            for value in writes:
                result = result_by_value[value]
                if isinstance(result, np.ndarray):
                    self._structs[value] = result
            return [jnp.asarray(result_by_value[value]) for value in writes]

        structs = jax.eval_shape(compute_results, traced_operands)
        for value, struct in zip(writes, structs, strict=True):
            self._structs.setdefault(value, struct)


def _struct(value: Value, shape: Sequence[int]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(value.type.dtype))


def open_type(shape: Sequence[int], dtype: str) -> TensorType:
    """Return the type of a tensor, with UNKNOWN in the place of each symbolic extent of `shape`."""
    extents = [UNKNOWN if is_symbolic(extent) else extent for extent in shape]
    return TensorType(tuple(extents), dtype)


def numbers(shape: Sequence[int]) -> NDArray[Any]:
    """Return the extents of a shape as an array of one axis.

    The dtype is int64, or object if an extent is symbolic.
    """
    dtype = object if any(map(is_symbolic, shape)) else np.int64
    return np.array(shape, dtype)
