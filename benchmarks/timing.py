"""Alternating measurements in one process, their medians, and ratios of these."""

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

_REST = 0.020  # seconds, after which the threads of the engine before have stopped spinning
_WARM = 0.040  # seconds of untimed calls at least: caches and clocks have settled then
_SAMPLE = 0.020  # seconds that a sample lasts at least: shorter calls are repeated in it
QUIET = 0.2  # cores that other processes may use in a round; the clock's ticks allow no less
_WAIT = 0.5  # seconds after a round that was disturbed
TOLERANCE = 1e-4
OF_BFLOAT16 = 5e-2

T = TypeVar("T")


class DisagreementError(Exception):
    """Two engines gave different results, so that a comparison of their speed means nothing."""


@dataclass
class Measurement:
    """Seconds of a call by name, two samples a round, and how busy the machine was besides."""

    samples: dict[str, list[float]]
    elsewhere: float  # cores that other processes used in the worst of the rounds

    @property
    def medians(self) -> dict[str, float]:
        """The median of the samples of each name."""
        return {name: median(values) for name, values in self.samples.items()}


def measure(calls: Mapping[str, Callable[[], Any]], rounds: int) -> Measurement:
    """Time calls in turns.

    In each round each call has its turn: a rest, untimed calls, two timed samples. So what else
    happens on the machine meets all of them alike, and ratios within one run can be trusted where
    times of two runs cannot. Not where another process computes, though: engines differ in what a
    core that is taken costs them (ResNet-18 in torch, 2 cores: 1380 ms in place of 310).
    """
    repeats = {name: repetitions(settled(call)) for name, call in calls.items()}
    found = least_disturbed(lambda: [_round(calls, repeats)], rounds, lambda r: r.elsewhere)
    samples = {name: [s for r in found for s in r.samples[name]] for name in calls}
    return Measurement(samples, found[-1].elsewhere)


def least_disturbed(
    take: Callable[[], Sequence[T]], rounds: int, elsewhere: Callable[[T], float]
) -> list[T]:
    """So many rounds of those that `take` gives: those in which other processes used least.

    Rounds that were disturbed are made up for by others, up to three times their number.
    """
    found: list[T] = []
    while len(found) < 3 * rounds and sum(elsewhere(r) <= QUIET for r in found) < rounds:
        found += take()
        if elsewhere(found[-1]) > QUIET:
            time.sleep(_WAIT)
    return sorted(found, key=elsewhere)[:rounds]


def ratios(times: Mapping[str, float], subject: str) -> dict[str, float]:
    """The subject's time divided by that of each other, and by the "fastest" of them."""
    others = {name: time for name, time in times.items() if name != subject}
    found = {name: times[subject] / time for name, time in others.items()}
    return found | {"fastest": max(found.values())} if found else {}


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios that treats a ratio and its inverse alike."""
    return math.exp(sum(map(math.log, values)) / len(values))


def relative_difference(a: Array, b: Array) -> float:
    """max |a - b| / max |a|; infinite for other shapes and for what is not finite."""
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.inf
    largest = float(np.abs(a).max(initial=0))
    difference = float(np.abs(a - b).max(initial=0))
    return difference / largest if largest else math.inf


def check_agreement(
    results: Mapping[str, Array], tolerances: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The relative difference of each result from the first one.

    Raises DisagreementError that names the engines further from it than the tolerance.
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
    """Two samples of a call, after a rest and untimed calls."""
    time.sleep(_REST)
    warm = time.perf_counter() + _WARM
    while time.perf_counter() < warm:
        call()
    return [sample(call, repeats) for _ in range(2)]


def used_elsewhere() -> float:
    """Seconds of all cores that neither this process nor its finished children used.

    Only differences of it mean something; 0 where there is no /proc to tell it.
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
    """Seconds of a second call: the first one may compile."""
    call()
    return sample(call, 1)


def repetitions(seconds: float) -> int:
    """How often a sample repeats a call that takes so long."""
    return max(1, math.ceil(_SAMPLE / max(seconds, 1e-9)))


def sample(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, by the time that this many of them take."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
