"""The largest numbers that computed integers can have, which bound extents that values tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lowering.extents import Extent, volume
from lowering.graph import Operation, Value
from nnef_jax.flattening.computations import Computations

# Kinds whose result has, in some order, items of the first operand.
_MOVES = frozenset({
    "broadcast", "cast", "copy", "counted", "gather", "gather_nd", "max_reduce", "min_reduce",
    "reshape", "slice", "squeeze", "transpose", "unsqueeze",
})  # fmt: skip
_JOINS = frozenset({"concat", "stack"})
_PRODUCTS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "add": sum, "mul": math.prod, "max": max,
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
        # The answers for operations, which the graph under construction keeps. Without them, the
        # time would double with each operation that reads a number twice.
        self._mosts: dict[int, int | None] = {}
        self._are_counts: dict[int, bool] = {}

    def most(self, x: Any) -> int | None:
        """Return a number that no item of an operand exceeds, or None if it is not known."""
        if not isinstance(x, Value):
            return math.ceil(x)
        if x.type.dtype == "bool":
            return 1
        operation = self._computations.operation_of(x)
        if operation is None:
            return None
        if id(operation) not in self._mosts:
            self._mosts[id(operation)] = self._most_of(operation)
        return self._mosts[id(operation)]

    def _most_of(self, operation: Operation) -> int | None:
        """Return a number that no item of an operation's results exceeds, or None."""
        kind = operation.kind
        operands: list[Any] = [x for _, x in operation.operands]
        attributes: dict[str, Any] = dict(operation.attributes)
        if kind == "constant":
            return max(map(self._bound, attributes["value"]), default=0)
        if kind in ("argmax_reduce", "argmin_reduce"):
            return self._volume(operands[0], attributes["axes"])
        if kind == "sum_reduce":
            most = self.most(operands[0])
            return None if most is None else most * self._volume(operands[0], attributes["axes"])
        if kind in _MOVES:
            return self.most(operands[0])
        if kind == "sub":
            return self.most(operands[0]) if self.is_count(operands[1]) else None
        if kind in _JOINS:
            (operands,) = operands
        elif kind not in ("add", "mul", "max", "min"):
            return None
        mosts = [self.most(x) for x in operands]
        numbers = [n for n in mosts if n is not None]
        if kind == "min":
            return min(numbers, default=None)
        if len(numbers) < len(mosts) or min(numbers, default=0) < 0:
            return None
        if kind == "mul" and sum(map(self.is_count, operands)) < len(operands) - 1:
            return None  # the product of two negative numbers has no bound here
        return _PRODUCTS.get(kind, max)(numbers)

    def is_count(self, x: Any) -> bool:
        """Tell whether no item of an operand is negative. False is returned if it is not known."""
        if not isinstance(x, Value):
            return x >= 0
        if x.type.dtype == "bool":
            return True
        operation = self._computations.operation_of(x)
        if operation is None:
            return False
        if id(operation) not in self._are_counts:
            self._are_counts[id(operation)] = self._counts(operation)
        return self._are_counts[id(operation)]

    def _counts(self, operation: Operation) -> bool:
        """Tell whether no item of an operation's results is negative."""
        kind = operation.kind
        operands: list[Any] = [operand for _, operand in operation.operands]
        if kind == "constant":
            items: Any = dict(operation.attributes)["value"]
            return all(map(_is_count, items))
        if kind in ("argmax_reduce", "argmin_reduce"):
            return True
        if kind in _MOVES or kind == "sum_reduce":
            return self.is_count(operands[0])
        if kind in _JOINS:
            return all(map(self.is_count, operands[0]))
        if kind == "max":
            return any(map(self.is_count, operands))
        return kind in ("add", "mul", "min") and all(map(self.is_count, operands))

    def _volume(self, x: Value, axes: Sequence[int]) -> int:
        shape = self._shape_of(x)
        return volume(self._bound(shape[axis]) for axis in axes)


def _is_count(item: Any) -> bool:
    """Tell whether an item of a constant is not negative. An extent with a minus may be."""
    return "-" not in item.text if isinstance(item, Extent) else item >= 0
