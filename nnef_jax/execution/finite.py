"""Finds the arrays of a call that contain a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer


def not_finite(**arrays_by_kind: Mapping[str, Any]) -> list[str]:
    """Return names of the arrays that contain a NaN or an infinity, such as "input 'x'".

    The arrays are searched for NaNs if jax's setting `jax_debug_nans` is on, and for infinities if
    `jax_debug_infs` is on. `arrays_by_kind` maps each kind, such as "input", to a dict from names
    to arrays. Tracers are left out.
    """
    config: Any = jax.config
    tests: list[Callable[..., Any]] = []
    if config.jax_debug_nans:
        tests.append(jnp.isnan)
    if config.jax_debug_infs:
        tests.append(jnp.isinf)
    culprits: list[str] = []
    for kind, arrays in arrays_by_kind.items():
        for name, x in arrays.items():
            if not isinstance(x, Tracer) and any(test(x).any() for test in tests):
                culprits.append(f"{kind} '{name}'")
    return culprits
