"""The process `nnef-jax`, or `python -m nnef_jax`.

Python turns SIGINT into an exception. Callbacks of the garbage collector swallow that exception,
and imports of extensions do not survive it. Here a signal ends the process instead. No file is left
half-written, since files are replaced by renaming.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line on `sys.argv` and return its exit code, as `cli.main` does.

    SIGINT, SIGTERM and a closed reader of the output end the process without a message; a shell
    sees the codes 130, 143 and 141. A standard output that is closed or full is an error. `serve`
    continues when nobody reads its output or its responses.
    """
    _default_signals()
    _fill_closed_streams()
    from nnef_jax import cli  # Importing it takes a while.

    status = cli.main()
    _drop_unwritten()
    return status


def _default_signals() -> None:
    # A shell makes background commands ignore SIGINT. They go on ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _fill_closed_streams() -> None:
    """Open closed descriptors from 0 to 2, so that no other file gets one of these numbers."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free number
            if descriptor == 1:
                sys.stdout = os.fdopen(1, "w", closefd=False)  # opened for reading: writing fails
            elif descriptor == 2:
                sys.stderr = os.fdopen(2, "w", closefd=False)  # writing has no effect


def _drop_unwritten() -> None:
    """Discard output that could not be written, so that Python does not complain when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
