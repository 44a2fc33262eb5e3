"""Measures the host's rates once, and stores them in a folder for other processes.

A rate is the speed of one kind of computation. Passes choose kernels by rates. A file
machine-KEY.json holds the rates and the host's identity: the processor, the number of threads, and
the versions of the compiler. The host is measured only if the file can be written. If a file is
damaged, or is from another host, the host is measured again. Wrong rates cost time but change no
result.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from lowering import (
    DEFAULT,
    Costs,
    MachineProfile,
    held_profile,
    processor,
    target_of,
    total,
)
from lowering.graph import Graph
from nnef_jax.errors import ArchiveError
from nnef_jax.execution import cache_folder
from nnef_jax.execution.cache_key import compiler_versions
from nnef_jax.execution.run_options import RunOptions
from nnef_jax.storage import files, protected_files

# The host is measured only for a network of at least this many multiply-adds. The measurement takes
# a second, which is too long for smaller networks.
_MULTIPLY_ADDS_WORTH_MEASURING = 10_000_000

# If this environment variable is 0, the process uses the shipped profile.
_SWITCH = "NNEF_JAX_MEASURE"
_LARGEST_FILE_BYTES = 1 << 16  # At most this many bytes are read from a file.

# The profiles that this process has read or measured, by folder. The key None is the user's cache
# folder.
_profiles: dict[str | None, MachineProfile] = {}
_lock = threading.Lock()
_WAIT = 5.0  # While another thread measures, a thread waits for at most this many seconds.
_NO_QUOTA = 1 << 16  # This number of cores stands for no limit. No host has so many.


def rates(
    graph: Graph, options: RunOptions, platform: str, *, measures: bool = True
) -> MachineProfile:
    """Return the rates (speeds) of a machine. Passes choose layouts and kernels by the rates.

    If a context has set rates (`held_profile`), these rates are returned. Otherwise the platform
    "cpu" has the host's rates, and other platforms have the rates that the package ships.

    The host's rates are read from the folder `cache_dir` of the options, by default from the
    user's cache folder. If the folder has no rates of the host, the host is measured. But if the
    graph is small or `measures` is false, the rates that the package ships are returned instead.
    """
    held = held_profile()
    if held:
        return held
    uses_host = platform == "cpu" and options.optimize and options.measure
    if not (uses_host and may_measure()):
        return DEFAULT
    folder = options.cache_dir
    profile = read(folder)
    if profile is not None:
        return profile
    if measures and total(graph) >= _MULTIPLY_ADDS_WORTH_MEASURING:
        profile = measure(folder)
    return profile or DEFAULT


def may_measure() -> bool:
    """Tell whether the environment variable NNEF_JAX_MEASURE allows measuring the host."""
    return os.environ.get(_SWITCH) != "0"


def read(folder: str | None = None) -> MachineProfile | None:
    """Return the host's profile from a folder, by default from the user's cache folder.

    Returns None if the folder has no profile of this host.
    """
    if folder not in _profiles:
        path = path_in(folder)
        profile = _read(path) if path else None
        if profile:
            _profiles[folder] = profile
    return _profiles.get(folder)


def measure(folder: str | None = None) -> MachineProfile | None:
    """Measure the host, and write its profile to a folder, by default to the user's cache folder.

    Returns the profile, or None if the folder cannot be written to. Only one thread measures,
    and other threads that call this function wait for its profile. After a wait of 5 s they
    return None.
    """
    path = path_in(folder)
    if path is None:
        return None
    parent = os.path.dirname(path)
    reason_unusable = cache_folder.prepare(parent)
    if reason_unusable or not os.access(parent, os.W_OK):
        return None
    if not _lock.acquire(timeout=_WAIT):
        return None
    try:
        # Another thread may have written a profile while this thread waited for the lock.
        profile = read(folder)
        if profile is None:
            profile = _profiles.setdefault(folder, _measure_and_write(path))
        return profile
    finally:
        _lock.release()


def _measure_and_write(path: str) -> MachineProfile:
    """Measure the host, write its profile to a file, and return the profile.

    If the host cannot be measured or the file cannot be written, the package's own profile is
    returned. If the measured profile were used without a file, this process and other processes
    would choose kernels by different rates.
    """
    # If this version of XLA lacks a compiler option, XLA may raise any exception.
    with suppress(Exception):
        profile = _measured()
        content = {**asdict(profile), "host": list(_host_identity())}
        with files.replacing(path, overwrite=True) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())
        return profile
    return DEFAULT


def _measured() -> MachineProfile:
    """Measure the host in a separate thread.

    The caller's thread may be tracing or searching for NaN, which would disturb the measurement.
    """
    measure_host = target_of("cpu").measure
    assert measure_host is not None
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(measure_host, threads()).result()


def path_in(folder: str | None = None) -> str | None:
    """Return the path of the host's profile in a folder, by default in the user's cache folder.

    Returns None if the system has no folder for the user's caches, as in a bare container.
    """
    if folder is None:
        if not cache_folder.has_user_cache():
            return None
        folder = cache_folder.users_folder()
    key = hashlib.sha256("\0".join(_host_identity()).encode()).hexdigest()[:16]
    return os.path.join(folder, f"machine-{key}.json")


def _host_identity() -> tuple[str, ...]:
    """Return texts that identify the host and its compiler. A profile is valid only for these."""
    names = ",".join((*MachineProfile.names(), *Costs.names()))
    return *processor(), f"threads: {threads()}", *compiler_versions(), f"rates: {names}"


@cache
def threads() -> int:
    """Return the number of threads that can run at the same time.

    This is the smaller of two numbers: the number of cores that the process may use, and the
    quota of processor time, as a number of cores.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, quota()))


def quota(root: str = "/sys/fs/cgroup") -> int:
    """Return the number of cores that the control group allows, rounded up.

    `root` is the folder of the control groups, of version 1 or 2. Without a limit the result is
    larger than the number of cores of any host.
    """
    files_of_version_2 = ["cpu.max"]
    files_of_version_1 = ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]
    for names in (files_of_version_2, files_of_version_1):
        with suppress(OSError, ValueError, ArithmeticError):
            texts = [Path(root, name).read_text("ascii") for name in names]
            # The text "150000 100000" allows 150000 us of processor time in each period of 100000
            # us. This is the time of 1.5 cores.
            allowed, period = map(int, " ".join(texts).split())
            # Without a limit the first word is -1 in version 1. In version 2 it is "max", for which
            # `int` raises ValueError.
            if allowed > 0:
                return math.ceil(allowed / period)
    return _NO_QUOTA


def _read(path: str) -> MachineProfile | None:
    """Return the profile in a file, or None if the file is missing, damaged or of another host."""
    try:
        with protected_files.without_noting(), files.open_regular(path, ArchiveError) as file:
            content = json.loads(file.read(_LARGEST_FILE_BYTES))
        if content.pop("host") != list(_host_identity()):
            return None
        profile = _profile(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    # The modification time shows when the file was last used. If the folder is read-only, the time
    # stays as it is.
    with suppress(OSError):
        os.utime(path)
    return profile


def _profile(content: Mapping[str, Any]) -> MachineProfile:
    """Make a profile from the fields in a file. Raises TypeError or ValueError for wrong fields."""
    costs: Any = Costs(**content["costs"])
    profile = MachineProfile(**{**content, "costs": costs})
    rates = [getattr(profile, name) for name in MachineProfile.names()]
    rates += [getattr(costs, name) for name in Costs.names()]
    for rate in rates:
        is_positive = type(rate) is float and 0 < rate < math.inf
        if not is_positive:
            raise ValueError("a rate is not a positive number")
    if type(profile.threads) is not int or profile.threads < 1:
        raise ValueError("threads is not a positive number")
    return profile
