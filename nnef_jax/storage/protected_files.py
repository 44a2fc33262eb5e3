"""What a command reads is never replaced by what it writes, whatever either is called.

Reading a file notes its device and number, so that links and other spellings of its path are the
same file.
"""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar

from lowering import holding

_read: ContextVar[set[tuple[int, int]] | None] = ContextVar("read", default=None)


def spared() -> AbstractContextManager[None]:
    """Record files read in the block, and let nothing replace them; an inner block is the outer.

    A thread started in the block notes what it reads where it runs in a copy of the context.
    """
    return nullcontext() if _read.get() is not None else holding(_read, set())


def unnoted() -> AbstractContextManager[None]:
    """Note nothing that the block reads: what we wrote for ourselves is no input."""
    return holding(_read, None)


def note(status: os.stat_result) -> None:
    """Note a file that is read."""
    read = _read.get()
    if read is not None:
        read.add((status.st_dev, status.st_ino))


def note_path(path: str | os.PathLike[str]) -> None:
    """Note a file that another library will read, or what is missing not at all."""
    with suppress(OSError):
        note(os.stat(path))


def require_other(path: str) -> None:
    """Raise FileExistsError for a path of a file that was read, or of a link to one."""
    read = _read.get()
    if not read:
        return
    try:
        status = os.stat(path)
    except OSError:  # there is nothing, or a link to nothing
        return
    if (status.st_dev, status.st_ino) in read:
        raise FileExistsError(errno.EEXIST, "is read by the same command, kept", path)
