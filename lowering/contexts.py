"""Sets context variables for a block of code, and leaves out passes and kernels in a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """Set a context variable in the block of a `with` statement."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


# Measurements of the gain of passes and kernels leave them out in turn.
_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())


def runs(name: str) -> bool:
    """Tell whether a pass or kernel is used now, since `without` does not leave it out."""
    return name not in _LEFT_OUT.get()


def without(*names: str) -> AbstractContextManager[None]:
    """Leave out passes and kernels in the block of a `with` statement.

    Use no `cache_dir` in it: cache keys do not contain these names.
    """
    return holding(_LEFT_OUT, frozenset(names))
