"""Packs integers of any number of bits into bytes, and unpacks them.

Tensor files of NNEF can have integers of any width, with the most significant bit first (spec 5.2).
For example, the 12-bit items 0xABC and 0x123 are stored as the bytes AB C1 23. Zero bits fill up
the last byte. In other formats, items of fewer than 8 bits fill each byte from its low bits on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# This many items are unpacked at a time. The number is a multiple of 8, so that each block starts
# at a byte.
_BLOCK_ITEMS = 1 << 16
# Unpacking an item of n bits takes the time of n + 2 bits, at 1 to 3 ns for each bit.
# The work for 200 bits counts as one step of the meter.
BITS_PER_STEP = 200
BITS_FOR_ITEM = 2
CODES_PER_STEP = 256  # Unpacking this many codes by `codes_of` counts as one step of the meter.


def packed_size(items: int, bits: int) -> int:
    """Return the number of bytes that packed items take."""
    return (items * bits + 7) // 8  # A byte that is not full counts too.


def unpack(data: memoryview, items: int, dtype: np.dtype[np.generic], bits: int) -> NDArray[Any]:
    """Unpack items of `bits` bits each into an array of `items` integers of the type `dtype`.

    Signed items are stored in two's complement.
    """
    unsigned_dtype = np.dtype(f"u{dtype.itemsize}")
    integers: NDArray[Any] = np.empty(items, unsigned_dtype)
    for start in range(0, items, _BLOCK_ITEMS):
        # The block is a view, so the loop below writes into `integers`.
        block = integers[start : start + _BLOCK_ITEMS]
        first_byte = start * bits // 8
        stored = np.frombuffer(data, np.uint8, packed_size(len(block), bits), first_byte)
        # Each row has the bits of an item. The first column has the most significant bits.
        bits_of_items = np.unpackbits(stored, count=len(block) * bits).reshape(-1, bits)
        block[:] = 0
        # The integer with the bits 1, 0 and 1 is ((1 * 2) + 0) * 2 + 1.
        for position in range(bits):
            block <<= 1
            block |= bits_of_items[:, position]
    if dtype.kind == "i":
        # With 4 bits, 1111 is -1, which is 11111111 in 8 bits. A shift up by 4 bits gives 11110000.
        # The shift down of a signed integer then copies the sign bit into the upper bits.
        upper_bits = dtype.itemsize * 8 - bits
        integers <<= upper_bits
        signed_integers: NDArray[Any] = integers.view(dtype)
        signed_integers >>= upper_bits
        return signed_integers
    return integers


def pack(values: NDArray[np.generic], bits: int) -> bytes:
    """Pack integers as items of `bits` bits each.

    The values must fit into `bits` bits, because higher bits are dropped.
    """
    flat = values.reshape(-1)
    unsigned = flat.view(f"u{flat.dtype.itemsize}")
    blocks: list[bytes] = []
    for start in range(0, flat.size, _BLOCK_ITEMS):
        block = unsigned[start : start + _BLOCK_ITEMS]
        # Each row has the bits of an item. The first column has the most significant bits.
        bits_of_items = np.empty((block.size, bits), np.uint8)
        for position in range(bits):
            shift = bits - 1 - position
            bits_of_items[:, position] = (block >> shift) & 1
        blocks.append(np.packbits(bits_of_items).tobytes())
    return b"".join(blocks)


# Maps each dtype of fewer than 8 bits to the number of bits of an item.
BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}


def codes_of(
    data: memoryview, bits: int, shape: tuple[int, ...], *, from_high: bool = False
) -> NDArray[np.uint8]:
    """Unpack items of `bits` bits each, and return the bits of each item as an unsigned integer.

    `bits` is 1, 2 or 4, and `shape` is the shape of the result. Each byte of `data` has several
    items. The first of these items is in the low bits of the byte, or in the high bits if
    `from_high` is true. The result has one byte for each item. ml_dtypes also stores one byte for
    each item of a type such as "int4", so `codes_of(...).view("int4")` has the items as numbers.
    """
    # For items of 2 bits the shifts are 0, 2, 4 and 6.
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    if from_high:
        shifts = shifts[::-1]
    stored_bytes = np.frombuffer(data, np.uint8)
    codes = stored_bytes[:, None] >> shifts  # Each row has the codes of one byte.
    mask_of_item = 2**bits - 1
    codes &= mask_of_item
    # The last byte may contain codes beyond the last item. These codes are cut off.
    item_count = math.prod(shape)
    return codes.reshape(-1)[:item_count].reshape(shape)
