"""Tries mutants in processes, and keeps the outcomes in a file.

A process is handed one number after the other. A mutant that ends its process is an escape.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import jax

from tests.fuzz import kind
from tests.fuzz.bounds import SECONDS, peak, place
from tests.unix import resource

_SHOWN = 60.0  # seconds between two reports
_WRITTEN = 250  # mutants between two writes of the state
_KEPT = 20  # of the mutants that escape at a place


@dataclass(frozen=True)
class Trial:
    """The outcome of one mutant: its sort and end, the place of an escape, its time and memory."""

    end: str
    place: str = ""
    seconds: float = 0.0
    size: int = 0


@dataclass
class State:
    """The outcomes of the first `done` mutants; `escapes` are numbers of mutants by place."""

    kind: str
    seed: int
    done: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    escapes: dict[str, list[int]] = field(default_factory=dict)
    escaped: int = 0
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)

    @classmethod
    def read(cls, path: Path | None, kind: str, seed: int) -> State:
        """Return the state in a file, or a new one; ValueError for one of another run."""
        if path is None or not path.exists():
            return cls(kind, seed)
        state = cls(**json.loads(path.read_text("utf-8")))
        state.slowest, state.largest = tuple(state.slowest), tuple(state.largest)
        if (state.kind, state.seed) != (kind, seed):
            raise ValueError(f"{path} is of kind {state.kind} and seed {state.seed}")
        return state

    def write(self, path: Path | None) -> None:
        """Replace the file at once."""
        if path is not None:
            beside = path.with_name(f"{path.name}.{os.getpid()}")
            beside.write_text(json.dumps(asdict(self)), "utf-8")
            os.replace(beside, path)

    def add(self, trial: Trial) -> None:
        """Add the outcome of the next mutant."""
        number, self.done = self.done, self.done + 1
        self.ends[trial.end] = self.ends.get(trial.end, 0) + 1
        self.slowest = max(self.slowest, (trial.seconds, number))
        self.largest = max(self.largest, (trial.size, number))
        if trial.place:
            self.escaped += 1
            numbers = self.escapes.setdefault(trial.place, [])
            numbers += [number] * (len(numbers) < _KEPT)

    def head(self) -> str:
        """Return the counts of mutants that were tried and that escaped."""
        return f"{self.kind}, seed {self.seed}: {self.done:,} mutants, {self.escaped} escapes"

    def summary(self) -> str:
        """Return a summary of the outcomes of all mutants, with escapes by place."""
        counts = ", ".join(f"{name} {n:,}" for name, n in sorted(self.ends.items()))
        lines = [
            f"{self.head()} ({counts})",
            f"slowest {self.slowest[0]:.2f} s (mutant {self.slowest[1]}), "
            f"largest {self.largest[0] / 1e6:.0f} MB (mutant {self.largest[1]})",
        ]
        for where, numbers in sorted(self.escapes.items()):
            shown = " ".join(f"{self.seed}:{i}" for i in numbers[:5])
            lines.append(f"  {where}: {len(numbers)}{'+' * (len(numbers) == _KEPT)} ({shown})")
        return "\n".join(lines)


def attempt(name: str, seed: int, number: int) -> Trial:
    """Try one mutant."""
    sort, mutant = kind(name).mutant(seed, number)
    held, start, where = peak(reset=True), time.process_time(), ""
    try:
        end = kind(name).end(mutant)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        end, where = "escape", place(error)
    return Trial(f"{sort}/{end}", where, time.process_time() - start, peak() - held)


def prepare(name: str) -> None:
    """Import and cache everything once, so that no mutant is charged with it."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    warnings.filterwarnings("ignore")
    # A fallback would hide what fails first.
    warnings.filterwarnings("error", message="networks run as they are written")
    if name == "dtypes":  # which runs networks: compiling one takes a quarter of the time
        jax.config.update("jax_disable_most_optimizations", True)
    if name != "attacks":
        for number in range(60):
            attempt(name, -1, number)
    gc.freeze()


def work(name: str, seed: int, tasks: Connection) -> None:
    """Try mutants whose numbers come from a pipe, until there is None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    prepare(name)
    while (number := tasks.recv()) is not None:
        # The system ends what no signal handler of Python gets to see, in a C function say.
        used, hard = math.ceil(time.process_time()), resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (used + 6 * int(SECONDS), hard))
        tasks.send(attempt(name, seed, number))
        if number % _WRITTEN == 0:
            jax.clear_caches()  # memory stays as it is
            gc.collect()


class Worker:
    """A process that tries mutants, and is replaced when one of them ends it."""

    def __init__(self, name: str, seed: int) -> None:
        self._arguments, self.number = (name, seed), -1
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.tasks, theirs = context.Pipe()
        arguments = (*self._arguments, theirs)
        self.process: Any = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, number: int) -> None:
        """Send a mutant to the process."""
        self.number = number
        self.tasks.send(number)

    def take(self) -> Trial:
        """Return the outcome of the mutant."""
        try:
            return self.tasks.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            ended = self.process.exitcode or 0
            if ended >= 0:  # by an error of this package's own, which it has printed
                raise RuntimeError(f"a process ended with {ended}, mutant {self.number}") from None
            self._start()
            return Trial("any/escape", f"death by {signal.Signals(-ended).name}")

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):
            self.tasks.send(None)
        self.process.join(10)
        self.process.kill()


def try_all(state: State, count: int, processes: int, end: float, path: Path | None) -> None:
    """Try the mutants up to a number that were not tried before, until a deadline."""
    numbers, trials = iter(range(state.done, count)), dict[int, Trial]()
    workers = [Worker(state.kind, state.seed) for _ in range(min(processes, count - state.done))]
    busy, shown = dict[Any, Worker](), time.monotonic()

    def give(worker: Worker) -> None:
        number = next(numbers, None) if time.monotonic() < end else None
        if number is not None:
            worker.give(number)
            busy[worker.tasks] = worker

    try:
        for worker in workers:
            give(worker)
        while busy:
            for tasks in wait(list(busy)):
                worker = busy.pop(tasks)
                trials[worker.number] = worker.take()
                while state.done in trials:  # in the order of their numbers
                    state.add(trials.pop(state.done))
                    if state.done % _WRITTEN == 0:
                        state.write(path)
                give(worker)
            if time.monotonic() - shown > _SHOWN:
                shown = time.monotonic()
                print(state.head(), flush=True)
    finally:
        state.write(path)
        for worker in workers:
            worker.end()
