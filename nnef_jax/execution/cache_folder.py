"""The files in a folder of a `DiskCache`, and the folder of the user's that the command line has.

Only files that are named as entries are ever counted or removed. Other processes may use the folder
meanwhile: they make again what is gone, and a mapped file stays until nobody has it open.
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
    """A file of a cache: when it was last found or made, its bytes, and where it is."""

    used: float
    size: int
    path: str


def users_folder() -> str:
    """Return where this system has the user's cache of nnef_jax, whether or not it is there."""
    return platformdirs.user_cache_dir("nnef-jax", appauthor=False)


def has_users() -> bool:
    """Tell whether the system has a folder for the user's caches, as a bare container has not."""
    return os.path.isdir(platformdirs.user_cache_dir())


def prepare(folder: str) -> str:
    """Make a folder for its owner alone where there is none; say why it is of no use, or ''."""
    try:
        if os.path.isabs(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    return objection(folder)


def objection(folder: str) -> str:
    """Say why a folder is of no use, or ''. One that others may write to is: its files are code."""
    if not os.path.isabs(folder):
        return "it is no absolute path"
    try:
        status = os.stat(folder)
    except (OSError, ValueError) as error:
        return str(getattr(error, "strerror", None) or error)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a folder"
    if hasattr(os, "geteuid"):  # not on Windows, where it is in the user's profile
        if status.st_uid != os.geteuid():
            return "it belongs to another user"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "others may write to it"
    return "" if os.access(folder, os.R_OK | os.X_OK) else "no permission to read it"


def entries(folder: str) -> list[CachedFile]:
    """Return the files of the cache in a folder, those that were not used for longest first."""
    return sorted(_entries(folder))


def _entries(folder: str) -> Iterator[CachedFile]:
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):
                if _NAME.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    yield CachedFile(status.st_mtime, status.st_size, file.path)


def trim(folder: str, most: int) -> list[CachedFile]:
    """Remove the files that were not used for longest until `most` bytes are left; return them.

    What cannot be removed is left, and counts: on Windows a file that somebody has open.
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
    """Remove all files of the cache, and what killed writers left; return those that are gone."""
    with suppress(OSError):
        temporaries.sweep(folder)
    return trim(folder, -1)
