"""Pauses Python's search for garbage cycles. The search slows down code that makes many objects.

This module imports nothing from the package, because the package itself is imported while the
search is paused.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Pause Python's search for garbage cycles within a `with` statement.

    While a program makes many objects that stay alive, Python searches again and again, and each
    search visits all of these objects. With the pause, reading 50,000 statements takes 3.5 s
    instead of 7.5 s. Importing jax takes 0.34 s instead of 0.38 s, and tracing ResNet-18 takes
    0.41 s instead of 0.49 s.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
