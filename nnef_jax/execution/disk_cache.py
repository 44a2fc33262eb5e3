"""Caches compiled networks in a folder, so that other processes need not trace or compile them.

A `Split` has two parts: one prepares values from the parameters, and the other computes a call from
these values. A file KEY.xla holds the executables of both parts, serialised by jax's
`serialize_executable`. A file KEY.bin holds a prepared value. The key of a prepared value is a
digest of its recipe and of the parameters, so that executables for several shapes, and several
networks, share the value.

Both kinds of files are checked files: a damaged or renamed file is made again. This module removes
no file, but other programs may remove any file at any time. Reading a file sets its modification
time, which shows when the file was last used.
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
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from lowering import Preparing, Recipe, Split
from nnef_jax.errors import InputError
from nnef_jax.execution import checked_file
from nnef_jax.execution.cache_key import compiler_versions
from nnef_jax.execution.places import Device

_Tree = Any  # This is a PyTreeDef of jax. Type checkers do not accept this class as a type.


class DiskCache:
    """A folder that stores compiled functions and prepared values by key.

    Prepared values are computed once from parameters, and used by all calls.

    The files hold pickled objects and machine code: whoever can write to the folder can run
    code in the processes that read it. The folder is created with mode 0700, for its owner
    only.

    Many processes may use the folder at once, because files are written atomically. If nothing
    can be written (a read-only folder, a full disk), existing files are used, and one warning
    says that new files are not written.

    Raises InputError if the folder cannot be created or read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            self.directory: str = _folder(directory)
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
        arguments: Sequence[object],
        tree: _Tree,
        make: Callable[[], tuple[Split, jax.stages.Wrapped]],
        values_of: Callable[[Preparing], tuple[jax.Array, ...]],
    ) -> tuple[jax.stages.Compiled, Preparing]:
        """Return the compiled call of a split, and the part that prepares values for the call.

        If the folder has a file for the key, both parts are loaded from the file. Otherwise both
        parts are compiled and stored in the folder.

        Args:
            key: a digest of everything that the executables depend on.
            device: the device where the executables run; it must be jax's default device.
            parameters: the model's arrays.
            arguments: the arguments of a call, as arrays or types.
            tree: the structure of the call's result.
            make: a function that returns the split, and the call as a jitted function of the
                prepared values and `arguments`.
            values_of: a function that takes the part that computes prepared values, and returns
                these values.
        """
        path = self._path(key, "xla")
        # The tree of the result is not in the file, because types in the tree, such as namedtuples,
        # may exist only in the process that made them.
        stored = _read(path, device, tree)
        if stored is not None:
            _mark_used(path)
            preparation, load_call = stored
            # jaxlib may raise any exception for code that it cannot load. The call is then compiled
            # below.
            with suppress(Exception):
                # One thread loads the code, which takes 0.1 s for ResNet-50. At the same time this
                # thread prepares the values, so that they are in the cache of prepared values when
                # the caller asks for them. The digest of the parameters takes 0.1 s too.
                with ThreadPoolExecutor(1) as pool:
                    loading = pool.submit(load_call)
                    values_of(preparation)
                return loading.result(), preparation
        split, jitted = make()
        call = jitted.lower(values_of(split), *arguments).compile()
        self._keep(lambda: _write(path, split, parameters, call))
        return call, split

    def has(self, key: str) -> bool:
        """Tell whether the folder has a file for a key. The file may be damaged."""
        return os.path.exists(self._path(key, "xla"))

    def computed(
        self, parts: Preparing, chosen: Sequence[int], parameters: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """Return the prepared values with the indices `chosen`.

        On a CPU the values are read from files. A value that has no file is computed, and
        written to a file. For ResNet-50 the computation of all values takes 0.2 s. The digest
        of the parameters takes 0.05 s, and reading and checking the files takes 0.025 s.
        """
        devices = chain.from_iterable(x.devices() for x in parameters)
        if any(device.platform != "cpu" for device in devices):
            return parts.computed(chosen, parameters)
        paths = self._value_paths(parts.recipe, chosen, parameters)
        read_arrays: dict[int, Any] = {}
        missing: list[int] = []
        for i, path in paths.items():
            array = checked_file.read_array(path)
            if array is None:
                missing.append(i)
            else:
                read_arrays[i] = array
        computed_values = parts.computed(missing, parameters) if missing else []
        # Within a trace, jax would return tracers. In this context it returns arrays.
        with jax.ensure_compile_time_eval():
            values: dict[int, jax.Array] = jax.device_put(read_arrays)
        for i in read_arrays:
            _mark_used(paths[i])
        for i, value in zip(missing, computed_values, strict=True):
            values[i] = value
            self._keep(partial(checked_file.write_array, paths[i], np.asarray(value)))
        return [values[i] for i in chosen]

    def _value_paths(
        self, recipe: Recipe, chosen: Sequence[int], parameters: Sequence[jax.Array]
    ) -> dict[int, str]:
        """Return the paths of the files of the prepared values with the indices `chosen`."""
        read_indices = recipe.reads(chosen)
        read_parameters = [np.asarray(parameters[i]) for i in read_indices]
        read_digests = checked_file.digests_of(read_parameters)
        # `recipe.digests` takes a digest for each parameter. Parameters that the recipe does not
        # read have an empty digest.
        parameter_digests = [""] * len(parameters)
        for i, digest in zip(read_indices, read_digests, strict=True):
            parameter_digests[i] = digest
        value_digests = recipe.digests(parameter_digests)
        versions = "\n".join(compiler_versions())
        paths: dict[int, str] = {}
        for i in chosen:
            key = hashlib.sha256(f"{versions} {value_digests[i]}".encode()).hexdigest()
            paths[i] = self._path(key, "bin")
        return paths

    def _keep(self, write: Callable[[], None]) -> None:
        """Call `write`, which writes a file. If the call fails, as on a full disk, warn once."""
        try:
            write()
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"compiled code is not kept in cache_dir '{self.directory}': {_reason(error)}",
                    stacklevel=2,
                )

    def _path(self, key: str, suffix: str) -> str:
        return os.path.join(self.directory, f"{key}.{suffix}")


def _mark_used(path: str) -> None:
    """Set a file's modification time, which shows when the file was last used."""
    # If the folder is read-only, the time stays as it is.
    with suppress(OSError):
        os.utime(path)


def _reason(error: Exception) -> object:
    """Return the `strerror` of an error. If there is none, return the error.

    The `strerror` does not contain the path of the file. The file may be temporary and unknown to
    users.
    """
    return getattr(error, "strerror", None) or error


def _folder(directory: str | os.PathLike[str]) -> str:
    """Create a folder unless it exists, and return its absolute path.

    Raises OSError or ValueError if the folder cannot be created or read.
    """
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
class _StoredPreparation:
    """The part of a split that computes prepared values from parameters, as a file stores it.

    The fields `sources` and `recipe` are fields of the split. `load` loads the executable that
    computes the values. If `load` is None, numpy computes the values.
    """

    sources: Sequence[int | None]
    recipe: Recipe
    load: Callable[[], jax.stages.Compiled] | None

    def computed(self, chosen: Sequence[int], parameters: Sequence[jax.Array]) -> list[jax.Array]:
        """Compute the prepared values with the indices `chosen`.

        This must not be called while jax traces a function.
        """
        if self.load is None:
            return self.recipe.computed(chosen, parameters)
        values = self.load()(list(parameters))
        return [values[i] for i in chosen]


def _write(
    path: str, split: Split, parameters: Sequence[jax.Array], call: jax.stages.Compiled
) -> None:
    """Write the executables of a split to a file.

    One executable computes prepared values, and `call` computes a call from these values. The
    first one is left out if numpy computes the values, or if there are no prepared values.
    """
    preparation = None
    computed_count = split.sources.count(None)  # the other prepared values are parameters
    if computed_count and not split.is_by_numpy(parameters):
        preparation = _serialized(split.compiled(range(computed_count), parameters))
    content = pickle.dumps((split.sources, split.recipe, preparation, _serialized(call)))
    checked_file.write_checked(path, [content])


def _serialized(executable: jax.stages.Compiled) -> tuple[bytes, _Tree]:
    """Return the machine code of an executable, and the tree of its arguments, for pickling."""
    code, arguments_tree, _ = serialize_executable.serialize(executable)
    return code, arguments_tree


def _read(
    path: str, device: Device, tree: _Tree
) -> tuple[_StoredPreparation, Callable[[], jax.stages.Compiled]] | None:
    """Read the file of a split, or return None if the file is missing or damaged.

    Returns the part that computes prepared values, and a function that loads the executable of
    the call.
    """
    # The file is read and not mapped. If a mapped file changed after the check of its digest, the
    # changed machine code might crash the process.
    content = checked_file.read_checked(path, mapped=False)
    if content is None:
        return None
    try:
        sources, recipe, preparation, call = pickle.loads(content)
        # The source of a value is None if the executable computes the value. The executable
        # returns these values as a list, whose structure is needed to load the executable.
        values_tree = jax.tree.structure([0] * sources.count(None))
    except Exception:
        # Another program may have written the file. For its bytes, pickle may raise any exception.
        return None
    load_preparation = None
    if preparation is not None:
        # The executable is loaded at its first use, and cached.
        load_preparation = cache(partial(_loaded, preparation, values_tree, device))
    load_call = partial(_loaded, call, tree, device)
    return _StoredPreparation(sources, recipe, load_preparation), load_call


def _loaded(
    serialized: tuple[bytes, _Tree], result_tree: _Tree, device: Device
) -> jax.stages.Compiled:
    """Load a serialised executable on a device. `result_tree` is the structure of the result."""
    code, arguments_tree = serialized
    return serialize_executable.deserialize_and_load(
        code, arguments_tree, result_tree, backend=device.client, execution_devices=[device]
    )
