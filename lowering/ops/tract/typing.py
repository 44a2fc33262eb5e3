"""Checks that the `infer` facets of the dialect's rules share."""

from __future__ import annotations

from collections.abc import Sequence

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, show, volume
from lowering.graph import TensorType
from lowering.ops.typing import is_float, is_integer, require_axes, require_integer

# The type of an optional operand that is not given; its value is False.
ABSENT = TensorType((), "bool")


def is_complex(dtype: str) -> bool:
    """Whether a dtype holds complex numbers."""
    return dtype.startswith("complex")


def require_ordered(**operands: TensorType) -> None:
    """Refuse operands that hold neither real numbers nor integers."""
    for name, operand in operands.items():
        if not (is_float(operand.dtype) or is_integer(operand.dtype)):
            raise InvalidOperation(
                f"'{name}' must hold real numbers or integers, it holds {operand.dtype}",
                hint=_cast_hint(operand.dtype),
            )


def require_number(**operands: TensorType) -> None:
    """Refuse operands that do not hold numbers of any type."""
    for name, operand in operands.items():
        if operand.dtype == "bool":
            raise InvalidOperation(
                f"'{name}' must hold numbers, it holds {operand.dtype}", hint=_cast_hint("bool")
            )


def _cast_hint(dtype: str) -> str:
    return "`tract_core_cast` makes 0 and 1 of logical values" if dtype == "bool" else ""


def require_bits(**operands: TensorType) -> None:
    """Refuse operands that hold neither integers nor logical values."""
    for name, operand in operands.items():
        if not (is_integer(operand.dtype) or operand.dtype == "bool"):
            raise InvalidOperation(
                f"'{name}' must hold integers or logical values, it holds {operand.dtype}"
            )


def require_one(**operands: TensorType) -> None:
    """Refuse operands of more or less than one item, whatever their rank."""
    for name, operand in operands.items():
        if differ(volume(operand.shape), 1):
            raise InvalidShape(f"'{name}' must have one item, its shape is {show(operand.shape)}")


def require_one_integer(**operands: TensorType) -> None:
    """Refuse operands that are not a single integer, whatever their rank."""
    require_integer(**operands)
    require_one(**operands)


def normal_axes(axes: Sequence[int], rank: int, name: str = "axes") -> tuple[int, ...]:
    """The axes counted from the first one; in `axes` those below 0 count from the last.

    Raises InvalidOperation for axes that there are not, and for one that is named twice.
    """
    for axis in axes:
        if not -rank <= axis < rank:
            raise InvalidOperation(
                f"'{name}' must lie in [{-rank},{rank}), it has {axis}",
                hint="axes below 0 count from the end" if rank else "the tensor has no axes",
            )
    normal = tuple(axis + rank if axis < 0 else axis for axis in axes)
    require_axes(normal, rank, name)
    return normal


def normal_axis(axis: int, rank: int) -> int:
    """`normal_axes` of a single 'axis'."""
    return normal_axes((axis,), rank, "axis")[0]


def require_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse the value of an attribute that is not one of the names it can have."""
    if value not in allowed:
        names = ", ".join(f"'{known}'" for known in allowed)
        raise InvalidOperation(f"'{name}' must be one of {names}, it is '{value}'")
