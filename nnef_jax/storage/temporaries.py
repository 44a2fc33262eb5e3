"""Makes temporary files and folders beside their targets, and cleans up after killed writers.

A temporary file or folder is locked while its writer lives. The system frees the lock however the
process ends. The next writer into the same folder removes all temporaries whose locks are free.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import BinaryIO

try:
    import fcntl
except ImportError:
    # Windows has no module `fcntl`. The locks of this module show whether the writer of a temporary
    # file lives. Without locks, the temporary files of killed writers stay.
    fcntl = None

NAME = re.compile(r"\.nnef_jax-[0-9a-f]{16}")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
# If another process has locked a folder, up to 200 attempts are made to lock it, every 0.01 s.
_LOCK_ATTEMPTS = 200
_PAUSE = 0.01


@contextmanager
def temporary_file(target: str, *, private: bool) -> Generator[tuple[str, BinaryIO]]:
    """Open a new file beside its target until the block ends.

    If `private` is true, the file has the mode 0600. If the file still has its temporary name at
    the end of the block, it is removed.
    """
    with _temporary(target, folder=False, private=private) as (path, descriptor):
        assert descriptor is not None
        with open(descriptor, "wb") as file:
            yield path, file


@contextmanager
def temporary_folder(target: str, *, private: bool) -> Generator[str]:
    """Make a new folder beside its target.

    If `private` is true, the folder has the mode 0700. The folder is removed at the end of the
    block.
    """
    with _temporary(target, folder=True, private=private) as (path, descriptor):
        try:
            yield path
        finally:
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def _temporary(target: str, *, folder: bool, private: bool) -> Generator[tuple[str, int | None]]:
    """Make a file, or a folder if `folder` is true, and yield its path and its descriptor.

    The file or folder is beside `target`. For a folder on a system without locks, the descriptor is
    None. At the end of the block, a file or folder that is still at the path is removed.
    """
    parent = os.path.dirname(target)
    sweep(parent)
    mode = 0o700 if private else 0o777
    while True:
        path = os.path.join(parent, f".nnef_jax-{secrets.token_hex(8)}")
        try:
            descriptor = _create(path, folder, mode)
            was_removed = descriptor is None and fcntl is not None
            if was_removed:
                # The sweep of another process removed the file or folder before it was locked. A
                # new one is made.
                continue
            yield path, descriptor
            return
        finally:
            remove(path)


def _create(path: str, folder: bool, mode: int) -> int | None:
    """Make a temporary file, or a folder if `folder` is true, lock it, and return its descriptor.

    Returns None if another process removed the file or folder before it was locked. Also returns
    None for a folder on a system without locks.
    """
    if folder:
        os.mkdir(path, mode)
        if fcntl is None:
            return None
        try:
            descriptor = os.open(path, _READ)
        except FileNotFoundError:
            return None
    else:
        mode_without_execution = mode & 0o666
        descriptor = os.open(path, _CREATE, mode_without_execution)
    try:
        is_locked_by_sweep = _lock(descriptor) is False
        if not is_locked_by_sweep and _is_at(path, descriptor):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    # The sweep of another process removes the file or folder, or has removed it.
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool | None:
    """Try to lock a file or folder.

    Returns True if this succeeds, False if another process has the lock, and None if the system has
    no locks.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems have no locks.
        return None
    return True


def sweep(folder: str) -> None:
    """Remove the temporary files and folders that killed writers of this user left in a folder."""
    if fcntl is None:
        return
    try:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
    except PermissionError:
        # The user may write into the folder, but not read its names.
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            descriptor = os.open(path, _READ)
        except OSError:
            # Another process has removed the file or folder.
            continue
        try:
            status = os.fstat(descriptor)
            is_of_user = status.st_uid == os.geteuid()
            is_file_or_folder = stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR)
            # While the writer lives, it holds the lock.
            if is_of_user and is_file_or_folder and _lock(descriptor):
                remove(path)
        finally:
            os.close(descriptor)


def remove(path: str) -> None:
    """Remove a temporary file or folder if it exists.

    Errors are ignored, because the next sweep tries again.
    """
    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        # The temporary folder has the modes of the folder that it replaces. So the folder or a
        # subfolder may be read-only. Files can be removed from a folder with the mode 0700.
        os.chmod(path, 0o700)
        for parent, subfolders, _ in os.walk(path):
            for name in subfolders:
                folder = os.path.join(parent, name)
                if not os.path.islink(folder):
                    os.chmod(folder, 0o700)
        shutil.rmtree(path)


@contextmanager
def locked(folder: str) -> Generator[None]:
    """Hold the lock of a folder in the block. No other writer then replaces or removes the folder.

    The function waits for the lock for at most 2 s. A writer holds the lock of its new folder until
    it has removed the old folder. Without the lock, a second writer might see a folder that the
    first writer is removing, and refuse to replace it.
    """
    while True:
        try:
            descriptor = os.open(folder, _READ)
        except OSError:
            # There is no folder at the path, or the path is a link, so there is nothing to lock.
            yield
            return
        try:
            for _ in range(_LOCK_ATTEMPTS):
                is_locked_by_other = _lock(descriptor) is False
                if not is_locked_by_other:
                    break
                time.sleep(_PAUSE)
            # If the folder was replaced during the wait for the lock, the lock belongs to the old
            # folder. Then the loop locks the new folder at the path.
            if _is_at(folder, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(path: str, descriptor: int) -> bool:
    """Tell whether the file or folder with a descriptor still has the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False
