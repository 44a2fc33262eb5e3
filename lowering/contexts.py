"""Says for the current thread, or task, what holds for a while: passes that are left out, say."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """Give a context variable a value meanwhile."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


# To measure what passes and kernels earn.
_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())


def runs(name: str) -> bool:
    """Tell whether a pass or kernel is part of what is compiled at this moment."""
    return name not in _LEFT_OUT.get()


def without(*names: str) -> AbstractContextManager[None]:
    """Leave passes out of what is compiled meanwhile. Use no `cache_dir`: its keys do not tell."""
    return holding(_LEFT_OUT, frozenset(names))
