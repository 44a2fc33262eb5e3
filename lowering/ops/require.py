"""Checks for the `infer` functions of rules.

For example, `require.floating(x=x)` raises an error unless x holds floating-point numbers. A check
raises InvalidOperation or InvalidShape for operands or attributes that it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax.numpy as jnp

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import (
    MAX_EXTENT,
    MAX_RANK,
    UNKNOWN,
    Ints,
    Shape,
    differ,
    shapes_differ,
    show,
    volume,
)
from lowering.graph import NARROW, TensorType, is_complex, is_float, is_integer

_MOST_RESULTS = 100_000


def _requirement(what: str, holds: Callable[[str], bool], hint: str = "") -> Callable[..., None]:
    """Return a check that raises an error unless `holds` is true for the dtype of each operand.

    The error says that the operand must hold `what`, for example "integers". If the operand holds
    logical values, the error has the hint.
    """

    def check(**operands: TensorType) -> None:
        for name, operand in operands.items():
            if operand.dtype in NARROW:
                raise InvalidOperation(
                    f"'{name}' must hold {what} of 8 bits or more, it holds {operand.dtype}",
                    hint="`cast` widens them",
                )
            if not holds(operand.dtype):
                message = f"'{name}' must hold {what}, it holds {operand.dtype}"
                if operand.dtype == "bool":
                    raise InvalidOperation(message, hint=hint)
                raise InvalidOperation(message)

    return check


_CAST = "`cast` makes 0 and 1 of logical values"
floating = _requirement("scalars", is_float)
integer = _requirement("integers", is_integer)
logical = _requirement("logical values", lambda dtype: dtype == "bool")
complex = _requirement("complex numbers", is_complex)
ordered = _requirement(
    "real numbers or integers", lambda dtype: is_float(dtype) or is_integer(dtype), _CAST
)
number = _requirement("numbers", lambda dtype: dtype != "bool", _CAST)
bits = _requirement(
    "integers or logical values", lambda dtype: dtype == "bool" or is_integer(dtype)
)


def same_dtype(*checks: Callable[..., None], **operands: TensorType) -> None:
    """Refuse operands of different dtypes, and operands that one of the `checks` refuses."""
    for check in checks:
        check(**operands)
    if len({operand.dtype for operand in operands.values()}) > 1:
        dtypes = ", ".join(f"'{name}' {operand.dtype}" for name, operand in operands.items())
        raise InvalidOperation(f"operands must have one dtype, they have {dtypes}")


def axes(axes: Sequence[int], rank: int, name: str = "axes") -> None:
    """Refuse axes that are negative, repeated, or not below the rank. `name` is for the error."""
    if len(set(axes)) != len(axes):
        raise InvalidOperation(f"'{name}' must not repeat an axis, it is {list(axes)}")
    hint = f"axes count from 0, the last one is {rank - 1}" if rank else ""
    for axis in axes:
        if not 0 <= axis < rank:
            raise InvalidOperation(f"'{name}' must lie in [0,{rank}), it has {axis}", hint=hint)


def axis(number: int, rank: int) -> None:
    """Refuse an axis number that is negative or not below the rank."""
    axes((number,), rank, "axis")


def rank(shape: Sequence[int]) -> None:
    """Refuse a shape with more axes than an array can have."""
    if len(shape) > MAX_RANK:
        raise InvalidOperation(f"'shape' has {len(shape)} extents, arrays have at most {MAX_RANK}")


def length(name: str, items: Sequence[object], expected: int, what: str) -> None:
    """Refuse the value `items` of an attribute unless it has the expected number of items.

    The error says that the attribute `name` must have an item for each of `expected` things. `what`
    is the plural for these things, such as "axes".
    """
    if len(items) != expected:
        raise InvalidShape(
            f"'{name}' must have an item for each of the {expected} {what}, it has {len(items)}"
        )


def shape(name: str, operand: TensorType, expected: Shape, why: str) -> None:
    """Refuse an operand that does not have the expected shape. `why` is the hint of the error."""
    if shapes_differ(operand.shape, expected):
        raise InvalidShape(
            f"'{name}' must have the shape {show(expected)}, it has {show(operand.shape)}", hint=why
        )


def layout(pattern: str, hint: str = "", **operands: TensorType) -> None:
    """Refuse operands that do not match a layout such as `[N,4]`, where N may be any extent."""
    extents = pattern[1:-1].split(",")
    expected = [int(extent) if extent.isdigit() else UNKNOWN for extent in extents]
    for name, operand in operands.items():
        if shapes_differ(operand.shape, expected):
            raise InvalidShape(
                f"'{name}' must have the shape {pattern}, it has {show(operand.shape)}", hint=hint
            )


def fits(name: str, target: TensorType, **operands: TensorType) -> None:
    """Refuse operands that do not broadcast to the shape of `target` from the first axis on.

    `name` stands for the target in the error.
    """
    target_shape = target.shape
    for operand, type in operands.items():
        is_longer = len(type.shape) > len(target_shape)
        # A shorter shape is continued by 1s, which broadcast.
        pairs = zip(type.shape, target_shape, strict=False)
        if is_longer or any(n != 1 and differ(n, extent) for n, extent in pairs):
            raise InvalidShape(
                f"'{operand}' of shape {show(type.shape)} must broadcast to {name} of shape "
                f"{show(target_shape)}",
                hint="shapes are matched from the left: a value for each channel has shape [1,C]",
            )


def one(**operands: TensorType) -> None:
    """Refuse operands that do not have exactly one item. Their rank does not matter."""
    for name, operand in operands.items():
        if differ(volume(operand.shape), 1):
            raise InvalidShape(f"'{name}' must have one item, its shape is {show(operand.shape)}")


def one_integer(**operands: TensorType) -> None:
    """Refuse operands that are not a single integer. Their rank does not matter."""
    integer(**operands)
    one(**operands)


def not_negative(**numbers: float) -> None:
    """Refuse numbers below 0."""
    for name, number in numbers.items():
        if number < 0:
            raise InvalidOperation(f"'{name}' must not be negative, it is {number}")


def within(dtype: str, numbers: Iterable[float], name: str = "", hint: str = "") -> None:
    """Refuse numbers out of the range of `dtype`, if `dtype` is an integer dtype.

    The error begins with `name`, and has the hint.
    """
    if not is_integer(dtype):
        return
    limits = jnp.iinfo(dtype)  # numpy's `iinfo` does not know dtypes of 2 and 4 bits
    for number in numbers:
        if number is not UNKNOWN and not limits.min <= number <= limits.max:
            raise InvalidOperation(f"{name}{number} does not fit {dtype}", hint=hint)


def int32(**numbers: int) -> None:
    """Refuse attributes that do not fit int32, the dtype of indices."""
    for name, number in numbers.items():
        within("int32", (number,), f"'{name}' ")


def indexable(**operands: TensorType) -> None:
    """Refuse tensors with more items than an int32 index can number."""
    for name, operand in operands.items():
        items = volume(operand.shape)
        if items > MAX_EXTENT:
            raise InvalidShape(
                f"'{name}' {show(operand.shape)} has {items} items, its indices have 32 bits"
            )


def count_of_results(count: int) -> None:
    """Refuse an operation with more than 100000 results."""
    if count > _MOST_RESULTS:
        raise InvalidOperation(f"it has {count} results, an operation has at most {_MOST_RESULTS}")


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse an attribute's value that is not one of the allowed names."""
    if value not in allowed:
        names = ", ".join(f"'{choice}'" for choice in allowed)
        raise InvalidOperation(f"'{name}' must be one of {names}, it is '{value}'")


def normal_axes(signed: Sequence[int], rank: int, name: str = "axes") -> Ints:
    """Return the axes as numbers from 0 on, where a negative number counts from the end.

    For (-1, 0) and a rank of 3 the result is (2, 0). Raises InvalidOperation if an axis is out
    of range or repeated. `name` is for the error.
    """
    hint = "axes below 0 count from the end" if rank else "the tensor has no axes"
    normal: list[int] = []
    for axis in signed:
        if not -rank <= axis < rank:
            raise InvalidOperation(
                f"'{name}' must lie in [{-rank},{rank}), it has {axis}", hint=hint
            )
        normal.append(axis + rank if axis < 0 else axis)
    axes(normal, rank, name)
    return tuple(normal)


def normal_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Return the axis as a number from 0 on, where a negative number counts from the end.

    For -1 and a rank of 3 the result is 2. Raises InvalidOperation if the axis is out of range.
    `name` is for the error.
    """
    (normal,) = normal_axes((axis,), rank, name)
    return normal
