"""Operations on host values. The host computes these operations while a network is read.

The rules of `lowering.ops` cannot replace these operations: the rules compute integers in 32 bits,
and have no results for open or symbolic extents. The rules would also be slow. A call of such a
rule takes ten times as long as the operation here, and its compilation takes ten thousand times as
long.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.errors import InconclusiveDimensionOperation

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN, at_least, is_symbolic
from nnef_jax.flattening.hostvalues import (
    LARGEST,
    Host,
    NotFolded,
    cast,
    integer_array,
    integers,
    is_integer,
    is_open,
    to_float,
    to_integer,
)

Ints = Sequence[int]
_BEYOND = 1 << 64  # larger than all 64-bit integers, signed or unsigned


def evaluate(
    kind: str, operands: Iterable[Host | Sequence[Host] | None], attributes: Mapping[str, object]
) -> Any:
    """Compute an operation on host values; return its result, or a list if it has several.

    `operands` are in the order of the rule's parameters. Raises NotFolded if the network must
    compute the result, and InvalidOperation if the operation has no result for these operands.
    """
    has_open_attribute = any(_is_open(attribute) for attribute in attributes.values())
    if kind not in KINDS or has_open_attribute:
        raise NotFolded
    return attempt(KINDS[kind], *operands, **attributes)


def attempt(function: Callable[..., Any], *operands: object, **attributes: object) -> Any:
    """Call a function of host values. An error of Python or numpy becomes NotFolded."""
    try:
        with np.errstate(all="ignore"):
            return function(*operands, **attributes)
    except InvalidOperation:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, InconclusiveDimensionOperation):
        # The operation is added to the graph, where its rule raises an error with a better message.
        raise NotFolded from None


def require_few(items: int) -> None:
    """Raise NotFolded if `items` exceeds `LARGEST`, the most items that the host computes."""
    if items > LARGEST:
        raise NotFolded


def _is_open(attribute: object) -> bool:
    """Tell whether an attribute is UNKNOWN, or a list with an UNKNOWN item."""
    if isinstance(attribute, list | tuple):
        return is_open(attribute)
    return attribute is UNKNOWN


# Elementwise operations


def _with_unknown(integer_function: Callable[..., int]) -> Callable[..., int]:
    """Extend a function of integers to arguments that may be UNKNOWN.

    If an argument is UNKNOWN, the new function returns UNKNOWN. The new function raises
    InvalidOperation for a division by 0, and for a result of more than 64 bits.
    """

    def compute(*items: int) -> int:
        if is_open(items):
            return UNKNOWN
        try:
            result = integer_function(*items)
        except ZeroDivisionError:
            raise InvalidOperation("division by 0") from None
        if not is_symbolic(result) and abs(result) >= _BEYOND:
            raise InvalidOperation("the result is no integer of 64 bits")
        return result

    return compute


def _map_items(integer_function: Callable[..., int], *operands: Host) -> Host:
    """Broadcast integer operands as numpy does, and apply a function to the items."""
    compute = np.frompyfunc(_with_unknown(integer_function), len(operands), 1)
    result: Any = compute(*operands)
    if isinstance(result, np.ndarray):
        return result
    return integer_array([result], ())  # for operands without axes, numpy returns a bare item


def _test_items(predicate: Callable[..., bool], *operands: Host) -> Host:
    """Apply a predicate, such as "less than", to the items of operands; return an array of bool.

    If the answer for an item is unknown, return an array of the integers 0, 1 and UNKNOWN instead.
    """

    def truth_as_integer(*items: int) -> int:
        return int(predicate(*items))

    truths = _map_items(truth_as_integer, *operands)
    return truths if is_open(truths.ravel()) else truths.astype(bool)


def _aligned(*operands: Host) -> list[Host]:
    """Reshape operands to the same rank. New axes have extent 1 and come last, as NNEF requires."""
    rank = max(operand.ndim for operand in operands)
    aligned: list[Host] = []
    for operand in operands:
        new_axes = (1,) * (rank - operand.ndim)
        aligned.append(operand.reshape(operand.shape + new_axes))
    result_shape = jnp.broadcast_shapes(*[operand.shape for operand in aligned])
    require_few(math.prod(result_shape))
    return aligned


def _unified(*operands: Host) -> list[Host]:
    """Convert operands to the same type of items, which is either integer or real.

    The result is integer if no operand is real. It is also integer if some operands are integers
    and all items of the real operands are whole numbers. Otherwise the result is real.
    """
    kinds = {operand.dtype.kind for operand in operands}  # "O" integer, "f" real, "b" bool
    if len(kinds) == 1:
        return list(operands)
    reals = [operand for operand in operands if operand.dtype.kind == "f"]
    has_integers = "O" in kinds
    are_reals_whole = has_integers and all(map(_is_whole, reals))
    convert = to_integer if are_reals_whole or not reals else to_float
    return [convert(operand) for operand in operands]


def _is_whole(reals: Host) -> bool:
    """Tell whether all items of a real host value are finite and have no fraction."""
    is_whole = np.isfinite(reals) & (reals == np.trunc(reals))
    return bool(np.all(is_whole))


def ceil_div(dividend: int, divisor: int) -> int:
    """Return `dividend / divisor`, rounded up. The dividend may be a symbolic extent."""
    return -(-dividend // divisor)


def truncated(a: int, b: int) -> int:
    """Return the quotient of two integers, truncated towards 0.

    If the sign of an open extent such as n - 4 depends on n, the extent is taken for positive: an
    extent is not negative in a call that the network can compute.
    """
    is_negative, is_divisor_negative = at_least(-1, a), at_least(-1, b)
    dividend = -a if is_negative else a
    divisor = -b if is_divisor_negative else b
    quotient = dividend // divisor
    return quotient if is_negative == is_divisor_negative else -quotient


def _power(a: int, b: int) -> int:
    """Return `a` to the power `b`. Raises InvalidOperation for large bases and exponents."""
    largest_base = 1 << 31
    largest_exponent = 64
    # The result may have more than 64 bits. This check only ensures that computing it is fast.
    is_small = 0 <= b <= largest_exponent and abs(a) <= largest_base
    if not is_small:
        raise InvalidOperation(f"{a} to the power {b} is not an integer of 64 bits")
    return int(a**b)


def _differ(a: int, b: int) -> bool:
    """Tell whether two integers differ.

    Raises an error of jax if the answer depends on the values of symbolic extents.
    """
    if is_symbolic(a - b):
        # `a != b` would be True even for extents that may be equal. For these, < raises an error.
        return bool(a < b) or bool(a > b)
    return a != b


def binary(integer: Callable[..., int], real: Callable[..., Host]) -> Callable[..., Host]:
    """Combine two functions into an operation on two host values.

    The operation calls `real` with two arrays of floats, or `integer` with each pair of integers.
    """

    def compute(x: Host, y: Host) -> Host:
        x, y = _aligned(x, y)
        has_real = "f" in (x.dtype.kind, y.dtype.kind)
        is_division = integer is truncated
        if is_division and has_real:
            # 5 / 2.0 is 2.5, although `_unified` would convert the whole number 2.0 to an integer.
            x, y = to_float(x), to_float(y)
        x, y = _unified(x, y)
        if x.dtype.kind == "f":
            return np.asarray(real(x, y))
        return _map_items(integer, to_integer(x), to_integer(y))

    return compute


def _comparison(predicate: Callable[..., bool]) -> Callable[..., Host]:
    """Make an operation that compares the items of two host values by a predicate."""

    def compute(x: Host, y: Host) -> Host:
        aligned = _aligned(x, y)
        return _test_items(predicate, *_unified(*aligned))

    return compute


def _logical(predicate: Callable[..., bool]) -> Callable[..., Host]:
    """Turn a predicate on items into an operation, which converts host values to bool first."""

    def compute(*operands: Host) -> Host:
        logicals = [cast(operand, "logical") for operand in _aligned(*operands)]
        return _test_items(predicate, *logicals)

    return compute


def _unary(integer: Callable[..., Any] | None, real: Callable[..., Host]) -> Callable[..., Host]:
    """Combine two functions into an operation on one host value.

    The operation calls `real` with an array of floats, or `integer` with each integer. If `integer`
    is None, integers are converted to floats first.
    """

    def compute(x: Host) -> Host:
        if x.dtype.kind == "f" or integer is None:
            return np.asarray(real(to_float(x)))
        return _map_items(integer, to_integer(x))

    return compute


def _rounding(round_reals: Callable[..., Host]) -> Callable[..., Host]:
    """Make an operation that rounds real numbers, and returns integers and bool unchanged."""

    def compute(x: Host) -> Host:
        if x.dtype.kind != "f":
            return x
        return np.asarray(round_reals(x))

    return compute


def _round(x: Host, ties: str = "up") -> Host:
    """Round real numbers to the nearest integers.

    `ties` says how to round a half: "up", "away" from 0, or to the nearest "even" number.
    """
    round_by_ties: dict[str, Callable[..., Host]] = {
        "up": lambda reals: np.floor(reals + 0.5),
        "away": lambda reals: np.trunc(reals + np.copysign(0.5, reals)),
        "even": np.rint,
    }
    compute = _rounding(round_by_ties[ties])
    return compute(x)


def _select(condition: Host, true_value: Host, false_value: Host) -> Host:
    """Take an item of `true_value` where the condition is true, else an item of `false_value`."""

    def choose(is_true: int, true_item: int, false_item: int) -> int:
        return true_item if is_true else false_item

    unified = _unified(true_value, false_value)
    condition, true_items, false_items = _aligned(condition, *unified)
    has_unknown_items = is_integer(condition) and is_open(condition.ravel())
    if not has_unknown_items:
        return np.where(condition.astype(bool), true_items, false_items)
    if not is_integer(true_items):
        raise NotFolded
    # Where the condition is UNKNOWN, the item of the result is UNKNOWN too.
    return _map_items(choose, condition, true_items, false_items)


# Slices, joins and reductions


def _slice(input: Host, axes: Ints, begin: Ints, end: Ints, stride: Ints) -> Host:
    """Slice a host value along axes. An end of 0 stands for the end of the axis."""
    index: list[slice] = [slice(None)] * input.ndim
    strides = stride or [1] * len(axes)
    for axis, first, stop, step in zip(axes, begin, end, strides, strict=True):
        goes_to_end = stop == 0 and step > 0
        index[axis] = slice(first, None if goes_to_end else stop, step)
    return input[tuple(index)]


def _gather(input: Host, indices: Host, axis: int) -> Host:
    """Take the items of a host value at indices along an axis.

    The axes of the indices replace the axis: (2, 3, 4) with axis 1 and indices of shape (5, 6)
    becomes (2, 5, 6, 4).
    """
    positions = integers(indices)
    if is_open(positions):
        raise NotFolded
    extent = input.shape[axis]
    items_per_index = input.size // max(extent, 1)
    require_few(items_per_index * indices.size)
    for position in positions:
        if not -extent <= position < extent:
            raise InvalidShape(f"index {position} is not in the {extent} items of axis {axis}")
    items = np.take(input, np.array(positions, np.intp), axis=axis)  # shape (2, 30, 4)
    axis %= input.ndim
    before, after = input.shape[:axis], input.shape[axis + 1 :]
    return items.reshape(before + indices.shape + after)


def _joining(join: Callable[..., Host]) -> Callable[..., Host]:
    """Make an operation that joins a list of host values by `join`, such as np.concatenate."""

    def compute(values: Sequence[Host], axis: int) -> Host:
        require_few(sum(value.size for value in values))
        return join(_unified(*values), axis=axis)

    return compute


def _reduction(integer_function: Callable[..., int], real: np.ufunc) -> Callable[..., Host]:
    """Make a reduction along axes from a function of two integers and a ufunc of real numbers."""
    with_unknown = _with_unknown(integer_function)
    integer = np.frompyfunc(with_unknown, nin=2, nout=1, identity=real.identity)

    def compute(input: Host, axes: Ints, normalize: bool = False) -> Host:
        has_numbers = input.dtype.kind in "Of"  # integers or real numbers
        if normalize or not has_numbers or input.ndim == 0:
            raise NotFolded
        ufunc = integer if is_integer(input) else real
        for axis in axes:
            input = ufunc.reduce(input, axis, keepdims=True)
        return input

    return compute


_sum = _reduction(operator.add, np.add)

_divide = binary(truncated, np.divide)


def _mean(input: Host, axes: Ints) -> Host:
    count = math.prod(input.shape[axis] for axis in axes)
    return _divide(_sum(input, axes), integer_array([count], ()))


def _reshape(input: Host, shape: Ints, axis_start: int = 0, axis_count: int = -1) -> Host:
    """Replace the extents of `axis_count` axes, from `axis_start` on, by the extents `shape`.

    An extent of 0 in `shape` stands for the extent that the input has. If `axis_count` is -1, all
    axes from `axis_start` on are replaced.
    """
    axis_end = input.ndim if axis_count == -1 else axis_start + axis_count
    extents = list(shape)
    for i, extent in enumerate(shape):
        if extent == 0:
            extents[i] = input.shape[axis_start + i]
    before, after = input.shape[:axis_start], input.shape[axis_end:]
    return input.reshape([*before, *extents, *after])


def _split(value: Host, axis: int, ratios: Ints) -> list[Host]:
    """Split a host value along an axis into parts whose lengths have the ratios `ratios`.

    For example, 10 items with the ratios 2 and 3 are split into 4 and 6 items.
    """
    unit, remainder = divmod(value.shape[axis], sum(ratios))
    if remainder != 0:
        raise NotFolded
    boundaries = np.cumsum(ratios)[:-1] * unit
    return np.split(value, boundaries, axis)


def _scatter_nd(input: Host, indices: Host, updates: Host, reduction: str) -> Host:
    """Write `updates` into a copy of the input at `indices`."""
    if reduction != "none":
        raise NotFolded  # a sum, for example, would add `updates` to the items
    # The last axis of `indices` has an index for each indexed axis of the input.
    index_by_axis = tuple(np.moveaxis(indices.astype(np.int64), -1, 0))
    result = input.copy()
    result[index_by_axis] = updates
    return result


def _tile(input: Host, repeats: Ints) -> Host:
    """Repeat a host value along each axis."""
    require_few(math.prod(repeats) * input.size)
    return np.tile(input, repeats)


def _broadcast(input: Host, shape: Ints) -> Host:
    """Broadcast a host value to a shape."""
    result = jnp.broadcast_shapes(input.shape, tuple(shape))
    require_few(math.prod(result))
    return np.broadcast_to(input, result)


KINDS: dict[str, Callable[..., Any]] = {
    "add": binary(operator.add, np.add), "sub": binary(operator.sub, np.subtract),
    "mul": binary(operator.mul, np.multiply), "div": _divide,
    "rem": binary(lambda a, b: a - truncated(a, b) * b, np.fmod), "pow": binary(_power, np.power),
    "min": binary(min, np.minimum), "max": binary(max, np.maximum),
    "lt": _comparison(operator.lt), "gt": _comparison(operator.gt),
    "le": _comparison(operator.le), "ge": _comparison(operator.ge),
    "eq": _comparison(lambda a, b: not _differ(a, b)), "ne": _comparison(_differ),
    "and": _logical(operator.and_), "or": _logical(operator.or_), "not": _logical(operator.not_),
    "neg": _unary(operator.neg, np.negative), "abs": _unary(abs, np.abs),
    "sign": _unary(lambda x: (x > 0) - (x < 0), np.sign), "sqr": _unary(lambda x: x * x, np.square),
    "sqrt": _unary(None, np.sqrt), "rsqrt": _unary(None, lambda x: 1 / np.sqrt(x)),
    "rcp": _unary(None, np.reciprocal), "exp": _unary(None, np.exp), "log": _unary(None, np.log),
    "sin": _unary(None, np.sin), "cos": _unary(None, np.cos),
    "copy": _rounding(np.positive), "floor": _rounding(np.floor), "ceil": _rounding(np.ceil),
    "round": _round, "select": _select, "slice": _slice, "gather": _gather,
    "concat": _joining(np.concatenate), "stack": _joining(np.stack),
    "unstack": lambda x, axis: [np.asarray(part, x.dtype) for part in np.moveaxis(x, axis, 0)],
    "squeeze": lambda input, axes: np.squeeze(input, tuple(axes)),
    "unsqueeze": lambda input, axes: np.expand_dims(input, tuple(axes)),
    "transpose": lambda input, axes: np.transpose(input, axes),
    "reshape": _reshape, "tile": _tile, "broadcast": _broadcast,
    "sum_reduce": _sum, "product_reduce": _reduction(operator.mul, np.multiply),
    "max_reduce": _reduction(max, np.maximum), "min_reduce": _reduction(min, np.minimum),
    "mean_reduce": _mean, "split": _split, "scatter_nd": _scatter_nd,
}  # fmt: skip
