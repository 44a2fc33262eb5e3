"""Packs integers of any number of bits into bytes, and reads them.

The tensor files of NNEF have them of any width, the most significant bit first (spec 5.2): items
0xABC and 0x123 of 12 bits are the bytes AB C1 23. Zero bits fill the last byte. Other formats have
items of fewer than 8 bits that follow each other from the low bits of a byte on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16  # items at a time: a multiple of 8, so that each block starts at a byte
# Unpacking takes 1 to 3 ns for a bit, and for an item as long as for two bits more.
BITS_PER_STEP = 200
BITS_FOR_ITEM = 2
CODES_PER_STEP = 256


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


BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}  # by dtype


def codes_of(
    data: memoryview, bits: int, shape: tuple[int, ...], *, from_high: bool = False
) -> NDArray[np.uint8]:
    """Return the bits of items as whole numbers; they may begin with the high ones of a byte.

    Items of ml_dtypes of fewer than 8 bits have the same bytes: `codes_of(...).view("int4")`.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = np.frombuffer(data, np.uint8)[:, None] >> (shifts[::-1] if from_high else shifts)
    codes &= 2**bits - 1
    return codes.reshape(-1)[: math.prod(shape)].reshape(shape)
