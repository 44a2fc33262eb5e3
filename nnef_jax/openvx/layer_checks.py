"""Checks the tensors and parameters of layers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import ParamSpec, SupportsIndex, TypeVar

import numpy as np

from nnef_jax.openvx.tensor import POSITIONS, Tensor, checked_position, require_tensor
from nnef_jax.openvx.vx_errors import (
    VxError,
    unsupported,
    wrong_dimension,
    wrong_format,
    wrong_parameter,
)

P = ParamSpec("P")
R = TypeVar("R")

_TOO_MANY_ITEMS = 1 << 31  # a tensor must have fewer items than this number
# The numbers of bits by which layers can shift. Sums of products are shifted to the fixed-point
# position of the result, and biases to the fixed-point position of the sums.
SHIFTS = range(-16, 47)


def layer(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate the function of a layer, such that errors begin with the name of the layer."""

    @wraps(function)
    def located(*args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, and add its name to a VxError."""
        try:
            return function(*args, **kwargs)
        except VxError as error:
            raise error.within(function.__name__) from None

    return located


def tensor(name: str, x: object, *ranks: int) -> Tensor:
    """Return a value after checking that it is a tensor.

    Raises TypeError if it is not a tensor, and VxError if its rank is not one of `ranks`. Without
    `ranks`, any rank is allowed.
    """
    x = require_tensor(name, x)
    if ranks and len(x.dims) not in ranks:
        allowed = " or ".join(map(str, ranks))
        wrong_dimension(f"{name} must have {allowed} dimensions, not {len(x.dims)}: {x.dims}")
    return x


def same_format(strict: bool, **tensors: Tensor | None) -> None:
    """Raise VxError unless all tensors have the same type.

    If `strict`, the tensors must also have the default position of the type. The keywords are the
    names of the tensors in errors. A tensor that is None is skipped.
    """
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first_name, first = next(iter(present.items()))
    dtype = first.dtype
    for name, x in present.items():
        if x.dtype != dtype:
            message = f"{name} has {x.dtype}, {first_name} {dtype}: all must have the same type"
            wrong_format(message)
    if not strict:
        return
    position = POSITIONS[str(dtype)]
    for name, x in present.items():
        if x.fixed_point_position != position:
            wrong_format(
                f"{name} has the fixed_point_position {x.fixed_point_position}, "
                f"for {x.dtype} it must be {position}",
                "strict=False takes any",
            )


def position_of_output(strict: bool, output_position: int | None, inputs: Tensor) -> int:
    """Return the fixed-point position of the output, by default the position of the inputs.

    If `strict`, raises VxError unless the position is the default position of the type.
    """
    if output_position is None:
        position = inputs.fixed_point_position
    else:
        position = checked_position(output_position)
    default = POSITIONS[str(inputs.dtype)]
    if strict and position != default:
        wrong_format(
            f"output_position is {position}, for {inputs.dtype} it must be {default}",
            "strict=False takes any",
        )
    return position


def shift_of(title: str, shift: int) -> int:
    """Return a shift between two fixed-point positions.

    Raises VxError if the shift is not in `SHIFTS`. `title` is the first part of the error, such as
    "the output's position".
    """
    if shift not in SHIFTS:
        wrong_format(
            f"{title} is {shift} bits off, {SHIFTS[0]} to {SHIFTS[-1]} are possible",
            "choose fixed_point_positions with a smaller distance",
        )
    return shift


def pair(name: str, values: Iterable[SupportsIndex], least: int = 0) -> tuple[int, int]:
    """Return two integers (x, y) of at least `least`.

    Raises TypeError if the values are not integers, and VxError for any other fault.
    """
    try:
        x, y = map(operator.index, values)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two integers (x, y), not {values!r}") from None
    if min(x, y) < least:
        wrong_parameter(f"{name} must be at least {least} along x and y, it is {(x, y)}")
    return x, y


def shape(name: str, values: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Return a shape of positive extents with less than 2**31 items.

    Raises TypeError if the values are not integers, and VxError for any other fault.
    """
    try:
        extents = tuple(map(operator.index, values))
    except TypeError:
        raise TypeError(f"{name} must be integers in C order, not {values!r}") from None
    if min(extents, default=1) < 1:
        wrong_dimension(f"{name} has an extent below 1: {extents}")
    bounded(name, extents)
    return extents


def bounded(name: str, extents: Sequence[int]) -> None:
    """Raise VxError if a tensor would have 2**31 items or more."""
    if math.prod(extents) >= _TOO_MANY_ITEMS:
        unsupported(f"{name} would have the dims {tuple(extents)[::-1]}: 2**31 items or more")


def real(name: str, value: object, above: float | None = None) -> float:
    """Return a value as a finite number, which must be greater than `above`.

    Raises TypeError if it is not a number, and VxError if it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    is_above = above is None or number > above
    if not math.isfinite(number) or not is_above:
        kind = "finite" if above is None else f"above {above:g}"
        wrong_parameter(f"{name} must be {kind}, not {number}")
    return number


def output_shape(
    values: Iterable[SupportsIndex], leading: tuple[int, ...], free: int
) -> tuple[int, ...]:
    """Return the shape of an output as a tuple, after checking it.

    The shape must begin with the extents `leading`. After these, it must have `free` extents of any
    size: 2 for (..., height, width). Raises TypeError if `values` are not integers, and VxError for
    any other fault.
    """
    extents = shape("output_shape", values)
    has_rank = len(extents) == len(leading) + free
    has_leading_extents = extents[: len(leading)] == leading
    if not has_rank or not has_leading_extents:
        wrong_dimension(f"output_shape is {extents}, it must be {leading} and {free} extents")
    return extents


def stride(
    name: str,
    value: Iterable[SupportsIndex] | None,
    output: Iterable[SupportsIndex] | None,
    leading: tuple[int, ...],
    infer: Callable[..., int],
    extents: Sequence[int],
    size: Sequence[int],
    *parameters: Sequence[int],
) -> tuple[int, int]:
    """Return a pair (x, y) of skips or upscales, for the parameter `name` of a layer.

    The pair is `value`, or it is inferred from the output's shape `output`. If both are None, the
    pair is (1, 1). Raises VxError for a wrong pair, and if both `value` and `output` are passed.
    Raises TypeError if an argument is not of integers.

    Args:
        name: the name of the parameter of the layer.
        value: the argument for the parameter, or None.
        output: the shape of the output, or None.
        leading: the first extents of the output.
        infer: a function that infers the number for an axis from the extent, the size of windows,
            the output's extent, and an item of each of `parameters`.
        extents: the spatial extents of the input in C order, (y, x).
        size: the size of windows in C order.
        parameters: additional arguments of `infer`, each with an item for y and an item for x.
    """
    if output is not None:
        if value is not None:
            wrong_parameter(f"output_shape and {name} are both given: one follows from the other")
        output_extents = output_shape(output, leading, free=2)[-2:]
        y, x = map(infer, extents, size, output_extents, *parameters)
        value = (x, y)  # in OpenVX's order
    if value is None:
        value = (1, 1)
    return pair(name, value, least=1)


def bounded_padding(x: Tensor, padding: tuple[int, int], output: tuple[int, ...]) -> None:
    """Raise VxError if the padded input or the output has 2**31 items or more."""
    bounded("the output", output)
    height, width = x.shape[-2:]
    padding_x, padding_y = padding
    rows = height + 2 * padding_y
    columns = width + 2 * padding_x
    bounded("the padded input", (*x.shape[:-2], rows, columns))
