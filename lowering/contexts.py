"""Sets context variables of the current thread, or task, for a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
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
