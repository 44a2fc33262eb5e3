"""Compares a gradient with central differences of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_STEP = np.float32(2**-6)


def assert_slopes(function: Callable[[Any], Any], x: np.ndarray, gradient: Any) -> None:
    """Check two items of the gradient of a function of a matrix at x."""
    for index in [(0, 0), (2, 1)]:
        plus, minus = x.copy(), x.copy()
        plus[index] += _STEP
        minus[index] -= _STEP
        difference = (function(plus) - function(minus)) / (2 * _STEP)
        np.testing.assert_allclose(gradient[index], difference, rtol=2e-3, atol=2e-2)
