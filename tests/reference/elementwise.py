"""Element-wise operations (spec 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .table import operation


def align(*operands: Any) -> list[np.ndarray]:
    """The operands with 1s appended to their shapes up to the largest rank (spec 4.2.2)."""
    arrays = [np.asarray(x) for x in operands]
    rank = max(x.ndim for x in arrays)
    return [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in arrays]


@operation
def copy(x):
    return np.array(x)


@operation
def neg(x):
    return -x


@operation
def rcp(x):
    return 1.0 / x


@operation
def exp(x):
    return np.exp(x)


@operation
def log(x):
    return np.log(x)


@operation
def sin(x):
    return np.sin(x)


@operation
def cos(x):
    return np.cos(x)


@operation
def tan(x):
    return np.tan(x)


@operation
def sinh(x):
    return np.sinh(x)


@operation
def cosh(x):
    return np.cosh(x)


@operation
def tanh(x):
    return np.tanh(x)


@operation
def asin(x):
    return np.arcsin(x)


@operation
def acos(x):
    return np.arccos(x)


@operation
def atan(x):
    return np.arctan(x)


@operation
def asinh(x):
    return np.arcsinh(x)


@operation
def acosh(x):
    return np.arccosh(x)


@operation
def atanh(x):
    return np.arctanh(x)


@operation
def abs_(x):
    return np.where(x < 0, -x, x)


@operation
def sign(x):
    return np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0))


@operation
def not_(x):
    return ~x


@operation
def floor(x):
    return np.floor(x)


@operation
def ceil(x):
    return np.ceil(x)


@operation
def round_(x):
    return np.floor(x + 0.5)


@operation
def add(x, y):
    x, y = align(x, y)
    return x + y


@operation
def sub(x, y):
    x, y = align(x, y)
    return x - y


@operation
def mul(x, y):
    x, y = align(x, y)
    return x * y


@operation
def div(x, y):
    x, y = align(x, y)
    return x / y


@operation
def pow_(x, y):
    x, y = align(x, y)
    return x**y


@operation
def lt(x, y):
    x, y = align(x, y)
    return x < y


@operation
def gt(x, y):
    x, y = align(x, y)
    return x > y


@operation
def le(x, y):
    x, y = align(x, y)
    return x <= y


@operation
def ge(x, y):
    x, y = align(x, y)
    return x >= y


@operation
def eq(x, y):
    x, y = align(x, y)
    return x == y


@operation
def ne(x, y):
    x, y = align(x, y)
    return x != y


@operation
def and_(x, y):
    x, y = align(x, y)
    return x & y


@operation
def or_(x, y):
    x, y = align(x, y)
    return x | y


@operation
def select(condition, true_value, false_value):
    return np.where(*align(condition, true_value, false_value))


@operation
def sqr(x):
    return x**2.0


@operation
def sqrt(x):
    return x**0.5


@operation
def rsqr(x):
    return x**-2.0


@operation
def rsqrt(x):
    return x**-0.5


@operation
def log2(x):
    return np.log(x) / np.log(2.0)


@operation
def min_(x, y):
    x, y = align(x, y)
    return np.where(x < y, x, y)


@operation
def max_(x, y):
    x, y = align(x, y)
    return np.where(x > y, x, y)


@operation
def clamp(x, a, b):
    return max_(min_(x, b), a)


@operation
def copy_n(x, times):
    return [np.array(x) for _ in range(times)]


@operation
def add_n(x):
    total = np.zeros([1])
    for item in x:
        total = add(total, item)
    return total
