"""Writes results, progress and errors to a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

import typer

from nnef_jax.wording.printable import printable, printable_text

STATUS_AFTER = 0.5  # The status is shown after this many seconds.


def print_result(*lines: str) -> None:
    """Write lines to standard output after making them printable.

    If writing fails with an OSError, the error names "standard output".
    """
    _write(_shown(lines), ends_line=True)


def print_piece(text: str) -> None:
    """Write a piece of a text to standard output at once, without the end of a line.

    Control characters are made printable. Errors are those of `print_result`.
    """
    _write(printable_text(text), ends_line=False)


def _write(text: str, *, ends_line: bool) -> None:
    """Write a text to standard output. An OSError gets the name "standard output"."""
    try:
        typer.echo(text, nl=ends_line)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


@contextmanager
def status(text: str, *, counts: bool = False) -> Generator[Callable[[int, int], None] | None]:
    """Show a spinner beside a text on stderr if the block takes longer than `STATUS_AFTER`.

    Yield a function that shows the progress as a bar. The function takes the finished amount and
    the total amount. If `counts` is true, the two amounts and the remaining time are beside the
    bar. If stderr is not a terminal, show nothing and yield None.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    class Terminal(Console):
        def show_cursor(self, show: bool = True) -> bool:
            # A signal may end the process before rich shows a hidden cursor again. The cursor is
            # therefore never hidden.
            return False

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    if counts:
        columns = (*columns, MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Terminal(stderr=True), transient=True)
    task = bar.add_task(printable(text), total=None)
    timer = threading.Timer(STATUS_AFTER, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def message_of(error: OSError) -> str:
    """Return the message of an OSError, preceded by the name of its file."""
    reason = error.strerror or str(error)
    if error.filename:
        return f"{error.filename}: {reason}"
    return reason


def report_error(*lines: str) -> None:
    """Print the lines of an error after "error:". Control characters are made printable."""
    # With `color=None`, typer uses colour only if stderr is a terminal.
    color = False if os.environ.get("NO_COLOR") else None
    # If nothing can be written to stderr, the exit code still shows that there was an error.
    with suppress(OSError):
        typer.secho("error:", fg="red", bold=True, err=True, nl=False, color=color)
        typer.echo(f" {_shown(lines)}", err=True)


def report_line(text: str) -> None:
    """Print a line that is no result, such as a measured speed, to standard error."""
    with suppress(OSError):
        typer.echo(_shown([text]), err=True)


def report_usage(text: str) -> None:
    """Print the text of a usage error, which typer has formatted, to standard error."""
    with suppress(OSError):
        typer.echo(_shown(text.removesuffix("\n").split("\n")), err=True)


def _shown(lines: Sequence[str]) -> str:
    """Join lines to a text without control characters."""
    return "\n".join(map(printable, lines))
