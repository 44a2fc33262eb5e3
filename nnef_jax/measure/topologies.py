"""Describes devices that need not be attached, such as "v5e:4x4" or "h100:8", by published figures.

The figures of TPUs are from Google's pages on each version (cloud.google.com/tpu/docs). The memory
of TPUs is an exception: it is the memory that libtpu 0.0.42 lets a program use. The figures of GPUs
are from NVIDIA's data sheets, and from XLA's target configurations (openxla/xla,
xla/backends/gpu/target_config/specs).
"""

from __future__ import annotations

import math
import platform as host
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from nnef_jax.errors import InputError
from nnef_jax.options import require
from nnef_jax.wording.similar import did_you_mean, listed

_GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """A kind of device, with its figures.

    Attributes:
        kind: the device's name in jax.
        platform: "tpu" or "cuda".
        memory: the memory of a device in bytes that a program can use.
        bandwidth: bytes per second between a device and its memory.
        peaks: operations per second of a device's matrix units, by dtype.
        link: bytes per second that a device exchanges with its neighbours along one axis of a mesh.
        network: bytes per second that a device exchanges with other hosts. It is None if `link`
            also holds between hosts.
        axes: the number of axes of a topology.
        devices: the number of devices on a chip.
        target: fields of XLA's target configuration of a GPU.
    """

    kind: str
    platform: str
    memory: int
    bandwidth: float
    peaks: Mapping[str, float]
    link: float
    network: float | None = None
    axes: int = 2
    devices: int = 1
    target: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def compute_capability(self) -> float | None:
        """Return the compute capability of a GPU of CUDA, or None for any other device."""
        return self.target.get("major")


def _tpu(
    kind: str,
    memory: float,
    bandwidth: float,
    peak: float,
    link: float,
    *,
    axes: int,
    devices: int = 1,
) -> Chip:
    """Describe a kind of TPU.

    The memory is in GiB, and rates are per second. The memory and the rates are figures of one
    device of jax, which may be half of a chip.
    """
    peaks = {"bfloat16": peak}
    return Chip(kind, "tpu", int(memory * _GIB), bandwidth, peaks, link, axes=axes, devices=devices)


def _gpu(
    kind: str,
    memory: int,
    bandwidth: float,
    peaks: Mapping[str, float],
    link: float,
    **target: float,
) -> Chip:
    """Describe a kind of GPU. The memory is in bytes, and rates are per second.

    `target` has fields of XLA's target configuration.
    """
    target = {"device_memory_size": memory, "memory_bandwidth": int(bandwidth), **target}
    # A GPU exchanges 50e9 bytes/s, which are 400 Gbit/s, with other hosts.
    return Chip(kind, "cuda", memory, bandwidth, peaks, link, network=50e9, target=target)


_HOPPER = {
    "core_count": 132,
    "fpus_per_core": 128,
    "clock_rate_ghz": 1.98,
    "l2_cache_size": 50 << 20,
    "shared_memory_per_core": 228 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "major": 9,
}
_HOPPER_PEAKS = {"tf32": 494.7e12, "bfloat16": 989.4e12, "float16": 989.4e12}

CHIPS: Mapping[str, Chip] = {
    "v4": _tpu("TPU v4", 15.25, 0.614e12, 137.5e12, 90e9, axes=3, devices=2),
    "v5e": _tpu("TPU v5 lite", 15.75, 0.819e12, 197e12, 90e9, axes=2),
    "v5p": _tpu("TPU v5", 95.74, 2.765e12, 459e12, 180e9, axes=3),
    "v6e": _tpu("TPU v6 lite", 31.25, 1.638e12, 918e12, 180e9, axes=2),
    "tpu7x": _tpu("TPU7x", 94.75, 3.69e12, 1153.5e12, 180e9, axes=3, devices=2),
    "a100": _gpu(
        "NVIDIA A100-SXM4-80GB", 85_100_068_864, 2.039e12,
        {"tf32": 156e12, "bfloat16": 312e12, "float16": 312e12},
        300e9, core_count=108, fpus_per_core=64, clock_rate_ghz=1.41, l2_cache_size=40 << 20,
        shared_memory_per_core=164 << 10, shared_memory_per_block_optin=163 << 10, major=8,
    ),
    "h100": _gpu(
        "NVIDIA H100 80GB HBM3", 84_942_979_072, 3.352e12, _HOPPER_PEAKS, 450e9, **_HOPPER
    ),
    "h200": _gpu(
        "NVIDIA H200 141GB HBM3e", 151_397_597_184, 4.8e12, _HOPPER_PEAKS, 450e9, **_HOPPER
    ),
}  # fmt: skip
# These fields of XLA's target configuration are the same for all GPUs in `CHIPS`.
_LIMITS = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "shared_memory_per_block": 48 << 10,
    "registers_per_core_limit": 1 << 16,
    "registers_per_block_limit": 1 << 16,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 2**16 - 1,
    "block_dim_limit_z": 2**16 - 1,
    "thread_dim_limit_x": 1024,
    "thread_dim_limit_y": 1024,
    "thread_dim_limit_z": 64,
    "device_address_bits": 64,
}


@dataclass(frozen=True)
class Topology:
    """Devices of one kind, and how they are connected.

    Attributes:
        name: the name that a user passed.
        chip: the kind of the devices.
        shape: for TPUs the number of chips along each axis; for GPUs the number of hosts, followed
            by the number of GPUs of each host.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]

    @property
    def devices(self) -> int:
        """Return the number of devices. A chip may have two devices."""
        return math.prod(self.shape) * self.chip.devices

    @property
    def link_rate(self) -> float:
        """Return the bandwidth in bytes a second of the slowest links between devices."""
        # If `network` is None, the links between devices also connect hosts, as for TPUs.
        if self.chip.network is None:
            return self.chip.link
        host_count = self.shape[0]
        return self.chip.network if host_count > 1 else self.chip.link

    def require_devices(self, axes: Mapping[str, int]) -> None:
        """Raise InputError if a mesh with these axes has more devices than this topology."""
        device_count = math.prod(axes.values())
        if device_count > self.devices:
            message = f"the mesh has {device_count} devices, '{self.name}' has {self.devices}"
            raise InputError(message, hint="name a larger topology, or a smaller mesh")

    def description(self) -> dict[str, object]:
        """Return the keyword arguments for `jax.experimental.topologies.get_topology_desc`."""
        if self.chip.platform == "tpu":
            kind = self.name.partition(":")[0]
            # Along each of the first two axes a host has 2 chips. If the topology has only 1 chip
            # along an axis, a host has 1 chip along this axis too.
            chips_per_host = [min(extent, 2) for extent in self.shape[:2]]
            return {
                "platform": "tpu",
                "topology_name": f"{kind}:{_extents(self.shape)}",
                "chips_per_host_bounds": [*chips_per_host, 1],
            }
        figures = {**_LIMITS, **self.chip.target}
        # Hopper, with the compute capability 9, was the first GPU with accelerated features.
        major = int(figures.pop("major"))
        feature = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        fields = " ".join(f"{name}: {value}" for name, value in figures.items())
        capability = f"cuda_compute_capability {{ major: {major} feature_extension: {feature} }}"
        return {
            "platform": "cuda",
            "topology_name": "gpu",
            "topology": _extents((1, *self.shape)),
            "target_config": f'gpu_device_info {{ {fields} {capability} }} platform_name: "CUDA"',
        }

    def require_compiler(self) -> None:
        """Raise InputError if the compiler for these devices is not installed.

        The compiler for TPUs is a part of libtpu. The compiler for GPUs is a part of jax's plugin.
        """
        if self.chip.platform == "tpu":
            machine = f"{host.system()} {host.machine()}"
            if machine != "Linux x86_64":
                message = f"the compiler for '{self.name}' is in libtpu, which has no {machine}"
                raise InputError(message, hint="compile on Linux x86_64; no TPU is needed")
            if find_spec("libtpu") is None:
                message = f"the compiler for '{self.name}' is in libtpu, which is not installed"
                raise InputError(message, hint="pip install 'jax[tpu]'; no TPU is needed")
            return
        plugins = [name for name in ("jax_cuda13_plugin", "jax_cuda12_plugin") if find_spec(name)]
        if not plugins:
            message = f"the compiler for '{self.name}' is jax's plugin for CUDA"
            hint = "pip install 'nnef_jax[devices]', or 'jax[cuda13]'; no GPU is needed"
            raise InputError(f"{message}, which is not installed", hint=hint)


def topology_of(name: object) -> Topology:
    """Return the topology with a name such as "v5e:4x4".

    Raises TypeError if the name is not a string, and InputError for an unknown name.
    """
    require("topology", name, str, "a name: 'v5e:4x4', 'h100:8'")
    text = str(name)
    kind, colon, extents = text.partition(":")
    if kind not in CHIPS:
        hint = did_you_mean(kind, CHIPS) or f"the kinds are {listed(CHIPS)}"
        raise InputError(f"there is no device '{kind}' in topology '{text}'", hint=hint)
    chip = CHIPS[kind]
    if not colon:
        # A name without extents, such as "a100", stands for a single device.
        extents = "1"
    _require_extents(text, kind, extents)
    shape = tuple(map(int, extents.split("x")))
    # "h100:8" has one extent, and becomes 1 host with 8 GPUs.
    missing_axes = (1,) * (chip.axes - len(shape))
    topology = Topology(text, chip, missing_axes + shape)
    if chip.platform == "tpu":
        _require_layout(topology)
    return topology


def _require_extents(name: str, kind: str, extents: str) -> None:
    """Raise InputError if the extents in a topology's name do not fit the kind of the devices.

    The name "v5e:4x4" has the kind "v5e" and the extents "4x4".
    """
    chip = CHIPS[kind]
    number = r"[1-9]\d*"
    if chip.platform == "cuda":
        meaning = "hosts x GPUs of each"
        examples = ["8", "2x8"]
        pattern = f"{number}(x{number})?"
    else:
        meaning = f"chips along {chip.axes} axes"
        # For two axes the examples are 1x2 and 2x2. For three axes they are 1x2x1 and 2x2x1.
        further_axes = "x1" * (chip.axes - 2)
        examples = [f"1x2{further_axes}", f"2x2{further_axes}"]
        # The name of a TPU topology has an extent for each axis, or "1" for a single chip.
        pattern = f"{number}(x{number}){{{chip.axes - 1}}}|1"
    if not re.fullmatch(pattern, extents):
        names = listed([f"{kind}:{example}" for example in ("1", *examples)])
        hint = f"write {names}, ...; a mesh may use fewer devices than these have"
        raise InputError(f"topology '{name}' does not give {meaning}", hint=hint)


def _require_layout(topology: Topology) -> None:
    """Raise InputError if libtpu has no layout of a TPU topology's shape.

    Along each of the first two axes, the number of chips must be 1 or even, because libtpu divides
    a layout into hosts with 2 chips along each of these axes.
    """
    kind = topology.name.partition(":")[0]
    shape = topology.shape
    # `smaller` and `larger` are the nearest shapes that have layouts.
    smaller = list(shape)
    larger = list(shape)
    for axis in (0, 1):
        if shape[axis] > 1 and shape[axis] % 2 == 1:
            smaller[axis] -= 1
            larger[axis] += 1
    if smaller != larger:
        nearest = listed([f"{kind}:{_extents(smaller)}", f"{kind}:{_extents(larger)}"])
        axes = "each axis" if topology.chip.axes == 2 else "each of the first two axes"
        message = f"'{kind}' has no layout {_extents(shape)}"
        reason = f"along {axes} it has 1 chip or an even number of chips"
        hint = f"the nearest layouts are {nearest}; a mesh may use fewer devices than a layout has"
        raise InputError(f"{message}: {reason}", hint=hint)


def _extents(shape: Sequence[int]) -> str:
    """Return a text such as "2x4" for the shape (2, 4)."""
    return "x".join(map(str, shape))
