"""Makes arrays that a device takes as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # bytes, of addresses from which a CPU device takes an array without a copy


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a new array, empty, that a CPU device takes without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -buffer.__array_interface__["data"][0] % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
