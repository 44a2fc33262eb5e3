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
    """Do not note the files that are read in the block, such as the package's own caches."""
    return holding(_read, None)


def note(status: os.stat_result) -> None:
    """Note a file, given by its status, as one that is read."""
    read = _read.get()
    if read is not None:
        read.add((status.st_dev, status.st_ino))


def note_path(path: str | os.PathLike[str]) -> None:
    """Note a file that another library will read. A missing file is ignored."""
    with suppress(OSError):
        note(os.stat(path))


def require_other(path: str) -> None:
    """Raise FileExistsError if the path is that of a noted file, or of a link to a noted file."""
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
