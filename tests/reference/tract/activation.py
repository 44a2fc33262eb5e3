"""Activation functions of registry tract_core."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * _sigmoid(x)


def gelu_approx(input, fast_impl=False):
    inner = input + 0.044715 * input ** (2 if fast_impl else 3)
    return 0.5 * input * (1 + np.tanh(math.sqrt(2 / math.pi) * inner))


def clamped_swiglu(gate, up, alpha, limit):
    gate = np.minimum(gate, limit)
    return gate * _sigmoid(alpha * gate) * (np.clip(up, -limit, limit) + 1)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "tract_core_silu": silu,
    "tract_core_hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "tract_core_erf": lambda x: np.vectorize(math.erf)(x),
    "tract_core_gelu_approx": gelu_approx,
    "tract_core_clamped_swiglu": clamped_swiglu,
}
