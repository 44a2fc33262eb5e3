"""Converts networks of TensorFlow, TensorFlow Lite and PaddlePaddle to IR, by OpenVINO's converter.

The converter is native code, which a hostile file may make crash, hang or exhaust the memory.
Therefore the converter runs in a separate process (`converter_process`). The process works on
copies of the network's files in a new temporary folder.
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

# The converter's time limit in seconds is this number times `Limits.steps`: 60 s by default. The
# conversion of a large network takes a few seconds.
_SECONDS_PER_STEP = 6e-6
# Names of files in the folder in which the converter runs.
_LOG, _RESULT = "converted.log", "converted.xml"
_SHOWN_BYTES = 800  # errors show at most this many bytes from the end of the converter's log
# Matches the files with the weights of a SavedModel, such as variables/variables.index.
_VARIABLES = re.compile(r"variables/variables\.[\w.-]+")


class _Result(Folder):
    """A folder with the files that the converter wrote.

    The user does not know the folder. Therefore error messages show the path of the user's file
    instead of the folder, as in "model.pb/converted.xml".
    """

    def __init__(self, folder: str, meter: Meter, shown: str) -> None:
        super().__init__(folder, meter)
        self._shown = shown

    def location(self, name: str) -> str:
        return f"{self._shown}/{name}"

    def read(self, name: str) -> memoryview:
        data = super().read(name)
        # Windows cannot delete a file that is mapped to memory. Therefore the data are copied on
        # Windows.
        return memoryview(bytes(data)) if os.name == "nt" else data


@contextmanager
def converted(archive: Archive, kind: str, meter: Meter) -> Generator[Archive]:
    """Convert a network to OpenVINO's IR, and yield the archive of the result.

    `kind` is the name of the network's framework, for error messages. The files of the archive are
    deleted at the end of the `with` block. Arrays that are mapped from the files stay valid.

    Raises UnsupportedError if the package openvino is not installed, and InputError if the user
    names a separate file of weights. Raises ArchiveError if the converter refuses the network,
    crashes or takes too long.
    """
    location = archive.location(archive.graph)
    if archive.weights is not None:
        raise InputError(
            f"weights= is not for {location}: a network of {kind} contains its weights"
        )
    is_installed = getattr(find_spec("openvino"), "origin", None) is not None
    if not is_installed:
        message = (
            f"{location} is a network of {kind}, and OpenVINO, which reads it, is not installed"
        )
        raise extra_missing(message, "convert")
    try:
        target = os.path.join(tempfile.gettempdir(), "converted")
        with (
            temporaries.temporary_folder(target, private=True) as folder,
            protected_files.without_noting(),
        ):
            source = _copy(archive, folder, meter)
            complaint = _run(source, folder, meter.limits)
            if complaint:
                message = f"{location}: OpenVINO cannot convert this network of {kind}: {complaint}"
                raise ArchiveError(message, hint="is it complete, and does OpenVINO itself run it?")
            files = _Result(folder, meter, location)
            with Archive(files, location, meter, graph=_RESULT) as result:
                yield result
    except OSError as error:
        raise ArchiveError(f"{location} cannot be converted: {error.strerror or error}") from None


def _copy(archive: Archive, folder: str, meter: Meter) -> str:
    """Copy the files of a network to `folder`, and return the name of the copy.

    The copy of a TensorFlow SavedModel is a folder with the name "source". The copy of any other
    network is a file such as "source.tflite". The weights of a PaddlePaddle network are copied to
    "source.pdiparams".
    """
    graph = archive.graph
    stem, ending = os.path.splitext(graph)
    source = f"source{ending}"
    copies = {graph: source}  # maps members of the archive to the names of their copies
    if graph == "saved_model.pb":
        source = "source"
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
    return source


def _run(source: str, folder: str, limits: Limits) -> str:
    """Convert a network in a separate process.

    `source` is the name of a file or folder in `folder`. Return "" if the conversion succeeds,
    otherwise the reason for the failure.
    """
    seconds = max(1, int(limits.steps * _SECONDS_PER_STEP))
    arguments = (source, str(seconds), str(limits.expanded_bytes))
    log = os.path.join(folder, _LOG)
    with open(log, "wb") as errors:
        # -P leaves the script's folder out of the paths from which Python imports modules.
        command = [sys.executable, "-P", converter_process.__file__, *arguments]
        status = _status(command, folder, errors.fileno(), seconds)
    if status is None:
        return f"it takes more than {seconds} s; {raising('steps')}"
    if status < 0:
        return f"its converter was ended by {signal.strsignal(-status)}"
    if status == 0 and os.path.exists(os.path.join(folder, _RESULT)):
        return ""
    with open(log, "rb") as file:
        shown_bytes = min(_SHOWN_BYTES, os.path.getsize(log))
        file.seek(-shown_bytes, os.SEEK_END)
        words = file.read().decode(errors="replace").split()
    complaint = " ".join(words)  # the end of the log as a single line
    return complaint or f"its converter ended with status {status} and no message"


def _status(command: Sequence[str], folder: str, errors: int, seconds: int) -> int | None:
    """Run a command and return its exit status, or None if it takes more than `seconds`.

    The command runs in `folder` and writes its messages to the file descriptor `errors`. Before
    this function returns, it ends all processes that the command has started. On Windows, it ends
    only the command itself.
    """
    # With these paths, the child imports the same packages as this process.
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        stdin=subprocess.PIPE,  # when this process ends, the pipe closes, and the child ends too
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
                with suppress(OSError):  # the call fails if no process is left
                    os.killpg(process.pid, signal.SIGKILL)
