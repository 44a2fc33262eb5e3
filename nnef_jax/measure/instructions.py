"""Assigns the instructions of a compiled program, and their times, to operations of the document.

Operations are traced under their names, and XLA stores these names in the metadata of instructions.
jax's profiler records when each instruction ran.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from nnef_jax.measure.hlo import computations

_CALLED = re.compile(r"(?:calls|to_apply|body|condition|\w+_computations?)=(\{[^}]*\}|[^,\s]+)")
_NAME = re.compile(r"[\w.\-]+")
_CONTROL = re.compile(r" (?:while|conditional|call)\(")
_PATH = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TRANSFORMED = re.compile(r"(?!jit\()\w+\((.*)\)")


@dataclass(frozen=True, slots=True)
class HloProgram:
    """A compiled program, with the names of the operations that each instruction computes.

    `operations` is a dict from the name of an instruction to the set of its operations' names.
    `control` has the names of loops, branches and calls.
    """

    module: str
    operations: dict[str, frozenset[str]]
    # names of loops, calls and conditionals, which contain other instructions
    control: frozenset[str]
    loops: int


def program_of(text: str, names: Collection[str]) -> HloProgram:
    """Return the program that the text of a compiled module describes.

    `names` are the names of the document's operations.

    A fusion computes the operations of all instructions inside the fusion.
    """
    by_path = {_without_empty_parts(name): name for name in names} | {name: name for name in names}
    slashes = max([name.count("/") for name in names], default=0)
    operations: dict[str, set[str]] = {}  # by the name of the instruction
    # the computations that it calls, by the name of the instruction
    called: dict[str, list[str]] = {}
    control: set[str] = set()
    loops = 0
    _, instructions = computations(text)
    for computation in instructions.values():
        for name, definition in computation:
            head, _, metadata = definition.partition(", metadata={")
            path = _PATH.search(metadata)
            operation = _operation(_unescaped(path[1]), by_path, slashes) if path else None
            operations[name] = {operation} if operation else set()
            called[name] = _NAME.findall(" ".join(_CALLED.findall(head)))
            if _CONTROL.search(head):
                control.add(name)
            if " while(" in head:
                loops += 1
    # Computations precede their callers, so the operations of called computations are complete
    # here.
    for computation in instructions.values():
        for name, _ in computation:
            for called_name in called[name]:
                for inner_name, _ in instructions.get(called_name, ()):
                    operations[name] |= operations[inner_name]
    module = re.match(r"HloModule ([^,\s]+)", text)
    module_name = module[1] if module else ""
    frozen = {name: frozenset(x) for name, x in operations.items()}
    return HloProgram(module_name, frozen, frozenset(control), loops)


def _without_empty_parts(name: str) -> str:
    """Return a name without empty parts: "conv1/Conv" for "/conv1//Conv".

    jax may also leave out empty parts of a path.
    """
    return "/".join(filter(None, name.split("/")))


def _unescaped(text: str) -> str:
    """Decode a string of a compiled module, where bytes beyond ASCII are octal escapes."""
    if "\\" not in text:
        return text
    return text.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _operation(path: str, names: Mapping[str, str], slashes: int) -> str | None:
    """Return the outermost operation in a path such as "jit(net)/conv1/transpose": "conv1".

    `names` is a dict from the names in paths to names of operations. The last part of the path is
    the primitive, and is ignored. A name contains at most `slashes` slashes. A derivative has a
    part such as "transpose(jvp(conv1))". Inner parts may be other operations, such as the
    operations in the body of a loop.
    """
    parts = path.split("/")[:-1]
    for start in range(len(parts)):
        longest = min(len(parts) - start, slashes + 1)
        for length in range(longest, 0, -1):
            name = "/".join(parts[start : start + length])
            derivative = _TRANSFORMED.fullmatch(name)
            while name not in names and derivative:
                name = derivative[1]
                derivative = _TRANSFORMED.fullmatch(name)
            if name in names:
                return names[name]
    return None


class Run(NamedTuple):
    """A run of an instruction, with start and end in nanoseconds."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Return the duration of the run in seconds."""
        return (self.end - self.start) / 1e9


@contextmanager
def _without_warnings_of_types() -> Generator[None]:
    """Ignore a warning about a type of jaxlib's profiler, which Python 3.12 and later give.

    jaxlib makes the type when the statistics of an event are first read. If the warning is an
    error, jaxlib aborts the process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "builtin type", DeprecationWarning)
        yield


@_without_warnings_of_types()
def recorded(data: Any, module: str, call: str) -> tuple[list[Run], list[Run]]:
    """Return the annotated calls, and the runs of a module's instructions.

    The calls, and the runs, are sorted by start.

    Args:
        data: a `jax.profiler.ProfileData`.
        module: the name of the compiled program.
        call: the name of the annotation around each call.
    """
    calls: list[Run] = []
    begun: list[tuple[Run, Any]] = []
    ends: dict[Any, float] = {}
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                name = event.name
                start = event.start_ns
                if name == call:
                    calls.append(Run(name, start, start + event.duration_ns))
                    continue
                stats = dict(event.stats)
                if stats.get("hlo_module") == module and "hlo_op" in stats:
                    run = Run(stats["hlo_op"], start, start + event.duration_ns)
                    begun.append((run, stats.get("_p")))
                elif name.startswith("end: ") and "_c" in stats:
                    # On CPUs an instruction may begin on one thread and end on another.
                    ends[stats["_c"]] = start
    runs = [run._replace(end=max(run.end, ends.get(key, 0))) for run, key in begun]
    return sorted(calls, key=_start), sorted(runs, key=_start)


def times(runs: Iterable[Run], call: Run, control: Collection[str]) -> dict[str, float]:
    """Return the seconds during a call that each instruction took, by the instruction's name.

    The seconds sum to the time in which at least one instruction ran. Instructions that run at the
    same time have equal shares of this time. An instruction in `control` has only the time in which
    no instruction inside it runs.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    active: list[Run] = []
    last_time = call.start
    for edge in _edges(runs, call):
        leaves = [x for x in active if x.name not in control] or active[-1:]
        for leaf in leaves:
            seconds[leaf.name] += (edge.time - last_time) / len(leaves) / 1e9
        last_time = edge.time
        if edge.begins:
            active.append(edge.run)
        else:
            active.remove(edge.run)
    return dict(seconds)


class _Edge(NamedTuple):
    """The start or the end of a run. Edges are sorted by time, and ends come before starts.

    Of several runs that end at the same time, the inner run, which began last, ends first.
    """

    time: float
    begins: bool
    order: int
    run: Run


def _edges(runs: Iterable[Run], call: Run) -> list[_Edge]:
    """Return the edges, by time, of all runs within a call: the start and the end of each run."""
    edges: list[_Edge] = []
    for number, run in enumerate(runs):
        start = max(run.start, call.start)
        end = min(run.end, call.end)
        if start < end:
            edges.append(_Edge(start, True, number, run))
            edges.append(_Edge(end, False, -number, run))
    return sorted(edges)


def _start(run: Run) -> float:
    return run.start
