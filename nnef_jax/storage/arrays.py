"""Arrays that a device can take as they are, in memory and in a mapped file of some of them.

The file:

magic line, length of the index in 8 bytes (little endian), the index as JSON: dtype, shape and
offset of each array from where the data start; data, each array at a multiple of 64
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import ArchiveError
from nnef_jax.storage import files

_MAGIC = b"nnef_jax arrays 1\n"
_ALIGNMENT = 64


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A new array at an address from which a CPU device takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.__array_interface__["data"][0] % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def digest_of(arrays: Sequence[NDArray[Any]]) -> str:
    """The sha256 of what arrays hold (102 MB in 0.05 s on two cores)."""

    def digest(array: NDArray[Any]) -> bytes:
        return hashlib.sha256(_bytes(array)).digest()

    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(digest, arrays))).hexdigest()


def write_arrays(path: str, arrays: Sequence[NDArray[Any]]) -> None:
    """Write a file of arrays, all of it or nothing."""
    index: list[tuple[str, tuple[int, ...], int]] = []
    offset = 0
    for array in arrays:
        index.append((array.dtype.name, array.shape, offset))
        offset = _aligned(offset + array.nbytes)
    head = json.dumps(index).encode()
    with files.replacing(path) as file:
        file.write(_MAGIC + len(head).to_bytes(8, "little") + head)
        for array, (_, _, offset) in zip(arrays, index, strict=True):
            file.seek(_start(head) + offset)
            file.write(_bytes(array))
        file.truncate(max(file.tell(), _start(head)))


def read_arrays(path: str) -> list[NDArray[Any]] | None:
    """The arrays of a file, mapped and read-only; None where there is no such file or it is broken.

    Whether the data are still those that were written is not looked at.
    """
    try:
        with files.open_regular(path, ArchiveError, follow=False) as file:
            data = files.contents(file)
        start = len(_MAGIC) + 8
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            return None
        head = bytes(data[start : start + int.from_bytes(data[len(_MAGIC) : start], "little")])
        return [
            np.ndarray(shape, np.dtype(dtype), data, _start(head) + offset)
            for dtype, shape, offset in json.loads(head)
        ]
    except (OSError, ValueError, TypeError):  # ArchiveError is a ValueError
        return None


def _start(head: bytes) -> int:
    return _aligned(len(_MAGIC) + 8 + len(head))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
