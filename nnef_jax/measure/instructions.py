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
from itertools import chain
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

    Attributes:
        module: the name of the program.
        operations: maps the name of an instruction to the names of the operations that the
            instruction computes.
        control: names of the instructions that contain other instructions: loops, calls and
            conditionals.
        loops: the number of loops.
    """

    module: str
    operations: dict[str, frozenset[str]]
    control: frozenset[str]
    loops: int


def program_of(text: str, names: Collection[str]) -> HloProgram:
    """Return the program that the text of a compiled module describes.

    `names` are the names of the document's operations. A fusion computes the operations of all
    instructions inside the fusion.
    """
    names_by_spelling = _names_by_spelling(names)
    most_slashes = max([name.count("/") for name in names], default=0)
    # The keys of both dicts are names of instructions.
    operations: dict[str, set[str]] = {}
    called_computations: dict[str, list[str]] = {}
    control: set[str] = set()
    loops = 0
    _entry, instructions_by_computation = computations(text)
    for instructions in instructions_by_computation.values():
        for instruction, definition in instructions:
            head, _, metadata = definition.partition(", metadata={")
            operations[instruction] = set()
            path = _PATH.search(metadata)
            if path:
                operation = _operation(_unescaped(path[1]), names_by_spelling, most_slashes)
                if operation:
                    operations[instruction].add(operation)
            # The text "condition=%c.1, body=%b.1" calls the computations "c.1" and "b.1".
            called_computations[instruction] = _NAME.findall(" ".join(_CALLED.findall(head)))
            if _CONTROL.search(head):
                control.add(instruction)
            if " while(" in head:
                loops += 1
    # An instruction also computes the operations of the computations that it calls. A program lists
    # computations before their callers. The operations of a computation are therefore complete when
    # the loop reaches a caller.
    for instructions in instructions_by_computation.values():
        for instruction, _ in instructions:
            for computation in called_computations[instruction]:
                for inner_instruction, _ in instructions_by_computation.get(computation, ()):
                    operations[instruction] |= operations[inner_instruction]
    module = re.match(r"HloModule ([^,\s]+)", text)
    module_name = module[1] if module else ""
    frozen_operations = {name: frozenset(computed) for name, computed in operations.items()}
    return HloProgram(module_name, frozen_operations, frozenset(control), loops)


def _names_by_spelling(names: Collection[str]) -> dict[str, str]:
    """Return a dict from spellings in a compiled module to names of operations.

    jax may leave out the empty parts of a name: the name "/conv1//Conv" has also the spelling
    "conv1/Conv". But if there is an operation with the name "conv1/Conv", this spelling belongs
    to that operation.
    """
    names_by_spelling: dict[str, str] = {}
    for name in names:
        without_empty_parts = "/".join([part for part in name.split("/") if part])
        names_by_spelling[without_empty_parts] = name
    for name in names:
        names_by_spelling[name] = name
    return names_by_spelling


def _unescaped(text: str) -> str:
    """Decode a string of a compiled module, where bytes beyond ASCII are octal escapes."""
    if "\\" not in text:
        return text
    return text.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _operation(path: str, names_by_spelling: Mapping[str, str], most_slashes: int) -> str | None:
    """Return the outermost operation in a path such as "jit(net)/conv1/transpose": "conv1".

    The last part of the path is the primitive, and is ignored. Inner parts may also be
    operations, such as the operations in the body of a loop. `names_by_spelling` maps spellings in
    paths to names of operations. A spelling contains at most `most_slashes` slashes.
    """
    parts = path.split("/")[:-1]
    for start in range(len(parts)):
        # Longer names are tried first. For the parts a, b and c these are a/b/c, then a/b, then a.
        last_end = min(len(parts), start + most_slashes + 1)
        for end in range(last_end, start, -1):
            name = "/".join(parts[start:end])
            # A derivative has a name such as "transpose(jvp(conv1))". It becomes "jvp(conv1)" and
            # then "conv1".
            transformed = _TRANSFORMED.fullmatch(name)
            while name not in names_by_spelling and transformed:
                name = transformed[1]
                transformed = _TRANSFORMED.fullmatch(name)
            if name in names_by_spelling:
                return names_by_spelling[name]
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
    """Ignore the warning of Python 3.12 and later about a type of jaxlib's profiler.

    jaxlib makes the type when the statistics of an event are first read. If Python's settings turn
    the warning into an error, jaxlib aborts the process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "builtin type", DeprecationWarning)
        yield


@_without_warnings_of_types()
def recorded(data: Any, module: str, call: str) -> tuple[list[Run], list[Run]]:
    """Return the annotated calls, and the runs of a module's instructions.

    Both lists are sorted by the start of the call or the run.

    Args:
        data: a `jax.profiler.ProfileData`.
        module: the name of the compiled program.
        call: the name of the annotation around each call.
    """
    calls: list[Run] = []
    runs_with_keys: list[tuple[Run, Any]] = []
    ends_by_key: dict[Any, float] = {}
    lines = chain.from_iterable(plane.lines for plane in data.planes)
    for event in chain.from_iterable(line.events for line in lines):
        name = event.name
        start = event.start_ns
        if name == call:
            calls.append(Run(name, start, start + event.duration_ns))
            continue
        stats = dict(event.stats)
        if stats.get("hlo_module") == module and "hlo_op" in stats:
            run = Run(stats["hlo_op"], start, start + event.duration_ns)
            runs_with_keys.append((run, stats.get("_p")))
        elif name.startswith("end: ") and "_c" in stats:
            # On CPUs an instruction may begin on one thread and end on another thread. The end is
            # then a separate event. Its "_c" equals the "_p" of the run that ends.
            ends_by_key[stats["_c"]] = start
    runs: list[Run] = []
    for run, key in runs_with_keys:
        end_on_other_thread = ends_by_key.get(key, 0)
        runs.append(run._replace(end=max(run.end, end_on_other_thread)))
    return sorted(calls, key=_start), sorted(runs, key=_start)


def times(runs: Iterable[Run], call: Run, control: Collection[str]) -> dict[str, float]:
    """Return the seconds that each instruction took during a call, as a dict by name.

    The seconds sum to the time in which at least one instruction ran. If several instructions run
    at the same time, each gets an equal share of the time. An instruction in `control` gets only
    the time in which no instruction inside it runs.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    active: list[Run] = []
    last_time = call.start
    for edge in _edges(runs, call):
        # The time since the last edge (a start or an end) is divided among the runs in `sharing`.
        sharing = [run for run in active if run.name not in control]
        if not sharing:
            # All active runs are loops, branches or calls. The run that began last is the innermost
            # run, and gets the time. If no run is active, `sharing` is empty.
            sharing = active[-1:]
        for run in sharing:
            share_in_ns = (edge.time - last_time) / len(sharing)
            seconds[run.name] += share_in_ns / 1e9
        last_time = edge.time
        if edge.begins:
            active.append(edge.run)
        else:
            active.remove(edge.run)
    return dict(seconds)


class _Edge(NamedTuple):
    """The start or the end of a run. Edges are sorted by time, and ends come before starts.

    If several runs end at the same time, the run that began last is the innermost one, and its end
    comes first.
    """

    time: float
    begins: bool
    order: int
    run: Run


def _edges(runs: Iterable[Run], call: Run) -> list[_Edge]:
    """Return the start and the end of each run within a call, sorted by time.

    `runs` are sorted by start. A run that exceeds the call is cut off.
    """
    edges: list[_Edge] = []
    for number, run in enumerate(runs):
        start = max(run.start, call.start)
        end = min(run.end, call.end)
        # A run before or after the call has no edges.
        if start < end:
            edges.append(_Edge(start, begins=True, order=number, run=run))
            # If several runs end at the same time, the run that began last comes first, because it
            # has the smallest `order`.
            edges.append(_Edge(end, begins=False, order=-number, run=run))
    return sorted(edges)


def _start(run: Run) -> float:
    """Return the start of a run, by which runs are sorted."""
    return run.start
