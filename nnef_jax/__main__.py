"""The process `nnef-jax`, or `python -m nnef_jax`.

Python makes an exception of SIGINT, which callbacks of the garbage collector swallow and imports of
extensions do not survive. Here a signal ends the process. Nothing is lost: files are replaced by
renaming.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line on `sys.argv` and return its exit code, as `cli.main` does.

    SIGINT, SIGTERM and a closed reader of the output end the process without a word: a shell sees
    130, 143 and 141. A standard output that is closed or full is an error. `serve` goes on without
    readers, of its output and of its answers.
    """
    _default_signals()
    _fill_closed_streams()
    from nnef_jax import cli  # not before: it takes a while

    status = cli.main()
    _drop_unwritten()
    return status


def _default_signals() -> None:
    # A shell has SIGINT ignored for commands in the background: that stays.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):  # Windows has none
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _fill_closed_streams() -> None:
    """Open the closed ones of descriptors 0 to 2, lest the next file get such a number."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free number
            if descriptor == 1:
                sys.stdout = os.fdopen(1, "w", closefd=False)  # to which writing fails
            elif descriptor == 2:
                sys.stderr = os.fdopen(2, "w", closefd=False)  # to which writing has no effect


def _drop_unwritten() -> None:
    """Discard output that could not be written, so that Python does not complain when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
