"""Compiled networks kept in a folder, so that other processes need neither trace nor compile them.

KEY.xla holds the executables of both parts of a split, as jax's `serialize_executable` makes them.
KEY.bin holds a value that a first part computed, by how and of which parameters: executables of
several shapes, and networks, share it. Both are checked files: damaged ones, and those under
another's name, are made again. Nothing is removed here, but anything may be, at any time; a file
that is read gets the time as its modification time, to tell by.
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

from lowering import Preparing, Recipe, Split
from nnef_jax.errors import InputError
from nnef_jax.execution import checked_file
from nnef_jax.execution.cache_key import compiler_versions
from nnef_jax.execution.places import Device


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
        tree: Any,
        make: Callable[[], tuple[Split, Any]],
        values_of: Callable[[Preparing], tuple[jax.Array, ...]],
    ) -> tuple[jax.stages.Compiled, Preparing]:
        """Return the compiled call of a split, and what prepares parameters for it.

        They are for the device, which is the default one now, and come from the folder if it has
        them. Otherwise they are put there: `make` gives the split, with `jax.jit` of its call,
        which takes `arguments` like these after `values_of` the split, and returns a `tree`.
        """
        path = self._path(key, "xla")
        # The types of the result may be of this process alone, so that an entry does not hold them.
        entry = _read(path, device, tree)
        if entry is not None:
            _mark_used(path)
            first, load = entry
            with suppress(Exception):  # jaxlib raises anything for what it cannot load
                # Beside the digest of the parameters; each takes ResNet-50 0.1 s.
                with ThreadPoolExecutor(1) as pool:
                    loading = pool.submit(load)
                    values_of(first)
                return loading.result(), first
        parts, run = make()
        call = run.lower(values_of(parts), *arguments).compile()
        self._keep(lambda: _write(path, parts, parameters, call))
        return call, parts

    def has(self, key: str) -> bool:
        """Tell whether there is an entry for a key; it may still be a damaged one."""
        return os.path.exists(self._path(key, "xla"))

    def computed(
        self, parts: Preparing, chosen: Sequence[int], parameters: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Return some of the values that parts compute, on a CPU from files that have them.

        To compute all takes longer there (ResNet-50, 0.2 s) than to tell by a digest of the
        parameters that they are known (0.05 s), and to check the files (0.025 s).
        """
        if any(device.platform != "cpu" for x in parameters for device in x.devices()):
            return parts.computed(chosen, parameters)
        reads = parts.recipe.reads(chosen)
        texts = [""] * len(parameters)
        contents = checked_file.digests_of([np.asarray(parameters[i]) for i in reads])
        for i, content in zip(reads, contents, strict=True):
            texts[i] = content
        digests = parts.recipe.digests(texts)
        versions = "\n".join(compiler_versions())
        names = [hashlib.sha256(f"{versions} {digests[i]}".encode()).hexdigest() for i in chosen]
        paths = [self._path(name, "bin") for name in names]
        stored = [checked_file.read_array(path) for path in paths]
        missing = [i for i, x in zip(chosen, stored, strict=True) if x is None]
        computed = iter(parts.computed(missing, parameters) if missing else ())
        with jax.ensure_compile_time_eval():  # also where a function is traced
            read = iter(jax.device_put([x for x in stored if x is not None]))
        values: list[jax.Array] = []
        for path, x in zip(paths, stored, strict=True):
            if x is None:
                values.append(next(computed))
                self._keep(partial(checked_file.write_array, path, np.asarray(values[-1])))
            else:
                values.append(next(read))
                _mark_used(path)
        return values

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
    """The part of a split that prepares parameters.

    What numpy does not compute is an executable, loaded when it is asked for.
    """

    sources: Sequence[int | None]
    recipe: Recipe
    load: Callable[[], jax.stages.Compiled] | None

    def computed(self, chosen: Sequence[int], parameters: Sequence[Any]) -> list[jax.Array]:
        """Compute some of the values that are no parameters, by index, outside of any trace."""
        if self.load is None:
            return self.recipe.computed(chosen, parameters)
        values = self.load()(list(parameters))
        return [values[i] for i in chosen]


def _write(
    path: str, parts: Split, parameters: Sequence[jax.Array], call: jax.stages.Compiled
) -> None:
    first, count = None, parts.sources.count(None)
    if count and not parts.is_by_numpy(parameters):
        first = _stored(parts.compiled(range(count), parameters))
    content = pickle.dumps((parts.sources, parts.recipe, first, _stored(call)))
    checked_file.write_checked(path, [content])


def _stored(part: jax.stages.Compiled) -> tuple[bytes, Any]:
    """Return the code of an executable and the tree of its arguments, which are pickled."""
    code, arguments, _ = serialize_executable.serialize(part)
    return code, arguments


def _read(
    path: str, device: Device, tree: Any
) -> tuple[_FirstPart, Callable[[], jax.stages.Compiled]] | None:
    """Return the first part, and what loads the second."""
    # Not mapped: machine code that changed after the check would take the process along.
    content = checked_file.read_checked(path, mapped=False)
    if content is None:
        return None
    try:
        sources, recipe, first, call = pickle.loads(content)
        values = jax.tree.structure([0] * sources.count(None))
    except Exception:  # pickle raises anything for what is not its own
        return None
    load = None if first is None else cache(lambda: _loaded(first, values, device))
    return _FirstPart(sources, recipe, load), partial(_loaded, call, tree, device)


def _loaded(part: tuple[bytes, Any], tree: Any, device: Device) -> jax.stages.Compiled:
    return serialize_executable.deserialize_and_load(
        *part, tree, backend=device.client, execution_devices=[device]
    )
