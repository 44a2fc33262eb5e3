"""Operations on host values, computed while a document is flattened.

The rules of `lowering.ops` compute integers in 32 bits instead of 64 and lack results for open or
symbolic extents. Their dispatch takes ten times as long, compilation ten thousand times.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_symbolic
from nnef_jax.formats.tract.host import (
    LARGEST,
    Host,
    NotFolded,
    boxes,
    cast,
    integers,
    is_integer,
    is_open,
    to_float,
    to_integer,
)

_BEYOND = 1 << 64  # no integer of a document reaches it, signed or not


def fold(kind: str, operands: Iterable[Any], attributes: Mapping[str, Any]) -> Any:
    """Return an operation's host value or a list. Raises NotFolded if the network computes it."""
    if kind not in _FOLDS or any(_is_open(x) for x in attributes.values()):
        raise NotFolded
    try:
        with np.errstate(all="ignore"):
            result = _FOLDS[kind](*operands, **attributes)
    except InvalidOperation:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, InconclusiveDimensionOperation):
        raise NotFolded from None  # its rule says what is wrong
    _require_small(sum(x.size for x in (result if isinstance(result, list) else [result])))
    return result


def _is_open(attribute: Any) -> bool:
    return attribute is UNKNOWN or (isinstance(attribute, list) and is_open(attribute))


def folds(kind: str) -> bool:
    """Tell whether an operation can be computed on host values at all."""
    return kind in _FOLDS


# Items one by one


def _absorbing(function: Callable[..., int]) -> Callable[..., Any]:
    """Make a function of 64-bit integers UNKNOWN where one of them is."""

    def absorb(*items: Any) -> Any:
        if is_open(items):
            return UNKNOWN
        result = function(*items)
        if not is_symbolic(result) and abs(result) >= _BEYOND:
            raise InvalidOperation("the result is no integer of 64 bits")
        return result

    return absorb


def _each(function: Callable[..., Any], *operands: Host) -> Host:
    result: Any = np.frompyfunc(_absorbing(function), len(operands), 1)(*operands)
    return result if isinstance(result, np.ndarray) else boxes([result], ())


def _decided(function: Callable[..., Any], *operands: Host) -> Host:
    """Return truth values, or integers 0 and 1 where UNKNOWN is among them."""
    result = _each(lambda *items: int(function(*items)), *operands)
    return result if is_open(result.ravel()) else result.astype(bool)


def _aligned(*operands: Host) -> list[Host]:
    """Return the operands with axes behind their own, so that they broadcast."""
    rank = max(x.ndim for x in operands)
    aligned = [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in operands]
    _require_small(math.prod(np.broadcast_shapes(*(x.shape for x in aligned))))
    return aligned


def _unified(*operands: Host) -> list[Host]:
    """Return the operands as one kind: a real number that is whole may stand for an integer."""
    kinds = {x.dtype.kind for x in operands}
    if len(kinds) == 1:
        return list(operands)
    reals = [x for x in operands if x.dtype.kind == "f"]
    whole = "O" in kinds and all(np.all(np.isfinite(x) & (x == np.trunc(x))) for x in reals)
    return [to_integer(x) if whole or not reals else to_float(x) for x in operands]


def _require_small(items: int) -> None:
    if items > LARGEST:
        raise NotFolded


def _truncated(a: int, b: int) -> int:
    if is_symbolic(a) or is_symbolic(b):  # extents are not negative
        return a // b
    if b == 0:
        raise InvalidOperation("division by 0")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: int, b: int) -> int:
    if not 0 <= b <= 64 or abs(a) > 1 << 31:
        raise InvalidOperation(f"{a} to the power {b} is not an integer of 64 bits")
    return int(a**b)


def _differ(a: Any, b: Any) -> bool:
    # For `!=`, symbolic extents of jax.export differ even where they may be equal.
    if is_symbolic(a - b):
        return bool(a < b) or bool(a > b)
    return a != b


def _binary(integer: Callable[..., int], real: Callable[..., Any]) -> Callable[..., Host]:
    def compute(x: Host, y: Host) -> Host:
        x, y = _aligned(x, y)
        if integer is _truncated and "f" in (x.dtype.kind, y.dtype.kind):
            x, y = to_float(x), to_float(y)
        x, y = _unified(x, y)
        if x.dtype.kind == "f":
            return np.asarray(real(x, y))
        return _each(integer, to_integer(x), to_integer(y))

    return compute


def _comparison(function: Callable[..., bool]) -> Callable[..., Host]:
    return lambda x, y: _decided(function, *_unified(*_aligned(x, y)))


def _logical(function: Callable[..., Any]) -> Callable[..., Host]:
    return lambda *operands: _decided(function, *(cast(x, "logical") for x in _aligned(*operands)))


def _unary(integer: Callable[..., int] | None, real: Callable[..., Any]) -> Callable[..., Host]:
    """Return an operation that makes real numbers of integers where `integer` is None."""

    def compute(x: Host) -> Host:
        if x.dtype.kind == "f" or integer is None:
            return np.asarray(real(to_float(x)))
        return _each(integer, to_integer(x))

    return compute


def _rounding(real: Callable[..., Any]) -> Callable[..., Host]:
    return lambda x: np.asarray(real(x)) if x.dtype.kind == "f" else x


def _select(condition: Host, true_value: Host, false_value: Host) -> Host:
    condition, a, b = _aligned(condition, *_unified(true_value, false_value))
    if is_integer(condition) and is_open(condition.ravel()):
        if not is_integer(a):
            raise NotFolded
        return _each(lambda c, x, y: x if c else y, condition, a, b)
    return np.where(condition.astype(bool), a, b)


# Items moved or summed up


def _slice(input: Host, axes: Any, begin: Any, end: Any, stride: Any) -> Host:
    index: list[slice] = [slice(None)] * input.ndim
    for axis, first, last, step in zip(axes, begin, end, stride or [1] * len(axes), strict=True):
        if step < 1:
            raise NotFolded
        index[axis] = slice(first, last or None, step)
    return input[tuple(index)]


def _gather(input: Host, indices: Host, axis: int, datum_type: str = "") -> Host:
    positions = integers(indices)
    if is_open(positions) or datum_type:
        raise NotFolded
    extent = input.shape[axis]
    _require_small(input.size // max(extent, 1) * indices.size)
    for position in positions:
        if not -extent <= position < extent:
            raise InvalidShape(f"index {position} is not in the {extent} items of axis {axis}")
    taken = np.take(input, np.array(positions, np.intp), axis=axis)
    axis %= input.ndim
    return taken.reshape(input.shape[:axis] + indices.shape + input.shape[axis + 1 :])


def _joined(join: Callable[..., Host]) -> Callable[..., Host]:
    def compute(values: Sequence[Host], axis: int) -> Host:
        _require_small(sum(x.size for x in values))
        return join(_unified(*values), axis=axis)

    return compute


def _reduced(function: Callable[..., int]) -> Callable[..., Host]:
    def compute(input: Host, axes: Any, normalize: bool = False) -> Host:
        if normalize or not is_integer(input):
            raise NotFolded
        for axis in axes:
            if not input.ndim:  # numpy would reduce a number along axis 0
                raise NotFolded
            input = np.frompyfunc(_absorbing(function), 2, 1).reduce(input, axis, keepdims=True)
        return input

    return compute


def _reshape(input: Host, shape: Any, axis_start: int = 0, axis_count: int = -1) -> Host:
    end = input.ndim if axis_count == -1 else axis_start + axis_count
    items = tuple(
        input.shape[i + axis_start] if extent == 0 else extent for i, extent in enumerate(shape)
    )
    return input.reshape(input.shape[:axis_start] + items + input.shape[end:])


def _tile(input: Host, repeats: Any) -> Host:
    _require_small(math.prod(repeats) * input.size)
    return np.tile(input, repeats)


def _broadcast(input: Host, shape: Any) -> Host:
    result = np.broadcast_shapes(input.shape, tuple(shape))
    _require_small(math.prod(result))
    return np.broadcast_to(input, result)


def _unstack(value: Host, axis: int) -> list[Host]:
    return [np.asarray(x, value.dtype) for x in np.moveaxis(value, axis, 0)]


_FOLDS: dict[str, Callable[..., Any]] = {
    "add": _binary(operator.add, np.add), "sub": _binary(operator.sub, np.subtract),
    "mul": _binary(operator.mul, np.multiply), "div": _binary(_truncated, np.divide),
    "pow": _binary(_power, np.power),
    "min": _binary(min, np.minimum), "max": _binary(max, np.maximum),
    "lt": _comparison(operator.lt), "gt": _comparison(operator.gt),
    "le": _comparison(operator.le), "ge": _comparison(operator.ge),
    "eq": _comparison(lambda a, b: not _differ(a, b)), "ne": _comparison(_differ),
    "and": _logical(operator.and_), "or": _logical(operator.or_), "not": _logical(operator.not_),
    "neg": _unary(lambda x: -x, np.negative), "abs": _unary(lambda x: abs(x), np.abs),
    "sign": _unary(lambda x: (x > 0) - (x < 0), np.sign),
    "square": _unary(lambda x: x * x, np.square), "sqr": _unary(lambda x: x * x, np.square),
    "sqrt": _unary(None, np.sqrt), "rsqrt": _unary(None, lambda x: 1 / np.sqrt(x)),
    "recip": _unary(None, np.reciprocal), "exp": _unary(None, np.exp), "log": _unary(None, np.log),
    "sin": _unary(None, np.sin), "cos": _unary(None, np.cos),
    "copy": _rounding(np.positive), "floor": _rounding(np.floor), "ceil": _rounding(np.ceil),
    "round": _rounding(lambda x: np.trunc(x + np.copysign(0.5, x))),
    "tract_core_round_even": _rounding(np.rint),
    "select": _select, "slice": _slice, "tract_core_gather": _gather,
    "concat": _joined(np.concatenate), "stack": _joined(np.stack),
    "unstack": _unstack,
    "squeeze": lambda input, axes: np.squeeze(input, tuple(axes)),
    "unsqueeze": lambda input, axes: np.expand_dims(input, tuple(axes)),
    "transpose": lambda input, axes: np.transpose(input, axes),
    "reshape": _reshape, "tile": _tile, "tract_core_broadcast": _broadcast,
    "sum_reduce": _reduced(operator.add), "tract_core_product_reduce": _reduced(operator.mul),
    "max_reduce": _reduced(max), "min_reduce": _reduced(min),
}  # fmt: skip
