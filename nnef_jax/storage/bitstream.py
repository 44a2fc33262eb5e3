"""Packs integers of any number of bits into bytes, and unpacks them.

Tensor files of NNEF have integers of any width, the most significant bit first (spec 5.2): the
items 0xABC and 0x123 of 12 bits are the bytes AB C1 23. Zero bits fill the last byte. In other
formats items of fewer than 8 bits fill a byte from its low bits on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16  # items; a multiple of 8, so that each block starts at a byte
# Unpacking takes 1 to 3 ns a bit, and as much as two bits for an item.
BITS_PER_STEP = 200
BITS_FOR_ITEM = 2
CODES_PER_STEP = 256


def packed_size(items: int, bits: int) -> int:
    """Return the number of bytes of packed items."""
    return (items * bits + 7) // 8


def unpack(data: memoryview, items: int, dtype: np.dtype[np.generic], bits: int) -> NDArray[Any]:
    """Unpack items of `bits` bits each into integers of `dtype`; signed ones: two's complement."""
    width = dtype.itemsize * 8
    unsigned = np.dtype(f"u{dtype.itemsize}")
    result: NDArray[Any] = np.empty(items, unsigned)
    for start in range(0, items, _BLOCK):
        block = result[start : start + _BLOCK]
        stored = np.frombuffer(data, np.uint8, packed_size(len(block), bits), start * bits // 8)
        stream = np.unpackbits(stored, count=len(block) * bits).reshape(-1, bits)
        block[:] = 0
        for bit in range(bits):
            block <<= 1
            block |= stream[:, bit]
    if dtype.kind == "i":
        # A shift up, and an arithmetic shift down, fill the upper bits with the sign bit.
        result <<= width - bits
        result = result.view(dtype)
        result >>= width - bits
    return result


def pack(values: NDArray[np.generic], bits: int) -> bytes:
    """Pack integers as items of `bits` bits each. The values must fit: higher bits are dropped."""
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


BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}  # by dtype


def codes_of(
    data: memoryview, bits: int, shape: tuple[int, ...], *, from_high: bool = False
) -> NDArray[np.uint8]:
    """Return the bits of each item as an integer.

    The first item is in the low bits of a byte, or with `from_high` in the high bits. An array of
    an ml_dtypes type of fewer than 8 bits has the same bytes: `codes_of(...).view("int4")`.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    if from_high:
        shifts = shifts[::-1]
    codes = np.frombuffer(data, np.uint8)[:, None] >> shifts
    codes &= 2**bits - 1
    items = math.prod(shape)  # the last byte may have more
    return codes.reshape(-1)[:items].reshape(shape)
