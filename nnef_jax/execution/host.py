"""The profile of the host: measured once, kept in a folder, found there by other processes.

machine-KEY.json holds the rates, for people to read, and what it was measured of: the processor,
its threads, and what compiles. It is made where it can be kept, else nothing is measured. A file
that is damaged, or another host's, is made again. One that says something wrong costs time alone.
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
from typing import Any

from lowering import machine
from lowering.devices import processor
from lowering.graph import Graph
from lowering.machine import Costs, Profile
from lowering.work import total
from nnef_jax.errors import ArchiveError
from nnef_jax.execution import cache_folder
from nnef_jax.execution.cache_key import compiler_versions
from nnef_jax.execution.options import RunOptions
from nnef_jax.storage import files, reads

# Multiply-adds of a network worth the second that it takes to measure the host for it.
_LARGE = 10_000_000

_SWITCH = "NNEF_JAX_MEASURE"  # 0 takes the shipped profile in all of a process
_LONGEST = 1 << 16  # bytes of a file

_known: dict[str, Profile] = {}  # by path
_lock = threading.Lock()
_WAIT = 5.0  # seconds for another thread that measures; no longer, whatever it waits for


def profile_for(graph: Graph, options: RunOptions, folder: str | None) -> Profile:
    """Return the profile to choose by for a network on the default device.

    It is the one that somebody holds, or the host's, which is kept in a folder, by default the
    user's. It is measured for large networks alone. Elsewhere it is the shipped one.
    """
    if held := machine.held():
        return held
    if not (options.measure and options.for_cpu and is_on()):
        return machine.DEFAULT
    if folder is None:
        folder = cache_folder.users_folder()
        if not cache_folder.has_users():
            return machine.DEFAULT
    return found(folder) or _made_for(graph, folder)


def is_on() -> bool:
    """Tell whether the environment lets the host be measured."""
    return os.environ.get(_SWITCH) != "0"


def _made_for(graph: Graph, folder: str) -> Profile:
    is_large = total(graph) >= _LARGE
    return (made(folder) if is_large else None) or machine.DEFAULT


def found(folder: str) -> Profile | None:
    """Return the host's profile that is kept in a folder, or None."""
    path = path_in(folder)
    if path not in _known and (profile := _read(path)):
        _known[path] = profile
    return _known.get(path)


def made(folder: str) -> Profile | None:
    """Measure the host, and keep its profile in a folder; None where it cannot be kept.

    Threads that ask for it at a time get the same. One waits a few seconds at most.
    """
    if cache_folder.prepare(folder) or not os.access(folder, os.W_OK):
        return None
    if not _lock.acquire(timeout=_WAIT):
        return None
    try:
        return found(folder) or _written(path_in(folder))
    finally:
        _lock.release()


def _written(path: str) -> Profile | None:
    """Measure the host, write the file, and return what it says; None where either fails."""
    profile = measured()
    if profile is None:
        return None
    with suppress(OSError):
        content = {"host": list(_host()), **asdict(profile)}
        with files.replacing(path, overwrite=True) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())
        _known[path] = profile
        return profile
    return None


def measured() -> Profile | None:
    """Measure the host, wherever jax computes by default; None where its jaxlib lacks options."""
    from lowering.cpu.rates import measured

    # In a thread of its own, where nothing is traced, and nobody looks for NaN.
    with suppress(Exception), ThreadPoolExecutor(1) as pool:
        return pool.submit(measured, threads()).result()
    return None


def path_in(folder: str) -> str:
    """Return the path of the host's profile in a folder."""
    key = hashlib.sha256("\0".join(_host()).encode()).hexdigest()[:16]
    return os.path.join(folder, f"machine-{key}.json")


def _host() -> tuple[str, ...]:
    """Return what a profile is of."""
    names = ",".join((*machine.names(Profile), *machine.names(Costs)))
    return *processor(), f"threads: {threads()}", *compiler_versions(), f"rates: {names}"


@cache
def threads() -> int:
    """Return how many threads may compute at a time: the process's cores, or its quota of them."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota()))


def _quota() -> int:
    """Return the whole cores that the control group of a container lets it use."""
    for path in ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"):
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            quota, *period = file.read().split()
            if not period:
                with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us", encoding="ascii") as file:
                    period = file.read().split()
            if int(quota) > 0:  # "max" is a ValueError, -1 the same
                return math.ceil(int(quota) / int(period[0]))
    return 1 << 10


def _read(path: str) -> Profile | None:
    """Return the profile in a file, or None where there is none of this host."""
    try:
        with reads.unnoted(), files.open_regular(path, ArchiveError) as file:
            content = json.loads(file.read(_LONGEST))
        if content.pop("host") != list(_host()):
            return None
        profile = _profile(content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    with suppress(OSError):  # in a read-only folder, say
        os.utime(path)  # it was used
    return profile


def _profile(content: Mapping[str, Any]) -> Profile:
    """Return a profile of the fields of its file; raise TypeError or ValueError for others."""
    costs: Any = Costs(**content["costs"])
    profile = Profile(**{**content, "costs": costs})
    rates = [getattr(profile, name) for name in machine.names(Profile)]
    rates += [getattr(profile.costs, name) for name in machine.names(Costs)]
    if not all(type(x) is float and 0 < x < math.inf for x in rates):
        raise ValueError("a rate is no positive number")
    if type(profile.threads) is not int or profile.threads < 1:
        raise ValueError("threads are no positive number")
    return profile
