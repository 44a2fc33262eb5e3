"""Loads, summarises and traces mutants of networks and inputs; goes on where it was stopped.

    python -m tests.fuzz --kind onnx --count 200000 --seed 77 --state onnx.json
    python -m tests.fuzz --kind nnef --only 77:1234        # one mutant, with its traceback
    python -m tests.fuzz --kind nnef --only 77:1234 --keep # and its smallest form as a regression

A mutant may end in a model or an NnefError, within 10 seconds of the processor and 2 GB beside
what the process holds before it; one of kind dtypes runs, too, and its values are compared with a
reference where there is one. Anything else is an escape. Seed and number alone decide on a
mutant, so that no number of processes and no kill makes any other one. What `--keep` writes to
tests/regressions is loaded by `tests/formats/test_hostile.py`.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import io
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tarfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import jax

import nnef_jax
from nnef_jax.cli.description import describe
from nnef_jax.reading import read
from tests.fuzz_mutants import GROUPS, mutant
from tests.hostile import tar
from tests.unix import resource

ROOT = Path(__file__).resolve().parents[1]
FOUND = ROOT / "tests/regressions"
BLOCK = 250  # mutants between two writes of the state
_SECONDS = 10.0  # of the processor
_BYTES = 2 << 30  # of memory
_ADDRESSES = 6 << 30  # beyond what is allowed: what takes more of them is caught by its memory
_ITEMS = 2  # along an axis that a document leaves open
_KEPT = 20  # of the mutants that escape at a place

Trial = Callable[[str, bytes], str]


class TooSlowError(BaseException):
    """A mutant takes more than its time. Not an Exception, so that nothing makes another of it."""


class TooLargeError(BaseException):
    """A mutant takes more than its memory."""


def trial(source: bytes) -> str:
    """ "model", or the name of the NnefError; anything else passes through.

    A network is loaded, summarised, and traced for abstract inputs: nothing is compiled.
    """
    try:
        model = nnef_jax.load(source)
        model.summary()
        types = [(x.shape, x.dtype) for x in model.inputs]
        given = [
            jax.ShapeDtypeStruct([_ITEMS if n is None else n for n in shape], dtype)
            for shape, dtype in types
        ]
        jax.eval_shape(model.apply, model.params, *given)
    except nnef_jax.NnefError as error:
        if "does not fit into memory" in str(error):
            raise TooLargeError from error
        if isinstance(error, nnef_jax.UnsupportedError):  # which `summary` shows
            with suppress(nnef_jax.NnefError):
                describe(read(source, outline=True))
        return type(error).__name__
    return "model"


def _network(suffix: str, content: bytes) -> str:
    return trial(content)


def _trial(kind: str) -> Trial:
    if kind == "inputs":
        from tests import wrong_inputs

        return wrong_inputs.trial
    if kind == "dtypes":
        from tests import typed_mutants

        return typed_mutants.trial
    return _network


def measured(call: Callable[[], str]) -> str:
    """Return what a trial does within the bounds of time and memory."""
    held, start = _peak(reset=True), time.process_time()
    signal.signal(signal.SIGPROF, _too_slow)
    # Again and again: what Python calls by itself, while it looks for garbage say, swallows errors.
    signal.setitimer(signal.ITIMER_PROF, _SECONDS, 1)
    try:
        outcome = call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if time.process_time() - start > _SECONDS:
        raise TooSlowError
    if _peak() - held > _BYTES:
        raise TooLargeError
    return outcome


def failure(source: bytes) -> str:
    """What a network raised that it must not, with the place; '' if it did not."""
    return escape(partial(trial, source))[1]


def escape(call: Callable[[], str]) -> tuple[str, str]:
    """The outcome of a trial, and "" or what escaped with its place."""
    try:
        return measured(call), ""
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return "escape", _place(error)


def _place(error: BaseException) -> str:
    """The kind of an error, with the last function of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if any(f"/{p}/" in f.filename for p in ("nnef_jax", "lowering"))]
    last = (ours or frames)[-1]
    name = Path(last.filename)
    name = name.relative_to(ROOT) if name.is_relative_to(ROOT) else Path(name.name)
    return f"{type(error).__name__} in {name}:{last.name}"


def _peak(*, reset: bool = False) -> int:
    """Return the most bytes held since the last reset; a reset returns what is held now."""
    if reset:
        with suppress(OSError):  # no such file in some containers: then of the whole process
            _write("/proc/self/clear_refs", "5")
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file if line.startswith("VmHWM"))
    return int(lines["VmHWM"].split()[0]) << 10


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@dataclass
class State:
    """What has been tried so far; a file has it whole, as it was after some block.

    `done` are the numbers of blocks, `escapes` numbers of mutants by place.
    """

    kind: str
    seed: int
    done: list[int] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
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

    def write(self, path: Path) -> None:
        """Replace the file at once."""
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(asdict(self)), "utf-8")
        os.replace(beside, path)

    def add(self, block: int, found: Found) -> None:
        """Add what a block gave."""
        self.done = sorted([*self.done, block])
        for outcome, count in found.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        for place, index in found.escapes:
            self.escaped += 1
            if len(self.escapes.setdefault(place, [])) < _KEPT:
                self.escapes[place].append(index)
        self.slowest = max(self.slowest, found.slowest)
        self.largest = max(self.largest, found.largest)

    def summary(self) -> str:
        """Say what came of all mutants, escapes by place."""
        counts = ", ".join(f"{name} {n:,}" for name, n in sorted(self.outcomes.items()))
        lines = [
            f"{self.kind}, seed {self.seed}: {sum(self.outcomes.values()):,} mutants ({counts})",
            f"{self.escaped} escapes, slowest {self.slowest[0]:.2f} s (mutant {self.slowest[1]}), "
            f"largest {self.largest[0] / 1e6:.0f} MB (mutant {self.largest[1]})",
        ]
        for place, indices in sorted(self.escapes.items()):
            shown = " ".join(f"{self.seed}:{i}" for i in indices[:5])
            lines.append(f"  {place}: {len(indices)}{'+' * (len(indices) == _KEPT)} ({shown})")
        return "\n".join(lines)


@dataclass
class Found:
    """What came of a block of mutants."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    escapes: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    slowest: tuple[float, int] = (0.0, -1)
    largest: tuple[int, int] = (0, -1)

    def add(self, part: Found) -> None:
        """Add what came of a part of it."""
        self.outcomes.update(part.outcomes)
        self.escapes += part.escapes
        self.slowest = max(self.slowest, part.slowest)
        self.largest = max(self.largest, part.largest)


def run(kind: str, seed: int, numbers: range, started: Any = None) -> Found:
    """Try mutants one after the other; `started` is told the number of each."""
    found, attempt = Found(), _trial(kind)
    for index in numbers:
        if started is not None:
            started.value = index
            _bound_processor()
        sort, (suffix, content) = mutant(kind, seed, index)
        held, start = _peak(reset=True), time.process_time()
        outcome, place = escape(partial(attempt, suffix, content))
        found.slowest = max(found.slowest, (time.process_time() - start, index))
        found.largest = max(found.largest, (_peak() - held, index))
        found.outcomes[f"{sort}/{outcome}"] += 1
        if place:
            found.escapes.append((place, index))
    return found


def _bound_processor() -> None:
    """Have the system end what no signal handler of Python gets to see, in a C function say."""
    used = math.ceil(time.process_time())
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used + 6 * int(_SECONDS), hard))


def work(kind: str, seed: int, tasks: Connection, started: Any) -> None:
    """Try blocks of mutants that come from a pipe, until there is None."""
    prepare(kind)
    while (numbers := tasks.recv()) is not None:
        tasks.send(run(kind, seed, numbers, started))
        jax.clear_caches()  # memory stays as it is
        gc.collect()


def prepare(kind: str) -> None:
    """Do once what is nobody's fault: imports, what is cached; then set the bounds."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    warnings.filterwarnings("ignore")
    if kind == "dtypes":  # which runs networks: compiling one takes a quarter of the time
        jax.config.update("jax_disable_most_optimizations", True)
    # A fallback would hide what fails first.
    warnings.filterwarnings("error", message="networks run as they are written")
    run(kind, -1, range(60))
    bound()
    gc.freeze()


def bound() -> None:
    """Have this process get no more memory than is far too much."""
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _ADDRESSES,) * 2)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


class Worker:
    """A process that tries blocks, and is replaced when one of its mutants ends it."""

    def __init__(self, kind: str, seed: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._arguments = kind, seed
        self.numbers = range(0)
        self._start()

    def _start(self) -> None:
        self.started = self._context.Value("q", -1)
        self.tasks, theirs = self._context.Pipe()
        arguments = *self._arguments, theirs, self.started
        self.process = self._context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def give(self, numbers: range) -> None:
        """Begin with a block."""
        self.numbers = numbers
        self.tasks.send(numbers)

    def take(self) -> Found:
        """Return what came of the block; a mutant that ends the process is an escape."""
        whole, parts = Found(), [self.numbers]
        while parts:
            try:
                whole.add(self.tasks.recv())
                parts.pop(0)
            except (EOFError, ConnectionError):
                self.process.join()
                ended, died = self.process.exitcode or 0, self.started.value
                if ended >= 0:  # by an error of this file's own, which it has printed
                    raise RuntimeError(f"a process ended with {ended} at mutant {died}") from None
                place = f"death by {signal.Signals(-ended).name}"
                whole.add(Found(Counter({"any/escape": 1}), [(place, died)]))
                self._start()
                # What came of those before it is lost.
                parts[:1] = [range(parts[0].start, died), range(died + 1, parts[0].stop)]
            if parts and parts[0] != self.numbers:
                self.tasks.send(parts[0])
        return whole

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):
            self.tasks.send(None)
        self.process.join(10)
        self.process.kill()


def minimised(source: bytes, wanted: str) -> bytes:
    """An archive of the same failure with as little text and data as can be found soon."""
    try:
        with tarfile.open(fileobj=io.BytesIO(source)) as archive:
            files = {m.name: archive.extractfile(m) for m in archive.getmembers() if m.isfile()}
            members = {name: file.read() for name, file in files.items() if file}
    except (tarfile.TarError, OSError, EOFError):
        return source
    if failure(tar(members)) != wanted:
        return source
    end = time.monotonic() + 60
    for name in list(members):
        size = len(members[name])
        while size and time.monotonic() < end:
            at = 0
            while at < len(members[name]) and time.monotonic() < end:
                kept = members[name]
                members[name] = kept[:at] + kept[at + size :]
                if failure(tar(members)) != wanted:
                    members[name] = kept
                    at += size
            size //= 2
    return tar(members)


def replay(kind: str, seed: int, index: int, *, keep: bool) -> int:
    """Try one mutant and print what comes of it; write its smallest form if it is to be kept."""
    sort, (suffix, content) = mutant(kind, seed, index)
    print(f"{sort}, {len(content)} bytes{suffix and ' of ' + suffix}")
    _show(content)
    bound()
    call = partial(_trial(kind), suffix, content)
    try:
        print(measured(call))
    except BaseException as error:
        traceback.print_exc()
        if keep and kind not in ("inputs", "dtypes"):
            small = minimised(content, _place(error))
            name = f"{type(error).__name__}-{hashlib.sha256(small).hexdigest()[:12]}.tar"
            (FOUND / name).write_bytes(small)
            _show(small)
            print(f"kept as {name}")
        return 1
    return 0


def _show(content: bytes) -> None:
    """Print the text of an archive's documents."""
    with (
        suppress(tarfile.TarError, OSError, EOFError),
        tarfile.open(fileobj=io.BytesIO(content)) as archive,
    ):
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None and member.name.endswith((".nnef", ".xml", ".quant", ".json")):
                print(f"{member.name}:\n{file.read().decode('utf-8', 'replace')}")


def main() -> int:
    """Try mutants that have not been tried; 1 if any ever escaped."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", choices=list(GROUPS), default="nnef")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--state", type=Path, help="a file that keeps what has been tried")
    parser.add_argument("--only", help="SEED:NUMBER of one mutant")
    parser.add_argument("--keep", action="store_true", help="write --only's to tests/regressions")
    options = parser.parse_args()
    if options.only:
        seed, _, index = options.only.partition(":")
        return replay(options.kind, int(seed), int(index), keep=options.keep)
    state = State.read(options.state, options.kind, options.seed)
    end = time.monotonic() + 60 * options.minutes
    try:
        _try_all(state, options.count, options.processes, end, options.state)
    finally:
        print(state.summary(), flush=True)
    return int(bool(state.escaped))


def _try_all(state: State, count: int, processes: int, end: float, path: Path | None) -> None:
    blocks = [b for b in range(-(-count // BLOCK)) if b not in set(state.done)]
    workers = [Worker(state.kind, state.seed) for _ in range(min(processes, len(blocks)))]
    busy: dict[Any, tuple[Worker, int]] = {}
    shown = time.monotonic()

    def give(worker: Worker) -> None:
        if blocks and time.monotonic() < end:
            block = blocks.pop(0)
            worker.give(range(block * BLOCK, min(count, (block + 1) * BLOCK)))
            busy[worker.tasks] = worker, block

    try:
        for worker in workers:
            give(worker)
        while busy:
            for tasks in wait(list(busy)):
                worker, block = busy.pop(tasks)
                state.add(block, worker.take())
                if path:
                    state.write(path)
                give(worker)
            if time.monotonic() - shown > 60:
                shown = time.monotonic()
                print(state.summary().split("\n")[0], f"{state.escaped} escapes", flush=True)
    finally:
        for worker in workers:
            worker.end()


if __name__ == "__main__":
    sys.exit(main())
