"""Runs a network as it is written where rewriting it fails.

Rewritings use what jax may change between versions (`jaxprs`) and change no result.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

import jax

T = TypeVar("T")


def or_else(rewritten: Callable[[], T], as_written: Callable[[], T]) -> T:
    """Return the one; where it fails the other, with one warning a process.

    Where both fail raise the network's own error.
    """
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
