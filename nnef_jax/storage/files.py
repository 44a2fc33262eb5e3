"""Reading and replacing files: regular ones only, never blocking, never half written."""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import NnefError

# A map keeps a file descriptor for as long as an array looks into it, so small files are read.
MAP_FROM = 1 << 20
_CHUNK = 1 << 20

# What can be read: a path, bytes, or a file object.
Readable = str | os.PathLike[Any] | bytes | bytearray | memoryview | BinaryIO

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def open_regular(path: str, error: type[NnefError], *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading; `error` says what else it is. `OSError` passes through.

    With `follow` off the last part of the path must not be a symbolic link.
    """
    # Asked before opening, because opening a device can do something; and again afterwards,
    # because another process may have put something else there.
    _require_regular(os.stat(path).st_mode, path, error)
    flags = _FLAGS if follow else _FLAGS | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    try:
        _require_regular(os.fstat(descriptor).st_mode, path, error)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(mode: int, path: str, error: type[NnefError]) -> None:
    if not stat.S_ISREG(mode):
        kind = next((words for test, words in _KINDS if test(mode)), "no regular file")
        raise error(f"'{path}' is {kind}; only regular files are read")


class _FileMap(mmap.mmap):
    """A map whose pages can be had from the file again."""


def contents(file: BinaryIO, *, map_from: int = MAP_FROM) -> memoryview:
    """The bytes of an open file, read-only: a memory map for `map_from` bytes and more, else read.

    The file may be closed afterwards, renamed or deleted. A mapped file must not be written to, and
    not be cut short, while it is in use.
    """
    size = os.fstat(file.fileno()).st_size
    if size < max(1, map_from):
        return memoryview(file.read(size))
    return memoryview(_FileMap(file.fileno(), size, access=mmap.ACCESS_READ))


def release(array: NDArray[Any]) -> None:
    """Give back the memory behind an array that looks into a mapped file, until it is read again.

    Does nothing for any other array. Pages that the array shares with others are kept.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else None
    if not isinstance(mapped, _FileMap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = _address(array) - _address(np.frombuffer(mapped, np.uint8))
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]


def sibling(path: str) -> str:
    """A new name in the folder of `path`, for what is renamed to `path` once it is complete."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(folder, f".{name[:100]}.{secrets.token_hex(8)}")


@contextmanager
def replacing(path: str) -> Generator[BinaryIO]:
    """A file that takes the place of `path` when the block ends, and is removed when it raises."""
    temporary = sibling(path)
    # Not by the tempfile module, whose files nobody else may read.
    with open(temporary, "xb") as file:
        try:
            yield file
            file.close()
            os.replace(temporary, path)
        except BaseException:
            file.close()
            os.unlink(temporary)
            raise


def bytes_of(source: Any, limit: int) -> memoryview | None:
    """Something bytes-like as it is, or what is left to read in a binary file object.

    The file object need not be seekable; None where it holds more than `limit` bytes.
    """
    try:
        return memoryview(source).cast("B").toreadonly()
    except TypeError:
        if not hasattr(source, "read"):
            raise TypeError(
                f"expected a path, bytes or a binary file, not {type(source).__name__}"
            ) from None
    data = bytearray()
    while chunk := source.read(_CHUNK):
        if isinstance(chunk, str):
            raise TypeError(f"{source!r} reads text: open it in binary mode")
        data += chunk
        if len(data) > limit:
            return None
    return memoryview(data).toreadonly()
