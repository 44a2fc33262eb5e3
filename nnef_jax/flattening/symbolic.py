"""Infers shapes with the symbolic extents of `jax.export` while a graph is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering import Context, Dimensions, GraphBuilder, SymbolValues, compute
from lowering.extents import UNKNOWN, Shape, is_known, is_symbolic, volume
from lowering.graph import Graph, Operation, TensorType, Value, mapped
from lowering.symbol_values import symbols_in

_MOST_KEY_BYTES = 1 << 10  # an array with more bytes is not part of a key
# The largest number of items of an array that is computed during the trace: shapes depend on few
# items, and the trace must not fill memory with the indices of long lists.
_MOST_COMPUTED_ITEMS = 1 << 16


@dataclass(slots=True)
class SymbolicShapes:
    """Infers the shapes of a graph's tensors while symbolic extents stand for open extents.

    The type of a tensor in the graph has UNKNOWN in the place of a symbolic extent.
    """

    builder: GraphBuilder | Graph  # has the operations
    dimensions: Dimensions = field(default_factory=Dimensions)
    # Maps each symbol that stands for a counted number of items to the symbol's largest value.
    most: Mapping[str, int] = field(default_factory=dict[str, int])
    # Maps a tensor to its shape and dtype, or to its array if tracing computes the array.
    _structs: dict[Value, Any] = field(default_factory=dict[Value, Any])
    _traced: int = 0  # the number of operations that were traced or did not need a trace
    # Maps the `_key` of a traced operation to the shapes or arrays of the operation's results.
    _results_by_key: dict[Any, list[Any]] = field(default_factory=dict[Any, list[Any]])

    def declare(self, value: Value, shape: Sequence[int]) -> None:
        """Set the shape of an input or a variable."""
        self._structs[value] = _struct(value, shape)

    def shape_of(self, value: Value) -> Shape:
        """Return the shape of a tensor. All operations up to its own are traced first."""
        while value not in self._structs and self._traced < len(self.builder.operations):
            operation = self.builder.operations[self._traced]
            self._traced += 1
            # Extents that are numbers are in the types of tensors. Only open extents need a trace.
            tensors = (*operation.reads(), *operation.writes())
            is_open = not all(is_known(x.type.shape) for x in tensors)
            if is_open or self._reads_arrays(operation):
                self._trace(operation)
        return tuple(self._struct_of(value).shape)

    def _reads_arrays(self, operation: Operation) -> bool:
        """Tell whether all operands are arrays that tracing computed, or there are no operands.

        Tracing may then compute the results too, and a later shape may depend on the results.
        Return False for results with many items.
        """
        if any(volume(x.type.shape) > _MOST_COMPUTED_ITEMS for x in operation.writes()):
            return False
        return all(isinstance(self._struct_of(x), np.ndarray) for x in operation.reads())

    def _struct_of(self, value: Value) -> Any:
        """Return the shape and dtype of a tensor, or its array if tracing computed it."""
        struct = self._structs.get(value)
        return _struct(value, value.type.shape) if struct is None else struct

    def _trace(self, operation: Operation) -> None:
        """Record the shapes of an operation's results.

        If the host computes a result during the trace, the result itself is recorded, not its
        shape. Equal operations on operands of equal shapes, such as those of repeated layers, are
        traced once. Lists are padded in the trace, as in a run. Raises InvalidComputation if the
        operation cannot be computed.
        """
        reads = tuple(dict.fromkeys(operation.reads()))
        structs = [self._struct_of(value) for value in reads]
        key = _key(operation, reads, structs)
        results = None if key is None else self._results_by_key.get(key)
        if results is None:
            results = self._results(operation, reads, structs)
        if key is not None:
            self._results_by_key[key] = results
        for value, result in zip(operation.writes(), results, strict=True):
            self._structs.setdefault(value, result)

    def _results(
        self, operation: Operation, reads: Sequence[Value], structs: Sequence[Any]
    ) -> list[Any]:
        """Return the shape of each result of an operation, or an array if the host computes it.

        `structs` has the shapes or arrays of the values `reads`.
        """
        # Operands whose arrays are known are constants of the trace, and are left out here.
        types = [self._padded_type(x) for x in structs if not isinstance(x, np.ndarray)]
        count_types = dict.fromkeys(self.most, jax.ShapeDtypeStruct((), np.int32))
        results: list[Any] = []

        def note_results(counts: Mapping[str, jax.Array], tracers: Sequence[jax.Array]) -> None:
            remaining_tracers = iter(tracers)
            arrays: dict[Value, Any] = {}
            for value, struct in zip(reads, structs, strict=True):
                if isinstance(struct, np.ndarray):
                    arrays[value] = struct
                else:
                    arrays[value] = self._padded(next(remaining_tracers), struct)
            symbols = SymbolValues(self.most, counts) if counts else None
            context = Context(dimensions=self.dimensions, symbols=symbols)
            computed = compute(operation, context, arrays)
            for value, x in zip(operation.writes(), computed, strict=True):
                results.append(x if isinstance(x, np.ndarray) else _struct(value, x.shape))

        jax.eval_shape(note_results, count_types, types)
        return results

    def _is_list(self, struct: Any) -> bool:
        """Tell whether a shape and dtype are those of a list, whose items are counted in a run."""
        return not symbols_in(tuple(struct.shape)).isdisjoint(self.most)

    def _padded_type(self, struct: Any) -> jax.ShapeDtypeStruct:
        """Return the type of a list's padded array. Types of other tensors are unchanged."""
        if not self._is_list(struct):
            return struct
        shape = SymbolValues(self.most).bounds(tuple(struct.shape))
        return jax.ShapeDtypeStruct(shape, struct.dtype)

    def _padded(self, x: jax.Array, struct: Any) -> Any:
        """Return an array as a `PaddedArray` if `struct` is the type of a list."""
        if not self._is_list(struct):
            return x
        # Imported here: networks without lists load none of the modules for traced programs.
        from lowering import PaddedArray

        return PaddedArray(x, tuple(struct.shape))


def _key(operation: Operation, reads: Sequence[Value], structs: Sequence[Any]) -> Any:
    """Return a key of an operation. Operations with equal keys have results of equal shapes.

    Return None if the results depend on a large array. `structs` has the shapes or arrays of the
    values `reads`.
    """
    read_types: list[Any] = []
    for x in structs:
        if isinstance(x, np.ndarray) and x.nbytes > _MOST_KEY_BYTES:
            return None
        data = x.tobytes() if isinstance(x, np.ndarray) else None
        read_types.append((x.shape, x.dtype, data))
    # Tensors become numbers, so that equal operations on tensors of equal shapes have equal keys.
    number_by_tensor = {value: i for i, value in enumerate(reads)}

    def numbered(operand: Any) -> Any:
        return (number_by_tensor[operand],) if isinstance(operand, Value) else repr(operand)

    operands = [(name, str(mapped(x, numbered))) for name, x in operation.operands]
    written_types = [value.type for value in operation.writes()]
    rule = operation.rule and id(operation.rule)
    return (
        operation.kind, rule, operation.attributes, tuple(operands), tuple(written_types),
        tuple(read_types),
    )  # fmt: skip


def _struct(value: Value, shape: Sequence[int]) -> jax.ShapeDtypeStruct:
    """Return a shape and the dtype of a tensor."""
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(value.type.dtype))


def open_type(shape: Sequence[int], dtype: str) -> TensorType:
    """Return the type of a tensor. Symbolic extents in `shape` become UNKNOWN."""
    extents = [UNKNOWN if is_symbolic(extent) else extent for extent in shape]
    return TensorType(tuple(extents), dtype)


def shape_array(shape: Sequence[int]) -> NDArray[Any]:
    """Return the extents of a shape as an array of one axis.

    The dtype is int64, or object if an extent is symbolic.
    """
    dtype = object if any(map(is_symbolic, shape)) else np.int64
    return np.array(shape, dtype)
