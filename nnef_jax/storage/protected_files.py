"""Protects the files that a command reads from being replaced by its output.

Files are compared by device and inode number, so that links and other spellings of a path do not
matter.
"""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar

from lowering import holding

_read: ContextVar[set[tuple[int, int]] | None] = ContextVar("read", default=None)


def protecting_inputs() -> AbstractContextManager[None]:
    """Protect the files that are read in the block from being replaced.

    Within such a block, another block of this kind has no effect. A thread that is started in the
    block notes files only if it runs in a copy of the block's context.
    """
    return nullcontext() if _read.get() is not None else holding(_read, set())


def without_noting() -> AbstractContextManager[None]:
    """Suspend the protection in the block, for reads of the package's own caches."""
    return holding(_read, None)


def note(status: os.stat_result) -> None:
    """Protect a file from being replaced, since the command reads it.

    `status` identifies the file.
    """
    read = _read.get()
    if read is not None:
        read.add((status.st_dev, status.st_ino))


def note_path(path: str | os.PathLike[str]) -> None:
    """Protect a file that another library will read from being replaced.

    A missing file is ignored.
    """
    with suppress(OSError):
        note(os.stat(path))


def require_other(path: str) -> None:
    """Raise FileExistsError if a path leads to a protected file, directly or by a link."""
    read = _read.get()
    if not read:
        return
    try:
        status = os.stat(path)
    except OSError:  # There is no file, or the path is a broken link.
        return
    if (status.st_dev, status.st_ino) in read:
        reason = "is read by the same command, and is not replaced"
        raise FileExistsError(errno.EEXIST, reason, path)
