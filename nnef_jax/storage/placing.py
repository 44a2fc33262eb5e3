"""Renames complete files and folders to their targets.

Callers check what may be replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from nnef_jax.storage import temporaries

# These are arguments of the system calls that exchange two paths. C calls the first one AT_FDCWD.
_CURRENT_FOLDER = -100
_RENAME_EXCHANGE = 2
_RENAME_SWAP = 2
# A kernel or a file system raises one of these errors if it cannot exchange two names, or cannot
# sync a folder.
_UNABLE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def status(path: str) -> os.stat_result | None:
    """Return the status of a path, or None if it does not exist.

    If the path is a link, the result is the status of the link itself. Raises FileExistsError if
    the path leads to a device, a socket or the like, and not to a file or folder.
    """
    # For a link, `os.stat` returns the status of its target. `os.lstat` returns the status of the
    # link itself.
    for status_of in (os.stat, os.lstat):
        with suppress(FileNotFoundError):
            mode = status_of(path).st_mode
            is_replaceable = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
            if not is_replaceable:
                reason = "is no regular file, and is not replaced"
                raise FileExistsError(errno.EEXIST, reason, path)
    with suppress(FileNotFoundError):
        return os.lstat(path)
    return None


def require_parent(path: str) -> None:
    """Raise FileNotFoundError if the folder that contains a path is missing."""
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        parent = os.path.dirname(path) or os.curdir
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), parent)


def keep_mode(path: str, old: os.stat_result | None) -> None:
    """Give a new file or folder the mode and, if permitted, the owner of the old file or folder.

    `path` is the path of the new file or folder. `old` is the status of the old file or folder, or
    None if there was none. If a file replaces a folder, or a folder replaces a file, nothing is
    changed.
    """
    if old is None:
        return
    new = os.lstat(path)
    is_of_same_kind = stat.S_IFMT(old.st_mode) == stat.S_IFMT(new.st_mode)
    if not is_of_same_kind:
        return
    has_other_owner = (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid)
    if has_other_owner and hasattr(os, "chown"):
        # The group and the user are changed separately, because only one of the two changes may be
        # permitted. -1 leaves an id as it is.
        with suppress(PermissionError):
            os.chown(path, -1, old.st_gid)
        with suppress(PermissionError):
            os.chown(path, old.st_uid, -1)
    os.chmod(path, stat.S_IMODE(old.st_mode))


def place_file(temporary: str, target: str, *, overwrite: bool) -> None:
    """Rename a complete temporary file to its target in one step.

    If `overwrite` is False, an existing target raises FileExistsError. If there is no target, the
    temporary name may remain as a second link to the new file. The caller removes this link.
    """
    if overwrite:
        os.replace(temporary, target)
    else:
        try:
            # A hard link fails if the target exists, whereas a rename would replace the target.
            os.link(temporary, target)
        except FileExistsError:
            raise exists(target) from None
        except OSError:
            # The file system has no hard links.
            if os.path.lexists(target):
                raise exists(target) from None
            os.replace(temporary, target)
    sync_folder(os.path.dirname(target))


def place_folder(temporary: str, target: str, check: Callable[[str], None] | None) -> None:
    """Rename a complete folder to its target, and remove the folder that was at the target.

    `check` is called with the path of the old folder, and raises an error if the old folder must
    stay. If `check` is None, only an empty folder is replaced. On most file systems, Linux and
    macOS exchange the names of the new and the old folder in one step. Elsewhere the old folder is
    first renamed to TARGET.replaced-HEX, so for a moment there is no folder at the target.
    """
    try:
        # A rename of a folder can replace an empty folder, and nothing else.
        os.rename(temporary, target)
    except OSError as error:
        # These three errors mean that the target is not an empty folder.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        if check is None:
            raise exists(target) from None
        with temporaries.locked(target):
            _swap(temporary, target, check)
            sync_folder(os.path.dirname(target))
            temporaries.remove(temporary)
    else:
        sync_folder(os.path.dirname(target))


def _swap(temporary: str, target: str, check: Callable[[str], None]) -> None:
    """Exchange the names of two folders, unless `check` raises an error for the old folder.

    The old folder is at `target`, and the new folder is at `temporary`.
    """
    check(target)
    if _exchange(temporary, target):
        try:
            # The old folder is now at `temporary`. Another process may have added files to it after
            # the first check, so the check is repeated.
            check(temporary)
        except BaseException:
            _exchange(temporary, target)
            raise
        return
    # The system cannot exchange two names. The old folder is first renamed to a third path, and
    # then the new folder gets the path of the old one.
    third_path = f"{target}.replaced-{secrets.token_hex(4)}"
    os.rename(target, third_path)
    try:
        check(third_path)
        os.rename(temporary, target)
    except BaseException:
        os.rename(third_path, target)
        raise
    # The caller expects the old folder at `temporary`.
    os.rename(third_path, temporary)


def _exchange(first_path: str, second_path: str) -> bool:
    """Exchange the names of two files or folders in one step.

    Returns False if the system or the file system cannot do so.
    """
    exchange = _exchanger()
    if exchange is None:
        return False
    if exchange(os.fsencode(first_path), os.fsencode(second_path)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), second_path)


@cache
def _exchanger() -> Callable[[bytes, bytes], int] | None:
    """Return the system's function that exchanges two paths, or None if the system has none.

    The function returns 0 if it succeeds.
    """
    try:
        # None stands for the libraries that the process has loaded, with the C library among them.
        system: Any = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):
        # Windows has no such library.
        return None

    def exchange_on_linux(first: bytes, second: bytes) -> int:
        return system.renameat2(_CURRENT_FOLDER, first, _CURRENT_FOLDER, second, _RENAME_EXCHANGE)

    def exchange_on_macos(first: bytes, second: bytes) -> int:
        return system.renamex_np(first, second, _RENAME_SWAP)

    if hasattr(system, "renameat2"):
        return exchange_on_linux
    if hasattr(system, "renamex_np"):
        return exchange_on_macos
    return None


def sync_folder(path: str) -> None:
    """Make sure that the names in a folder are on the disk, if the system can do so."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        # Windows cannot open a folder. On other systems the user may not read the folder's names.
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    finally:
        os.close(descriptor)


def exists(path: str) -> FileExistsError:
    """Return a FileExistsError for a path that exists already."""
    reason = "exists already (--overwrite replaces it, overwrite=True in Python)"
    return FileExistsError(errno.EEXIST, reason, path)


@contextmanager
def naming(path: str) -> Generator[None]:
    """Replace the name of a temporary file by `path` in the system errors of the block.

    Also give the name `path` to system errors that have no name of a file.
    """
    try:
        yield
    except OSError as error:
        file_name = os.fsdecode(error.filename or "")
        is_temporary = temporaries.NAME.search(file_name) is not None
        names_other_file = file_name and not is_temporary
        if error.errno is None or names_other_file:
            raise
        raise OSError(error.errno, error.strerror, path) from error
