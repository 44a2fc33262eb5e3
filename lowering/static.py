"""Values known on the host: literals and constants, and what is computed from them alone.

They stay numpy arrays or Python numbers while a graph is traced, so that a rule finds a concrete
shape, index or exponent where one is due, and never a tracer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_HOST = (bool, int, float, np.ndarray, np.generic)


def is_static(value: Any) -> bool:
    """Whether a value, or every item of an array of values, is known on the host."""
    if isinstance(value, tuple | list):
        return all(map(is_static, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, _HOST)


def is_zero(value: Any) -> bool:
    """Whether a value is known on the host to be the number 0, and no array of it."""
    return is_static(value) and np.ndim(value) == 0 and bool(value == 0)


def on_host(compute: Callable[[], Any]) -> Any:
    """Run a computation on static values now, outside of any tracing, to numpy arrays."""
    with jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, compute())
