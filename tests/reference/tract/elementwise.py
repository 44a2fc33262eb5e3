"""Element-wise operations of tract: arithmetic on any numbers, bits, types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reference import OPERATIONS as STANDARD
from tests.reference.elementwise import align

WIDTH = 32  # bits of the integers of the documents


def each(function: Callable[..., Any], *operands: Any) -> np.ndarray:
    """Apply a function to each item of broadcast operands; integers stay integers."""
    arrays = np.broadcast_arrays(*align(*operands))
    results = [
        function(*(x.item() for x in items)) for items in zip(*map(np.ravel, arrays), strict=True)
    ]
    kind = np.result_type(*arrays)
    return np.array(results, kind).reshape(arrays[0].shape)


def _half_away(a):
    return math.copysign(math.floor(abs(a) + 0.5), a) if math.isfinite(a) else a


def _quotient(a, b):
    if not isinstance(a, int):
        return a / b
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _alike(x, y):
    """Return operands of one type: a literal gets the type of the tensor beside it."""
    kind = np.result_type(np.asarray(x), np.asarray(y))
    return np.asarray(x, kind), np.asarray(y, kind)


def _power(a, b):
    if isinstance(a, int) and b < 0:
        return 0 if abs(a) != 1 else a ** (-b)
    return a**b


def xor(x, y):
    x, y = align(x, y)
    return (x != 0) != (y != 0)


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


_AS_IN_THE_STANDARD = (
    *("neg", "abs", "add", "sub", "mul"),
    *("lt", "gt", "le", "ge", "eq", "ne", "select"),
)

OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: STANDARD[name] for name in _AS_IN_THE_STANDARD},
    "sign": lambda x: each(lambda a: (a > 0) - (a < 0), x),
    "floor": lambda x: np.floor(x).astype(x.dtype),
    "ceil": lambda x: np.ceil(x).astype(x.dtype),
    "round": lambda x: each(_half_away, x),
    "square": lambda x: x * x,
    "sqr": lambda x: x * x,
    "recip": STANDARD["rcp"],
    "relu": lambda x: each(lambda a: a if a > 0 else 0, x),
    "div": lambda x, y: each(_quotient, *_alike(x, y)),
    "pow": lambda x, y: each(_power, *_alike(x, y)),
    "min": lambda x, y: each(min, x, y),
    "max": lambda x, y: each(max, x, y),
    "clamp": lambda x, a, b: each(lambda value, low, high: max(min(value, high), low), x, a, b),
    "tract_core_cast": cast,
    "tract_core_pow_const": lambda input, exponent: input**exponent,
    "tract_core_round_even": lambda x: np.rint(x).astype(x.dtype),
    "tract_core_is_nan": lambda x: x != x,
    "tract_core_is_inf": is_inf,
    "tract_core_xor": xor,
    "tract_core_bitand": lambda x, y: each(lambda a, b: a & b, x, y),
    "tract_core_bitor": lambda x, y: each(lambda a, b: a | b, x, y),
    "tract_core_bitxor": lambda x, y: each(lambda a, b: a ^ b, x, y),
    "tract_core_bitnot": lambda x: ~x,
    "tract_shl": lambda x, y: each(lambda a, b: a << b if 0 <= b < WIDTH else 0, x, y),
    "tract_shr": lambda x, y: each(lambda a, b: a >> (b if 0 <= b < WIDTH else WIDTH), x, y),
}
