"""Items of fewer than 8 bits that follow each other from the low bits of a byte on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}  # by dtype


def codes_of(
    data: memoryview, bits: int, shape: tuple[int, ...], *, from_high: bool = False
) -> NDArray[np.uint8]:
    """Return the bits of items as whole numbers; they may begin with the high ones of a byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    stored = np.frombuffer(data, np.uint8)[:, None] >> (shifts[::-1] if from_high else shifts)
    return (stored & (2**bits - 1)).reshape(-1)[: math.prod(shape)].reshape(shape)


def as_items(codes: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return items of a dtype, given their bits."""
    if dtype.startswith("int"):
        sign = 1 << BITS[dtype] - 1
        return ((codes ^ sign).astype(np.int8) - sign).astype(dtype)
    return codes.view(dtype) if dtype.startswith("float") else codes.astype(dtype)
