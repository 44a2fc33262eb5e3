"""Values known when a document is flattened: shapes, indices, ranges, and what is made of them.

A host value is a numpy array of Python integers (dtype object), of float64 or of bool. Integers
never wrap; among them is `UNKNOWN` where an extent is open, and whatever jax.export has for extents
that it keeps symbolic. Among real numbers NaN stands for what depends on an open extent.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, is_symbolic

Host = NDArray[Any]
LARGEST = 1 << 16  # items of a host value; larger ones are left to the compiled network
_DEEPEST = 32  # lists in lists
_BEYOND = 1 << 64  # what no integer of a document reaches, signed or not


def host(value: Any) -> Host:
    """A number, an array or nested lists of these as a host value.

    Raises InvalidOperation for lists of different lengths, and for what is not a real number.
    """
    if isinstance(value, np.ndarray):
        kind = value.dtype.kind
        if kind == "c":
            raise InvalidOperation("a real number is due, these are complex ones")
        return value if kind in "Ob" else value.astype(object if kind in "iu" else np.float64)
    if isinstance(value, bool | np.bool_):
        return np.array(bool(value))
    if isinstance(value, int) or is_symbolic(value):
        return _boxed(value)
    if isinstance(value, float):
        return np.array(value, np.float64)
    if isinstance(value, list | tuple):
        kinds = set(map(type, value))  # pyright: ignore[reportUnknownArgumentType]
        if kinds and kinds <= {int, float}:  # the commonest case, and the fastest
            return np.array(value, np.float64 if float in kinds else object)
        items = [host(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        if not items:
            return np.array([], object)
        if len({item.shape for item in items}) > 1:
            raise InvalidOperation("the lists in this array have different lengths")
        if items[0].ndim >= _DEEPEST:
            raise InvalidOperation(f"lists are nested more than {_DEEPEST} deep")
        kinds = {item.dtype.kind for item in items}
        if "f" in kinds:
            items = [_to_float(item) for item in items]
        return np.stack(items)
    raise InvalidOperation(f"a number is due, this is {reprlib.repr(value)}")


def is_integer(value: Host) -> bool:
    """Whether a host value holds integers."""
    return value.dtype.kind == "O"


def integers(value: Host) -> list[int]:
    """The items of a host value, in order, as integers.

    Raises InvalidOperation for a number that is not whole.
    """
    if is_integer(value):
        return list(value.ravel())
    items: list[int] = []
    for item in value.ravel().tolist():
        if isinstance(item, float) and math.isnan(item):
            items.append(UNKNOWN)
        elif not math.isfinite(item) or int(item) != item:
            raise InvalidOperation(f"a whole number is due, this is {item}")
        else:
            items.append(int(item))
    return items


def _objects(function: Callable[..., Any], *operands: Host) -> Host:
    result: Any = np.frompyfunc(function, len(operands), 1)(*operands)
    return result if isinstance(result, np.ndarray) else _boxed(result)


def boxes(items: Sequence[int]) -> Host:
    """Integers along one axis as a host value."""
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _boxed(value: Any) -> Host:
    array = np.empty((), object)
    array[()] = value
    return array


def _absorbing(function: Callable[..., int]) -> Callable[..., Any]:
    """The function of integers of 64 bits, UNKNOWN where one of them is."""

    def absorb(*items: Any) -> Any:
        if _is_open(items):
            return UNKNOWN
        result = function(*items)
        if not is_symbolic(result) and abs(result) >= _BEYOND:
            raise InvalidOperation("the result is no integer of 64 bits")
        return result

    return absorb


def is_plain(items: Iterable[Any]) -> bool:
    """Whether all items are numbers, and none is an extent that is open or symbolic."""
    return not any(item is UNKNOWN or is_symbolic(item) for item in items)


def _is_open(items: Iterable[Any]) -> bool:
    return any(item is UNKNOWN for item in items)


def _align(*operands: Host) -> list[Host]:
    rank = max(x.ndim for x in operands)
    aligned = [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in operands]
    _require_small(math.prod(np.broadcast_shapes(*(x.shape for x in aligned))))
    return aligned


def _require_small(items: int) -> None:
    if items > LARGEST:
        raise NotFolded


def _to_float(value: Host) -> Host:
    if is_integer(value):
        if any(map(is_symbolic, value.ravel())):
            raise NotFolded
        return _objects(lambda x: math.nan if x is UNKNOWN else float(x), value).astype(np.float64)
    return value.astype(np.float64)


def _to_integer(value: Host) -> Host:
    def convert(x: float) -> Any:
        if math.isnan(x):
            return UNKNOWN
        return int(max(min(x, 2.0**63), -(2.0**63)))

    return value if is_integer(value) else _objects(convert, value.astype(object))


def cast(value: Host, kind: str) -> Host:
    """The value as "integer", "scalar" or "logical"; reals are cut off towards 0."""
    if kind == "integer":
        return _to_integer(value)
    if kind == "scalar":
        return _to_float(value)
    if is_integer(value) and _is_open(value.ravel()):
        return _objects(_absorbing(lambda x: int(x != 0)), value)
    return value.astype(bool)


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


_INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _truncated,
    "pow": _power,
    "min": min,
    "max": max,
}
_REAL: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[..., bool]] = {
    "lt": operator.lt,
    "gt": operator.gt,
    "le": operator.le,
    "ge": operator.ge,
    "eq": lambda a, b: not _differ(a, b),
    "ne": lambda a, b: _differ(a, b),
}
_LOGIC: dict[str, Callable[..., Any]] = {"and": operator.and_, "or": operator.or_}


def _differ(a: Any, b: Any) -> bool:
    # Extents that jax.export keeps symbolic differ, for `!=`, where they may be equal too.
    if is_symbolic(a - b):
        return bool(a < b) or bool(a > b)
    return a != b


_UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "square": np.square, "sqr": np.square,
    "copy": np.positive,
}  # fmt: skip
_UNARY_INTEGER: dict[str, Callable[[int], int]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "square": lambda x: x * x,
    "sqr": lambda x: x * x,
}
_UNARY_REAL: dict[str, Callable[..., Any]] = {
    "floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
    "recip": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x), "tract_core_round_even": np.rint,
    "round": lambda x: np.trunc(x + np.copysign(0.5, x)), "sin": np.sin, "cos": np.cos,
}  # fmt: skip
_ROUNDING = {"floor", "ceil", "round", "tract_core_round_even", "copy"}


def _binary(kind: str, x: Host, y: Host) -> Host:
    x, y = _align(x, y)
    if kind in _LOGIC:
        return _decided(_LOGIC[kind], cast(x, "logical"), cast(y, "logical"))
    if "f" in (x.dtype.kind, y.dtype.kind) and kind == "div":
        x, y = _to_float(x), _to_float(y)
    elif x.dtype.kind != y.dtype.kind:
        x, y = _unified(x, y)
    if kind in _COMPARISONS:
        if not is_integer(x):
            return np.asarray(np.frompyfunc(_COMPARISONS[kind], 2, 1)(x, y), bool)
        return _decided(_COMPARISONS[kind], x, y)
    if x.dtype.kind == "f":
        return np.asarray(_REAL[kind](x, y))
    return _objects(_absorbing(_INTEGER[kind]), _to_integer(x), _to_integer(y))


def _decided(function: Callable[..., Any], *operands: Host) -> Host:
    """Truth values, or integers 0 and 1 where UNKNOWN is among them."""
    result = _objects(_absorbing(lambda *items: int(function(*items))), *operands)
    return result if _is_open(result.ravel()) else result.astype(bool)


def _unified(*operands: Host) -> list[Host]:
    """The operands as one kind: a real number that is whole may stand for an integer."""
    kinds = {x.dtype.kind for x in operands}
    if "O" not in kinds or "f" not in kinds:
        return [_to_float(x) if "f" in kinds else _to_integer(x) for x in operands]
    whole = all(bool(np.all(np.isfinite(x) & (x == np.trunc(x)))) for x in operands
                if x.dtype.kind == "f")  # fmt: skip
    return [_to_integer(x) if whole else _to_float(x) for x in operands]


def _unary(kind: str, x: Host) -> Host:
    if is_integer(x) or x.dtype.kind == "b":
        if kind in _ROUNDING:
            return x
        if kind in _UNARY_INTEGER:
            return _objects(_absorbing(_UNARY_INTEGER[kind]), _to_integer(x))
        x = _to_float(x)
    return np.asarray((_UNARY | _UNARY_REAL)[kind](x))


def _select(condition: Host, true_value: Host, false_value: Host) -> Host:
    if true_value.dtype.kind != false_value.dtype.kind:
        true_value, false_value = _unified(true_value, false_value)
    condition, a, b = _align(condition, true_value, false_value)
    if is_integer(condition) and _is_open(condition.ravel()):
        if not is_integer(a):
            raise NotFolded
        return _objects(_absorbing(lambda c, x, y: x if c else y), condition, a, b)
    return np.where(condition.astype(bool), a, b)


class NotFolded(Exception):
    """An operation on host values is left to the compiled network."""


def _slice(input: Host, axes: Any, begin: Any, end: Any, stride: Any) -> Host:
    index: list[slice] = [slice(None)] * input.ndim
    if len({len(axes), len(begin), len(end), len(stride or axes)}) > 1:
        raise NotFolded
    for i, axis in enumerate(axes):
        extent, step = input.shape[axis], stride[i] if stride else 1
        if _is_open((begin[i], end[i], step)) or step < 1:
            raise NotFolded
        first, last = begin[i], end[i] or extent
        first = first + extent if first < 0 else min(first, extent)
        last = last + extent if last < 0 else min(last, extent)
        index[axis] = slice(max(first, 0), max(last, 0), step)
    return input[tuple(index)]


def _gather(input: Host, indices: Host, axis: int, datum_type: str = "") -> Host:
    positions = integers(indices)
    if _is_open(positions) or datum_type:
        raise NotFolded
    extent = input.shape[axis]
    _require_small(input.size // max(extent, 1) * indices.size)
    for position in positions:
        if not -extent <= position < extent:
            raise InvalidShape(f"index {position} is not in the {extent} items of axis {axis}")
    taken = np.take(input, np.array(positions, np.intp), axis=axis)
    axis %= input.ndim
    return taken.reshape(input.shape[:axis] + indices.shape + input.shape[axis + 1 :])


def _concat(values: Sequence[Host], axis: int) -> Host:
    return np.concatenate(_same(values), axis=axis)


def _stack(values: Sequence[Host], axis: int) -> Host:
    return np.stack(_same(values), axis=axis)


def _same(values: Sequence[Host]) -> list[Host]:
    _require_small(sum(x.size for x in values))
    return list(values) if len({x.dtype.kind for x in values}) == 1 else _unified(*values)


def _reduce(function: Callable[..., int]) -> Callable[..., Host]:
    def reduce(input: Host, axes: Any, normalize: bool = False) -> Host:
        if normalize or not is_integer(input):
            raise NotFolded
        result = input
        for axis in axes:
            if not result.ndim:  # numpy would reduce a number along axis 0
                raise NotFolded
            result = np.frompyfunc(_absorbing(function), 2, 1).reduce(result, axis, keepdims=True)
        return result

    return reduce


def _reshape(input: Host, shape: Any, axis_start: int = 0, axis_count: int = -1) -> Host:
    end = input.ndim if axis_count == -1 else axis_start + axis_count
    if _is_open(shape):
        raise NotFolded
    items = tuple(
        input.shape[i + axis_start] if extent == 0 else extent for i, extent in enumerate(shape)
    )
    return input.reshape(input.shape[:axis_start] + items + input.shape[end:])


def _tile(input: Host, repeats: Any) -> Host:
    if _is_open(repeats):
        raise NotFolded
    _require_small(math.prod(repeats) * input.size)
    return np.tile(input, repeats)


def _broadcast(input: Host, shape: Any) -> Host:
    if _is_open(shape):
        raise NotFolded
    result = np.broadcast_shapes(input.shape, tuple(shape))
    _require_small(math.prod(result))
    return np.broadcast_to(input, result)


def _unstack(value: Host, axis: int) -> list[Host]:
    return [np.asarray(x, value.dtype) for x in np.moveaxis(value, axis, 0)]


_FOLDS: dict[str, Callable[..., Any]] = {
    "select": _select,
    "slice": _slice,
    "tract_core_gather": _gather,
    "concat": _concat,
    "stack": _stack,
    "unstack": _unstack,
    "squeeze": lambda input, axes: np.squeeze(input, tuple(axes)),
    "unsqueeze": lambda input, axes: np.expand_dims(input, tuple(axes)),
    "transpose": lambda input, axes: np.transpose(input, axes),
    "reshape": _reshape,
    "tile": _tile,
    "tract_core_broadcast": _broadcast,
    "not": lambda x: _decided(operator.not_, cast(x, "logical")),
    "sum_reduce": _reduce(lambda a, b: a + b),
    "max_reduce": _reduce(max),
    "min_reduce": _reduce(min),
    "tract_core_product_reduce": _reduce(lambda a, b: a * b),
}


def fold(kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """The result of an operation on host values: one of these, or a list of them.

    Raises NotFolded where it is better left to the compiled network.
    """
    try:
        with np.errstate(all="ignore"):
            result = _fold(kind, operands, attributes)
    except InvalidOperation:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, InconclusiveDimensionOperation):
        raise NotFolded from None  # its rule says what is wrong
    whole = result if isinstance(result, list) else [result]
    _require_small(sum(x.size for x in whole))
    return result


def _fold(kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    values = list(operands.values())
    if kind in _UNARY or kind in _UNARY_REAL:
        return _unary(kind, *values)
    if kind in _REAL or kind in _COMPARISONS or kind in _LOGIC:
        return _binary(kind, *values)
    if kind in _FOLDS:
        return _FOLDS[kind](**operands, **attributes)
    raise NotFolded


def folds(kind: str) -> bool:
    """Whether an operation can be computed on host values at all."""
    return any(
        kind in table for table in (_UNARY, _UNARY_REAL, _REAL, _COMPARISONS, _LOGIC, _FOLDS)
    )
