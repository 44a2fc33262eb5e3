"""Checks what save, convert, export, batch and view leave if killed, or if the disk is full.

    python -m tests.kill_saves --commands

Each runs in a fork of this process, which holds no device of jax. It is ended before each of its
calls of the system that changes something, the first of which is when it begins to write; then each
of these calls fails as on a full disk; then no file may be longer than so many bytes. What is there
afterwards must be what was there before or what a complete run writes, byte for byte.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tests.interrupt_cli import MODEL
from tests.kill_saves import CHANGING, at_call
from tests.unix import resource

NEIGHBOURS = ("thesis.txt", "notes/mine", ".nnef_jax-thesis", "out.txt", ".out.tmp")
TAKING = CHANGING - {"unlink", "rmdir", "close", "__exit__", "flock", "chmod", "chown"}
_GRAPH = """version 1.0;
graph net(x) -> (y) {{
    x = external<scalar>(shape = [1, 3]);
    w = variable<scalar>(shape = [40, 3], label = 'w');
    y = linear(x, w, {}.0);
}}
"""
_ACTED = 128  # in the status of a fork: it has met the call that it was to be ended at
Contents = dict[str, bytes]


class Job:
    """A command that writes over what another network's run of it wrote.

    `arguments` are for the command line, with NETWORK, TARGET and ITEMS for paths.
    """

    def __init__(self, name: str, target: str, *arguments: str, again: bool = False) -> None:
        self.name, self.target, self.arguments = name, target, arguments
        self.goes_on = again  # from what is there of a run that was ended

    def run(self, folder: Path, version: str) -> int:
        """Run in this process; return the status of the command."""
        known = {"NETWORK": version, "TARGET": f"place/{self.target}", "ITEMS": "items"}
        given = [str(folder / known[a]) if a in known else a for a in self.arguments]
        if self.name == "save":
            import nnef_jax

            try:
                nnef_jax.load(folder / version).save(folder / known["TARGET"], overwrite=True)
            except (OSError, nnef_jax.NnefError) as error:
                print("error:", error, file=sys.stderr)
                return 1
            return 0
        from nnef_jax import cli

        return cli.main([self.name, *given])


OVER = ("NETWORK", "-o", "TARGET", "--overwrite")
JOBS = [
    Job("save", "out"),
    Job("save", "out.tgz"),
    Job("convert", "out.tar", "NETWORK", "TARGET", "--overwrite"),
    Job("convert", "out", "NETWORK", "TARGET", "--overwrite"),
    Job("export", "out.npz", *OVER, "--platforms=cpu"),
    Job("export", "out.jax", *OVER, "--platforms=cpu", "--params=beside"),
    Job("view", "out.html", *OVER),
    Job("batch", "out", "NETWORK", "ITEMS", "--out", "TARGET", "--no-cache", "--part-size=2",
        "--batch-size=2", again=True),
]  # fmt: skip


class Trial:
    """A folder in which one job is ended again and again."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job, self.place = folder, job, folder / "place"
        self.acted = False  # whether the last run had the call that it was to be ended at
        import nnef_jax

        for value, version in enumerate(("old", "new")):
            (folder / version).mkdir()
            (folder / version / "graph.nnef").write_text(_GRAPH.format(value))
            nnef_jax.write_tensor(folder / version / "w.dat", np.full((40, 3), value, np.float32))
        (folder / "items").mkdir()
        for i in range(4):
            np.save(folder / "items" / f"{i}.npy", np.full((1, 3), i, np.float32))
        self._fresh()
        self.complete: Contents = self._completed("new")
        self.before: Contents = {} if job.goes_on else self._completed("old")

    def _fresh(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "notes").mkdir(parents=True)
        for name in NEIGHBOURS:
            (self.place / name).write_text(name)

    def _completed(self, version: str) -> Contents:
        status, _, said = self.run(lambda: None, version)
        assert status == 0, said
        assert not self.leftovers()
        return self.contents()

    def start(self) -> None:
        """Restore the folder as it was before any run of the new version."""
        target = self.place / self.job.target
        for path in [target, *(self.place / name for name in self.leftovers())]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        for name, content in self.before.items():
            path = target / name if name else target
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)

    def contents(self) -> Contents:
        """Return the files of the target by name; '' names a target that is a file."""
        target = self.place / self.job.target
        if target.is_file():
            return {"": target.read_bytes()}
        files = sorted(path for path in target.rglob("*") if path.is_file())
        return {path.relative_to(target).as_posix(): path.read_bytes() for path in files}

    def leftovers(self) -> list[str]:
        """Return what is beside the target and its neighbours."""
        known = {name.split("/")[0] for name in NEIGHBOURS} | {self.job.target}
        return sorted(set(os.listdir(self.place)) - known)

    def run(self, prepare: Callable[[], None], version: str = "new") -> tuple[int, int, str]:
        """Fork a run; return its status, the signal that ended it, and its stderr."""
        said, errors = os.pipe()  # which no limit on files bounds
        child = os.fork()
        if not child:
            self._in_child(errors, prepare, version)
        os.close(errors)
        with open(said, errors="replace") as file:
            text = file.read()
        status = os.waitpid(child, 0)[1]
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = os.WEXITSTATUS(status)
        self.acted = bool(number or code & _ACTED)
        return -1 if number else code & ~_ACTED, number, text

    def _in_child(self, said: int, prepare: Callable[[], None], version: str) -> NoReturn:
        code, self.acted = 99, False
        try:
            with (
                open(said, "w") as errors,
                open(os.devnull, "w") as nothing,
                contextlib.redirect_stdout(nothing),
                contextlib.redirect_stderr(errors),
            ):
                try:
                    prepare()
                    code = self.job.run(self.folder, version)
                except BaseException:
                    sys.setprofile(None)
                    traceback.print_exc()
                sys.setprofile(None)
        finally:
            os._exit(code | _ACTED * self.acted)

    def check(self, status: int, number: int, said: str) -> str:
        """Return the state of the folder after a run was ended; AssertionError for a wrong one.

        Then a further run goes on or begins again, and must leave what a complete one does.
        """
        assert number in (0, signal.SIGKILL), f"ended by signal {number}"
        assert number or status in (0, 1), f"status {status}:\n{said}"
        assert status != 1 or said.startswith("error: "), said
        for name in NEIGHBOURS:
            assert (self.place / name).read_text() == name
        found, left = self.contents(), self.leftovers()
        assert number or not left, f"leftovers of a run that was not killed: {left}"
        if self.job.goes_on:
            hidden = [name for name in found if name.startswith(".nnef_jax-")]
            assert number or not hidden, f"leftovers of a run that was not killed: {hidden}"
            parts = {name: x for name, x in found.items() if name not in hidden}
            wrong = [name for name, x in parts.items() if x != self.complete.get(name)]
            assert not wrong, f"{wrong} are not what a complete run writes"
            outcome = "complete" if parts == self.complete else "a part"
        else:
            assert found in (self.before, self.complete), f"half: {[*found]}"
            outcome = "new" if found == self.complete else "old"
        assert status != 0 or found == self.complete, "a success that wrote something else"
        outcome += ", killed" if number else ", complete" if status == 0 else ", an error"
        status, number, said = self.run(lambda: None)
        assert (status, number) == (0, 0), said
        assert self.contents() == self.complete, "another run does not repair it"
        assert not self.leftovers(), f"leftovers after the next run: {self.leftovers()}"
        return outcome

    def armed(self, number: int, act: Callable[[], None], names: set[str]) -> Callable[[], None]:
        """Return a hook that acts before a call, counted from when a run first writes here."""

        def acting() -> None:
            self.acted = True
            act()

        place, hook = str(self.place), at_call(number, acting, names)
        is_on = False

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal is_on
            if is_on or event not in ("open", "os.mkdir", "os.rename", "os.link"):
                return
            path = str(arguments[0])
            flags = arguments[2] if event == "open" else os.O_CREAT
            if path.startswith(place) and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                is_on = True
                sys.setprofile(hook)

        return lambda: sys.addaudithook(watch)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _short(size: int) -> Callable[[], None]:
    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return prepare


Ending = tuple[str, Callable[[], None]]
ENDS = {"kill": (_kill, CHANGING), "full": (_full, TAKING)}


def at_calls(trial: Trial, kind: str, numbers: Iterable[int]) -> Iterator[Ending]:
    """Return ways to end a run at some of its calls."""
    for number in numbers:
        yield f"{kind} at {number}", trial.armed(number, *ENDS[kind])


def by_size(trial: Trial) -> Iterator[Ending]:
    """Return ways to end a run by limits of file sizes, whose error is as that of a full disk."""
    largest = max(map(len, trial.complete.values()))
    for size in sorted({0, 1, largest // 2, largest - 1}):
        yield f"files of {size} bytes", _short(size)


def end(job: Job, folder: Path, *, short: bool = False) -> Counter[str]:
    """End runs of a job in every way, or `short` in two; count what was found."""
    trial, found = Trial(folder, job), Counter[str]()
    if short:
        ways = [at_calls(trial, "kill", [9]), at_calls(trial, "full", [4])]
    else:
        ways = [*(at_calls(trial, kind, itertools.count()) for kind in ENDS), by_size(trial)]
    for way in ways:
        for what, prepare in way:
            trial.start()
            ended, acted = trial.run(prepare), trial.acted
            try:
                found[f"{what.split()[0]}: {trial.check(*ended)}"] += 1
            except AssertionError as error:
                raise AssertionError(f"{job.name} {job.target}, {what}: {error}") from None
            if not acted and "at" in what:  # there is no such call any more
                break
    return found


def main(folder: str | None, *, short: bool) -> None:
    """Print what was found for each job; fail if something is incomplete or missing."""
    # Once, before any fork: what the commands import. No device of jax is held.
    import jax.experimental.multihost_utils  # noqa: F401

    import lowering.cpu.graphs
    import lowering.pipeline
    import lowering.targets.cpu
    import lowering.targets.portable  # noqa: F401
    import nnef_jax.cli.batch_results
    import nnef_jax.cli.dataset
    import nnef_jax.cli.streaming
    import nnef_jax.execution.disk_cache
    import nnef_jax.formats.nnef.frontend
    import nnef_jax.loading
    import nnef_jax.saving.archives
    import nnef_jax.saving.conversion
    import nnef_jax.saving.export
    import nnef_jax.viewing.page  # noqa: F401
    from nnef_jax import cli

    with contextlib.suppress(ImportError):
        import grain  # noqa: F401

    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["check", str(MODEL)]) == 0

    jobs = list({job.name: job for job in JOBS}.values()) if short else JOBS
    for job in jobs:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            found = end(job, Path(place), short=short)
            print(f"{job.name} {job.target}:", dict(sorted(found.items())), flush=True)
