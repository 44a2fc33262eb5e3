"""Leaves passes and kernels out, to measure what they earn."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())


def runs(name: str) -> bool:
    """Tell whether a pass or kernel is part of what is compiled at this moment."""
    return name not in _LEFT_OUT.get()


@contextmanager
def without(*names: str) -> Generator[None]:
    """Leave passes out of what is compiled meanwhile. Use no `cache_dir`: its keys do not tell."""
    token = _LEFT_OUT.set(frozenset(names))
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)
