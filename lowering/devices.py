"""Tells where jax computes, with given arrays or by default, and what it takes there as it is."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

Device = Any  # a jax.Device, which is no type to a type checker


class Place(NamedTuple):
    """Says where a computation runs, and whether arguments, and so results, are committed."""

    where: Device | Sharding
    is_committed: bool


def default_device() -> Device:
    """Return the device for uncommitted arrays."""
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def is_traced() -> bool:
    """Tell whether jax records now what it would compute, as in a function that a user compiles."""
    return isinstance(jax.lax.stop_gradient(np.float32(0)), Tracer)  # else it computes nothing


def on_cpu() -> bool:
    """Tell whether the default device (see `computing_at`) is a CPU."""
    return default_device().platform == "cpu"


def are_on_cpu(arrays: Sequence[Any]) -> bool:
    """Tell whether the default device is a CPU, and arrays are all on one, of this process."""
    if not on_cpu() or not all(isinstance(x, jax.Array) for x in arrays):
        return False
    devices = {device for x in arrays for device in x.sharding.device_set}
    return len(devices) == 1 and all(
        x.platform == "cpu" and x.process_index == jax.process_index() for x in devices
    )


@cache
def processor() -> tuple[str, ...]:
    """Return the lines of Linux that name the host's processor and its instructions.

    Elsewhere return what Python says of it.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            block = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return platform.machine(), platform.processor()
    return tuple(line for line in block if line.startswith(_NAMED))


_NAMED = ("vendor_id", "cpu family", "model name", "flags", "Features")


def place_of(arrays: Sequence[Any]) -> Place:
    """Return where jax computes with these arrays, none of them traced."""
    for array in arrays:
        if isinstance(array, jax.Array) and array.committed:
            where = array.device
            if isinstance(where, NamedSharding):
                where = NamedSharding(where.mesh, PartitionSpec())
            return Place(where, True)
    return Place(default_device(), False)


def computing_at(where: Device | Sharding) -> AbstractContextManager[Any]:
    """Make a device, or one of a sharding, the default device."""
    if isinstance(where, Sharding):
        where = min(where.addressable_devices, key=lambda device: device.id)
    return nullcontext() if where == default_device() else jax.default_device(where)


ALIGNMENT = 64  # bytes, of addresses from which a CPU device takes an array without a copy


def aligned(shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a new array, empty, that a CPU device takes without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -buffer.__array_interface__["data"][0] % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)
