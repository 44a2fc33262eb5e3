"""Items of fewer than 8 bits: which bits of a byte the first of them has, and their signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnef_jax.storage.bitstream import codes_of

BYTES = memoryview(bytes([0b1110_0001, 0b0000_1000]))


@pytest.mark.parametrize(
    ("bits", "from_high", "wanted"),
    [
        (1, False, [1, 0, 0, 0, 0, 1, 1, 1, 0]),
        (1, True, [1, 1, 1, 0, 0, 0, 0, 1, 0]),
        (2, False, [1, 0, 2, 3, 0, 2]),
        (4, False, [1, 14, 8]),
    ],
)
def test_order(bits: int, from_high: bool, wanted: list[int]) -> None:
    shape = (len(wanted), 1)
    found = codes_of(BYTES, bits, shape, from_high=from_high)
    np.testing.assert_array_equal(found, np.reshape(wanted, shape))


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("int4", [1, -2, -8]),
        ("uint4", [1, 14, 8]),
        ("float4_e2m1fn", [0.5, -4.0, -0.0]),  # a sign, two bits of exponent, one of mantissa
    ],
)
def test_items(dtype: str, wanted: list[Any]) -> None:
    found = codes_of(BYTES, 4, (3,)).view(dtype)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.astype(np.float32), np.float32(wanted))
