"""Tells values known on the host from traced ones: literals, constants, and what comes of these."""

from __future__ import annotations

from typing import Any

import numpy as np

_HOST = (bool, int, float, np.ndarray, np.generic)


def is_static(value: Any) -> bool:
    """Tell whether a value, or every item of an array of values, is known on the host."""
    if isinstance(value, tuple | list):
        return all(map(is_static, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, _HOST)


def is_zero(value: Any) -> bool:
    """Tell whether a value is known to be the number 0, and no array of it."""
    return is_static(value) and np.ndim(value) == 0 and bool(value == 0)
