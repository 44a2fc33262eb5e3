"""Bounds of time and memory within which a mutant ends, and where an error came from."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from tests.unix import resource

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10.0  # of the processor
_BYTES = 2 << 30  # of memory
_ADDRESSES = 6 << 30  # beyond what is held: whatever takes fewer is seen by its memory


class TooSlowError(BaseException):
    """A mutant takes more than its time. Not an Exception, so that no code converts it."""


class TooLargeError(BaseException):
    """A mutant takes more than its memory."""


@contextmanager
def bounded(seconds: float = SECONDS) -> Generator[None]:
    """Raise TooSlowError or TooLargeError where a block takes more than it should."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    held, start = peak(reset=True), time.process_time()
    before = signal.signal(signal.SIGPROF, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ADDRESSES, limits[1]))
    # Again and again: what Python calls by itself, while it looks for garbage say, swallows errors.
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    if time.process_time() - start > seconds:
        raise TooSlowError
    if peak() - held > _BYTES:
        raise TooLargeError


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


def peak(*, reset: bool = False) -> int:
    """Return the most bytes held since the last reset; a reset returns what is held now."""
    if reset:
        with suppress(OSError):  # no such file in some containers: then of the whole process
            Path("/proc/self/clear_refs").write_text("5", "ascii")
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def place(error: BaseException) -> str:
    """Return the kind of an error, with the last function of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if any(f"/{p}/" in f.filename for p in ("nnef_jax", "lowering"))]
    last = (ours or frames)[-1]
    path = Path(last.filename)
    path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
    return f"{type(error).__name__} in {path}:{last.name}"
