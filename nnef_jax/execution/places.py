"""Determines the device or sharding on which jax computes, and whether it traces or debugs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

Device = Any  # A jax.Device, which type checkers do not accept as a type.


class Placement(NamedTuple):
    """The device or sharding of a computation.

    `is_committed` tells whether the arguments of the computation are committed to it, as jax's
    `device_put` commits arrays. The results are committed to it if the arguments are.
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


def default_device() -> Device:
    """Return the device on which jax puts arrays that are not committed to a device."""
    chosen: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


def is_traced() -> bool:
    """Tell whether jax is tracing now, for instance within a function that a user compiles."""
    # Outside of a trace, stop_gradient returns its argument and computes nothing.
    return isinstance(jax.lax.stop_gradient(np.float32(0)), Tracer)


def default_platform() -> str:
    """Return the platform of jax's default device, such as "cpu"."""
    return default_device().platform


def place_of(arrays: Sequence[object]) -> Placement:
    """Return the device or sharding on which jax computes with arrays, of which none is traced."""
    for array in arrays:
        if isinstance(array, jax.Array) and array.committed:
            where = array.device
            if isinstance(where, NamedSharding):
                where = NamedSharding(where.mesh, PartitionSpec())
            return Placement(where, True)
    return Placement(default_device(), False)


def computing_at(device: Device) -> AbstractContextManager[object]:
    """Make a device jax's default device in the block of a `with` statement."""
    return nullcontext() if device == default_device() else jax.default_device(device)


def is_explicit(where: Device | Sharding) -> bool:
    """Tell whether a mesh has Explicit axes.

    It is the mesh of the sharding `where`, or jax's current mesh if `where` has none.
    """
    mesh = where.mesh if isinstance(where, NamedSharding) else jax.sharding.get_abstract_mesh()
    return AxisType.Explicit in mesh.axis_types


def explicit_mesh(arrays: object) -> Any:
    """Return the mesh in the types of a tree of arrays, if it has Explicit axes, or else None."""
    shardings = [jax.typeof(x).sharding for x in jax.tree.leaves(arrays)]
    return next((x.mesh for x in shardings if x.mesh.explicit_axes), None)


def debugs_or_disables_jit() -> bool:
    """Tell whether jax's settings disable compilation, or make jax look for NaNs or infinities."""
    config: Any = jax.config
    return config.jax_disable_jit or config.jax_debug_nans or config.jax_debug_infs
