"""The operation that quantises one tensor, with the values of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import UNKNOWN, Shape, show
from lowering.graph import TensorType
from lowering.kernels.broadcast import align
from lowering.location import Source, Span
from nnef_jax.errors import SemanticError, ShapeError
from nnef_jax.formats.syntax import tree as s

ALGORITHMS = (
    "linear_quantize",
    "min_max_linear_quantize",
    "zero_point_linear_quantize",
    "logarithmic_quantize",
)
WHOLE = ("bits", "signed", "symmetric")  # the same for all channels
_NUMBERS = ("min", "max", "zero_point", "scale")
_LARGEST = (float(np.finfo(np.float32).max), 2**31 - 1)  # of scalars, of integers
_MOST_BITS = 64

# The value of an argument: a list has an item for each channel, an array is a constant tensor.
ArgumentValue = float | int | bool | str | list[Any] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Quantizer:
    """One entry of graph.quant, or what the header of a tensor file says in its place.

    `node` is the invocation as written in `source`, without the tensor that it is for; `arguments`
    are the values of those of its arguments that are numbers, strings or constants.

    An array has a value for each channel. The channels of a variable are along axis 0, or along
    axis 1 where axis 0 has another extent (a bias of shape [1,C]); those of any other tensor are
    along axis 1, or along axis 0 where that is its only one. A constant broadcasts from the left.
    """

    source: Source
    node: s.Invocation
    operation: str
    arguments: Mapping[str, ArgumentValue]

    def span(self, argument: str = "") -> Span:
        """Return where an argument stands, or the whole invocation."""
        found = (a for a in self.node.arguments if a.name == argument)
        return s.span_in(self.source, next(found, self.node))

    def value(self, argument: str, shape: Shape, *, variable: bool) -> ArgumentValue:
        """Return an argument for a tensor of a shape; an array is made to broadcast from the left.

        Raises ShapeError where an array does not have as many items as the tensor has channels.
        """
        value = self.arguments[argument]
        if not isinstance(value, list):
            return value
        if len(value) == 1:
            return value[0]
        for axis in (0, 1) if variable or len(shape) < 2 else (1,):
            if axis < len(shape) and shape[axis] in (len(value), UNKNOWN):
                return np.array(value).reshape((1,) * axis + (-1,))
        raise ShapeError(
            f"'{argument}' has {len(value)} values, the tensor has shape {show(shape)}",
            span=self.span(argument),
            hint="an array has a value for each channel: for each extent of axis 0 of a variable, "
            "of axis 1 of any other tensor",
        )

    def invocation(self, name: str, type: TensorType, *, variable: bool) -> s.Invocation:
        """Return the invocation that quantises a tensor, which it calls by its name."""
        offset = self.node.offset
        arguments = [s.Argument(offset, None, s.Identifier(offset, name))]
        for argument in self.node.arguments:
            if argument.name is not None and argument.name in self.arguments:
                value = self.value(argument.name, type.shape, variable=variable)
                argument = replace(argument, value=_expression(value, argument.offset))
            arguments.append(argument)
        return replace(self.node, operation=self.operation, arguments=tuple(arguments))

    def problems(self) -> Iterator[SemanticError]:
        """Yield what is wrong with the numbers given to an algorithm of the standard."""
        given: Mapping[str, Any] = self.arguments
        several = [name for name in WHOLE if isinstance(given.get(name), list | np.ndarray)]
        for name in several:
            yield self._error(f"'{name}' must be one value, it is an array", name)
        if several:
            return
        bits = given["bits"]
        least = 2 if given.get("signed") and given.get("symmetric") else 1
        if not least <= bits <= _MOST_BITS:
            message = f"'bits' must be at least {least} and at most {_MOST_BITS}, it is {bits}"
            yield self._error(message, "bits")
        numbers = {name: np.asarray(given[name]) for name in _NUMBERS if name in given}
        for name, array in numbers.items():
            bound = _LARGEST[array.dtype.kind == "i"]
            if not array.size:
                yield self._error(f"'{name}' is empty", name)
                return
            if not np.all(np.abs(array) <= bound):
                yield self._error(f"'{name}' must be finite and at most {bound}", name)
                return
        sizes = {array.size for array in numbers.values()} - {1}
        if len(sizes) > 1:
            held = " and ".join(f"'{name}' has {array.size}" for name, array in numbers.items())
            yield self._error(f"arrays must hold a value a channel: {held}", next(iter(numbers)))
            return
        positive = "max" if self.operation == "logarithmic_quantize" else "scale"
        if positive in numbers and not np.all(numbers[positive] > 0):
            message = f"'{positive}' must be positive, it is {numbers[positive].min()}"
            yield self._error(message, positive)
        if "min" in numbers and not _in_order(given["min"], given["max"]):
            low, high = (np.array2string(numbers[name], threshold=8) for name in ("min", "max"))
            yield self._error(f"'min' must be less than 'max', they are {low} and {high}", "min")

    def _error(self, message: str, argument: str) -> SemanticError:
        return SemanticError(message, span=self.span(argument))


def _expression(value: ArgumentValue, offset: int) -> s.Expression:
    """Return an expression that has a value; arrays are constant tensors."""
    if not isinstance(value, np.ndarray):
        assert not isinstance(value, list)
        return s.Literal(offset, value)
    kind = {"i": "integer", "b": "logical"}.get(value.dtype.kind, "scalar")
    parts: dict[str, list[Any]] = {"shape": list(value.shape), "value": value.ravel().tolist()}
    arguments = tuple(
        s.Argument(offset, name, s.Array(offset, tuple(s.Literal(offset, item) for item in items)))
        for name, items in parts.items()
    )
    return s.Invocation(offset, "constant", kind, arguments)


def _in_order(low: Any, high: Any) -> bool:
    """Tell whether each minimum is below its maximum, where it is clear which belong together."""
    if isinstance(low, list) != isinstance(high, list) and np.size(low) > 1 and np.size(high) > 1:
        return True
    low, high = align(np.asarray(low), np.asarray(high))
    try:
        return bool(np.all(low < high))
    except ValueError:
        return True  # at least one of them will not fit the tensor
