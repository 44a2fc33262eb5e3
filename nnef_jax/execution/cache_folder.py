"""Lists and removes the files of a cache folder, and locates the user's cache folder.

Only files with names of cache entries are counted or removed. Other processes may use the folder at
the same time. They write a removed entry again. A removed file stays readable for processes that
have mapped the file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import platformdirs

from nnef_jax.storage import temporaries

_NAME = re.compile(r"[0-9a-f]{64}\.(?:xla|bin)|machine-[0-9a-f]{16}\.json")


class CachedFile(NamedTuple):
    """A file of a cache folder."""

    used: float  # the time when the file was last read or written, in seconds since 1970
    size: int  # the number of bytes
    path: str


def users_folder() -> str:
    """Return the path of nnef_jax's folder among the user's cache folders. It may not exist."""
    return platformdirs.user_cache_dir("nnef-jax", appauthor=False)


def has_user_cache() -> bool:
    """Tell whether the user's folder for caches exists. In a bare container it does not."""
    return os.path.isdir(platformdirs.user_cache_dir())


def prepare(folder: str) -> str:
    """Make a folder with mode 0700 unless it exists.

    Returns the reason why the folder cannot be a cache, or "" if it can be a cache.
    """
    try:
        if os.path.isabs(folder):  # `reason_unusable` refuses other paths
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return reason_unusable(folder)


def reason_unusable(folder: str) -> str:
    """Return the reason why a folder cannot be a cache, or "" if it can be one.

    Other users must not be able to write to the folder, because its files contain code that is
    run.
    """
    if not os.path.isabs(folder):
        return "it is no absolute path"
    try:
        status = os.stat(folder)
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    # Windows has no user ids. There the folder is in the user's profile, which others cannot write.
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            return "it belongs to another user"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "others may write to it"
    return "" if os.access(folder, os.R_OK | os.X_OK) else "no permission to read it"


def entries(folder: str) -> list[CachedFile]:
    """Return the files of the cache in a folder, the least recently used file first."""
    return sorted(_entries(folder))


def _entries(folder: str) -> Iterator[CachedFile]:
    """Yield the files of the cache in a folder, without files that vanish during the search."""
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):
                if _NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    yield CachedFile(status.st_mtime, status.st_size, file.path)


def trim(folder: str, most: int) -> list[CachedFile]:
    """Remove the least recently used files of a cache, until at most `most` bytes are left.

    Returns the removed files. A file that cannot be removed, such as an open file on Windows,
    stays in the folder, and the size of the file still counts.
    """
    files = entries(folder)
    total = sum(entry.size for entry in files)
    removed: list[CachedFile] = []
    for entry in files:
        if total <= most:
            break
        with suppress(OSError):
            os.unlink(entry.path)
            total -= entry.size
            removed.append(entry)
    return removed


def clear(folder: str) -> list[CachedFile]:
    """Remove all files of the cache in a folder, and return the removed files.

    Temporary files that killed processes left behind are removed too.
    """
    with suppress(OSError):
        temporaries.sweep(folder)
    # With a limit of 0 bytes, empty files would stay. With -1 no file stays.
    return trim(folder, most=-1)
