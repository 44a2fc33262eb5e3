"""Element-wise operations of tract: arithmetic on any numbers, bits, types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reference import elementwise as standard
from tests.reference.elementwise import align

WIDTH = 32  # bits of the integers of the documents


def each(function: Callable[..., Any], *operands: Any) -> np.ndarray:
    """The function of every item of the operands, broadcast; integers stay integers."""
    arrays = np.broadcast_arrays(*align(*operands))
    results = [
        function(*(x.item() for x in items)) for items in zip(*map(np.ravel, arrays), strict=True)
    ]
    kind = np.result_type(*arrays)
    return np.array(results, kind).reshape(arrays[0].shape)


def sign(x):
    return each(lambda a: (a > 0) - (a < 0), x)


def floor(x):
    return np.floor(x).astype(x.dtype)


def ceil(x):
    return np.ceil(x).astype(x.dtype)


def _half_away(a):
    return math.copysign(math.floor(abs(a) + 0.5), a) if math.isfinite(a) else a


def round_(x):
    return each(_half_away, x)


def round_even(x):
    return np.rint(x).astype(x.dtype)


def square(x):
    return x * x


def relu(x):
    return each(lambda a: a if a > 0 else 0, x)


def _quotient(a, b):
    if not isinstance(a, int):
        return a / b
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def div(x, y):
    return each(_quotient, *_alike(x, y))


def _alike(x, y):
    """The operands with one type: a literal has that of the tensor beside it."""
    kind = np.result_type(np.asarray(x), np.asarray(y))
    return np.asarray(x, kind), np.asarray(y, kind)


def _power(a, b):
    if isinstance(a, int) and b < 0:
        return 0 if abs(a) != 1 else a ** (-b)
    return a**b


def pow_(x, y):
    return each(_power, *_alike(x, y))


def min_(x, y):
    return each(min, x, y)


def max_(x, y):
    return each(max, x, y)


def clamp(x, a, b):
    return each(lambda value, low, high: max(min(value, high), low), x, a, b)


def pow_const(input, exponent):
    return input**exponent


def xor(x, y):
    x, y = align(x, y)
    return (x != 0) != (y != 0)


def bitxor(x, y):
    return each(lambda a, b: a ^ b, x, y)


def bitand(x, y):
    return each(lambda a, b: a & b, x, y)


def bitor(x, y):
    return each(lambda a, b: a | b, x, y)


def bitnot(x):
    return ~x


def shl(x, y):
    return each(lambda a, b: a << b if 0 <= b < WIDTH else 0, x, y)


def shr(x, y):
    return each(lambda a, b: a >> (b if 0 <= b < WIDTH else WIDTH), x, y)


def is_nan(x):
    return x != x


def is_inf(input, detect_positive=True, detect_negative=True):
    signs = [math.inf] * detect_positive + [-math.inf] * detect_negative
    return np.isin(input, signs)


def cast(input, to=""):
    """Integers beyond a type wrap around, reals beyond it become the extreme or infinite."""
    x = np.asarray(input)
    if to == "":
        return x
    if to == "bool":
        return x != 0
    if to.startswith("complex"):
        return x.astype(np.complex128)
    kind, bits = to[0], int(to[1:])
    if kind == "f":
        greatest = float(np.finfo(f"f{bits // 8}").max)
        wide = x.astype(np.float64)
        return np.where(np.abs(wide) > greatest, np.copysign(np.inf, wide), wide)
    low = 0 if kind == "u" else -(2 ** (bits - 1))
    high = low + 2**bits - 1

    def convert(a):
        if isinstance(a, float):
            return 0 if math.isnan(a) else int(max(min(a, float(high)), float(low)))
        return (int(a) - low) % 2**bits + low

    return np.array([convert(a) for a in x.ravel().tolist()], f"{kind}8").reshape(x.shape)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": standard.neg,
    "abs": standard.abs_,
    "sign": sign,
    "floor": floor,
    "ceil": ceil,
    "round": round_,
    "square": square,
    "sqr": square,
    "recip": standard.rcp,
    "relu": relu,
    "add": standard.add,
    "sub": standard.sub,
    "mul": standard.mul,
    "div": div,
    "pow": pow_,
    "min": min_,
    "max": max_,
    "clamp": clamp,
    "lt": standard.lt,
    "gt": standard.gt,
    "le": standard.le,
    "ge": standard.ge,
    "eq": standard.eq,
    "ne": standard.ne,
    "select": standard.select,
    "tract_core_cast": cast,
    "tract_core_pow_const": pow_const,
    "tract_core_round_even": round_even,
    "tract_core_is_nan": is_nan,
    "tract_core_is_inf": is_inf,
    "tract_core_xor": xor,
    "tract_core_bitand": bitand,
    "tract_core_bitor": bitor,
    "tract_core_bitxor": bitxor,
    "tract_core_bitnot": bitnot,
    "tract_shl": shl,
    "tract_shr": shr,
}
