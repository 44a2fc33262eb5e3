"""The process that runs for the command `nnef-jax`, or for `python -m nnef_jax`.

By default Python turns SIGINT (Ctrl-C) into an exception. Callbacks of the garbage collector
swallow that exception, and an extension module whose import it interrupts is broken. Here a signal
ends the process instead. No file is left half-written, because files are replaced by renaming.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line on `sys.argv` and return its exit code, as `cli.main` does.

    The process ends without a message on SIGINT, on SIGTERM, and when the reader of its output
    closes the pipe. A shell sees the exit codes 130, 143 and 141 in these cases. A standard output
    that is closed from the start, or full, is an error. The command `serve` continues when nobody
    reads its output or its responses.
    """
    _default_signals()
    _fill_closed_streams()
    from nnef_jax import cli  # Importing it takes a while.

    status = cli.main()
    _drop_unwritten()
    return status


def _default_signals() -> None:
    # A shell makes background commands ignore SIGINT, and they should continue to ignore it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):  # Windows has no SIGPIPE.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _fill_closed_streams() -> None:
    """Open closed descriptors from 0 to 2, so that no other file gets one of these numbers."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            # open() takes the lowest free number, which is this descriptor
            os.open(os.devnull, flags)
            if descriptor == 1:
                # The descriptor is opened for reading, so that writing to it fails.
                sys.stdout = os.fdopen(1, "w", closefd=False)
            elif descriptor == 2:
                sys.stderr = os.fdopen(2, "w", closefd=False)  # Writing to it has no effect.


def _drop_unwritten() -> None:
    """Discard output that could not be written, so that Python does not complain when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
