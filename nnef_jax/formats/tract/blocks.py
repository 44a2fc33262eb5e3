"""Block-quantised weights: 32 numbers at a time with their own scale, as ggml stores them.

    Q4_0    18 bytes: scale in float16, then 32 codes of 4 bits, two in each of 16 bytes;
            number = (code - 8) * scale. The low halves are the first 16 codes and the high halves
            the others; in the older order of tract, byte j has codes 2j (low) and 2j + 1 (high).
    Q8_1    36 bytes: scale in float16, scale times the sum of the codes in float16, then 32 signed
            codes of 8 bits; number = code * scale.

Source: ggml's block formats; the item types are tract's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import DataError

BLOCK = 32  # numbers in a block
_HALF = BLOCK // 2
_Codes = NDArray[np.uint8]
_Reals = NDArray[np.float32]
# A scale is the largest number divided by the code of that number; ggml's comes first.
_LARGEST_CODES = np.array([-8, 7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1], np.float32)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of blocks; `decode` and `encode` take and give blocks along axis 0."""

    name: str
    bytes: int
    decode: Callable[[_Codes], _Reals]
    encode: Callable[[_Reals], _Codes]


def decode(data: memoryview, format: BlockFormat) -> _Reals:
    """Return the numbers of whole blocks, [items]."""
    blocks = np.frombuffer(data, np.uint8).reshape(-1, format.bytes)
    with np.errstate(invalid="ignore"):  # an infinite scale times 0
        return format.decode(blocks).reshape(-1)


def encode(values: NDArray[Any], format: BlockFormat) -> bytes:
    """Return blocks of numbers, a multiple of 32, as near as can be; lossless for decoded Q4_0.

    Raises DataError for numbers that are not finite or too large for a scale in float16.
    """
    blocks = np.asarray(values, np.float32).reshape(-1, BLOCK)
    if not np.all(np.abs(blocks) < np.finfo(np.float16).max):
        raise DataError(f"numbers beyond those of float16 cannot be stored as {format.name}")
    return format.encode(blocks).tobytes()


def _half(blocks: _Codes, start: int) -> _Reals:
    """Read a float16 of each block, [blocks, 1]."""
    return blocks[:, start : start + 2].copy().view("<f2").astype(np.float32)


def _bytes(halves: _Reals) -> _Codes:
    return halves.astype("<f2").reshape(-1, 1).view(np.uint8)


def _decode_q4_0(blocks: _Codes) -> _Reals:
    pairs = blocks[:, 2:]
    values = np.empty((len(blocks), BLOCK), np.float32)
    values[:, :_HALF] = pairs & 15
    values[:, _HALF:] = pairs >> 4
    values -= 8
    values *= _half(blocks, 0)
    return values


def _decode_old_q4_0(blocks: _Codes) -> _Reals:
    values = _decode_q4_0(blocks)
    return values.reshape(-1, 2, _HALF).swapaxes(1, 2).reshape(-1, BLOCK)


def _encode_q4_0(blocks: _Reals) -> _Codes:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, np.newaxis], 1)
    best, scales = np.full((len(blocks), 1), np.inf, np.float32), np.zeros_like(largest)
    codes = np.full(blocks.shape, 8, np.uint8)
    for code in _LARGEST_CODES:
        scale = (largest / code).astype(np.float16).astype(np.float32)
        tried = np.rint(blocks / np.where(scale == 0, 1, scale)).clip(-8, 7)
        error = np.square(tried * scale - blocks).sum(1, keepdims=True)
        better = error < best
        best, scales = np.where(better, error, best), np.where(better, scale, scales)
        codes = np.where(better, (tried + 8).astype(np.uint8), codes)
    pairs: _Codes = codes[:, :_HALF] + 16 * codes[:, _HALF:]
    return np.concatenate([_bytes(scales), pairs], 1)


def _encode_old_q4_0(blocks: _Reals) -> _Codes:
    return _encode_q4_0(blocks.reshape(-1, _HALF, 2).swapaxes(1, 2).reshape(-1, BLOCK))


def _decode_q8_1(blocks: _Codes) -> _Reals:
    return blocks[:, 4:].view(np.int8) * _half(blocks, 0)


def _encode_q8_1(blocks: _Reals) -> _Codes:
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    codes = np.rint(blocks / np.where(scale == 0, 1, scale)).clip(-127, 127)
    total = scale * codes.sum(1, keepdims=True)
    return np.concatenate([_bytes(scale), _bytes(total), codes.astype(np.int8).view(np.uint8)], 1)


Q4_0 = BlockFormat("q4_0", 18, _decode_q4_0, _encode_q4_0)
OLD_Q4_0 = BlockFormat("q4_0", 18, _decode_old_q4_0, _encode_old_q4_0)
Q8_1 = BlockFormat("q8_1", 36, _decode_q8_1, _encode_q8_1)

# By the item types of vendor 'TR'. tract writes Q8_1 under another number than it reads.
FORMATS = {0x3040: Q4_0, 0x2040: OLD_Q4_0, 0x3080: Q8_1, 0x3081: Q8_1}
