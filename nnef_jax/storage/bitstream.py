"""Integers of any width as one stream of bits, the most significant first (spec 5.2).

Items 0xABC and 0x123 of 12 bits are the bytes AB C1 23. Zero bits fill the last byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16  # items at a time: a multiple of 8, so that each block starts at a byte
# Unpacking takes 1 to 3 ns for a bit, and for an item as long as for two bits more.
BITS_PER_STEP = 200
BITS_FOR_ITEM = 2


def packed_size(items: int, bits: int) -> int:
    """Return how many bytes some items take."""
    return (items * bits + 7) // 8


def unpack(data: memoryview, items: int, dtype: np.dtype[Any], bits: int) -> NDArray[Any]:
    """Read `items` items of `bits` bits each into integers of `dtype`, by two's complement."""
    width = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")
    result = np.empty(items, unsigned)
    for start in range(0, items, _BLOCK):
        block = result[start : start + _BLOCK]
        stored = np.frombuffer(data, np.uint8, packed_size(len(block), bits), start * bits // 8)
        stream = np.unpackbits(stored, count=len(block) * bits).reshape(-1, bits)
        block[:] = 0
        for bit in range(bits):
            block <<= 1
            block |= stream[:, bit]
    if dtype.kind == "i":
        # Shifted up and down again, the sign bit fills the upper ones.
        result <<= width - bits
        result = result.view(dtype)
        result >>= width - bits
    return result


def pack(values: NDArray[Any], bits: int) -> bytes:
    """Write integers, which must fit, as items of `bits` bits each."""
    flat = values.reshape(-1)
    unsigned = flat.view(f"u{flat.dtype.itemsize}")
    blocks: list[bytes] = []
    for start in range(0, flat.size, _BLOCK):
        block = unsigned[start : start + _BLOCK]
        stream = np.empty((block.size, bits), np.uint8)
        for bit in range(bits):
            stream[:, bit] = (block >> (bits - 1 - bit)) & 1
        blocks.append(np.packbits(stream).tobytes())
    return b"".join(blocks)
