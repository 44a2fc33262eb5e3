"""What layers check of their tensors and parameters before they compute."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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

_MOST = 1 << 31  # items of a tensor
SHIFTS = range(-16, 47)  # of a sum of products to its result, or of a bias to them


def layer(function: Callable[P, R]) -> Callable[P, R]:
    """Name a layer in what it raises."""

    @wraps(function)
    def located(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except VxError as error:
            raise error.within(function.__name__) from None

    return located


def tensor(name: str, x: Any, *ranks: int) -> Tensor:
    """Return a tensor; raise TypeError or VxError unless it is one of some ranks (any if none)."""
    x = require_tensor(name, x)
    if ranks and len(x.dims) not in ranks:
        wanted = " or ".join(map(str, ranks))
        wrong_dimension(f"{name} must have {wanted} dimensions, not {len(x.dims)}: {x.dims}")
    return x


def same_format(strict: bool, **tensors: Tensor | None) -> None:
    """Raise VxError unless all tensors are of one type, and if `strict` of its one position."""
    (first, one), *others = [(name, x) for name, x in tensors.items() if x is not None]
    for name, x in others:
        if x.dtype != one.dtype:
            wrong_format(f"{name} is of {x.dtype}, {first} of {one.dtype}: all must be the same")
    position = POSITIONS[str(one.dtype)]
    for name, x in [(first, one), *others]:
        if strict and x.fixed_point_position != position:
            wrong_format(
                f"{name} has the fixed_point_position {x.fixed_point_position}, "
                f"that of {x.dtype} is {position}",
                "strict=False takes any",
            )


def position_of_output(strict: bool, given: int | None, inputs: Tensor) -> int:
    """Return the fixed-point position of the output: that of the inputs unless given."""
    position = inputs.fixed_point_position if given is None else checked_position(given)
    if strict and position != POSITIONS[str(inputs.dtype)]:
        wrong_format(
            f"output_position is {position}, that of {inputs.dtype} is "
            f"{POSITIONS[str(inputs.dtype)]}",
            "strict=False takes any",
        )
    return position


def shift_of(what: str, shift: int) -> int:
    """Return a shift between two positions; raise VxError where it is too far."""
    if shift not in SHIFTS:
        wrong_format(
            f"{what} is {shift} bits off, {SHIFTS[0]} to {SHIFTS[-1]} are possible",
            "choose fixed_point_positions that are nearer to each other",
        )
    return shift


def pair(name: str, values: Any, least: int = 0) -> tuple[int, int]:
    """Return two integers (x, y); raise TypeError or VxError where they are none."""
    try:
        x, y = map(operator.index, values)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two integers (x, y), not {values!r}") from None
    if min(x, y) < least:
        wrong_parameter(f"{name} is at least {least} along x and y, not {(x, y)}")
    return x, y


def shape(name: str, values: Any) -> tuple[int, ...]:
    """Return a shape; raise TypeError or VxError where it is none or has too many items."""
    try:
        extents = tuple(map(operator.index, values))
    except TypeError:
        raise TypeError(f"{name} must be integers in C order, not {values!r}") from None
    if min(extents, default=1) < 1:
        wrong_dimension(f"{name} has an extent below 1: {extents}")
    bounded(name, extents)
    return extents


def bounded(name: str, extents: Sequence[int]) -> None:
    """Raise VxError where a tensor would have 2**31 items or more."""
    if math.prod(extents) >= _MOST:
        unsupported(f"{name} would have the dims {tuple(extents)[::-1]}: 2**31 items or more")


def real(name: str, value: Any, above: float | None = None) -> float:
    """Return a finite number; raise TypeError or VxError where it is none, or not above another."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (above is not None and not number > above):
        kind = "finite" if above is None else f"above {above:g}"
        wrong_parameter(f"{name} must be {kind}, not {number}")
    return number


def output_shape(values: Any, known: tuple[int, ...], free: int) -> tuple[int, ...]:
    """Return an output's shape; raise unless it is the known extents and a number of others."""
    extents = shape("output_shape", values)
    if len(extents) != len(known) + free or extents[: len(known)] != known:
        wrong_dimension(f"output_shape is {extents}, it must be {known} and {free} extents")
    return extents


def stride(
    name: str,
    given: Any,
    wanted: Any,
    known: tuple[int, ...],
    infer: Callable[..., int],
    extents: Sequence[int],
    size: Sequence[int],
    *more: Sequence[int],
) -> tuple[int, int]:
    """Return a skip or upscale (x, y): as given, or as an output's shape tells it, or 1.

    `infer` takes an axis' extent, the size of windows, the output's extent and `more`; all these
    are in C order. Raises TypeError or VxError, also where both are given.
    """
    if wanted is not None:
        if given is not None:
            wrong_parameter(f"output_shape and {name} are both given: one follows from the other")
        y, x = map(infer, extents, size, output_shape(wanted, known, 2)[-2:], *more)
        given = (x, y)
    return pair(name, (1, 1) if given is None else given, 1)


def bounded_padding(x: Tensor, padding: tuple[int, int], output: tuple[int, ...]) -> None:
    """Raise VxError where an input with its padding, or the output, has 2**31 items or more."""
    bounded("the output", output)
    rows, columns = (n + 2 * p for n, p in zip(x.shape[-2:], padding[::-1], strict=True))
    bounded("the padded input", (*x.shape[:-2], rows, columns))
