"""Activation functions (spec 4.8.1), where need be in a form that cannot overflow."""

from __future__ import annotations

import numpy as np

from .elementwise import max_, mul, select
from .table import OPERATIONS, operation


@operation
def sigmoid(x):
    # 1 / (1 + exp(-x)) with both sides multiplied by exp(min(x, 0)).
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


@operation
def softmax(x, axes=(1,)):
    axes = tuple(axes)
    e = np.exp(x - np.max(x, axis=axes, keepdims=True))
    return e / np.sum(e, axis=axes, keepdims=True)


@operation
def softplus(x):
    # log(exp(x) + exp(0))
    return np.logaddexp(x, 0.0)


@operation
def elu(x, alpha=1.0):
    negative = np.minimum(x, 0.0)
    return np.where(x < 0, alpha * np.expm1(negative), x)


@operation
def prelu(x, alpha):
    return select(x < 0, mul(alpha, x), x)


OPERATIONS.update(
    {
        "relu": lambda x: max_(x, 0.0),
        "softabs": lambda x, epsilon: np.sqrt(x * x + epsilon),
        "selu": lambda x, alpha=1.67326319, lambda_=1.05070102: lambda_ * elu(x, alpha),
        "gelu": lambda x: x * sigmoid(1.702 * x),
        "silu": lambda x: x * sigmoid(x),
        "leaky_relu": lambda x, alpha: prelu(x, alpha),
    }
)
