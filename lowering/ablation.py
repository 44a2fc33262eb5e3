"""Leaves passes and kernels out, to measure what they earn."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from lowering.contexts import holding

_LEFT_OUT: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())


def runs(name: str) -> bool:
    """Tell whether a pass or kernel is part of what is compiled at this moment."""
    return name not in _LEFT_OUT.get()


def without(*names: str) -> AbstractContextManager[None]:
    """Leave passes out of what is compiled meanwhile. Use no `cache_dir`: its keys do not tell."""
    return holding(_LEFT_OUT, frozenset(names))
