"""The process in which OpenVINO converts a network: no other one of a load imports openvino.

`converter` starts it as a script with the name of a file or folder in the folder that it runs in,
of which the IR is to be made, and bounds on seconds and on bytes, of memory and of each file. It
writes `converted.xml` and `converted.bin`, or ends with a status and says why on its error output.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from importlib import import_module
from typing import Any

try:
    import resource
except ImportError:  # on Windows, which bounds the time alone
    resource = None

_OWN_MEMORY = 1 << 30  # of the interpreter, the converter and its threads, beside the network's


def main(source: str, seconds: int, size: int) -> None:
    """Convert a network within limits; end at once if the process that asked for it does."""
    threading.Thread(target=_end_with_parent, args=(os.getcwd(),), daemon=True).start()
    if resource is not None:
        # Of the system, where native code lets no thread of Python run.
        signal.alarm(min(2 * seconds, 1 << 30))
        _bound(resource.RLIMIT_CORE, 0)
        _bound(resource.RLIMIT_FSIZE, size)
        _bound(resource.RLIMIT_DATA, size + _OWN_MEMORY)
    # Without this package openvino takes its stub, which starts no process to send usage data.
    sys.modules["openvino_telemetry"] = None  # pyright: ignore[reportArgumentType]
    try:
        openvino: Any = import_module("openvino")
        model = openvino.Core().read_model(source)
        openvino.save_model(model, "converted.xml", compress_to_fp16=False)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _bound(limit: int, value: int) -> None:
    """Set a limit of the system, which has it in 63 bits, unless there is a lower one."""
    assert resource is not None
    _, most = resource.getrlimit(limit)
    bounds = [n for n in (value, most) if 0 <= n < 1 << 62]
    if bounds:
        resource.setrlimit(limit, (min(bounds), min(bounds)))


def _end_with_parent(folder: str) -> None:
    """Wait for the end of the input, which the parent holds; remove the folder, and end."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    if os.name == "nt":
        os._exit(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
