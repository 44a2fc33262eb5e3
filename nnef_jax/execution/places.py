"""Determines the device or sharding on which jax computes, and whether it traces or debugs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

Device = Any  # This is a jax.Device. Type checkers do not accept this class as a type.


class Placement(NamedTuple):
    """The device or sharding of a computation.

    If `is_committed` is true, the arguments of the computation are committed to this device or
    sharding, as jax's `device_put` commits arrays. The results are then committed too.
    """

    where: Device | Sharding
    is_committed: bool

    @property
    def device(self) -> Device:
        """Return the device, or for a sharding the first of its devices in this process."""
        if isinstance(self.where, Sharding):
            return min(self.where.addressable_devices, key=lambda device: device.id)
        return self.where

    @property
    def devices(self) -> int:
        """Return the number of devices that compute."""
        return len(self.where.device_set) if isinstance(self.where, Sharding) else 1

    @property
    def compute_capability(self) -> float | None:
        """Return the compute capability of a GPU of CUDA, or None for any other device."""
        capability = getattr(self.device, "compute_capability", None)
        is_cuda = platform_of(self.device) == "cuda"
        return float(capability) if is_cuda and capability is not None else None


def default_device() -> Device:
    """Return the device on which jax puts arrays that are not committed to a device."""
    # The setting is a device, the name of a platform, or None if the user has not set it.
    setting: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if setting is None or isinstance(setting, str):
        first_device, *_ = jax.local_devices(backend=setting)
        return first_device
    return setting


def trace_settings() -> tuple[object, ...]:
    """Return the settings of jax that change what a traced function computes.

    They are part of the keys of executables in memory. A program of a network has no other
    settings of jax, except those for which `debugs_or_disables_jit` is true.
    """
    config: Any = jax.config
    return (
        config.jax_default_matmul_precision,
        config.jax_enable_x64,
        config.jax_threefry_partitionable,
        config.jax_default_prng_impl,
    )


def is_traced() -> bool:
    """Tell whether jax is tracing now, for instance within a function that a user compiles."""
    # Within a trace, the result of `stop_gradient` is a tracer. Outside of a trace, `stop_gradient`
    # returns its argument and computes nothing.
    return isinstance(jax.lax.stop_gradient(np.float32(0)), Tracer)


def platform_of(device: Any) -> str:
    """Return the platform of a device: "cpu", "tpu", "cuda", "rocm" or another platform of jax.

    jax's devices call both "cuda" and "rocm" by the name "gpu". When jax lowers a function, it has
    a name for each.
    """
    if device.platform != "gpu":
        return device.platform
    # A device of an abstract mesh has a kind only. A device of a topology has a compute capability
    # only, which is a number for CUDA.
    version = getattr(getattr(device, "client", None), "platform_version", "")
    description = f"{version} {device.device_kind}"
    if "rocm" in description or "AMD" in description:
        return "rocm"
    capability = str(getattr(device, "compute_capability", ""))
    has_number = capability.replace(".", "").isdigit()
    is_cuda = has_number or "cuda" in description or "NVIDIA" in description
    return "cuda" if is_cuda else device.platform


def default_platform() -> str:
    """Return the platform of jax's default device, such as "cpu"."""
    return platform_of(default_device())


def place_of(arrays: Sequence[object]) -> Placement:
    """Return the device or sharding on which jax computes with arrays.

    The arrays must not be tracers. The first committed array determines the result. For an array on
    a mesh, the result is the sharding that replicates values over the mesh.
    """
    for array in arrays:
        if isinstance(array, jax.Array) and array.committed:
            where = array.device
            if isinstance(where, NamedSharding):
                replicated = PartitionSpec()
                where = NamedSharding(where.mesh, replicated)
            return Placement(where, is_committed=True)
    return Placement(default_device(), is_committed=False)


def computing_at(device: Device) -> AbstractContextManager[object]:
    """Make a device jax's default device in the block of a `with` statement."""
    return nullcontext() if device == default_device() else jax.default_device(device)


def is_explicit(where: Device | Sharding) -> bool:
    """Tell whether the mesh of a sharding has Explicit axes.

    If `where` has no mesh, jax's current mesh is tested instead.
    """
    mesh = where.mesh if isinstance(where, NamedSharding) else jax.sharding.get_abstract_mesh()
    return AxisType.Explicit in mesh.axis_types


def explicit_mesh(arrays: object) -> Any:
    """Return a mesh with Explicit axes from a tree of arrays, or None if there is none.

    A mesh is a part of an array's type. The first mesh that has Explicit axes is returned.
    """
    for x in jax.tree.leaves(arrays):
        mesh = jax.typeof(x).sharding.mesh
        if mesh.explicit_axes:
            return mesh
    return None


def debugs_or_disables_jit() -> bool:
    """Tell whether jax's settings disable compilation, or make jax look for NaNs or infinities."""
    config: Any = jax.config
    return config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs
