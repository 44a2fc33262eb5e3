"""The script that converts a network by OpenVINO, in a separate process.

Therefore the process that loads the network need not import openvino. The module `converter` runs
the script in a temporary folder, with three arguments:

- the name of the network's file or folder, which is in the temporary folder
- the time limit in seconds
- a number of bytes, which limits each file that the script writes, and also limits the script's
  memory beyond `_BASE_MEMORY`

The script writes `converted.xml` and `converted.bin`. On failure the script exits with a status
other than 0, and writes the reason to its standard error.
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
except ImportError:  # Windows has no such module, so only the time is limited there
    resource = None

# The number of bytes of memory that the interpreter, the converter and its threads need even for
# the smallest network.
_BASE_MEMORY = 1 << 30


def main(source: str, seconds: int, size: int) -> None:
    """Convert the network `source` to "converted.xml" and "converted.bin" in the current folder.

    `seconds` limits the time. `size` limits the bytes of each file, and the bytes of memory beyond
    `_BASE_MEMORY`. On failure, exit with the message of the error. If the parent process ends, this
    process ends at once.
    """
    threading.Thread(target=_end_with_parent, args=(os.getcwd(),), daemon=True).start()
    if resource is not None:
        # The system enforces these limits even while native code blocks all Python threads. The
        # parent process normally ends this process earlier, after `seconds`.
        signal.alarm(min(2 * seconds, 1 << 30))
        _bound(resource.RLIMIT_CORE, 0)
        _bound(resource.RLIMIT_FSIZE, size)
        _bound(resource.RLIMIT_DATA, size + _BASE_MEMORY)
    # If openvino cannot import the package openvino_telemetry, it uses a stub instead. The stub
    # starts no process that sends usage data.
    sys.modules["openvino_telemetry"] = None  # pyright: ignore[reportArgumentType]
    try:
        openvino: Any = import_module("openvino")
        model = openvino.Core().read_model(source)
        openvino.save_model(model, "converted.xml", compress_to_fp16=False)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")


def _bound(limit: int, value: int) -> None:
    """Set a resource limit of this process, such as `resource.RLIMIT_DATA`, to `value`.

    If the process has a lower limit already, the limit stays. Numbers of 2**62 or more mean "no
    limit".
    """
    assert resource is not None
    bounds = [bound for bound in (value, *resource.getrlimit(limit)) if 0 <= bound < 1 << 62]
    if bounds:
        lowest = min(bounds)
        resource.setrlimit(limit, (lowest, lowest))


def _end_with_parent(folder: str) -> None:
    """Wait until the parent process closes the standard input, then end this process.

    Before the end, remove the parent's temporary folder `folder`. All processes that this process
    started end too, except on Windows.
    """
    standard_input = 0
    # The call waits for a byte, and returns b"" once the input is closed.
    while os.read(standard_input, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    if os.name == "nt":
        os._exit(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
