"""Reads the file of an input within `Limits`, as a network is read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from nnef_jax import DataError, LimitError, Limits
from nnef_jax.limits import Meter, within_memory
from nnef_jax.storage import files


@contextmanager
def reading(path: Path) -> Generator[tuple[memoryview, Meter]]:
    """Give the bytes of a regular file, mapped if large, and what counts all that is made of them.

    Raises DataError for another thing than a file, LimitError, which names the file, for too much.
    """
    shown, limits = str(path), Limits()
    meter = Meter(limits)
    try:
        with within_memory(shown), files.open_regular(shown, DataError) as file:
            yield files.contents(file, meter, shown), meter
    except LimitError:
        bounds = f"{limits.expanded_bytes} bytes and {limits.steps} steps"
        raise LimitError(f"{shown}: an input takes {bounds} to read at most") from None
