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
from lowering.graph import Graph, Operation, TensorType, Value, mapped

_LARGE = 1 << 10  # bytes of an array, above which the array is not part of a key


@dataclass(slots=True)
class SymbolicShapes:
    """Infers the shapes of a graph's tensors while symbolic extents stand for open extents.

    The type of a tensor in the graph has UNKNOWN in the place of a symbolic extent.
    """

    builder: GraphBuilder
    # The shape and dtype of each tensor. If tracing computes a tensor on the host, its array.
    _structs: dict[Value, Any] = field(default_factory=dict[Value, Any])
    _traced: int = 0  # the number of traced operations
    # The results of traced operations, by the key of the operation.
    _shared: dict[Any, list[Any]] = field(default_factory=dict[Any, list[Any]])

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
        """Note the shapes of an operation's results.

        If the host computes a result during the trace, the result is noted instead of its shape.
        Operations with equal operands, as those of a network's layers, are traced once.
        """
        reads = tuple(dict.fromkeys(operation.reads()))
        structs = [self._struct_of(value) for value in reads]
        key = _key(operation, reads, structs)
        results = self._shared.get(key)
        if key is None or results is None:
            results = _results(operation, reads, structs)
            self._shared[key] = results
        for value, result in zip(operation.writes(), results, strict=True):
            self._structs.setdefault(value, result)


def _results(operation: Operation, reads: tuple[Value, ...], structs: Sequence[Any]) -> list[Any]:
    """Return the shapes of an operation's results, or their arrays if the host computes them.

    `structs` has the shapes or arrays of the values `reads`.
    """
    writes = tuple(operation.writes())
    graph = Graph("", reads, writes, tuple(x.name for x in writes), (operation,))
    traced = [x for x in structs if not isinstance(x, np.ndarray)]
    on_host: dict[Value, Any] = {}

    def compute(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        tracers = iter(arrays)
        operands = [x if isinstance(x, np.ndarray) else next(tracers) for x in structs]
        values = trace(graph, Context(), {}, {}, operands, writes)
        on_host.update({v: values[v] for v in writes if isinstance(values[v], np.ndarray)})
        return [jnp.asarray(values[value]) for value in writes]

    types = jax.eval_shape(compute, traced)
    return [on_host.get(value, type) for value, type in zip(writes, types, strict=True)]


def _key(operation: Operation, reads: Sequence[Value], structs: Sequence[Any]) -> Any:
    """Return a key that is equal for operations whose results have equal shapes.

    None is returned if the results depend on large arrays.
    """
    numbers = {value: i for i, value in enumerate(reads)}
    types: list[Any] = []
    for x in structs:
        if isinstance(x, np.ndarray) and x.nbytes > _LARGE:
            return None
        data = x.tobytes() if isinstance(x, np.ndarray) else None
        types.append((x.shape, x.dtype, data))

    def numbered(operand: Any) -> Any:
        return (numbers[operand],) if isinstance(operand, Value) else repr(operand)

    operands = [(name, str(mapped(x, numbered))) for name, x in operation.operands]
    written = [value.type for value in operation.writes()]
    rule = operation.rule and id(operation.rule)
    return (
        operation.kind, rule, operation.attributes, tuple(operands), tuple(written), tuple(types)
    )  # fmt: skip


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
