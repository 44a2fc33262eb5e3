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
        self._keys: dict[Value, Any] = {}
        self._keyed_count = 0  # of the operations whose results have keys
        self._numbers: dict[Any, int] = {}  # a number for each way to compute results

    def operation_of(self, x: Value) -> Operation | None:
        """Return the operation that computes a tensor, or None for an input or a variable."""
        operations = self._builder.operations
        for operation in operations[self._operation_count :]:
            self._operations.update(dict.fromkeys(operation.writes(), operation))
        self._operation_count = len(operations)
        return self._operations.get(x)

    def key(self, x: Value) -> Any:
        """Return a key of a tensor. Tensors that are computed in the same way have equal keys.

        The keys are only comparable within one graph.
        """
        operations = self._builder.operations
        # The operands of an operation are computed before it, so that they already have keys.
        for operation in operations[self._keyed_count :]:
            operands = tuple((name, self._operand_key(y)) for name, y in operation.operands)
            computation = (operation.kind, operation.rule, operands, operation.attributes)
            number = self._numbers.setdefault(computation, len(self._numbers))
            for index, result in enumerate(operation.writes()):
                self._keys[result] = "result", number, index
        self._keyed_count = len(operations)
        return self._operand_key(x)

    def _operand_key(self, x: Any) -> Any:
        """Return a key of an operand, which may be a tensor, a number, or several of them."""
        if isinstance(x, list | tuple):
            return tuple(map(self._operand_key, x))  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(x, Value):
            return self._keys.get(x, ("input", id(x)))
        return type(x).__name__, repr(x)
