"""How each tensor of a graph under construction is computed."""

from __future__ import annotations

from typing import Any

from lowering import GraphBuilder
from lowering.graph import Operation, Value


class Computations:
    """Tells which operation computes a tensor, and which tensors are computed in the same way."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._operations: dict[Value, Operation] = {}
        self._operation_count = 0  # of the operations that `_operations` has
        self._keys: dict[Any, Any] = {}

    def operation_of(self, x: Value) -> Operation | None:
        """Return the operation that computes a tensor, or None for an input or a variable."""
        operations = self._builder.operations
        for operation in operations[self._operation_count :]:
            self._operations.update(dict.fromkeys(operation.writes(), operation))
        self._operation_count = len(operations)
        return self._operations.get(x)

    def key(self, x: Any) -> Any:
        """Return a key of an operand. Tensors that are computed in the same way have equal keys."""
        if isinstance(x, tuple):
            return tuple(map(self.key, x))
        if not isinstance(x, Value):
            return x
        if x not in self._keys:
            operation = self.operation_of(x)
            if operation is None:
                self._keys[x] = id(x)
            else:
                operands = tuple((name, self.key(y)) for name, y in operation.operands)
                index = list(operation.writes()).index(x)
                computation = (operation.kind, operands, operation.attributes, index)
                self._keys[x] = self._keys.setdefault(computation, len(self._keys))
        return self._keys[x]
