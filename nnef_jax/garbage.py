"""Python's search for cycles of garbage, which slows down what makes many objects.

It imports nothing of the package: the package is imported with the search paused.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """Pause the search for cycles of garbage.

    Where many objects are made and most of them stay, it goes through all of them time and again.
    Reading 50,000 statements takes 3.5 s paused and 7.5 otherwise, importing jax 0.34 and 0.38,
    tracing ResNet-18 0.41 and 0.49.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
