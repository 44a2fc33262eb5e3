"""Writes and reads files that carry a digest of their content and of their name.

A file consists of:

    magic line             24 bytes
    size of the content     8 bytes, little endian
    digest                 32 bytes
    content

The digest is the sha256 of the magic line, the size, the file's name, and the crc32 of each MiB of
the content. A change of any byte, or of the name, changes the digest.

A crc32 detects every error of up to 32 bits in a row, and misses one in 4 billion of all other
errors. The digest protects from accidents only, because an attacker can change the digest too. On
two cores the digest of 100 MB takes 0.025 s, and a sha256 of the content itself would take 0.042 s.
xxh3 would take 0.007 s, but is not in the standard library.

If the file stores an array, a device can use the array in the mapped file without a copy. The
content of such a file consists of:

    size of the header      8 bytes, little endian
    header                 JSON: dtype and shape, padded with zeros to a multiple of 64 bytes
    data
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import ALIGNMENT
from nnef_jax.errors import ArchiveError
from nnef_jax.storage import files, protected_files

HEADER = 64  # in bytes; a multiple of the alignment, so that aligned data stay aligned in the file
_MAGIC = b"nnef_jax checked file 1\n"
_CHUNK = 1 << 20  # in bytes
_LENGTH_BYTES = 8  # in which the size of the content, and the size of a header, are stored

# The number of threads. More threads than cores would delay the thread that loads machine code: it
# would take 126 ms instead of 105 ms.
_CORES = os.cpu_count()


def write_checked(path: str, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file atomically, with a digest of its content. The content is the joined parts."""
    start = _start(sum(len(part) for part in parts))
    digest = _digest(path, start, parts)
    with files.replacing(path, overwrite=True) as file:
        file.write(start + digest)
        file.writelines(parts)


def read_checked(path: str, *, mapped: bool) -> memoryview | None:
    """Return the content of a file, or None if there is no file or its digest is wrong.

    If `mapped` is true, the content is a view of the mapped file, and changes with it. The file
    may be replaced by renaming, but must not be written to or truncated. Otherwise the content
    is a copy.
    """
    try:
        with protected_files.without_noting(), files.open_regular(path, ArchiveError) as file:
            start = _start(max(0, os.fstat(file.fileno()).st_size - HEADER))
            if file.read(len(start)) != start:  # The file may be another one, of any size.
                return None
            file.seek(0)
            data = files.contents(file) if mapped else memoryview(file.read())
    except (OSError, ValueError):  # ArchiveError is a ValueError.
        return None
    content = data[HEADER:]
    stored_digest = data[len(start) : HEADER].tobytes()
    return content if stored_digest == _digest(path, start, [content]) else None


def digests_of(arrays: Sequence[NDArray[np.generic]]) -> list[str]:
    """Return the sha256 of the data of each array. For 102 MB this takes 0.05 s on two cores."""

    def digest(array: NDArray[np.generic]) -> str:
        return hashlib.sha256(_bytes(array)).hexdigest()

    with ThreadPoolExecutor(_CORES) as pool:
        return list(pool.map(digest, arrays))


def write_array(path: str, array: NDArray[np.generic]) -> None:
    """Write an array to a checked file, atomically."""
    head = json.dumps((array.dtype.name, array.shape)).encode()
    start = len(head).to_bytes(_LENGTH_BYTES, "little") + head
    padded_start = start.ljust(_aligned(len(start)), b"\0")
    write_checked(path, [padded_start, _bytes(array)])


def read_array(path: str) -> NDArray[Any] | None:
    """Return the array in a checked file, or None if the file is missing or damaged.

    The array is a read-only view of the mapped file.
    """
    content = read_checked(path, mapped=True)
    if content is None:
        return None
    try:
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        dtype, shape = json.loads(bytes(content[_LENGTH_BYTES:end]))
        return np.ndarray(shape, np.dtype(dtype), content, _aligned(end))
    except Exception:  # numpy may raise any exception for a corrupt header.
        return None


def _aligned(size: int) -> int:
    """Return a number of bytes, rounded up to a multiple of the alignment of arrays."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


def _bytes(array: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _start(size: int) -> bytes:
    return _MAGIC + size.to_bytes(_LENGTH_BYTES, "little")


def _digest(path: str, start: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    name = os.fsencode(os.path.basename(path))
    with ThreadPoolExecutor(_CORES) as pool:
        sums = b"".join(crc.to_bytes(4, "little") for crc in pool.map(_crc32, _chunks(parts)))
    return hashlib.sha256(start + name + b"\0" + sums).digest()


def _crc32(pieces: Iterable[memoryview]) -> int:
    return reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)


def _chunks(parts: Iterable[bytes | memoryview]) -> Iterator[list[memoryview]]:
    """Divide the joined parts into chunks of one MiB, and yield each chunk as a list of pieces.

    A piece is a part, or a section of a part.
    """
    pieces: list[memoryview] = []
    free = _CHUNK
    for part in parts:
        remainder = memoryview(part)
        while remainder:
            piece = remainder[:free]
            remainder = remainder[free:]
            pieces.append(piece)
            free -= len(piece)
            if not free:
                yield pieces
                pieces = []
                free = _CHUNK
    if pieces:
        yield pieces
