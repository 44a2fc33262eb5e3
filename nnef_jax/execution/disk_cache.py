"""Compiled networks kept in a folder, so that other processes need neither trace nor compile them.

KEY.xla holds the executables of both parts of a split, as jax's `serialize_executable` makes them.
KEY.bin holds what the first part computed of parameters of the same digest. Both are checked files:
damaged ones, and those under another's name, are made again. Nothing is removed here, but anything
may be, at any time; a file that is found gets the time as its modification time, to tell by.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from lowering.devices import Device, on_cpu
from lowering.host_program import HostProgram
from lowering.prepare import Split, assemble
from nnef_jax.errors import InputError
from nnef_jax.execution import checked_file
from nnef_jax.execution.cache_key import compiler_versions

_Prepare = Callable[[Sequence[Any]], tuple[Any, ...]]


class DiskCache:
    """A folder of compiled functions by key.

    Its files hold pickled objects and machine code: whoever can write to the folder can run code in
    the processes that read it. It is made for its owner alone (mode 0700).

    Many processes may use it at once, since files appear whole or not at all. Where nothing can be
    written (a read-only folder, a full disk) it serves with what it has: one warning tells that
    something else was compiled and not kept.

    Raises InputError where the folder cannot be made or read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            self.directory = _folder(directory)
        except (OSError, TypeError, ValueError) as error:
            raise InputError(
                f"cache_dir '{directory}' cannot be used: {_reason(error)}",
                hint="give a folder of your own, or leave cache_dir out",
            ) from None
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskCache, (self.directory,)

    def get(
        self,
        key: str,
        device: Device,
        parameters: Sequence[jax.Array],
        arguments: Sequence[Any],
        result: Any,
        make: Callable[[], tuple[Split, Callable[..., Any]]],
        *,
        keeps: bool,
    ) -> tuple[jax.stages.Compiled, tuple[Any, ...], _Prepare]:
        """Return the compiled `run` of a split, what is prepared for it, and what prepares.

        They are for the device, which is the default one now, and come from the folder if it has
        them. Otherwise they are put there: `make` gives the split, with `jax.jit` for its `run`,
        which takes `arguments` like these after what is prepared, and returns a tree of the
        structure of `result`. What is prepared is put there if the cache `keeps` it.
        """
        path = self._path(key, "xla")
        # The types of the result may be of this process alone, so that an entry does not hold them.
        found = _read(path, device, result)
        if found is not None:
            _mark_used(path)
            first, load = found
            with suppress(Exception):  # jaxlib raises anything for what it cannot load
                # Beside the digest of the parameters; each takes ResNet-50 0.1 s.
                with ThreadPoolExecutor(1) as pool:
                    loading = pool.submit(load)
                    prepared = self._prepared(first, parameters, keeps)
                return loading.result(), prepared, first.prepare
        parts, jit = make()
        first = _first_part(parts, parameters)
        prepared = self._prepared(first, parameters, keeps)
        run = jit(parts.run).lower(prepared, *arguments).compile()
        self._keep(lambda: _write(path, first, run))
        return run, prepared, first.prepare

    def has(self, key: str) -> bool:
        """Tell whether there is an entry for a key; it may still be a damaged one."""
        return os.path.exists(self._path(key, "xla"))

    def _prepared(
        self, part: _FirstPart, parameters: Sequence[jax.Array], keeps: bool
    ) -> tuple[Any, ...]:
        """Return prepared parameters, on a CPU from a file if they have one.

        To compute it takes longer there (ResNet-50, 0.2 s) than to tell by a digest of the
        parameters that it is known (0.05 s), and to check the file (0.025 s). Executables for
        several shapes share the file if they prepare alike.
        """
        if None not in part.sources or not on_cpu() or not keeps:
            return part.prepare(parameters)
        digest = checked_file.digest_of([np.asarray(parameters[index]) for index in part.reads])
        path = self._path(hashlib.sha256(f"{part.identity} {digest}".encode()).hexdigest(), "bin")
        known = checked_file.read_arrays(path)
        if known is None or len(known) != part.sources.count(None):
            computed = part.compute()(parameters)
            self._keep(lambda: checked_file.write_arrays(path, list(map(np.asarray, computed))))
        else:
            _mark_used(path)
            with jax.ensure_compile_time_eval():  # also where a function is traced
                computed = jax.device_put(known)
        return assemble(part.sources, parameters, computed)

    def _keep(self, write: Callable[[], None]) -> None:
        """Write a file; a full disk, say, or executables that cannot be stored, are a warning."""
        try:
            write()
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"what was compiled is not kept in cache_dir '{self.directory}': "
                    f"{_reason(error)}",
                    stacklevel=2,
                )

    def _path(self, key: str, suffix: str) -> str:
        return os.path.join(self.directory, f"{key}.{suffix}")


def _mark_used(path: str) -> None:
    with suppress(OSError):  # in a read-only folder, say
        os.utime(path)


def _reason(error: Exception) -> object:
    """Return the system's words for an error without the path, which may be a temporary one."""
    return getattr(error, "strerror", None) or error


def _folder(directory: str | os.PathLike[str]) -> str:
    """Return the absolute path of a folder that can be read; make it where there is none."""
    name = os.fsdecode(directory)
    if not name:
        raise ValueError("it is empty")
    path = os.path.abspath(name)
    if os.path.exists(path) and not os.path.isdir(path):
        raise NotADirectoryError("it is not a folder")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if not os.access(path, os.R_OK | os.X_OK):
        raise PermissionError("no permission to read it")
    return path


@dataclass(frozen=True, slots=True)
class _FirstPart:
    """The part of a split that prepares parameters, compiled when it is asked for."""

    sources: Sequence[int | None]
    reads: Sequence[int]
    identity: str  # tells what it computes
    compute: Callable[[], HostProgram | jax.stages.Compiled]

    def prepare(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """Return prepared parameters."""
        return assemble(self.sources, parameters, self.compute()(parameters))


def _first_part(parts: Split, parameters: Sequence[jax.Array]) -> _FirstPart:
    program = parts.on_host(parameters)
    if program is not None:
        text, compute = program.digest(), lambda: program
    else:
        lowered = parts.lowered(parameters)
        text, compute = lowered.as_text(), cache(lowered.compile)
    identity = hashlib.sha256("\n".join((*compiler_versions(), text)).encode()).hexdigest()
    return _FirstPart(parts.sources, parts.reads, identity, compute)


def _write(path: str, first: _FirstPart, run: jax.stages.Compiled) -> None:
    # Of an executable its code and the tree of its arguments; these are tuples and lists.
    parts = [
        part if isinstance(part, HostProgram) else serialize_executable.serialize(part)[:2]
        for part in (first.compute(), run)
    ]
    # The first part, of a thousand steps, is loaded only where nothing is prepared yet.
    parts = pickle.dumps(parts[0]), parts[1]
    content = pickle.dumps((first.sources, first.reads, first.identity, *parts))
    checked_file.write_checked(path, [content])


def _read(
    path: str, device: Device, result: Any
) -> tuple[_FirstPart, Callable[[], jax.stages.Compiled]] | None:
    """Return the first part, and what loads the second."""
    # Not mapped: machine code that changed after the check would take the process along.
    content = checked_file.read_checked(path, mapped=False)
    if content is None:
        return None
    try:
        sources, reads, identity, compute, run = pickle.loads(content)
        computed = jax.tree.structure((0,) * sources.count(None))
    except Exception:  # pickle raises anything for what is not its own
        return None
    load = cache(lambda: _loaded(pickle.loads(compute), computed, device))
    return _FirstPart(sources, reads, identity, load), partial(_loaded, run, result, device)


def _loaded(part: tuple[bytes, Any] | HostProgram, result: Any, device: Device) -> Any:
    if isinstance(part, HostProgram):
        return part
    return serialize_executable.deserialize_and_load(
        *part, result, backend=device.client, execution_devices=[device]
    )
