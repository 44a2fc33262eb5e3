"""Element-wise operations (spec 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .table import OPERATIONS, operation


def align(*operands: Any) -> list[np.ndarray]:
    """Append 1s to the shapes of operands up to the largest rank (spec 4.2.2)."""
    arrays = [np.asarray(x) for x in operands]
    rank = max(x.ndim for x in arrays)
    return [x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in arrays]


OPERATIONS.update(
    {
        "copy": lambda x: np.array(x),
        "neg": lambda x: -x,
        "rcp": lambda x: 1.0 / x,
        "exp": lambda x: np.exp(x),
        "log": lambda x: np.log(x),
        "sin": lambda x: np.sin(x),
        "cos": lambda x: np.cos(x),
        "tan": lambda x: np.tan(x),
        "sinh": lambda x: np.sinh(x),
        "cosh": lambda x: np.cosh(x),
        "tanh": lambda x: np.tanh(x),
        "asin": lambda x: np.arcsin(x),
        "acos": lambda x: np.arccos(x),
        "atan": lambda x: np.arctan(x),
        "asinh": lambda x: np.arcsinh(x),
        "acosh": lambda x: np.arccosh(x),
        "atanh": lambda x: np.arctanh(x),
        "abs": lambda x: np.where(x < 0, -x, x),
        "sign": lambda x: np.where(x > 0, 1.0, np.where(x < 0, -1.0, 0.0)),
        "not": lambda x: ~x,
        "floor": lambda x: np.floor(x),
        "ceil": lambda x: np.ceil(x),
        "sqr": lambda x: x**2.0,
        "sqrt": lambda x: x**0.5,
        "rsqr": lambda x: x**-2.0,
        "rsqrt": lambda x: x**-0.5,
        "log2": lambda x: np.log(x) / np.log(2.0),
        "sub": lambda x, y: np.subtract(*align(x, y)),
        "div": lambda x, y: np.divide(*align(x, y)),
        "pow": lambda x, y: np.power(*align(x, y)),
        "lt": lambda x, y: np.less(*align(x, y)),
        "gt": lambda x, y: np.greater(*align(x, y)),
        "le": lambda x, y: np.less_equal(*align(x, y)),
        "ge": lambda x, y: np.greater_equal(*align(x, y)),
        "eq": lambda x, y: np.equal(*align(x, y)),
        "ne": lambda x, y: np.not_equal(*align(x, y)),
        "and": lambda x, y: np.bitwise_and(*align(x, y)),
        "or": lambda x, y: np.bitwise_or(*align(x, y)),
        "copy_n": lambda x, times: [np.array(x) for _ in range(times)],
    }
)


@operation
def round_(x):
    return np.floor(x + 0.5)


@operation
def add(x, y):
    return np.add(*align(x, y))


@operation
def mul(x, y):
    return np.multiply(*align(x, y))


@operation
def select(condition, true_value, false_value):
    return np.where(*align(condition, true_value, false_value))


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
def add_n(x):
    total = np.zeros([1])
    for item in x:
        total = add(total, item)
    return total
