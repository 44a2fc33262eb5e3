"""Quantisation of a tensor: its operation, and the real numbers of stored codes (spec 7.1).

The number that a code q of n bits stands for depends on the operation:
    min_max_linear_quantize     (q + p) / r * (max - min) + min: the lowest code is min, the highest
                                max. p = 2^(n-1) - symmetric if signed, else 0;
                                r = 2^n - 1, less 1 if signed and symmetric
    linear_quantize             the same, never symmetric; signed if the file's item type is signed
    zero_point_linear_quantize  (q - zero_point) * scale
    logarithmic_quantize        2^(t - (2^n - 1) + q), with t = ceil(log2(max)). If the file's item
                                type is signed, sign(q) * 2^(t - (2^(n-1) - 1) + |q|), and 0 for
                                code 0. The highest code is 2^t in either case

These are the values that the operation returns in 1.0 final. The standard does not define signed
logarithmic codes. Here, the item type of the file decides whether the codes are signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import broadcast
from lowering.extents import UNKNOWN, Shape, show
from lowering.graph import TensorType
from lowering.location import Source, Span
from nnef_jax.errors import DataError, SemanticError, ShapeError, UnsupportedError
from nnef_jax.formats.syntax import tree
from nnef_jax.limits import Meter
from nnef_jax.storage.tensorfile import TensorFile

ALGORITHMS = (
    "linear_quantize",
    "min_max_linear_quantize",
    "zero_point_linear_quantize",
    "logarithmic_quantize",
)
# The names of arguments that have the same value for all channels.
SCALARS = ("bits", "signed", "symmetric")
_NUMERIC_ARGUMENTS = ("min", "max", "zero_point", "scale")
_LARGEST_SCALAR = float(np.finfo(np.float32).max)
_LARGEST_INTEGER = 2**31 - 1
_MOST_BITS = 64
# Bytes of memory for the number of each code: a number of float64 in each of three arrays.
_BYTES_OF_NUMBER = 24

# The value of an argument. A list has an item for each channel, and an array is a constant tensor.
ArgumentValue = float | int | bool | str | list[Any] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Quantizer:
    """The quantisation of a tensor, from an entry of graph.quant or the header of a tensor file.

    `node` is the invocation in `source`, without the tensor. `operation` is the name of the
    algorithm. `arguments` has the values of the arguments that are numbers, strings or constants.

    A list of numbers has a number for each channel. The channels of a variable are along axis 0. If
    the extent of axis 0 is not the length of the list, the channels are along axis 1, as in a bias
    of shape (1, channels). The channels of any other tensor are along axis 1, or along axis 0 if
    the tensor has one axis. A constant tensor is broadcast from the left.
    """

    source: Source
    node: tree.Invocation
    operation: str
    arguments: Mapping[str, ArgumentValue]

    def span(self, argument: str = "") -> Span:
        """Return the place of an argument, or of the invocation if there is no such argument."""
        for node in self.node.arguments:
            if node.name == argument:
                return tree.span_in(self.source, node)
        return tree.span_in(self.source, self.node)

    def value(self, argument: str, shape: Shape, *, variable: bool) -> ArgumentValue:
        """Return the value of an argument, for a tensor of the shape `shape`.

        A list with a number for each channel becomes an array that broadcasts to the tensor.
        `variable` tells whether the tensor is a variable, whose channels may be along axis 0.
        Raises ShapeError if the length of a list is not the number of channels.
        """
        value = self.arguments[argument]
        if not isinstance(value, list):
            return value
        if len(value) == 1:
            return value[0]
        is_along_axis_1 = not variable and len(shape) >= 2
        possible_axes = (1,) if is_along_axis_1 else (0, 1)
        for axis in possible_axes:
            fits = axis < len(shape) and shape[axis] in (len(value), UNKNOWN)
            if fits:
                # The shape is (channels) for axis 0, and (1, channels) for axis 1.
                extents_before = [1] * axis
                return np.array(value).reshape(*extents_before, -1)
        raise ShapeError(
            f"'{argument}' has {len(value)} values, the tensor has shape {show(shape)}",
            span=self.span(argument),
            hint="an array has a value for each channel: the channels of a variable are along "
            "axis 0, those of any other tensor along axis 1",
        )

    @property
    def step(self) -> NDArray[Any] | None:
        """Return the distance between the numbers that successive codes stand for.

        The distance is a single number, or an array with a number for each channel. Return None if
        the distance is not the same for all codes.
        """
        arguments: Any = self.arguments
        match arguments:
            case {"scale": scale}:
                return np.asarray(scale, np.float64)
            case {"min": low, "max": high, "bits": bits}:
                full_range = np.asarray(high, np.float64) - np.asarray(low, np.float64)
                return full_range / (2**bits - 1)
            case _:
                return None

    def invocation(self, name: str, type: TensorType, *, variable: bool) -> tree.Invocation:
        """Return the invocation that quantises the tensor `name` of the type `type`.

        `variable` tells whether the tensor is a variable, whose channels may be along axis 0.
        """
        offset = self.node.offset
        arguments = [tree.Argument(offset, None, tree.Identifier(offset, name))]
        for argument in self.node.arguments:
            if argument.name is not None and argument.name in self.arguments:
                value = self.value(argument.name, type.shape, variable=variable)
                argument = replace(argument, value=_expression(value, argument.offset))
            arguments.append(argument)
        return replace(self.node, operation=self.operation, arguments=tuple(arguments))

    def problems(self) -> Iterator[SemanticError]:
        """Yield the errors in the arguments of an algorithm of the standard."""
        arguments: Mapping[str, Any] = self.arguments
        arrays = [name for name in SCALARS if isinstance(arguments.get(name), list | np.ndarray)]
        for name in arrays:
            yield self._error(f"'{name}' must be one value, it is an array", name)
        if arrays:
            return
        bits = arguments["bits"]
        is_symmetric = arguments.get("signed") and arguments.get("symmetric")
        least = 2 if is_symmetric else 1  # a symmetric code of 1 bit could only be 0
        if bits < least or bits > _MOST_BITS:
            message = f"'bits' must be at least {least} and at most {_MOST_BITS}, it is {bits}"
            yield self._error(message, "bits")
        yield from self._problems_of_numbers()

    def _problems_of_numbers(self) -> Iterator[SemanticError]:
        """Yield the errors in the arguments that have a number, or a number for each channel."""
        arguments: Mapping[str, Any] = self.arguments
        numbers = {
            name: np.asarray(arguments[name]) for name in _NUMERIC_ARGUMENTS if name in arguments
        }
        for name, array in numbers.items():
            if array.size == 0:
                yield self._error(f"'{name}' is empty", name)
                return
            is_integer = array.dtype.kind == "i"
            bound = _LARGEST_INTEGER if is_integer else _LARGEST_SCALAR
            is_within_bound = np.all(np.abs(array) <= bound)  # false for NaN
            if not is_within_bound:
                yield self._error(f"'{name}' must be finite and at most {bound}", name)
                return
        channel_counts = {array.size for array in numbers.values()} - {1}
        if len(channel_counts) > 1:
            counts = " and ".join(f"'{name}' has {array.size}" for name, array in numbers.items())
            message = f"arrays must hold one value for each channel: {counts}"
            yield self._error(message, next(iter(numbers)))
            return
        positive_name = "max" if self.operation == "logarithmic_quantize" else "scale"
        if positive_name in numbers:
            least_number = numbers[positive_name].min()
            if least_number <= 0:
                message = f"'{positive_name}' must be positive, it is {least_number}"
                yield self._error(message, positive_name)
        if "min" in numbers and not _in_order(arguments["min"], arguments["max"]):
            low = np.array2string(numbers["min"], threshold=8)
            high = np.array2string(numbers["max"], threshold=8)
            yield self._error(f"'min' must be less than 'max', they are {low} and {high}", "min")

    def _error(self, message: str, argument: str) -> SemanticError:
        """Return an error with the place of an argument."""
        return SemanticError(message, span=self.span(argument))


def _expression(value: ArgumentValue, offset: int) -> tree.Expression:
    """Return the value of an argument as an expression. An array becomes a call of `constant`."""
    if not isinstance(value, np.ndarray):
        assert not isinstance(value, list)
        return tree.Literal(offset, value)
    kind = {"i": "integer", "b": "logical"}.get(value.dtype.kind, "scalar")
    parts: dict[str, list[Any]] = {"shape": list(value.shape), "value": value.ravel().tolist()}
    arguments: list[tree.Argument] = []
    for name, items in parts.items():
        literals = tuple(tree.Literal(offset, item) for item in items)
        arguments.append(tree.Argument(offset, name, tree.Array(offset, literals)))
    return tree.Invocation(offset, "constant", kind, tuple(arguments))


def _in_order(low: ArgumentValue, high: ArgumentValue) -> bool:
    """Tell whether each minimum in `low` is below the corresponding maximum in `high`.

    If one of `low` and `high` is a list, and the other is a constant tensor, the shape of the
    quantised tensor decides which numbers are compared. The shape is not known yet, so the result
    is True.
    """
    is_list_and_tensor = isinstance(low, list) != isinstance(high, list)
    have_several_numbers = np.size(low) > 1 and np.size(high) > 1
    if is_list_and_tensor and have_several_numbers:
        return True
    lows, highs = broadcast.align(np.asarray(low), np.asarray(high))
    try:
        return bool(np.all(lows < highs))
    except ValueError:
        # The numbers do not broadcast to each other, so `low` or `high` does not fit the tensor.
        # Another check later refuses the argument that does not fit.
        return True


# Codes


def dequantize(stored: TensorFile, quantizer: Quantizer, member: str, meter: Meter) -> NDArray[Any]:
    """Return the real numbers, in float64, that the codes in a tensor file stand for.

    Raises DataError for codes beyond the range of the algorithm, UnsupportedError if the algorithm
    is a fragment of the document, ShapeError for a list whose length is not the number of channels,
    and LimitError if the numbers take too much memory.
    """
    codes = stored.array
    if quantizer.operation not in ALGORITHMS:
        raise UnsupportedError(
            f"{member} holds codes that fragment '{quantizer.operation}' quantised, and their "
            "numbers are not known",
            span=quantizer.span(),
            hint=f"store real numbers, or use one of {', '.join(ALGORITHMS)}",
        )
    meter.expand(_BYTES_OF_NUMBER * codes.size, member)
    arguments = {name: _argument(quantizer, name, codes.shape) for name in quantizer.arguments}
    bits = arguments["bits"]
    is_signed = bool(arguments.get("signed", stored.signed))
    _check_codes(codes, bits, is_signed, quantizer, member)
    numbers = codes.astype(np.float64)
    match quantizer.operation:
        case "zero_point_linear_quantize":
            return (numbers - arguments["zero_point"]) * arguments["scale"]
        case "logarithmic_quantize":
            magnitude_bits = bits - 1 if is_signed else bits
            greatest_exponent = np.ceil(np.log2(arguments["max"]))
            least_exponent = greatest_exponent - (2.0**magnitude_bits - 1)
            sign = np.sign(numbers) if is_signed else 1.0  # the sign of code 0 is 0
            # The results overwrite the array `numbers`, so that no second array takes memory.
            np.abs(numbers, out=numbers)
            np.add(numbers, least_exponent, out=numbers)
            np.exp2(numbers, out=numbers)
            return np.multiply(numbers, sign, out=numbers)
        case _:
            # 8 bits have the codes -128 to 127 if signed. The offset 128 makes them 0 to 255.
            offset = 2.0 ** (bits - 1) if is_signed else 0.0
            code_range = 2.0**bits - 1
            if is_signed and arguments.get("symmetric", False):
                # The lowest code is not used: 8 bits have only the codes -127 to 127.
                offset -= 1
                code_range -= 1
            low = arguments["min"]
            high = arguments["max"]
            return (numbers + offset) / code_range * (high - low) + low


def _argument(quantizer: Quantizer, name: str, shape: tuple[int, ...]) -> Any:
    """Return the value of an argument, reshaped so that it broadcasts to `shape`.

    `shape` is the shape of the codes. Raises DataError if the value does not broadcast to `shape`.
    """
    value = quantizer.value(name, shape, variable=True)
    if not isinstance(value, np.ndarray):
        return value
    value = broadcast.expand(value, len(shape))
    pairs = zip(value.shape, shape, strict=False)
    has_fitting_extents = all(extent in (1, stored_extent) for extent, stored_extent in pairs)
    has_same_rank = value.ndim == len(shape)  # false if the value had more axes than the codes
    if not has_same_rank or not has_fitting_extents:
        message = f"'{name}' of shape {show(value.shape)} does not broadcast to shape {show(shape)}"
        raise DataError(message, span=quantizer.span(name))
    return value


def _check_codes(
    codes: NDArray[Any], bits: int, is_signed: bool, quantizer: Quantizer, member: str
) -> None:
    """Raise DataError if codes are beyond the range of the algorithm."""
    if codes.size == 0:
        return
    low = -(2 ** (bits - 1)) if is_signed else 0
    high = low + 2**bits - 1
    least_code = int(codes.min())
    greatest_code = int(codes.max())
    if least_code < low or greatest_code > high:
        kind = "signed" if is_signed else "unsigned"
        raise DataError(
            f"{member} holds codes from {least_code} to {greatest_code}, but "
            f"'{quantizer.operation}' with {bits} {kind} bits has codes from {low} to {high}",
            span=quantizer.span(),
        )
