"""Reads regular files without blocking, and replaces files atomically."""

from __future__ import annotations

import errno
import math
import mmap
import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import DataError, LimitError, NnefError
from nnef_jax.limits import Meter, within_memory
from nnef_jax.storage import placing, protected_files, temporaries

try:
    import resource
except ImportError:
    # Windows has no module `resource`. On Windows a map takes no file descriptor.
    resource = None

# A file of at least this many bytes is mapped, and a smaller file is read. A map takes a page
# table, and before Python 3.13 also a file descriptor.
MAP_FROM = 1 << 20
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_CHUNK = 1 << 20  # A file object is read in chunks of this many bytes.

Readable = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(
    path: str,
    error: type[NnefError],
    *,
    follow: bool = True,
    folder: int | None = None,
    shown: str = "",
) -> BinaryIO:
    """Open a regular file for reading. The file is noted as an input (see `protected_files`).

    Args:
        path: the path. If it is relative, it starts at `folder`.
        error: the class of the error for a path that is not a regular file.
        follow: whether the last part of the path may be a symbolic link.
        folder: the descriptor of the folder at which a relative path starts, by default the current
            folder.
        shown: the file's name in errors, by default the path.
    """
    shown = shown or path
    # The file is checked before it is opened, because opening a device may have effects.
    status_before = os.stat(path, dir_fd=folder, follow_symlinks=follow)
    _require_regular(status_before.st_mode, shown, error)
    flags = _FLAGS if follow else _FLAGS | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        # Another file may have got the path between the check and the opening, so the opened file
        # is checked again.
        status = os.fstat(descriptor)
        _require_regular(status.st_mode, shown, error)
        protected_files.note(status)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(mode: int, path: str, error: type[NnefError]) -> None:
    """Raise `error` if a file is not a regular file. `mode` is the mode of the file."""
    if stat.S_ISREG(mode):
        return
    for is_of_kind, kind in _KINDS:
        if is_of_kind(mode):
            raise error(f"'{path}' is {kind}; only regular files are read")
    raise error(f"'{path}' is no regular file; only regular files are read")


@contextmanager
def reported(shown: str, error: type[NnefError]) -> Generator[None]:
    """Convert system errors of the block to `error`, and a MemoryError to a LimitError.

    FileNotFoundError and the errors of this package pass unchanged. `shown` is the file's name in
    the message.
    """
    try:
        yield
    except (FileNotFoundError, NnefError):
        raise
    except MemoryError:
        raise LimitError(f"'{shown}' does not fit into memory") from None
    except (OSError, ValueError) as system_error:
        # Python raises ValueError for a name that no file can have, such as one with NUL.
        reason = getattr(system_error, "strerror", None) or system_error
        raise error(f"'{shown}' cannot be read: {reason}") from None


class _FileMap(mmap.mmap):
    """A memory map of a file.

    `release` may free pages of the map, since the system can read them again.
    """


def contents(file: BinaryIO, meter: Meter | None = None, name: str = "") -> memoryview:
    """Return the bytes of an open file as a read-only view.

    A file of `MAP_FROM` bytes or more is mapped, and a smaller file is read. The meter counts the
    bytes of a file that is read, but not of a mapped file. `name` is the file's name in errors of
    the meter. After the call the file may be closed, renamed or deleted. A mapped file must not be
    changed while its bytes are in use. Raises MemoryError and OSError if the file cannot be read.
    """
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    if size < MAP_FROM or not _may_map(descriptor):
        if meter is not None:
            meter.expand(size, name)
        return memoryview(file.read(size))
    try:
        return memoryview(_FileMap(descriptor, size, access=mmap.ACCESS_READ, **_UNTRACKED))
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError from None
        raise


def contents_of(
    source: Readable, meter: Meter, name: str, error: type[NnefError]
) -> tuple[str, memoryview]:
    """Return the name of a source for errors, and the bytes of the source.

    The name is the path of a file. A source without a path, such as bytes, gets the name `name`.
    Raises `error` for a path that is not a regular file, or cannot be read.
    """
    if not isinstance(source, str | os.PathLike):
        # A file object may have no name, or the number of a descriptor as its name.
        file_name = getattr(source, "name", None)
        source_name = file_name if isinstance(file_name, str) else name
        return source_name, bytes_of(source, meter, source_name)
    path = os.fsdecode(source)
    with reported(path, error), open_regular(path, error) as file:
        return path, contents(file, meter, path)


@contextmanager
def within_limits(path: str) -> Generator[tuple[memoryview, Meter]]:
    """Yield the bytes of an input's file, and a meter for decoding them within `Limits`.

    Raises DataError if the path is not a file. If the block exceeds the limits, raises a LimitError
    that names the file.
    """
    meter = Meter()
    try:
        with within_memory(path), open_regular(path, DataError) as file:
            yield contents(file, meter, path), meter
    except LimitError:
        bounds = f"{meter.limits.expanded_bytes} bytes and {meter.limits.steps} steps"
        raise LimitError(f"{path}: an input may take at most {bounds} to read") from None


def _may_map(descriptor: int) -> bool:
    """Tell whether a file may be mapped: whether a quarter of the process's descriptors is unused.

    A new descriptor gets the lowest unused number. So the number of a new descriptor shows how many
    descriptors are in use.
    """
    # From Python 3.13 on, and on Windows, a map takes no descriptor.
    if _UNTRACKED or resource is None:
        return True
    limit, _hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest_unused = os.dup(descriptor)
    except OSError:
        # All descriptors are in use.
        return False
    os.close(lowest_unused)
    return limit == resource.RLIM_INFINITY or lowest_unused < limit * 3 // 4


def release(array: NDArray[np.generic]) -> None:
    """Free the memory of an array in a mapped file; the next access reads the file again.

    An array that is not in a mapped file is ignored.
    """
    # The base of a view is another array. The last array in this chain is no view of an array, and
    # its base is the memory of the map.
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, memoryview) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    file_map = base.obj
    if not isinstance(file_map, _FileMap):
        return
    # `start` and `end` are the offsets of the array in the file, in bytes.
    start = _address(array) - _address(np.frombuffer(file_map, np.uint8))
    end = start + array.nbytes
    # Other arrays may use parts of the array's first page and last page. So only pages that lie
    # entirely within the array are freed.
    first_page = math.ceil(start / mmap.PAGESIZE)
    end_page = end // mmap.PAGESIZE
    if end_page > first_page:
        size = (end_page - first_page) * mmap.PAGESIZE
        file_map.madvise(mmap.MADV_DONTNEED, first_page * mmap.PAGESIZE, size)


def _address(array: NDArray[np.generic]) -> int:
    """Return the address of an array's first item."""
    address, _is_read_only = array.__array_interface__["data"]
    return address


def check_target(path: str, *, overwrite: bool) -> os.stat_result | None:
    """Raise the error that `replacing` would raise. Return the old file's status, or None.

    If the path is a link, the result is the status of the link itself. Raises FileNotFoundError if
    the folder of the path is missing.
    """
    placing.require_parent(path)
    old_status = placing.status(os.path.abspath(path))
    if old_status and not overwrite:
        raise placing.exists(path)
    if old_status and stat.S_ISDIR(old_status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    protected_files.require_other(path)
    return old_status


@contextmanager
def replacing(path: str, *, overwrite: bool = False) -> Generator[BinaryIO]:
    """Open a temporary file for the block, and put it in the place of `path` after the block.

    The new file is then complete and on the disk, and has the mode of the old file. If the block
    raises an error or the process is killed, the old file stays. If the path is a link, the link
    itself is replaced. Temporary files that killed processes left in the folder are removed when
    the next file is written into the folder.

    Raises:
        FileExistsError: the path is a device, a fifo or a socket; the path exists and `overwrite`
            is False; or the same command reads the file (`protected_files`).
        IsADirectoryError: the path is a folder.
        OSError: the disk is full. The error has the path.
    """
    target = os.path.abspath(path)
    old_status = check_target(path, overwrite=overwrite)
    # The mode of the old file may forbid other users to read it. A private temporary file can be
    # read by this user only, until it gets the mode of the old file.
    is_private = old_status is not None and stat.S_ISREG(old_status.st_mode)
    temporary = temporaries.temporary_file(target, private=is_private)
    with placing.naming(path), temporary as (temporary_path, file):
        yield file
        file.flush()
        os.fsync(file.fileno())
        if os.name == "nt":
            # Windows cannot rename an open file. On other systems the file stays open, because
            # closing it would free its lock. On Windows there are no locks.
            file.close()
        placing.keep_mode(temporary_path, old_status)
        # The block may have read the file at the path. The path is therefore checked again.
        protected_files.require_other(path)
        placing.place_file(temporary_path, target, overwrite=overwrite)


def bytes_of(source: Any, meter: Meter, name: str) -> memoryview:
    """Return the bytes of a buffer, or all bytes that are left in a binary file.

    Raises LimitError if the file has more bytes than the meter allows.
    """
    try:
        return memoryview(source).cast("B").toreadonly()
    except TypeError:
        # The source is no buffer, but it may be a file.
        if not hasattr(source, "read"):
            raise TypeError(
                f"expected a path, bytes or a binary file, not {type(source).__name__}"
            ) from None
    data = bytearray()
    while True:
        chunk = source.read(_CHUNK)
        if not chunk:
            return memoryview(data).toreadonly()
        if isinstance(chunk, str):
            raise TypeError(f"{source!r} reads text: open it in binary mode")
        meter.expand(len(chunk), name)
        data += chunk
