"""Implements `--against COMMIT`, which compares the speed of this checkout with that of a commit.

Three folders hold copies of the packages: one of the working tree ("this"), one of the commit
("that"), and a second copy of the commit ("twin"). All three have the benchmarks of the working
tree. Each folder has a process. The processes do a task one after the other, while the others wait.
The same code may be 1.3 times as fast in one process as in another. A process is therefore used for
only two rounds, and then replaced by a new one. The difference between the commit and its twin
shows how much times vary without any change of the code.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import timing
from benchmarks.change import ROLES, THAT, THIS, TWIN, Change, line, print_changes, summarise
from benchmarks.figures import Task

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("nnef_jax", "lowering")

Round = dict[str, dict[str, float]]  # the figures that each role's process answered


class AgainstError(Exception):
    """Raised if there is nothing to compare with, for example because the commit does not exist."""


class WorkerError(Exception):
    """Raised if the process of one checkout cannot do a task."""

    def __init__(self, role: str, message: str) -> None:
        super().__init__(f"{role}: {message}")
        self.role = role


def run(commit: str, tasks: Sequence[Task], rounds: int, console: Console) -> dict[str, Any]:
    """Compare the checkouts by all tasks, print the changes, and return them as values for JSON.

    The repository is only read. All temporary files are removed.
    """
    if not tasks:
        raise AgainstError("none of these networks is in the parts that are to be compared")
    digest = find_commit(ROOT, commit)
    names = {THIS: _name(ROOT, "HEAD"), THAT: _name(ROOT, digest)}
    if git(ROOT, "status", "--porcelain", "--", *_PACKAGES):
        names[THIS] += ", and what is not committed"
    for role, name in names.items():
        console.print(f"{role}: {name}", markup=False)
    changes: list[Change] = []
    left_out: list[dict[str, str]] = []
    with _terminable(), tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        trees = checkouts(ROOT, digest, Path(folder))
        for task in tasks:
            try:
                with tempfile.TemporaryDirectory(dir=folder) as files:
                    found = measure(task, trees, rounds, Path(files))
            except (WorkerError, timing.DisagreementError) as error:
                title, role = ", ".join(task.titles.values()), getattr(error, "role", THIS)
                left_out.append({"title": title, "by": role, "reason": str(error)})
                console.print(f"{title}: left out, {error}", style="red", markup=False)
                continue
            for change in found:
                console.print(line(change))
            changes += found
    if changes:
        print_changes(console, changes)
    figures = [change.as_dict() for change in changes]
    summary = summarise(changes) if changes else {}
    return {"checkouts": names, "figures": figures, "left_out": left_out, "summary": summary}


def git(root: Path, *arguments: str) -> bytes:
    """Return the output of a git command, which takes no locks and writes nothing.

    Raises AgainstError if the command fails, or if git is not installed.
    """
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise AgainstError("--against needs git, which is not installed") from None
    except subprocess.CalledProcessError as error:
        raise AgainstError(error.stderr.decode(errors="replace").strip()) from None


def find_commit(root: Path, commit: str) -> str:
    """Return the full hash of a commit in the repository whose root folder is `root`.

    Raises AgainstError if `root` is not such a folder, or if there is no such commit.
    """
    top = git(root, "rev-parse", "--show-toplevel").decode().strip()
    if Path(top).resolve() != root.resolve():
        raise AgainstError(f"{root} is not the root of a git repository, {top} is")
    try:
        found = git(root, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")
    except AgainstError:
        hint = "a shallow clone has but its last ones"
        raise AgainstError(f"no commit '{commit}' is in this repository ({hint})") from None
    return found.decode().strip()


def checkouts(root: Path, commit: str, folder: Path) -> dict[str, Path]:
    """Copy the packages into a folder for each role, and return the folders by role.

    The folder for THIS has the packages of the working tree. Those for THAT and TWIN have the
    packages of the commit.
    """
    there = git(root, "ls-tree", "--name-only", commit, *_PACKAGES).decode().split()
    if _PACKAGES[0] not in there:
        raise AgainstError(f"commit {commit} has no {_PACKAGES[0]}")
    archive = git(root, "archive", "--format=zip", "-0", commit, *there)
    trees = {role: folder / role for role in ROLES}
    ignore = shutil.ignore_patterns("__pycache__")
    for package in _PACKAGES:
        shutil.copytree(root / package, trees[THIS] / package, ignore=ignore)
    for role in (THAT, TWIN):
        zipfile.ZipFile(io.BytesIO(archive)).extractall(trees[role])
    for tree in trees.values():
        shutil.copytree(Path(__file__).parent, tree / "benchmarks", ignore=ignore)
        compileall.compile_dir(tree, quiet=2)  # otherwise the first process would take longer
    return trees


def measure(task: Task, trees: Mapping[str, Path], rounds: int, folder: Path) -> list[Change]:
    """Measure a task in all checkouts, and return the change of each of its figures.

    `folder` is used for the files of the task.

    Raises:
        WorkerError: a checkout cannot do the task.
        DisagreementError: the checkouts have different results.
    """
    arguments = {"kind": task.kind, **task.write(folder)}
    orders = cycle(ROLES[i:] + ROLES[:i] for i in range(len(ROLES)))
    found = timing.least_disturbed(
        lambda: _two_rounds(arguments, trees, next(orders), folder), rounds, _elsewhere
    )
    return [
        Change(
            title,
            "B" if key == "peak" else "s",
            [{role: answers[role][key] for role in ROLES} for answers in found],
            _elsewhere(found[-1]),
        )
        for key, title in task.titles.items()
    ]


def _two_rounds(
    arguments: Mapping[str, str], trees: Mapping[str, Path], order: Sequence[str], folder: Path
) -> list[Round]:
    """Measure two rounds in new processes: one in the order `order`, and one in the reverse."""
    outputs = {role: folder / f"{role}.npy" for role in (THAT, THIS, TWIN)}
    with ExitStack() as stack:
        workers = {role: stack.enter_context(_worker(role, trees[role])) for role in ROLES}
        for role, worker in workers.items():  # at the same time, since preparation is not measured
            worker.ask({"output": str(outputs[role]), **arguments})
        for worker in workers.values():
            worker.answer()
        if outputs[THAT].exists():
            timing.check_agreement({role: np.load(path) for role, path in outputs.items()})
        return [{role: workers[role].turn() for role in turns} for turns in (order, order[::-1])]


def _elsewhere(answers: Round) -> float:
    """Return the mean number of cores that other processes used during a round."""
    return sum(answer["elsewhere"] for answer in answers.values()) / len(answers)


class Worker:
    """A process that runs `benchmarks.worker`, to which this process sends lines of JSON."""

    def __init__(self, role: str, process: subprocess.Popen[str], errors: Any) -> None:
        self._role = role
        self._process = process
        self._errors = errors

    def turn(self) -> dict[str, float]:
        """Let the process measure once, and return its figures."""
        self.ask({})
        return self.answer()

    def ask(self, message: Mapping[str, str]) -> None:
        """Send a message as a line of JSON.

        If the process has ended, nothing is sent, and the next call of `answer` raises an error.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps(message), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Return the process's next message.

        Raises WorkerError if the message reports an error, or if the process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines() or [""]
            raise WorkerError(self._role, f"ended with {self._process.wait()} {said[-1]}".strip())
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(self._role, answer["error"])
        return answer


@contextmanager
def _worker(role: str, tree: Path) -> Generator[Worker]:
    """Start a worker in its own session. At the end, kill it and the processes that it started.

    If this process is interrupted before it knows the new process, the new process is not killed.
    It has nothing to do then, and ends when its input is closed.
    """
    command = [sys.executable, "-m", "benchmarks.worker"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stderr=errors, start_new_session=True, **pipes
        )
        try:
            yield Worker(role, process, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@contextmanager
def _terminable() -> Generator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that all is cleaned up as after Ctrl-C."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    previous = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in previous:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _name(root: Path, commit: str) -> str:
    return git(root, "log", "-1", "--format=%h %s", commit).decode().strip()
