"""Writes to a terminal: results, progress, errors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress

import typer

from nnef_jax.printable import printable

STATUS_AFTER = 0.5  # seconds


def print_result(*lines: str) -> None:
    """Write lines to standard output at once; an OSError names it. Names in them hold anything."""
    try:
        typer.echo(_shown(lines))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


@contextmanager
def status(text: str, *, counts: bool = False) -> Generator[Callable[[int, int], None] | None]:
    """Show a spinner on a terminal's stderr where the block takes longer than `STATUS_AFTER`.

    Yields a function of how much is done, and of how much, which makes a bar of it; with `counts`
    these numbers are beside it, and how long the rest will take.
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
            return False  # it stays visible: a signal may end the process at any moment

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
    columns = (*columns, MofNCompleteColumn(), TimeRemainingColumn()) if counts else columns
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
    """Return the message of a system's error, after the file that it is about."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def report_error(*lines: str) -> None:
    """Print the lines of an error unwrapped, without markup; names in them hold anything."""
    color = False if os.environ.get("NO_COLOR") else None  # None: on a terminal only
    with suppress(OSError):  # where stderr is full or closed, the exit code alone can tell
        typer.secho("error:", fg="red", bold=True, err=True, nl=False, color=color)
        typer.echo(f" {_shown(lines)}", err=True)


def report_usage(text: str) -> None:
    """Print an error of usage, in lines as typer writes them."""
    with suppress(OSError):
        typer.echo(_shown(text.removesuffix("\n").split("\n")), err=True)


def _shown(lines: Sequence[str]) -> str:
    """Return the text of a command: lines that a terminal shows and does not obey."""
    return "\n".join(map(printable, lines))
