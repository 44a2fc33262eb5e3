"""The table of primitives that numpy computes as XLA does: by which function, for which types.

Numpy needs no compiler. Primitives and types that are not in the table stay with XLA. So do
comparisons and functions of real numbers: XLA on a CPU takes those below the least normal one
for 0. So do conversions of real numbers to integers, which may be out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lowering.extents import MAX_RANK

_COMPUTED = frozenset(map(np.dtype, (np.float32, np.float64)))
_REAL = _COMPUTED | {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
_WHOLE = frozenset(map(np.dtype, "bhilqBHILQ"))
_BITS = _WHOLE | {np.dtype(np.bool_)}
_FEW_BITS = frozenset(map(np.dtype, (ml_dtypes.int4, ml_dtypes.uint4)))
_SMALL = _FEW_BITS | frozenset(map(np.dtype, (np.int8, np.uint8, np.bool_)))


def _is_one_of(allowed: frozenset[Any], types: Sequence[Any]) -> bool:
    return len({*types}) == 1 and types[0] in allowed


_is_computed = partial(_is_one_of, _COMPUTED)
_is_number = partial(_is_one_of, _COMPUTED | _WHOLE)
_is_whole = partial(_is_one_of, _WHOLE)
_is_bits = partial(_is_one_of, _BITS)


def _is_compared(types: Sequence[Any]) -> bool:
    return _is_bits(types[:-1])


def _is_moved(types: Sequence[Any]) -> bool:
    others = [x for x in types if x not in _REAL | _FEW_BITS]
    return all(isinstance(x, np.dtype) and x.kind in "biufc" for x in others)


def _is_selected(types: Sequence[Any]) -> bool:
    return len(types) == 4 and types[0] == np.bool_ and _is_moved(types)


def _is_converted(types: Sequence[Any]) -> bool:
    source, result = types
    if source in _REAL:
        return result in _REAL
    # On their way to 16 bits, larger integers are rounded twice.
    targets = _BITS | (_REAL if source in _SMALL else _COMPUTED)
    return source in _BITS | _FEW_BITS and result in targets


def _is_as_wide(types: Sequence[Any]) -> bool:
    return {*types} <= _WHOLE | _REAL and len({x.itemsize for x in types}) == 1


class Computation(NamedTuple):
    """How numpy computes a primitive.

    Args:
        function: a ufunc, whose result has the type of its operands; or a function of a sequence
            of operands, and of parameters.
        same_for: tells whether its items are XLA's, by the types of operands and of the result,
            which is the last.
        reads: the parameters that the function takes.
    """

    function: Any
    same_for: Callable[[Sequence[Any]], bool] = _is_moved
    reads: Sequence[str] = ()


def _broadcast(operands: Sequence[Any], shape: Sequence[int], axes: Sequence[int]) -> Any:
    extents = dict(zip(axes, operands[0].shape, strict=True))
    aligned = [extents.get(axis, 1) for axis in range(len(shape))]
    return np.broadcast_to(operands[0].reshape(aligned), shape)


def _slice(operands: Sequence[Any], starts: Any, stops: Any, steps: Any) -> Any:
    return operands[0][tuple(map(slice, starts, stops, steps or [1] * len(starts)))]


def _iota(_: Sequence[Any], dtype: Any, shape: Sequence[int], axis: int) -> Any:
    items = np.arange(shape[axis]).astype(dtype)
    return _broadcast([items], shape, [axis])


def _compared(function: np.ufunc) -> Computation:
    return Computation(lambda x: function(*x), _is_compared)


# fmt: off
_TABLE: dict[str, Computation] = {
    "add": Computation(np.add, _is_number),
    "mul": Computation(np.multiply, _is_number),
    "sub": Computation(np.subtract, _is_number),
    "div": Computation(np.divide, _is_computed),
    "rsqrt": Computation(lambda x: x[0].dtype.type(1) / np.sqrt(x[0]), _is_computed),
    "max": Computation(np.maximum, _is_whole),
    "min": Computation(np.minimum, _is_whole),
    "neg": Computation(np.negative, _is_whole),
    "and": Computation(np.bitwise_and, _is_bits),
    "not": Computation(np.invert, _is_bits),
    "or": Computation(np.bitwise_or, _is_bits),
    "xor": Computation(np.bitwise_xor, _is_bits),
    "eq": _compared(np.equal),
    "ge": _compared(np.greater_equal),
    "gt": _compared(np.greater),
    "le": _compared(np.less_equal),
    "lt": _compared(np.less),
    "ne": _compared(np.not_equal),
    "reduce_sum": Computation(lambda x, axes: x[0].sum(axes, x[0].dtype), _is_whole, ("axes",)),
    "select_n": Computation(lambda x: np.where(x[0], x[2], x[1]), _is_selected),
    "convert_element_type": Computation(
        lambda x, dtype: x[0].astype(dtype), _is_converted, ("new_dtype",)
    ),
    "bitcast_convert_type": Computation(
        lambda x, dtype: x[0].view(dtype), _is_as_wide, ("new_dtype",)
    ),
    "iota": Computation(_iota, _is_whole, ("dtype", "shape", "dimension")),
    "broadcast_in_dim": Computation(_broadcast, reads=("shape", "broadcast_dimensions")),
    "concatenate": Computation(np.concatenate, reads=("dimension",)),
    "optimization_barrier": Computation(lambda x: x[0]),
    "reshape": Computation(lambda x, shape: x[0].reshape(shape), reads=("new_sizes",)),
    "rev": Computation(lambda x, axes: np.flip(x[0], axes), reads=("dimensions",)),
    "slice": Computation(_slice, reads=("start_indices", "limit_indices", "strides")),
    "squeeze": Computation(lambda x, axes: x[0].squeeze(axes), reads=("dimensions",)),
    "stack": Computation(np.stack, reads=("axis",)),
    "tile": Computation(lambda x, counts: np.tile(x[0], counts), reads=("reps",)),
    "transpose": Computation(lambda x, axes: x[0].transpose(axes), reads=("permutation",)),
}
# fmt: on


def function_of(name: str) -> Any:
    """Return the function that computes a primitive, which is in the table."""
    return _TABLE[name].function


def params_of(equation: Any) -> tuple[Any, ...] | None:
    """Return the parameters that the function of an equation takes, None where XLA computes it."""
    name, params = equation.primitive.name, equation.params
    computation = _TABLE.get(name)
    if computation is None or len(equation.outvars) > 1 or not {*computation.reads} <= {*params}:
        return None
    if name == "reshape" and params["dimensions"] is not None:
        return None
    types = [v.aval for v in (*equation.invars, *equation.outvars)]
    if any(x.ndim > MAX_RANK for x in types) or not computation.same_for([x.dtype for x in types]):
        return None
    return tuple(map(params.get, computation.reads))
