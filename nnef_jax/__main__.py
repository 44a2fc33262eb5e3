"""The process that runs for the command `nnef-jax`, or for `python -m nnef_jax`.

By default Python turns SIGINT (Ctrl-C) into an exception. Callbacks of the garbage collector
swallow that exception. If the exception interrupts the import of an extension module, the module is
left broken. Here a signal ends the process instead. No file is left half-written, because files are
replaced by renaming.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line on `sys.argv` and return its exit code, as `cli.main` does.

    The process ends without a message on SIGINT, on SIGTERM, and when the reader of its output
    closes the pipe. A shell sees the exit codes 130, 143 and 141 in these cases. If the standard
    output is closed from the start, or goes to a full disk, the command fails. The command `serve`
    continues when nobody reads its output or its responses.
    """
    _default_signals()
    _fill_closed_streams()
    from nnef_jax import cli  # Importing it takes a while.

    status = cli.main()
    _drop_unwritten()
    return status


def _default_signals() -> None:
    """Let SIGINT and SIGPIPE end the process, as they do in programs of C."""
    # A shell makes background commands ignore SIGINT, and they should continue to ignore it.
    ignores_interrupts = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if not ignores_interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):  # Windows has no SIGPIPE.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _fill_closed_streams() -> None:
    """Open the null device in place of each closed standard stream.

    Otherwise a file that is opened later would get the descriptor 0, 1 or 2.
    """
    standard_input, standard_output, standard_error = 0, 1, 2
    for descriptor, flags in (
        (standard_input, os.O_RDONLY),
        (standard_output, os.O_RDONLY),  # A write fails instead of losing its text unnoticed.
        (standard_error, os.O_WRONLY),  # A write has no effect.
    ):
        try:
            os.fstat(descriptor)
        except OSError:
            # The stream is closed. `os.open` returns the lowest free number, which is `descriptor`.
            os.open(os.devnull, flags)
            if descriptor == standard_output:
                sys.stdout = os.fdopen(descriptor, "w", closefd=False)
            elif descriptor == standard_error:
                sys.stderr = os.fdopen(descriptor, "w", closefd=False)


def _drop_unwritten() -> None:
    """Discard output that could not be written, so that Python does not complain when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The null device replaces the stream, and takes the rest of the output.
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
