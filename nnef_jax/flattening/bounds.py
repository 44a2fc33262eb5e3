"""Upper bounds of the integers that a graph computes. Such integers may be extents of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering.extents import Extent, is_symbolic, volume
from lowering.graph import Operation, Value
from nnef_jax.flattening.computations import Computations

# Operations whose results consist of items of the first operand, in any order.
_MOVES = frozenset({
    "broadcast", "cast", "copy", "counted", "gather", "gather_nd", "max_reduce", "min_reduce",
    "reshape", "slice", "squeeze", "transpose", "unsqueeze",
})  # fmt: skip
_JOINS = frozenset({"concat", "stack"})
# Maps an operation's name to a function. The function takes a list of upper bounds of the operands,
# and returns an upper bound of the result.
_RESULT_BOUNDS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "add": sum, "mul": math.prod, "max": max, "concat": max, "stack": max,
}  # fmt: skip


class Bounds:
    """Finds upper bounds of integers that a graph under construction computes.

    Args:
        computations: tells how tensors are computed.
        shape_of: returns the shape of a tensor, in which extents may be symbolic.
        bound: returns the largest value of an extent.
    """

    def __init__(
        self,
        computations: Computations,
        shape_of: Callable[[Value], Sequence[Any]],
        bound: Callable[[Any], int],
    ) -> None:
        self._computations = computations
        self._shape_of = shape_of
        self._bound = bound
        # These caches map ids of operations to results of `_most_of` and its like. Without
        # them, the time would double with each operation such as x + x. The graph under
        # construction holds the operations, so no id is used again.
        self._most_by_operation: dict[int, int | None] = {}
        self._least_by_operation: dict[int, int | None] = {}
        self._is_count_by_operation: dict[int, bool] = {}
        self._most_by_input: dict[Value, int | None] = {}
        self._is_count_by_input: dict[Value, bool] = {}

    def declare(self, x: Value, most: int | None, is_count: bool) -> None:
        """Set an upper bound of an input of the graph.

        `is_count` tells whether it is known that no item of the input is negative.
        """
        self._most_by_input[x] = most
        self._is_count_by_input[x] = is_count

    def most(self, x: Any) -> int | None:
        """Return an upper bound of an operand's items, or None if no bound is known."""
        if not isinstance(x, Value):
            return math.ceil(x)
        if x.type.dtype == "bool":
            return 1
        operation = self._computations.operation_of(x)
        if operation is None:
            return self._most_by_input.get(x)
        if id(operation) not in self._most_by_operation:
            self._most_by_operation[id(operation)] = self._most_of(operation)
        return self._most_by_operation[id(operation)]

    def _most_of(self, operation: Operation) -> int | None:
        """Return an upper bound of the items of an operation's results, or None."""
        kind = operation.kind
        operands: list[Any] = [x for _, x in operation.operands]
        attributes: dict[str, Any] = dict(operation.attributes)
        if kind == "constant":
            return max(map(self._bound, attributes["value"]), default=0)
        if kind in ("argmax_reduce", "argmin_reduce"):
            # The result is the index of an item, so it is below the number of items along the axes.
            return self._volume(operands[0], attributes["axes"])
        if kind == "sum_reduce":
            most = self.most(operands[0])
            if most is None:
                return None
            # A list of negative numbers may be empty: then its sum is 0.
            return max(most, 0) * self._volume(operands[0], attributes["axes"])
        if kind in _MOVES:
            return self.most(operands[0])
        if kind == "sub":
            # x - y is at most x if y is not negative.
            return self.most(operands[0]) if self.is_count(operands[1]) else None
        if kind == "min":
            bounds = [self.most(x) for x in operands]
            return min([n for n in bounds if n is not None], default=None)
        if kind not in _RESULT_BOUNDS:
            return None
        if kind in _JOINS:
            (operands,) = operands  # the single operand is an array of tensors
        return self._most_of_all(kind, operands)

    def _most_of_all(self, kind: str, operands: Sequence[Any]) -> int | None:
        """Return an upper bound of the result of an operation, or None if no bound is known.

        `kind` is the operation's name, a key of `_RESULT_BOUNDS`. No bound is known if an operand
        has no bound, or if a factor is negative, or several factors may be negative.
        """
        bounds: list[int] = []
        for x in operands:
            bound = self.most(x)
            if bound is None or (kind == "mul" and bound < 0):
                return None
            bounds.append(bound)
        if kind == "mul":
            may_be_negative = [x for x in operands if not self.is_count(x)]
            if len(may_be_negative) > 1:
                return None  # the product of two negative numbers may exceed the bounds' product
        return _RESULT_BOUNDS[kind](bounds)

    def least(self, x: Any) -> int | None:
        """Return a lower bound of an operand's items, or None if no bound is known."""
        if self.is_count(x):
            return 0
        if not isinstance(x, Value):
            return math.floor(x)
        operation = self._computations.operation_of(x)
        if operation is None:
            return None
        if id(operation) not in self._least_by_operation:
            self._least_by_operation[id(operation)] = self._least_of(operation)
        return self._least_by_operation[id(operation)]

    def _least_of(self, operation: Operation) -> int | None:
        """Return a lower bound of the items of an operation's results, or None."""
        kind = operation.kind
        operands: list[Any] = [x for _, x in operation.operands]
        if kind == "constant":
            items: Any = dict(operation.attributes)["value"]
            is_known = not any(isinstance(item, Extent) or is_symbolic(item) for item in items)
            return min(items, default=0) if is_known else None
        if kind == "sub":
            least, most = self.least(operands[0]), self.most(operands[1])
            return None if least is None or most is None else least - most
        if kind in _MOVES:
            return self.least(operands[0])
        if kind not in ("add", "min", *_JOINS):
            return None
        if kind in _JOINS:
            (operands,) = operands  # the single operand is an array of tensors
        bounds = [self.least(x) for x in operands]
        known_bounds = [bound for bound in bounds if bound is not None]
        if len(known_bounds) < len(bounds):
            return None
        return sum(known_bounds) if kind == "add" else min(known_bounds)

    def is_count(self, x: Any) -> bool:
        """Tell whether no item of an operand can be negative.

        The answer follows from the operations that compute the operand. It is False if these
        operations do not exclude negative items.
        """
        if not isinstance(x, Value):
            return x >= 0
        if x.type.dtype == "bool":
            return True
        operation = self._computations.operation_of(x)
        if operation is None:
            return self._is_count_by_input.get(x, False)
        if id(operation) not in self._is_count_by_operation:
            self._is_count_by_operation[id(operation)] = self._is_count_of(operation)
        return self._is_count_by_operation[id(operation)]

    def _is_count_of(self, operation: Operation) -> bool:
        """Tell whether no item of an operation's results is negative."""
        kind = operation.kind
        operands: list[Any] = [operand for _, operand in operation.operands]
        if kind == "constant":
            items: Any = dict(operation.attributes)["value"]
            return all(map(_is_not_negative, items))
        if kind in ("argmax_reduce", "argmin_reduce"):
            return True  # the results are indices
        if kind in _MOVES or kind == "sum_reduce":
            return self.is_count(operands[0])
        if kind in _JOINS:
            (parts,) = operands  # the single operand is an array of tensors
            return all(map(self.is_count, parts))
        if kind == "max":
            return any(map(self.is_count, operands))
        return kind in ("add", "mul", "min") and all(map(self.is_count, operands))

    def _volume(self, x: Value, axes: Sequence[int]) -> int:
        """Return the largest number of items that a tensor can have along axes."""
        shape = self._shape_of(x)
        return volume(self._bound(shape[axis]) for axis in axes)


def _is_not_negative(item: Any) -> bool:
    """Tell whether an item of a constant is certainly not negative: False for the extent n0 - 1."""
    return "-" not in item.text if isinstance(item, Extent) else item >= 0
