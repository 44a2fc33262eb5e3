"""Values known on the host, not traced: literals, constants, and what is computed from these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
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


def on_host(compute: Callable[[], Any]) -> Any:
    """Compute static values now, outside of any tracing, to numpy arrays."""
    with jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, compute())
