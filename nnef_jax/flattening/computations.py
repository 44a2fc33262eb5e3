"""How each tensor of a graph under construction is computed."""

from __future__ import annotations

from typing import Any

from lowering import GraphBuilder
from lowering.graph import Operation, Value


class Computations:
    """Tells which operation computes a tensor, and which tensors are computed in the same way."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._operation_by_result: dict[Value, Operation] = {}
        self._noted_count = 0  # the number of operations that are in `_operation_by_result`
        self._key_by_result: dict[Value, Any] = {}
        self._keyed_count = 0  # the number of operations whose results have keys
        self._number_by_computation: dict[Any, int] = {}

    def operation_of(self, x: Value) -> Operation | None:
        """Return the operation that computes a tensor, or None for an input or a variable."""
        operations = self._builder.operations
        new_operations = operations[self._noted_count :]
        for operation in new_operations:
            self._operation_by_result.update(dict.fromkeys(operation.writes(), operation))
        self._noted_count = len(operations)
        return self._operation_by_result.get(x)

    def key(self, x: Value) -> Any:
        """Return a key of a tensor. Tensors that are computed in the same way have equal keys.

        The keys are only comparable within one graph.
        """
        operations = self._builder.operations
        new_operations = operations[self._keyed_count :]
        for operation in new_operations:
            # The operands already have keys, because earlier operations computed them.
            operands = tuple((name, self._operand_key(y)) for name, y in operation.operands)
            computation = (operation.kind, operation.rule, operands, operation.attributes)
            next_number = len(self._number_by_computation)
            number = self._number_by_computation.setdefault(computation, next_number)
            for index, result in enumerate(operation.writes()):
                self._key_by_result[result] = ("result", number, index)
        self._keyed_count = len(operations)
        return self._operand_key(x)

    def _operand_key(self, x: Any) -> Any:
        """Return a key of an operand: of a tensor, of a number, or of a list of these."""
        if isinstance(x, list | tuple):
            return tuple(map(self._operand_key, x))  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(x, Value):
            return self._key_by_result.get(x, ("input", id(x)))
        return type(x).__name__, repr(x)
