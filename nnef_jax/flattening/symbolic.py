"""Shapes in which `jax.export` keeps extents open, while a graph is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering import Context, GraphBuilder, trace
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import Graph, Operation, TensorType, Value


@dataclass(slots=True)
class SymbolicShapes:
    """The shapes of a graph's tensors, whose types have UNKNOWN for what is symbolic."""

    builder: GraphBuilder
    known: dict[Value, Any] = field(default_factory=dict[Value, Any])  # known on the host: arrays
    _done: int = 0  # operations that were looked at

    def declare(self, value: Value, shape: Sequence[Any]) -> None:
        """Say the shape of an input or a variable."""
        self.known[value] = _struct(value, shape)

    def of(self, value: Value) -> tuple[Any, ...]:
        """Return the shape of a tensor."""
        while value not in self.known and self._done < len(self.builder.operations):
            self._look_at(self.builder.operations[self._done])
            self._done += 1
        return tuple(self._struct_of(value).shape)

    def _struct_of(self, value: Value) -> Any:
        found = self.known.get(value)
        return _struct(value, value.type.shape) if found is None else found

    def _look_at(self, operation: Operation) -> None:
        reads, writes = tuple(dict.fromkeys(operation.reads())), tuple(operation.writes())
        graph = Graph("", reads, writes, tuple(x.name for x in writes), (operation,))
        given = [self._struct_of(value) for value in reads]
        traced = [x for x in given if not isinstance(x, np.ndarray)]

        def results(arrays: Sequence[Any]) -> list[Any]:
            rest = iter(arrays)
            operands = [x if isinstance(x, np.ndarray) else next(rest) for x in given]
            values = trace(graph, Context(), {}, {}, operands, writes)
            on_host = {v: values[v] for v in writes if isinstance(values[v], np.ndarray)}
            self.known.update(on_host)
            return [jnp.asarray(values[value]) for value in writes]

        found = jax.eval_shape(results, traced)
        for value, struct in zip(writes, found, strict=True):
            self.known.setdefault(value, struct)


def _struct(value: Value, shape: Sequence[Any]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(value.type.dtype))


def opened(shape: Sequence[Any], dtype: str) -> TensorType:
    """Return the type of a shape, in which symbolic extents become UNKNOWN."""
    return TensorType(tuple(UNKNOWN if is_symbolic(n) else n for n in shape), dtype)


def numbers(shape: Sequence[Any]) -> NDArray[Any]:
    """Return extents as an array: of objects where some are symbolic."""
    return np.array(shape, object if any(map(is_symbolic, shape)) else np.int64)
