"""Runs a network as it is written where rewriting fails, as it may in a later jax (`jaxprs`)."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

import jax

T = TypeVar("T")


def or_else(rewritten: Callable[[], T], as_written: Callable[[], T]) -> T:
    """Return `rewritten()`; if it fails `as_written()`, with one warning a process."""
    try:
        return rewritten()
    except Exception:
        result = as_written()
        _warn()
        return result


@functools.cache
def _warn() -> None:
    error = sys.exception()
    warnings.warn(
        f"networks run as they are written, which is slower: their optimisation fails with jax "
        f"{jax.__version__}, {type(error).__name__}: {error}",
        stacklevel=2,
    )
