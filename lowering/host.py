"""Describes the host's processor, and allocates arrays that a CPU device uses without a copy."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def processor() -> tuple[str, ...]:
    """Return the lines of /proc/cpuinfo that name the host's processor and its instructions.

    On systems other than Linux, return `platform.machine()` and `platform.processor()`.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return platform.machine(), platform.processor()
    first_processor = text.split("\n\n")[0]
    return tuple(line for line in first_processor.splitlines() if line.startswith(_FIELDS))


# The lines of /proc/cpuinfo that begin with these texts describe the processor.
_FIELDS = ("vendor_id", "cpu family", "model name", "flags", "Features")

# The addresses of arrays are multiples of this number of bytes. jax's CPU device copies arrays at
# other addresses.
ALIGNMENT = 64


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a new uninitialised array that jax's CPU device uses without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    address, _ = buffer.__array_interface__["data"]
    # `start` is the index of the first byte at an aligned address. For the address 100 it is 28,
    # since 128 is a multiple of 64.
    start = -address % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
