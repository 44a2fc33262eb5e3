"""Sets context variables for a block of code, and leaves out passes and kernels in a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Generator[None]:
    """Give a context variable a value in the block of a `with` statement.

    After the block the variable has its former value.
    """
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


# This variable has the names of the passes and kernels that are left out. Benchmarks leave out one
# after another, to measure the gain of each.
_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())


def is_enabled(name: str) -> bool:
    """Tell whether a pass or kernel is used. `disabled` leaves out passes and kernels."""
    return name not in _LEFT_OUT.get()


def disabled(*names: str) -> AbstractContextManager[None]:
    """Leave out the named passes and kernels in the block of a `with` statement.

    Do not use a `cache_dir` in the block, since cache keys do not contain the names that are
    left out.
    """
    return holding(_LEFT_OUT, frozenset(names))
