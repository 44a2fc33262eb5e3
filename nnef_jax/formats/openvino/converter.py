"""Networks of TensorFlow, TF Lite and PaddlePaddle, by way of the IR that OpenVINO makes of them.

Its converter is native code, which a file of a stranger may crash, hang or fill the memory with: it
runs in a process of its own (`converter_process`), in a new folder of the system's temporary one,
on copies of the files that a network consists of.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from nnef_jax.errors import ArchiveError, InputError, extra_missing
from nnef_jax.formats.openvino import converter_process
from nnef_jax.limits import Limits, Meter, raising
from nnef_jax.storage import protected_files, temporaries
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.folder import Folder

_SECONDS_PER_STEP = 6e-6  # a minute by default: large networks are written in seconds
_LOG, _RESULT = "converted.log", "converted.xml"
_SHOWN = 800  # bytes of what the converter says at its end
_VARIABLES = re.compile(r"variables/variables\.[\w.-]+")  # of a SavedModel


class _Result(Folder):
    """What the converter wrote, as members of the file that it was made of."""

    def __init__(self, folder: str, meter: Meter, shown: str) -> None:
        super().__init__(folder, meter)
        self._shown = shown

    def location(self, name: str) -> str:
        return f"{self._shown}/{name}"

    def read(self, name: str) -> memoryview:
        data = super().read(name)
        return memoryview(bytes(data)) if os.name == "nt" else data  # no mapped file is deleted


@contextmanager
def converted(archive: Archive, kind: str, meter: Meter) -> Generator[Archive]:
    """Convert a network of a kind, such as TensorFlow, to a container of OpenVINO's IR.

    What is mapped of it outlives the block, at whose end its files are deleted. Raises
    UnsupportedError without the package openvino, InputError for weights that lie elsewhere,
    ArchiveError for what the converter refuses, or where it crashes or takes too long.
    """
    shown = archive.location(archive.graph)
    if archive.weights is not None:
        raise InputError(f"weights= does not go with {shown}, of {kind}: it has its own")
    if getattr(find_spec("openvino"), "origin", None) is None:
        message = f"{shown} is a network of {kind}: OpenVINO converts it, which is not installed"
        raise extra_missing(message, "convert")
    try:
        target = os.path.join(tempfile.gettempdir(), "converted")
        with (
            temporaries.temporary_folder(target, private=True) as folder,
            protected_files.unnoted(),
        ):
            source = _copy(archive, folder, meter)
            complaint = _run(source, folder, meter.limits)
            if complaint:
                message = f"{shown}: OpenVINO does not convert this network of {kind}: {complaint}"
                raise ArchiveError(message, hint="is it complete, and does OpenVINO itself run it?")
            with Archive(_Result(folder, meter, shown), shown, meter, graph=_RESULT) as result:
                yield result
    except OSError as error:
        raise ArchiveError(f"{shown} cannot be converted: {error.strerror or error}") from None


def _copy(archive: Archive, folder: str, meter: Meter) -> str:
    """Copy the files that a network consists of; return the name of the first, or their folder."""
    graph = archive.graph
    stem, ending = os.path.splitext(graph)
    copies = {graph: f"source{ending}"}
    if graph == "saved_model.pb":
        names = [graph, *filter(_VARIABLES.fullmatch, archive.names())]
        copies = {name: f"source/{name}" for name in names}
        os.makedirs(os.path.join(folder, "source", "variables"))
    elif ending == ".pdmodel" and archive.exists(f"{stem}.pdiparams"):
        copies[f"{stem}.pdiparams"] = "source.pdiparams"
    for name, copy in copies.items():
        data = archive.open_tensor(name)
        meter.expand(len(data), archive.location(name))
        with open(os.path.join(folder, copy), "wb") as file:
            file.write(data)
    return copies[graph].partition("/")[0]


def _run(source: str, folder: str, limits: Limits) -> str:
    """Convert a file or folder in a folder; return why that failed, '' where it did not."""
    seconds = max(1, int(limits.steps * _SECONDS_PER_STEP))
    bounds = (str(seconds), str(limits.expanded_bytes))
    log = os.path.join(folder, _LOG)
    with open(log, "wb") as errors:
        command = [sys.executable, "-P", converter_process.__file__, source, *bounds]
        status = _status(command, folder, errors.fileno(), seconds)
    if status is None:
        return f"it takes more than {seconds} s; {raising('steps')}"
    if status < 0:
        return f"its converter was ended by {signal.strsignal(-status)}"
    if status == 0 and os.path.exists(os.path.join(folder, _RESULT)):
        return ""
    with open(log, "rb") as file:
        file.seek(-min(_SHOWN, os.path.getsize(log)), os.SEEK_END)
        said = " ".join(file.read().decode(errors="replace").split())
    return said or f"its converter ended with status {status}, without a word"


def _status(command: Sequence[str], folder: str, errors: int, seconds: int) -> int | None:
    """Run a process, and end all that it started; return None where it takes too long."""
    paths = os.pathsep.join(map(os.path.abspath, sys.path))  # where this process finds packages
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        stdin=subprocess.PIPE,  # whose end tells it that this process has ended
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )
    with process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if os.name == "nt":
                process.kill()
            else:
                with suppress(OSError):  # there is none left
                    os.killpg(process.pid, signal.SIGKILL)
