"""Measures the time of functions that run alternately in one process."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import numpy as np

from benchmarks.builders.base import Array

_REST = 0.020  # seconds; by then the threads of the previous engine no longer spin
_WARM = 0.040  # least seconds of untimed calls, after which caches and clocks have settled
_SAMPLE = 0.020  # least seconds of a sample; shorter calls are repeated within a sample
QUIET = 0.2  # cores that other processes may use; smaller numbers cannot be measured
_WAIT = 0.5  # seconds to wait after a round that other processes disturbed
TOLERANCE = 1e-4
OF_BFLOAT16 = 5e-2

T = TypeVar("T")


class DisagreementError(Exception):
    """Raised if two engines have different results, so that their times cannot be compared."""


@dataclass
class Measurement:
    """The seconds of calls by name, with two samples for each round."""

    samples: dict[str, list[float]]
    elsewhere: float  # cores that other processes used in the worst round

    @property
    def medians(self) -> dict[str, float]:
        """The median of the samples of each name."""
        return {name: median(values) for name, values in self.samples.items()}


def measure(calls: Mapping[str, Callable[[], Any]], rounds: int) -> Measurement:
    """Measure the times of calls that alternate.

    In each round there are, for each call, a rest, some untimed calls, and two timed samples.
    Changes in the speed of the machine therefore affect all calls alike. Ratios within one run can
    be trusted, while times of two runs cannot be compared. Rounds in which another process computes
    cannot be trusted, because engines slow down differently if a core is busy. ResNet-18 in torch
    on 2 cores, for example, took 1380 ms instead of 310 ms.
    """
    repeats = {name: repetitions(settled(call)) for name, call in calls.items()}
    found = least_disturbed(lambda: [_round(calls, repeats)], rounds, lambda r: r.elsewhere)
    samples = {name: [s for r in found for s in r.samples[name]] for name in calls}
    return Measurement(samples, found[-1].elsewhere)


def least_disturbed(
    take: Callable[[], Sequence[T]], rounds: int, elsewhere: Callable[[T], float]
) -> list[T]:
    """Return the `rounds` rounds in which other processes used the fewest cores.

    `take` measures one or more rounds, and `elsewhere` returns the cores that other processes used
    in a round. Disturbed rounds are replaced by further rounds. At most three times as many rounds
    as needed are measured.
    """
    found: list[T] = []
    while len(found) < 3 * rounds and sum(elsewhere(r) <= QUIET for r in found) < rounds:
        found += take()
        if elsewhere(found[-1]) > QUIET:
            time.sleep(_WAIT)
    return sorted(found, key=elsewhere)[:rounds]


def ratios(times: Mapping[str, float], subject: str) -> dict[str, float]:
    """Divide the time of the subject by the time of each other engine, and by the fastest time."""
    others = {name: time for name, time in times.items() if name != subject}
    found = {name: times[subject] / time for name, time in others.items()}
    return found | {"fastest": max(found.values())} if found else {}


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of ratios, which treats a ratio and its inverse alike."""
    return math.exp(sum(map(math.log, values)) / len(values))


def relative_difference(a: Array, b: Array) -> float:
    """Return max |a - b| / max |a|; infinite if the shapes differ or an item is not finite."""
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    largest = float(np.abs(a).max(initial=0))
    difference = float(np.abs(a - b).max(initial=0))
    return difference / largest if largest else math.inf


def check_agreement(
    results: Mapping[str, Array], tolerances: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the relative difference of each result from the first result, by engine.

    Raises a DisagreementError that names the engines whose difference exceeds their tolerance.
    """
    if not results:
        return {}
    allowed = tolerances or {}
    first, *others = results
    found = {name: relative_difference(results[first], results[name]) for name in others}
    wrong = [f"{name} by {d:.2g}" for name, d in found.items() if d > allowed.get(name, TOLERANCE)]
    if wrong:
        raise DisagreementError(f"differ from {first}: {', '.join(wrong)}")
    return found


def _round(calls: Mapping[str, Callable[[], Any]], repeats: Mapping[str, int]) -> Measurement:
    samples: dict[str, list[float]] = {}
    start, used = time.perf_counter(), used_elsewhere()
    for name, call in calls.items():
        samples[name] = turn(call, repeats[name])
    return Measurement(samples, (used_elsewhere() - used) / (time.perf_counter() - start))


def turn(call: Callable[[], Any], repeats: int) -> list[float]:
    """Return two samples of a call in seconds, after a rest and untimed calls."""
    time.sleep(_REST)
    warm = time.perf_counter() + _WARM
    while time.perf_counter() < warm:
        call()
    return [sample(call, repeats) for _ in range(2)]


def used_elsewhere() -> float:
    """Return the seconds of all cores that other processes have used.

    The time of this process and of its finished children is subtracted.

    Only differences between two results mean something. On systems without /proc the result is 0.
    """
    try:
        with open("/proc/stat") as file:
            user, nice, system, _idle, _wait, *others = map(int, file.readline().split()[1:9])
    except OSError:
        return 0.0
    used = (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    return used - time.process_time() - times.children_user - times.children_system


def settled(call: Callable[[], Any]) -> float:
    """Call twice, and return the seconds of the second call, since the first call may compile."""
    call()
    return sample(call, 1)


def repetitions(seconds: float) -> int:
    """Return how often a sample repeats a call that takes `seconds`."""
    return max(1, math.ceil(_SAMPLE / max(seconds, 1e-9)))


def sample(call: Callable[[], Any], repeats: int) -> float:
    """Return the mean seconds of a call when it is repeated `repeats` times."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
