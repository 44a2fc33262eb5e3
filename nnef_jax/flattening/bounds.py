"""Bounds of the integers that a graph computes. Such integers may be extents of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from lowering.extents import Extent, at_least, is_symbolic, volume
from lowering.graph import Operation, Value, is_integer
from nnef_jax.flattening.computations import Computations

# Operations whose results consist of items of the first operand, in any order. The items may be
# rounded: bounds are integers, so they are also bounds of the rounded items.
_MOVES = frozenset({
    "broadcast", "cast", "ceil", "copy", "counted", "floor", "gather", "gather_nd", "max_reduce",
    "min_reduce", "reshape", "round", "slice", "squeeze", "transpose", "unsqueeze",
})  # fmt: skip
# A cast to one of these dtypes wraps numbers that are too large or, without a sign, negative.
_WRAPPING = frozenset({"int8", "int16", "uint8", "uint16", "uint32", "uint64"})
# A wrapped number whose dtype has a larger limit is no extent: its list would have too much room.
_LARGEST_WRAPPED = 65_535
_JOINS = frozenset({"concat", "stack"})
# Operations whose bounds follow from the bounds of both ends of each operand.
_BY_ENDS = frozenset({"abs", "div", "mul", "neg", "rem"})
_Ends = tuple[Any, Any]  # the least and the largest value


def _largest(numbers: Sequence[Any]) -> Any:
    """Return the largest of numbers, or None if it depends on the values of open extents.

    If there are no numbers, return 0.
    """
    if not numbers:
        return 0
    result, *others = numbers
    for number in others:
        if at_least(number, result):
            result = number
        elif not at_least(result, number):
            return None
    return result


# Maps an operation's name to a function. The function takes a list of upper bounds of the operands,
# and returns an upper bound of the result.
_RESULT_BOUNDS: Mapping[str, Callable[[Sequence[int]], int | None]] = {
    "add": sum, "mul": math.prod, "max": _largest, "concat": _largest, "stack": _largest,
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
            return _rounded_up(x)
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
            return _rounded_up(_largest(list(map(self._bound, attributes["value"]))))
        if kind in ("argmax_reduce", "argmin_reduce"):
            # The result is the index of an item, so it is below the number of items along the axes.
            return self._volume(operands[0], attributes["axes"])
        if kind == "sum_reduce":
            most = self.most(operands[0])
            if most is None:
                return None
            # A list of negative numbers may be empty: then its sum is 0.
            return max(most, 0) * self._volume(operands[0], attributes["axes"])
        if self.wraps(operation):
            limit = int(np.iinfo(_dtype_of(operation)).max)
            return limit if limit <= _LARGEST_WRAPPED else None
        if kind == "min_reduce" and not self._has_items(operation):
            return None  # the smallest number of an empty list is the largest integer
        if kind in _MOVES:
            return self.most(operands[0])
        if kind == "sub":
            most, least = self.most(operands[0]), self.least(operands[1])
            return None if most is None or least is None else most - least
        if kind == "min":
            bounds = [bound for x in operands if (bound := self.most(x)) is not None]
            # If it is not certain which bound is smaller, any of them is right.
            return reduce(lambda x, y: y if at_least(x, y) else x, bounds) if bounds else None
        if kind == "select":
            return self._most_of_all("max", operands[1:])  # operand 0 is the condition
        if kind in _JOINS:
            (operands,) = operands  # the single operand is an array of tensors
        most = self._most_of_all(kind, operands) if kind in _RESULT_BOUNDS else None
        if most is None and kind in _BY_ENDS:
            ends = self._ends_of(operation)
            return None if ends is None else ends[1]
        return most

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
        """Return a lower bound of an operand's items, or None if no bound is known.

        The largest number of an empty list does not count: it is the smallest integer.
        """
        if not isinstance(x, Value):
            negated = _rounded_up(-x)
            return None if negated is None else -negated
        is_count = self.is_count(x)
        operation = self._computations.operation_of(x)
        if operation is None:
            return 0 if is_count else None
        if id(operation) not in self._least_by_operation:
            self._least_by_operation[id(operation)] = self._least_of(operation)
        least = self._least_by_operation[id(operation)]
        if not is_count:
            return least
        return 0 if least is None or is_symbolic(least) else max(least, 0)

    def _least_of(self, operation: Operation) -> int | None:
        """Return a lower bound of the items of an operation's results, or None."""
        kind = operation.kind
        operands: list[Any] = [x for _, x in operation.operands]
        if kind == "constant":
            items: Any = dict(operation.attributes)["value"]
            numbers = [self._least_of_item(item) for item in items]
            return None if any(map(is_symbolic, numbers)) else self.least(min(numbers, default=0))
        if kind == "sub":
            least, most = self.least(operands[0]), self.most(operands[1])
            return None if least is None or most is None else least - most
        if self.wraps(operation):
            return int(np.iinfo(_dtype_of(operation)).min)
        if kind in _MOVES:
            return self.least(operands[0])
        if kind in _BY_ENDS:
            ends = self._ends_of(operation)
            return None if ends is None else ends[0]
        if kind == "select":
            operands = operands[1:]  # operand 0 is the condition
        elif kind not in ("add", "min", *_JOINS):
            return None
        if kind in _JOINS:
            (operands,) = operands  # the single operand is an array of tensors
        bounds = [self.least(x) for x in operands]
        known_bounds = [bound for bound in bounds if bound is not None]
        if len(known_bounds) < len(bounds):
            return None
        return sum(known_bounds) if kind == "add" else min(known_bounds)

    def _least_of_item(self, item: Any) -> Any:
        """Return the least value of an item of a constant. The item may be an extent."""
        is_extent = isinstance(item, Extent) or is_symbolic(item)
        return -self._bound(Extent(f"-({item})")) if is_extent else item

    def _ends_of(self, operation: Operation) -> _Ends | None:
        """Return the least and the largest result of an operation of `_BY_ENDS`, or None."""
        kind = operation.kind
        ends: list[_Ends] = []
        for _, x in operation.operands:
            least, most = self.least(x), self.most(x)
            if least is None or most is None or is_symbolic(least) or is_symbolic(most):
                return None
            ends.append((least, most))
        least, most = ends[0]
        if kind == "neg":
            return -most, -least
        farthest = max(abs(least), abs(most))
        if kind == "abs":
            return 0, farthest
        if kind == "mul":
            products = [x * y for x in ends[0] for y in ends[1]]
            return min(products), max(products)
        # A quotient or a remainder. Both have the sign of x if y is positive.
        divisor: Any = operation.operands[1][1]
        # A literal may have a fraction, which its bounds do not have.
        least_divisor = ends[1][0] if isinstance(divisor, Value) else divisor
        is_real = not all(is_integer(x.type.dtype) for x in operation.writes())
        if kind == "rem":
            farthest_divisor = max(map(abs, ends[1]))
            largest = min(farthest, farthest_divisor if is_real else max(farthest_divisor - 1, 0))
        elif least_divisor > 0:
            largest = math.ceil(farthest / least_divisor)
        elif is_real:
            return None  # the divisor may be as small as 0.001
        else:
            largest = farthest  # a divisor is at least 1 or at most -1, and x / 0 is 0
        may_be_negative = least < 0 or (kind == "div" and least_divisor < 0)
        may_be_positive = most > 0 or (kind == "div" and least_divisor < 0)
        return -largest if may_be_negative else 0, largest if may_be_positive else 0

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
        if kind == "max_reduce" and not self._has_items(operation):
            return False  # the result for an empty list is the smallest integer
        if self.wraps(operation):
            return _dtype_of(operation).startswith("u")
        if kind in _MOVES or kind == "sum_reduce":
            return self.is_count(operands[0])
        if kind in _JOINS:
            (parts,) = operands  # the single operand is an array of tensors
            return all(map(self.is_count, parts))
        if kind == "max":
            return any(map(self.is_count, operands))
        if kind == "rem":
            return self.is_count(operands[0])  # a remainder has the sign of the dividend
        if kind == "select":
            operands = operands[1:]  # operand 0 is the condition
        has_sign_of_operands = kind in ("add", "div", "min", "mul", "select")
        return kind == "abs" or (has_sign_of_operands and all(map(self.is_count, operands)))

    def wraps(self, operation: Operation) -> bool:
        """Tell whether an operation is a cast that may change numbers, such as 300 to int8."""
        dtype = _dtype_of(operation)
        if operation.kind != "cast" or dtype not in _WRAPPING:
            return False
        (_, operand), *_ = operation.operands
        least, most = self.least(operand), self.most(operand)
        limits = np.iinfo(dtype)
        if least is None or most is None or is_symbolic(least) or is_symbolic(most):
            return True
        return least < limits.min or most > limits.max

    def _has_items(self, operation: Operation) -> bool:
        """Tell whether a reduction certainly reduces at least one item to each result."""
        operand: Any = operation.operands[0][1]
        shape = self._shape_of(operand)
        axes: Any = dict(operation.attributes)["axes"]
        leasts = [self._least_of_item(shape[axis]) for axis in axes]
        return all(is_symbolic(n) or n > 0 for n in leasts)  # an open extent has an item

    def _volume(self, x: Value, axes: Sequence[int]) -> int:
        """Return the largest number of items that a tensor can have along axes."""
        shape = self._shape_of(x)
        return volume(self._bound(shape[axis]) for axis in axes)


def _dtype_of(operation: Operation) -> str:
    """Return the dtype of an operation's first result."""
    result, *_ = operation.writes()
    return result.type.dtype


def _rounded_up(number: Any) -> int | None:
    """Return a number, rounded up, or None if it is not finite.

    None and symbolic extents are returned unchanged.
    """
    if number is None or is_symbolic(number):
        return number
    return math.ceil(number) if math.isfinite(number) else None


def _is_not_negative(item: Any) -> bool:
    """Tell whether an item of a constant is certainly not negative: False for the extent n0 - 1."""
    return "-" not in item.text if isinstance(item, Extent) else item >= 0
