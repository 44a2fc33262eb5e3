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
from functools import cache, cached_property
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

_known: dict[str, MachineProfile] = {}  # by folder
_lock = threading.Lock()
_WAIT = 5.0  # seconds at most for another thread that measures, whatever keeps it


class Host:
    """Tells by which rates to choose kernels for a network."""

    def __init__(self, graph: Graph, options: RunOptions) -> None:
        self._graph = graph
        self._options = options
        self._folder = users_folder() if options.cache_dir is None else options.cache_dir

    def rates(self, platform: str, *, measures: bool = True) -> MachineProfile:
        """Return the rates that hold in this context, else the host's for CPUs, else the shipped.

        The host's are measured for large networks; small ones take them where they are known.
        They are kept in the folder of the options, by default the user's.
        """
        if held := held_profile():
            return held
        options = self._options
        if not (platform == "cpu" and options.optimize and options.measure and may_measure()):
            return DEFAULT
        if (folder := self._folder) is None:
            return DEFAULT
        return read(folder) or (measures and self._is_large and measure(folder)) or DEFAULT

    @cached_property
    def _is_large(self) -> bool:
        return total(self._graph) >= _LARGE


def may_measure() -> bool:
    """Tell whether the environment lets the host be measured."""
    return os.environ.get(_SWITCH) != "0"


def users_folder() -> str | None:
    """Return the user's folder, or None where a system has none for caches, as a container."""
    return cache_folder.users_folder() if cache_folder.has_users() else None


def read(folder: str) -> MachineProfile | None:
    """Return the host's profile that is kept in a folder, or None."""
    if folder not in _known and (profile := _read(path_in(folder))):
        _known[folder] = profile
    return _known.get(folder)


def measure(folder: str) -> MachineProfile | None:
    """Measure the host, and keep its profile in a folder; None where it cannot be kept.

    Threads that ask for it at a time get the same. One waits a few seconds at most.
    """
    if cache_folder.prepare(folder) or not os.access(folder, os.W_OK):
        return None
    if not _lock.acquire(timeout=_WAIT):
        return None
    try:
        return read(folder) or _known.setdefault(folder, _measure_and_write(path_in(folder)))
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


def path_in(folder: str) -> str:
    """Return the path of the host's profile in a folder."""
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
