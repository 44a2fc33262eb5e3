"""Tells where jax computes, with given arrays or by default."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding

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


def multiplies_bfloat16() -> bool:
    """Tell whether the host's processor multiplies bfloat16 faster than float32.

    AMX does, and AVX512-BF16 from Zen 5 on: 904 GFLOP/s for 1024x1024x1024, float32 450. On a Xeon
    with AVX512-BF16 whose AMX is switched off these are 172 and 277.
    """
    return _has("amx_bf16") or (_has("avx512_bf16") and _is_zen5())


def multiplies_bytes() -> bool:
    """Tell whether XLA's products of 8 bits are faster than those of float32 on the host.

    YNNPACK multiplies int8 by AMX, not by VNNI: 1024x1024x1024 runs at 273 GFLOP/s on a Xeon
    without AMX, float32 at 277. On Zen 5 these are 693 and 450. On ARM they were not measured.
    """
    return _has("amx_int8") or _has("asimddp") or (_has("avx512_vnni") and _is_zen5())


def keeps_wide_vectors() -> bool:
    """Tell whether the host's processor is young enough not to slow down by vectors of 512 bits."""
    return _has("avx512_bf16")


def _has(instructions: str) -> bool:
    return any(instructions in line.split() for line in processor())


def _is_zen5() -> bool:
    """Tell whether the host's processor is AMD's of family 26 or later."""
    lines = (line.partition(":") for line in processor())
    fields = {name.strip(): text.strip() for name, _, text in lines}
    return fields.get("vendor_id") == "AuthenticAMD" and int(fields.get("cpu family") or 0) >= 26


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
