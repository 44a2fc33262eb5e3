"""Reads from what jax's profiler recorded how long each instruction of a program ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple


class Run(NamedTuple):
    """An instruction that ran: its name, and when, in nanoseconds."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Return how long it ran."""
        return (self.end - self.start) / 1e9


def recorded(data: Any, module: str, call: str) -> tuple[list[Run], list[Run]]:
    """Return the calls, which are annotated by a name, and what ran of a module, both in order.

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
                name, start = event.name, event.start_ns
                if name == call:
                    calls.append(Run(name, start, start + event.duration_ns))
                    continue
                stats = dict(event.stats)
                if stats.get("hlo_module") == module and "hlo_op" in stats:
                    run = Run(stats["hlo_op"], start, start + event.duration_ns)
                    begun.append((run, stats.get("_p")))
                elif name.startswith("end: ") and "_c" in stats:
                    # On CPUs what began on one thread may end on others.
                    ends[stats["_c"]] = start
    runs = [run._replace(end=max(run.end, ends.get(key, 0))) for run, key in begun]
    return sorted(calls, key=_start), sorted(runs, key=_start)


def times(runs: Iterable[Run], call: Run, control: Collection[str]) -> dict[str, float]:
    """Return seconds by instruction of what ran during a call: these sum to the time it was busy.

    Where several run at a time each has an equal share of it. A loop or another call of
    `control` has what none of those in it take.
    """
    found: defaultdict[str, float] = defaultdict(float)
    active: list[Run] = []
    before = call.start
    for at, run, begins in _edges(runs, call):
        leaves = [x for x in active if x.name not in control] or active[-1:]
        for x in leaves:
            found[x.name] += (at - before) / len(leaves) / 1e9
        before = at
        if begins:
            active.append(run)
        else:
            active.remove(run)
    return dict(found)


def _edges(runs: Iterable[Run], call: Run) -> Iterator[tuple[float, Run, bool]]:
    """Yield when something begins or ends, within a call; the end of what is in a call first."""
    edges: list[tuple[float, bool, int, Run]] = []
    for number, run in enumerate(runs):
        if max(run.start, call.start) < min(run.end, call.end):
            edges.append((max(run.start, call.start), True, number, run))
            edges.append((min(run.end, call.end), False, -number, run))
    for at, begins, _, run in sorted(edges):
        yield at, run, begins


def _start(run: Run) -> float:
    return run.start
