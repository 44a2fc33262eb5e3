"""Compiled networks kept in a folder, so that other processes need neither trace nor compile them.

KEY.xla is found by the sha256 of all that it depends on, which is the flat graph, the way to lower
it, and what compiles and runs it. It holds the executables of both halves of a split, as jax's
`serialize_executable` makes them. KEY.bin holds what the first half computed of parameters of the
same digest. Both are checked files: damaged ones, and those under another's name, are made again.
Nothing is ever removed; the folder may be at any time.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.experimental import serialize_executable
from jaxlib.version import __version__ as jaxlib_version

import lowering
import nnef_jax
from lowering.graph import Graph, Operation, Value
from lowering.halves import Split, assemble
from nnef_jax.errors import InputError
from nnef_jax.storage.arrays import digest_of, read_arrays, write_arrays
from nnef_jax.storage.checked import read_checked, write_checked

Device = Any  # a jax.Device, which is no type to a type checker
# Words in the names of jax's settings for what it reports, where it keeps things, and which devices
# it finds. All other settings are part of the key, new ones too, and so is the device.
_IRRELEVANT = ("cache", "cross_host", "dump", "_log", "platform", "traceback", "visible_devices")


class CompilationCache:
    """A folder of compiled functions by key.

    Its files hold pickled objects and machine code: whoever can write to the folder can run code in
    the processes that read it. It is made for its owner alone (mode 0700). Checksums are against
    accidents, not against attacks.

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

    def halves(
        self,
        key: str,
        device: Device,
        split: Callable[[], Split],
        parameters: Sequence[jax.Array],
        inputs: Sequence[Sequence[jax.Array]],
        result: Any,
    ) -> tuple[jax.stages.Compiled, tuple[Any, ...]]:
        """Return the compiled `run` of a split for a device, and what is prepared for it.

        They come from the folder if it has them, else `split` makes them and they are put there. An
        entry that cannot be used is made again. `inputs` are what `run` takes besides, `result` is
        the tree structure of what it returns; its types may be of this process alone, so that an
        entry does not hold it.
        """
        path = self._path(key, "xla")
        found = _read(path, device, result)
        if found is not None:
            entry, load = found
            with suppress(Exception):  # jaxlib raises anything for what it cannot load
                # Beside the digest of the parameters; each takes ResNet-50 0.1 s.
                with ThreadPoolExecutor(1) as pool:
                    loading = pool.submit(load)
                    prepared = self._prepared(entry, parameters, device)
                return loading.result(), prepared
        made = split()
        compute = made.lowered(parameters)
        program = hashlib.sha256("\n".join((*_compiler(), compute.as_text())).encode()).hexdigest()
        entry = _Entry(made.sources, made.reads, program, cache(compute.compile))
        prepared = self._prepared(entry, parameters, device)
        run = made.run.lower(prepared, *inputs).compile()
        self._keep(lambda: _write(path, entry, run))
        return run, prepared

    def _prepared(
        self, entry: _Entry, parameters: Sequence[jax.Array], device: Device
    ) -> tuple[Any, ...]:
        """Return what is prepared of parameters; on a CPU it comes from a file if they have one.

        To compute it takes longer there (ResNet-50, 0.2 s) than to tell by a digest of the
        parameters that it is known (0.05 s), and to check the file (0.025 s). Executables for
        several shapes share the file if they prepare alike.
        """
        if None not in entry.sources or device.platform != "cpu":
            return assemble(entry.sources, parameters, entry.compute()(parameters))
        digest = digest_of([np.asarray(parameters[index]) for index in entry.reads])
        path = self._path(hashlib.sha256(f"{entry.program} {digest}".encode()).hexdigest(), "bin")
        known = read_arrays(path)
        if known is None or len(known) != entry.sources.count(None):
            computed = entry.compute()(parameters)
            self._keep(lambda: write_arrays(path, [np.asarray(array) for array in computed]))
        else:
            with jax.ensure_compile_time_eval():  # also where a function is traced
                computed = jax.device_put(known)
        return assemble(entry.sources, parameters, computed)

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


def _reason(error: Exception) -> object:
    """What the system says of an error without the path, which may be a temporary one."""
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
class _Entry:
    """The first half of a split, compiled when it is asked for.

    `program` tells what it computes.
    """

    sources: Sequence[int | None]
    reads: Sequence[int]
    program: str
    compute: Callable[[], jax.stages.Compiled]


def _write(path: str, entry: _Entry, run: jax.stages.Compiled) -> None:
    # Of each half the executable and the tree of its arguments; these are tuples and lists.
    halves = [serialize_executable.serialize(half)[:2] for half in (entry.compute(), run)]
    write_checked(path, [pickle.dumps((entry.sources, entry.reads, entry.program, *halves))])


def _read(
    path: str, device: Device, result: Any
) -> tuple[_Entry, Callable[[], jax.stages.Compiled]] | None:
    """The first half, and what loads the second."""
    # Not mapped: machine code that changed after the check would take the process along.
    content = read_checked(path, mapped=False)
    if content is None:
        return None
    try:
        sources, reads, program, compute, run = pickle.loads(content)
        computed = jax.tree.structure((0,) * sources.count(None))
    except Exception:  # pickle raises anything for what is not its own
        return None
    load = cache(partial(_loaded, compute, computed, device))
    return _Entry(sources, reads, program, load), partial(_loaded, run, result, device)


def _loaded(half: tuple[bytes, Any], result: Any, device: Device) -> jax.stages.Compiled:
    return serialize_executable.deserialize_and_load(
        *half, result, backend=device.client, execution_devices=[device]
    )


# Keys


def key_of(graph: Graph, device: Device, *others: object) -> str:
    """The key of what is compiled of a graph for a device; `others` tell by their repr what it is.

    The graph tells more than the document: what of the data its structure depends on, say.
    """
    digest = hashlib.sha256()
    for part in (*_environment(), *_of_device(device), *map(repr, others), *_described(graph, {})):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _described(graph: Graph, numbers: dict[Value, int]) -> Iterator[str]:
    """All of a graph that its results depend on, and the names, which profiles show."""

    def shown(item: Any) -> str:
        match item:
            case Value():
                return f"{item.name!r}%{numbers.setdefault(item, len(numbers))}:{item.type}"
            case np.generic():  # the repr of a bfloat16 is that of a float
                return f"{item.dtype}:{item!r}"
            case Graph():
                return "".join(_described(item, numbers))
            case tuple():
                return f"({','.join(map(shown, item))})"  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return repr(item)

    def line(operation: Operation) -> str:
        return shown((operation.kind, operation.operands, operation.attributes, operation.results))

    yield shown(graph.inputs)
    yield shown(tuple((p.label, p.value) for p in graph.parameters))
    yield from map(line, graph.operations)
    yield shown(tuple((s.label, s.value, s.update) for s in graph.states))
    yield shown(tuple(zip(graph.output_names, graph.outputs, strict=True)))


def _of_device(device: Device) -> tuple[str, ...]:
    version = device.client.platform_version
    return device.platform, device.device_kind, str(device.id), version


def _environment() -> Iterator[str]:
    yield from _compiler()
    yield from _program()
    for name, value in sorted(jax.config.values.items()):
        if not any(word in name for word in _IRRELEVANT):
            # The attribute is what holds in this thread; some settings have none.
            yield f"{name}={getattr(jax.config, name, value)!r}"


def _compiler() -> tuple[str, ...]:
    return jax.__version__, jaxlib_version, _flags("XLA_FLAGS"), _flags("LIBTPU_INIT_ARGS")


def _flags(variable: str) -> str:
    """The compiler's flags in an environment variable, or in the file that XLA_FLAGS names."""
    flags = os.environ.get(variable, "")
    if flags and not flags.startswith("-"):
        with suppress(OSError), open(flags, encoding="utf-8", errors="replace") as file:
            return file.read()
    return flags


@cache
def _program() -> tuple[str, ...]:
    """What traces and pickles, and the processor, which machine code is made for."""
    versions = (nnef_jax.__version__, sys.version, np.__version__, ml_dtypes.__version__)
    return *versions, *_sources(), *_processor()


def _sources() -> Iterator[str]:
    """Which state the sources are in, since they may be edited between two versions."""
    for package in (nnef_jax, lowering):
        for folder, _, names in os.walk(os.path.dirname(package.__file__ or "")):
            for name in sorted(names):
                if name.endswith((".py", ".nnef", ".lark")):
                    status = os.stat(os.path.join(folder, name))
                    yield f"{folder}/{name} {status.st_size} {status.st_mtime_ns}"


def _processor() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            block = file.read().split("\n\n")[0].splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return [line for line in block if line.startswith(("model name", "flags", "Features"))]
