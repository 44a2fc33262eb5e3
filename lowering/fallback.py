"""Runs a network as it is written where rewriting fails, as it may in a later jax (`jaxprs`)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import jax

T = TypeVar("T")

_name = ContextVar("name", default="")


@contextmanager
def named(name: str) -> Generator[None]:
    """Call the network that is rewritten within by this name in warnings."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def or_else(rewritten: Callable[[], T], as_written: Callable[[], T]) -> T:
    """Return `rewritten()`; if it fails `as_written()`, with one warning a network and error.

    Nothing else is remembered: what is computed next is rewritten again.
    """
    try:
        return rewritten()
    except Exception as error:
        result = as_written()
        reason, *_ = str(error).strip().splitlines() or [""]
        _warn(_name.get(), f"{type(error).__name__}: {reason}")
        return result


@functools.lru_cache(1024)
def _warn(name: str, reason: str) -> None:
    network = f"network '{name}'" if name else "a network"
    warnings.warn(
        f"{network} runs as it is written, which is slower: its optimisation fails with jax "
        f"{jax.__version__}, {reason}",
        stacklevel=2,
    )
