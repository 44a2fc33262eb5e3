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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering import ALIGNMENT
from nnef_jax.errors import ArchiveError
from nnef_jax.storage import files, protected_files

# The magic line, the size and the digest take 64 bytes. This is a multiple of the alignment, so
# data that are aligned in the content are also aligned in the file.
HEADER = 64
_MAGIC = b"nnef_jax checked file 1\n"
_CHUNK = 1 << 20  # The digest has a crc32 for each chunk of this many bytes.
# The size of the content, and the size of a header, are stored in this many bytes.
_LENGTH_BYTES = 8

# The digest is computed by one thread for each core. With more threads, another thread that loads
# machine code at the same time takes 126 ms instead of 105 ms.
_CORES = os.cpu_count()


def write_checked(path: str, parts: Sequence[bytes | memoryview]) -> None:
    """Write a checked file atomically. The joined `parts` are the content of the file.

    The file has a header, which contains a digest of the content, and then the content.
    """
    start = _start(sum(len(part) for part in parts))
    digest = _digest(path, start, parts)
    with files.replacing(path, overwrite=True) as file:
        file.write(start + digest)
        file.writelines(parts)


def read_checked(path: str, *, mapped: bool) -> memoryview | None:
    """Return the content of a checked file, or None if there is no file or its digest is wrong.

    If `mapped` is true, the content is a view of the mapped file. The view changes when the file
    is written to or truncated, so this must not happen. The file may be replaced by renaming
    another file. If `mapped` is false, the content is a copy.
    """
    try:
        with protected_files.without_noting(), files.open_regular(path, ArchiveError) as file:
            file_size = os.fstat(file.fileno()).st_size
            expected_start = _start(max(0, file_size - HEADER))
            if file.read(len(expected_start)) != expected_start:
                # Another program wrote the file, or the file is incomplete.
                return None
            file.seek(0)
            data = files.contents(file) if mapped else memoryview(file.read())
    except (OSError, ValueError):
        # There is no file. `open_regular` raises ArchiveError, a ValueError, for a device.
        return None
    stored_digest = data[len(expected_start) : HEADER].tobytes()
    content = data[HEADER:]
    if stored_digest != _digest(path, expected_start, [content]):
        return None
    return content


def digests_of(arrays: Sequence[NDArray[np.generic]]) -> list[str]:
    """Return the sha256 of the data of each array. For 102 MB this takes 0.05 s on two cores."""

    def digest(array: NDArray[np.generic]) -> str:
        return hashlib.sha256(_bytes(array)).hexdigest()

    with ThreadPoolExecutor(_CORES) as pool:
        return list(pool.map(digest, arrays))


def write_array(path: str, array: NDArray[np.generic]) -> None:
    """Write an array to a checked file, atomically."""
    description = json.dumps((array.dtype.name, array.shape)).encode()
    header = len(description).to_bytes(_LENGTH_BYTES, "little") + description
    padded_header = header.ljust(_aligned(len(header)), b"\0")
    write_checked(path, [padded_header, _bytes(array)])


def read_array(path: str) -> NDArray[Any] | None:
    """Return the array in a checked file, or None if the file is missing or damaged.

    The array is a read-only view of the mapped file.
    """
    content = read_checked(path, mapped=True)
    if content is None:
        return None
    try:
        header_end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        dtype_name, shape = json.loads(bytes(content[_LENGTH_BYTES:header_end]))
        data_start = _aligned(header_end)
        return np.ndarray(shape, np.dtype(dtype_name), content, data_start)
    except Exception:
        # The header may contain anything. numpy may then raise any exception.
        return None


def _aligned(size: int) -> int:
    """Round a number of bytes up to a multiple of the alignment of arrays."""
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


def _bytes(array: NDArray[np.generic]) -> memoryview:
    """Return the bytes of an array in C order, without a copy if the array is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _start(size: int) -> bytes:
    """Return the start of a checked file: the magic line, and the size of the content."""
    return _MAGIC + size.to_bytes(_LENGTH_BYTES, "little")


def _digest(path: str, start: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of a checked file from its name, its start, and its content in parts."""
    name = os.fsencode(os.path.basename(path))
    with ThreadPoolExecutor(_CORES) as pool:
        checksums = list(pool.map(_crc32, _chunks(parts)))
    checksum_bytes = b"".join(checksum.to_bytes(4, "little") for checksum in checksums)
    return hashlib.sha256(start + name + b"\0" + checksum_bytes).digest()


def _crc32(pieces: Iterable[memoryview]) -> int:
    """Return the crc32 of the joined pieces."""
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum


def _chunks(parts: Iterable[bytes | memoryview]) -> Iterator[list[memoryview]]:
    """Divide the joined parts into chunks of one MiB, and yield each chunk as a list of pieces.

    A piece is a part, or a section of a part.
    """
    pieces: list[memoryview] = []  # the pieces of the current chunk
    free_bytes = _CHUNK  # the bytes that the current chunk lacks
    for part in parts:
        remainder = memoryview(part)
        while remainder:
            piece = remainder[:free_bytes]
            remainder = remainder[free_bytes:]
            pieces.append(piece)
            free_bytes -= len(piece)
            if free_bytes == 0:
                yield pieces
                pieces = []
                free_bytes = _CHUNK
    if pieces:
        yield pieces
