"""Keeps the output of a command from replacing the files that the command reads.

Files are compared by device and inode number, so that links and other spellings of a path do not
matter.
"""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar

from lowering import holding

_read_files: ContextVar[set[tuple[int, int]] | None] = ContextVar("read", default=None)


def protecting_inputs() -> AbstractContextManager[None]:
    """Return a context in which no output may replace a file that was read.

    Within such a context, another context of this kind has no effect. A thread that is started in
    the block must run in a copy of the block's context. Otherwise the files that the thread reads
    are not protected.
    """
    is_protecting = _read_files.get() is not None
    return nullcontext() if is_protecting else holding(_read_files, set())


def without_noting() -> AbstractContextManager[None]:
    """Return a context in which reading a file, such as a cache file, does not protect it."""
    return holding(_read_files, None)


def note(status: os.stat_result) -> None:
    """Protect a file from being replaced, since the command reads it.

    `status` is the status of the file. It identifies the file.
    """
    read_files = _read_files.get()
    if read_files is not None:
        read_files.add((status.st_dev, status.st_ino))


def note_path(path: str | os.PathLike[str]) -> None:
    """Protect a file from being replaced, since another library will read it.

    If the file is missing, this function does nothing.
    """
    with suppress(OSError):
        note(os.stat(path))


def require_other(path: str) -> None:
    """Raise FileExistsError if a path leads to a protected file, directly or by a link."""
    read_files = _read_files.get()
    if not read_files:
        return
    try:
        status = os.stat(path)
    except OSError:
        # There is no file at the path, or the path is a broken link.
        return
    if (status.st_dev, status.st_ino) in read_files:
        reason = "is read by the same command, and is not replaced"
        raise FileExistsError(errno.EEXIST, reason, path)
