"""The profile of the host: measured once, kept in a folder, found there by other processes.

machine-KEY.json holds the rates, for people to read, and what they are of: the processor, its
threads, and what compiles. It is measured where it can be kept, and nowhere else. A file that is
damaged, or another host's, is made again. One that says something wrong costs time alone.
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

# Multiply-adds of a network that is worth the second in which the host is measured.
_LARGE = 10_000_000

_SWITCH = "NNEF_JAX_MEASURE"  # with 0 all of a process chooses by the shipped profile
_LONGEST = 1 << 16  # bytes of a file

_profiles: dict[str | None, MachineProfile] = {}  # by folder, None for the user's
_lock = threading.Lock()
_WAIT = 5.0  # seconds at most for another thread that measures, whatever keeps it


def rates(
    graph: Graph, options: RunOptions, platform: str, *, measures: bool = True
) -> MachineProfile:
    """Return the rates that hold in this context, else the host's for CPUs, else the shipped.

    The host's are measured for a large graph; small ones take them where they are known. They are
    kept in the folder of the options, by default the user's.
    """
    if held := held_profile():
        return held
    if not (platform == "cpu" and options.optimize and options.measure and may_measure()):
        return DEFAULT
    folder = options.cache_dir
    return read(folder) or (measures and total(graph) >= _LARGE and measure(folder)) or DEFAULT


def may_measure() -> bool:
    """Tell whether the environment lets the host be measured."""
    return os.environ.get(_SWITCH) != "0"


def read(folder: str | None = None) -> MachineProfile | None:
    """Return the host's profile that is kept in a folder, by default the user's, or None."""
    if folder not in _profiles and (path := path_in(folder)) and (profile := _read(path)):
        _profiles[folder] = profile
    return _profiles.get(folder)


def measure(folder: str | None = None) -> MachineProfile | None:
    """Measure the host, and keep its profile in a folder; None where it cannot be kept.

    Threads that ask for it at a time get the same. One waits a few seconds at most.
    """
    path = path_in(folder)
    if path is None or cache_folder.prepare(parent := os.path.dirname(path)):
        return None
    if not os.access(parent, os.W_OK) or not _lock.acquire(timeout=_WAIT):
        return None
    try:
        return read(folder) or _profiles.setdefault(folder, _measure_and_write(path))
    finally:
        _lock.release()


def _measure_and_write(path: str) -> MachineProfile:
    """Measure the host, and return what is in the file now; the shipped profile where that fails.

    Other processes would choose otherwise than this one by what is not kept.
    """
    with suppress(Exception):  # XLA raises anything where it lacks an option
        profile = _measured()
        content = {**asdict(profile), "host": list(_host())}
        with files.replacing(path, overwrite=True) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())
        return profile
    return DEFAULT


def _measured() -> MachineProfile:
    measure = target_of("cpu").measure
    assert measure is not None
    # In a thread of its own nothing is traced, and nobody looks for NaN.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(measure, threads()).result()


def path_in(folder: str | None = None) -> str | None:
    """Return the path of the host's profile in a folder, by default the user's.

    Return None where the system has no folder for the user's caches, as a bare container.
    """
    if folder is None:
        if not cache_folder.has_users():
            return None
        folder = cache_folder.users_folder()
    key = hashlib.sha256("\0".join(_host()).encode()).hexdigest()[:16]
    return os.path.join(folder, f"machine-{key}.json")


def _host() -> tuple[str, ...]:
    """Return the identity of a host, and of the compiler for it."""
    names = ",".join((*MachineProfile.names(), *Costs.names()))
    return *processor(), f"threads: {threads()}", *compiler_versions(), f"rates: {names}"


@cache
def threads() -> int:
    """Return how many threads may compute at a time: the process's cores, or its quota of them."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, quota()))


def quota(root: str = "/sys/fs/cgroup") -> int:
    """Return how many cores the control group of a container lets it use, of either version."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with suppress(OSError, ValueError, ArithmeticError):  # "max" is a ValueError, too
            texts = [Path(root, name).read_text("ascii") for name in names]
            spent, period = map(int, " ".join(texts).split())
            if spent > 0:  # -1 is no limit
                return math.ceil(spent / period)
    return 1 << 16


def _read(path: str) -> MachineProfile | None:
    """Return the profile in a file, or None where there is none of this host."""
    try:
        with protected_files.unnoted(), files.open_regular(path, ArchiveError) as file:
            content = json.loads(file.read(_LONGEST))
        if content.pop("host") != list(_host()):
            return None
        profile = _profile(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    with suppress(OSError):  # in a read-only folder, say
        os.utime(path)  # it was used
    return profile


def _profile(content: Mapping[str, Any]) -> MachineProfile:
    """Return a profile of the fields of its file; raise TypeError or ValueError for others."""
    costs: Any = Costs(**content["costs"])
    profile = MachineProfile(**{**content, "costs": costs})
    rates = [getattr(profile, name) for name in MachineProfile.names()]
    rates += [getattr(costs, name) for name in Costs.names()]
    if not all(type(x) is float and 0 < x < math.inf for x in rates):
        raise ValueError("a rate is no positive number")
    if type(profile.threads) is not int or profile.threads < 1:
        raise ValueError("threads are no positive number")
    return profile
