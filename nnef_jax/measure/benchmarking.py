"""Measures how long calls take for each batch size, also in other engines."""

from __future__ import annotations

import math
import operator
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from nnef_jax.errors import InputError, NnefError, first_line
from nnef_jax.measure.difference import distances
from nnef_jax.measure.engines import engine
from nnef_jax.measure.examples import Subject, devices_of, random_inputs, subject_of
from nnef_jax.model import Model
from nnef_jax.options import require
from nnef_jax.results import Axes, Result, Table, axes, table_of

_OURS = "nnef_jax"
# Before each turn of an engine the process rests for 0.02 s. In this time the threads of the
# previous engine stop waiting actively.
_REST = 0.02
# A turn begins with 0.05 s of untimed calls. In this time caches and clock rates settle.
_WARM = 0.05
_FEWEST_TIMED_CALLS = 3  # A turn has at least this many timed calls.
# If other processes use more than 0.2 cores, the title of the table says so.
_CORES_WORTH_MENTIONING = 0.2
_COLORS = ("#1f4e79", "#c0392b", "#d68910", "#7d8a97")  # A picture has a colour for each engine.

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """The latency of one engine with one batch size. Times are in seconds.

    Attributes:
        engine: "nnef_jax", or the name of another engine.
        batch: the number of items in a call, or None if no input has a batch.
        first: the time of the first call, which compiles.
        p50, p90, p99: percentiles of the time of a call.
        spread: the largest minus the smallest of the rounds' medians, relative to `p50`. If two
            engines differ by less than the spread, the difference is not significant.
        throughput: items per second, over all timed calls.
        calls: the number of timed calls.
        difference: the largest difference between the outputs of this engine and the outputs of
            nnef_jax, relative to the largest number in the output. It is infinite if shapes differ,
            or if an item is NaN in only one of the outputs.
        failure: the reason why nothing was timed, or "".
    """

    engine: str
    batch: int | None
    first: float = math.nan
    p50: float = math.nan
    p90: float = math.nan
    p99: float = math.nan
    spread: float = math.nan
    throughput: float = math.nan
    calls: int = 0
    difference: float = math.nan
    failure: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark(Result):
    """The latency of calls: a `Timing` for each batch size and engine.

    Attributes:
        network: the name of the network.
        device: the devices that nnef_jax used.
        rounds: the number of rounds. In each round, every engine and batch size is timed once.
        elsewhere: the mean number of cores that other processes used during the measurement, or NaN
            if the system does not report it. If this number is large, the figures mislead.
        timings: the timings, whose times are in seconds.
    """

    network: str
    device: str
    rounds: int
    elsewhere: float
    timings: tuple[Timing, ...]

    def table(self) -> Table:
        """Return a table of the latencies in milliseconds, by batch and engine."""
        has_other_engines = len({timing.engine for timing in self.timings}) > 1
        rows: list[list[Any]] = []
        for timing in self.timings:
            row: list[Any] = [timing.batch, timing.engine]
            row += map(_ms, (timing.first, timing.p50, timing.p90, timing.p99))
            spread = None if timing.failure else round(100 * timing.spread, 1)
            row += [spread, _short(timing.throughput)]
            if has_other_engines:
                row.append(timing.failure or _difference(timing))
            rows.append(row)
        heads = ["batch", "engine", "first ms", "p50 ms", "p90 ms", "p99 ms", "spread %", "items/s"]
        if has_other_engines:
            heads.append("difference")
        title = f"{self.network} on {self.device}, {self.rounds} rounds"
        if self.elsewhere > _CORES_WORTH_MENTIONING:
            title += f"; other processes used {self.elsewhere:.1f} cores"
        return table_of(title, heads, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the median latency by batch size, with a band up to p90. Return the axes."""
        ax = axes(ax, (6.4, 4))
        names = list(dict.fromkeys(timing.engine for timing in self.timings))
        successful_timings = [timing for timing in self.timings if not timing.failure]
        # nnef_jax and the engines in `ENGINES` are 4 engines, so there are enough colours.
        for name, color in zip(names, _COLORS, strict=False):
            timings = [timing for timing in successful_timings if timing.engine == name]
            batches = [timing.batch or 1 for timing in timings]
            medians_ms = [1e3 * timing.p50 for timing in timings]
            p90s_ms = [1e3 * timing.p90 for timing in timings]
            ax.plot(batches, medians_ms, "o-", color=color, label=name, markersize=4)
            ax.fill_between(batches, medians_ms, p90s_ms, color=color, alpha=0.15, lw=0)
        ticks = sorted({timing.batch or 1 for timing in self.timings})
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.set_xticks(ticks, list(map(str, ticks)))
        ax.set_xlabel("batch")
        ax.set_ylabel("ms of a call: median, up to 90 percent")
        ax.set_title(f"{self.network} on {self.device}", fontsize=10)
        if len(names) > 1:
            ax.legend(frameon=False)
        return ax


def benchmark(
    model: Model,
    *inputs: ArrayLike,
    entry: Literal["apply", "step", "scan"] = "apply",
    batches: Iterable[int] = (),
    against: Mapping[str, str | os.PathLike[str]] | None = None,
    rounds: int = 5,
    seconds: float = 0.2,
    seed: int = 0,
    **named: ArrayLike,
) -> Benchmark:
    """Measure how long calls take, by batch size and engine.

    Batch sizes and engines take turns, so that other load on the machine affects all of them. A
    turn consists of untimed calls, followed by timed calls. Each call waits for its results. A
    model that was called before the measurement is compiled already; to measure compilation, load
    the model again.

    Args:
        model: the model. If `batches` is passed, an input must have an open first extent.
        inputs: inputs as in a call; by default random inputs of the declared shapes.
        entry: "apply" is a call; a network with a state runs one cycle from its initial state.
            "step" also returns the state. "scan" runs many cycles, on inputs with a time axis.
        batches: the batch sizes to measure, with random inputs.
        against: maps names of engines to files with the same network. "onnxruntime" and "openvino"
            read ONNX, and "tract" reads NNEF.
        rounds: the number of turns of each engine and batch size.
        seconds: the duration of the timed calls in a turn. A turn has at least 3 timed calls.
        seed: the seed of random inputs.
        named: inputs by name.

    Raises InputError in the same cases as a call, for open extents, and if both inputs and batches
    are passed. Raises UnsupportedError for an engine that is not installed. If an engine cannot run
    the network, its timing has a `failure`.

    >>> print(nnef_jax.benchmark(model, batches=(1, 8, 32)))
    """
    require("model", model, Model, "a nnef_jax.Model")
    require("rounds", rounds, int, "a number")
    require("seed", seed, int, "a number")
    require("seconds", seconds, int | float, "a number of seconds")
    require("against", against, Mapping | None, "a dict of files by engine")
    sizes = [operator.index(size) for size in batches]
    if min([rounds, *sizes]) < 1:
        raise ValueError("rounds and batches must be at least 1")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be 0 or more, and finite, it is {seconds}")
    needs_apply = bool(sizes or against)
    if needs_apply and entry != "apply":
        raise ValueError("batches and other engines need the entry 'apply'")
    has_inputs = bool(inputs or named)
    if has_inputs and sizes:
        raise InputError("inputs have a batch already: give either inputs or batches")
    # The values are functions. Each takes inputs by name, and prepares a call of an engine.
    engines = {name: engine(name, path) for name, path in (against or {}).items()}
    cases: list[_Case] = []
    devices: set[str] = set()
    inputs_of_batches = _random_batches(model, sizes, seed) if sizes else [inputs]
    for batch_inputs in inputs_of_batches:
        subject = subject_of(model, batch_inputs, named, entry, seed)
        first_seconds, results = _timed_call(subject.run)
        devices.add(devices_of(results))
        # In a step the first array may be a state. In a scan the array's first axis is time.
        batch = _batch_of(subject) if entry == "apply" else None
        cases.append(_Case(Timing(_OURS, batch, first=first_seconds), subject.run))
        for name, prepare in engines.items():
            # With other engines the entry is "apply", so all arrays of the subject are inputs.
            input_names = [spec.name for spec in model.inputs]
            arrays = dict(zip(input_names, subject.arrays, strict=True))
            cases.append(_other_engine(name, batch, prepare, arrays, results))
    # An engine that failed is reported, but not measured.
    runnable_cases = [case for case in cases if case.run is not None]
    cores_used_by_others = _measure(runnable_cases, rounds, seconds)
    return Benchmark(
        network=model.graph.name,
        device=", ".join(sorted(devices)),
        rounds=rounds,
        elsewhere=cores_used_by_others,
        timings=tuple(timed(case.timing, case.rounds) for case in cases),
    )


@dataclass(slots=True)
class _Case:
    """An engine and a batch size. The engine's calls with this batch size are timed."""

    timing: Timing
    # This function makes a call. It is None if the engine failed.
    run: Callable[[], Any] | None = None
    # For each round, these are the durations of the calls in seconds.
    rounds: list[list[float]] = field(default_factory=list[list[float]])


def _batch_of(subject: Subject) -> int | None:
    """Return the first extent of the first input.

    Returns None if there is no input, or if the first input is a scalar.
    """
    if not subject.arrays:
        return None
    first_shape = subject.arrays[0].shape
    return first_shape[0] if first_shape else None


def _random_batches(model: Model, sizes: Sequence[int], seed: int) -> list[tuple[Array, ...]]:
    """Return random inputs for each of the batch sizes `sizes`."""
    has_open_batch = any(spec.shape[:1] == (None,) for spec in model.inputs)
    if not has_open_batch:
        hint = "load it with input_shapes whose first extent is None"
        raise InputError("no input has an open first extent for the batch", hint=hint)
    return [tuple(random_inputs(model, seed, batch=size).values()) for size in sizes]


def _other_engine(
    name: str,
    batch: int | None,
    prepare: Callable[[Mapping[str, Array]], Callable[[], Sequence[Any]]],
    inputs: Mapping[str, ArrayLike],
    results: object,
) -> _Case:
    """Make the first call of another engine, and return the engine as a case to measure.

    Args:
        name: the name of the engine.
        batch: the number of items in `inputs`, or None.
        prepare: a function that takes the inputs, and returns a function that makes a call.
        inputs: the inputs by name.
        results: the results of nnef_jax, with which the outputs of the engine are compared.
    """
    try:
        call = prepare({input_name: np.asarray(x) for input_name, x in inputs.items()})
        first_seconds, outputs = _timed_call(call)
        reference = [np.asarray(x) for x in jax.tree.leaves(results)]
        difference = _relative_difference(reference, [np.asarray(x) for x in outputs])
        return _Case(Timing(name, batch, first=first_seconds, difference=difference), call)
    except Exception as error:
        # An engine may raise any exception. The failure is reported, and the remaining engines are
        # measured nevertheless.
        reason = error.message if isinstance(error, NnefError) else first_line(error)
        return _Case(Timing(name, batch, failure=reason))


def _timed_call(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the duration of a call in seconds, and its results."""
    start = time.perf_counter()
    results = call()
    return time.perf_counter() - start, results


def _measure(cases: Sequence[_Case], rounds: int, seconds: float) -> float:
    """Time calls of each case, and add the times to the case.

    In each round every case is timed once, for at least `seconds`. Returns the mean number of cores
    that other processes used during the measurement.
    """
    start = time.perf_counter()
    core_seconds_before = _core_seconds_of_others()
    for _ in range(rounds):
        for case in cases:
            assert case.run is not None
            # A short measurement also has a short rest and few calls before the timed calls.
            time.sleep(min(_REST, seconds))
            warm_until = time.perf_counter() + min(_WARM, seconds)
            while time.perf_counter() < warm_until:
                case.run()
            times: list[float] = []
            while len(times) < _FEWEST_TIMED_CALLS or sum(times) < seconds:
                call_seconds, _ = _timed_call(case.run)
                times.append(call_seconds)
            case.rounds.append(times)
    core_seconds = _core_seconds_of_others() - core_seconds_before
    elapsed_seconds = time.perf_counter() - start
    return core_seconds / elapsed_seconds


def timed(timing: Timing, rounds: Sequence[Sequence[float]]) -> Timing:
    """Add percentiles, spread, throughput and number of calls to a timing, and return the result.

    `rounds` has, for each round, the durations of the calls in seconds.
    """
    seconds_of_calls = list(chain.from_iterable(rounds))
    # The calls of an engine that failed were not timed.
    if not seconds_of_calls:
        return timing
    p50, p90, p99 = map(float, np.percentile(seconds_of_calls, (50, 90, 99)))
    medians = list(map(median, rounds))
    item_count = (timing.batch or 1) * len(seconds_of_calls)
    return replace(
        timing,
        p50=p50,
        p90=p90,
        p99=p99,
        spread=(max(medians) - min(medians)) / p50,
        throughput=item_count / sum(seconds_of_calls),
        calls=len(seconds_of_calls),
    )


def _core_seconds_of_others() -> float:
    """Return the core seconds that other processes have used since the machine started.

    A single result is inexact, but the difference between two results is exact. The result is NaN
    if the system has no file /proc/stat.
    """
    try:
        with open("/proc/stat") as file:
            _name, *words = file.readline().split()
    except OSError:
        return math.nan
    # The first eight numbers are used. Later numbers count the work of guests, which `user` and
    # `nice` contain already.
    user, nice, system, _idle, _waiting, *interrupts = map(int, words[:8])
    used_ticks = user + nice + system + sum(interrupts)
    used_seconds = used_ticks / os.sysconf("SC_CLK_TCK")
    return used_seconds - time.process_time()


def _relative_difference(references: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Return the largest difference between outputs and their references, as a relative error.

    The differences of an output are divided by the largest magnitude of a finite number in the
    output's reference. The result is infinite if the shapes differ.
    """
    if [x.shape for x in references] != [x.shape for x in outputs]:
        return math.inf
    largest_difference = 0.0
    for reference, output in zip(references, outputs, strict=True):
        reference = reference.astype(np.float64)
        finite_numbers = reference[np.isfinite(reference)]
        scale = float(np.abs(finite_numbers).max(initial=0)) or 1.0
        difference = distances(reference, output.astype(np.float64)).max(initial=0)
        largest_difference = max(largest_difference, float(difference) / scale)
    return largest_difference


def _ms(seconds: float) -> float | None:
    """Return a duration in milliseconds for a table, or None for NaN."""
    return None if math.isnan(seconds) else round(seconds * 1e3, 4)


def _short(value: float) -> float | None:
    """Return a number rounded to four significant digits, or None for NaN."""
    return None if math.isnan(value) else float(f"{value:.4g}")


def _difference(timing: Timing) -> str:
    """Return the text of a timing's difference to nnef_jax. It is empty for nnef_jax itself."""
    return "" if timing.engine == _OURS else f"{timing.difference:.1e}"
