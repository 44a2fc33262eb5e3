"""Measures how long calls take: by batch size, and against other engines."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from nnef_jax.analysis.results import Result, axes, plain, table_of
from nnef_jax.errors import InputError, NnefError
from nnef_jax.measure.engines import engine, first_line
from nnef_jax.measure.examples import call_of, devices_of, random_inputs
from nnef_jax.model import Model
from nnef_jax.options import require

if TYPE_CHECKING:
    from rich.table import Table

_OURS = "nnef_jax"
_WARM = 0.05  # seconds of untimed calls of a turn: threads of others have stopped spinning then
_FEWEST = 3  # timed calls of a turn

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long calls of one engine with one batch take, in seconds.

    Attributes:
        engine: "nnef_jax", or another's name.
        batch: items of a call; None where no input is a batch.
        first: the first call, which compiles.
        p50, p90, p99: so many percent of the calls took no longer.
        spread: by how much medians of the rounds differ, relative to `p50`: what is less between
            two engines tells nothing.
        throughput: items a second, over all timed calls.
        calls: how many were timed.
        difference: the largest of its outputs from nnef_jax's, relative to the largest number.
        failure: why there is nothing to time, or "".
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
    """How long calls take: a `Timing` for each batch and engine.

    Attributes:
        network: its name.
        device: what computed for nnef_jax.
        rounds: how often each had its turn.
        elsewhere: cores that other processes used meanwhile: figures of a busy machine mislead. NaN
            where the system does not tell.
    """

    network: str
    device: str
    rounds: int
    elsewhere: float
    timings: tuple[Timing, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, times in seconds."""
        return plain({**vars(self), "timings": [asdict(timing) for timing in self.timings]})

    def table(self) -> Table:
        """Return a table: milliseconds by batch and engine."""
        several = len({timing.engine for timing in self.timings}) > 1
        rows = [
            [
                *(x.batch, x.engine, *(_ms(s) for s in (x.first, x.p50, x.p90, x.p99))),
                *(None if x.failure else round(100 * x.spread, 1), _short(x.throughput)),
                *([x.failure or _difference(x)] if several else []),
            ]
            for x in self.timings
        ]
        head = ("batch", "engine", "first ms", "p50 ms", "p90 ms", "p99 ms", "spread %", "items/s")
        busy = f"; other processes used {self.elsewhere:.1f} cores" if self.elsewhere > 0.2 else ""
        title = f"{self.network} on {self.device}, {self.rounds} rounds{busy}"
        return table_of(title, [*head, *(["difference"] if several else [])], rows)

    def plot(self, ax: Any = None) -> Any:
        """Draw latency by batch, the median, in a band up to 90 percent; return the axes."""
        ax = axes(ax, (6.4, 4))
        for name in dict.fromkeys(timing.engine for timing in self.timings):
            found = [t for t in self.timings if t.engine == name and not t.failure]
            places = [timing.batch or 1 for timing in found]
            middle = [1e3 * timing.p50 for timing in found]
            (line,) = ax.plot(places, middle, "o-", label=name, markersize=4)
            far = [1e3 * timing.p90 for timing in found]
            ax.fill_between(places, middle, far, color=line.get_color(), alpha=0.15, lw=0)
        ticks = sorted({timing.batch or 1 for timing in self.timings})
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(ticks, list(map(str, ticks)))
        ax.set_xlabel("batch")
        ax.set_ylabel("ms of a call: median, up to 90 percent")
        ax.set_title(f"{self.network} on {self.device}", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
        return ax


def benchmark(
    model: Model,
    *inputs: Any,
    batches: Iterable[int] = (),
    against: Mapping[str, str | os.PathLike[str]] | None = None,
    rounds: int = 5,
    seconds: float = 0.2,
    seed: int = 0,
    **named: Any,
) -> Benchmark:
    """Measure how long calls take, by batch and engine.

    Batches and engines have turns, so that what else happens on the machine meets all alike. A turn
    is untimed calls, then timed ones, each of which waits for its results. A model that was called
    before is compiled: load another one to see what that takes. A network with state runs one cycle
    from its initial state.

    Args:
        model: its first extents are open where `batches` are given.
        inputs: as in a call. Without any they are random, of the declared shapes.
        batches: sizes of the first axis of inputs where that is open, of random inputs.
        against: files with the same network by engine: "onnxruntime" and "openvino" read ONNX,
            "tract" reads NNEF.
        rounds: turns of each.
        seconds: of timed calls in a turn; 3 calls at least.
        seed: of random inputs.
        named: inputs by name.

    Raises InputError as a call does, for open extents, and where both inputs and batches are given;
    UnsupportedError for an engine that is not installed. What an engine cannot run is a `failure`.

    >>> print(nnef_jax.benchmark(model, batches=(1, 8, 32)))
    """
    require("model", model, Model, "a nnef_jax.Model")
    for name, value in (("rounds", rounds), ("seed", seed)):
        require(name, value, int, "a number")
    require("seconds", seconds, int | float, "a number of seconds")
    sizes = list(batches)
    if rounds < 1 or not seconds >= 0 or any(type(n) is not int or n < 1 for n in sizes):
        raise ValueError("rounds and batches are 1 at least, seconds 0")
    others = {name: engine(name, path) for name, path in (against or {}).items()}
    cases: dict[tuple[int | None, str], Callable[[], Any]] = {}
    timings: dict[tuple[int | None, str], Timing] = {}
    devices: set[str] = set()
    for batch, arrays in _inputs(model, inputs, named, sizes, seed):
        call = call_of(model, [jnp.asarray(x) for x in arrays.values()])
        first, outputs = _first(call)
        devices.add(devices_of(outputs))
        ours = [np.asarray(x) for x in ([outputs] if len(model.outputs) == 1 else outputs)]
        cases[batch, _OURS] = call
        timings[batch, _OURS] = Timing(_OURS, batch, first)
        for name, prepare in others.items():
            try:
                call = prepare(arrays)
                first, found = _first(call)
                timings[batch, name] = Timing(
                    name, batch, first, difference=_relative(ours, list(map(np.asarray, found)))
                )
                cases[batch, name] = call
            except Exception as error:  # an engine that cannot leaves the others to compare
                reason = error.message if isinstance(error, NnefError) else first_line(error)
                timings[batch, name] = Timing(name, batch, failure=reason)
    samples, elsewhere = _measured(cases, rounds, seconds)
    done = [
        timed(timing, samples[key]) if key in samples else timing for key, timing in timings.items()
    ]
    device = ", ".join(sorted(devices))
    return Benchmark(model.graph.name, device, rounds, elsewhere, tuple(done))


def _inputs(
    model: Model, args: Sequence[Any], named: Mapping[str, Any], sizes: Sequence[int], seed: int
) -> Iterable[tuple[int | None, dict[str, Array]]]:
    """Yield batch and inputs by name, as numpy has them."""
    names = [spec.name for spec in model.inputs]
    if args or named:
        if sizes:
            raise InputError("inputs have a batch already: give them or batches, not both")
        from nnef_jax.measure.examples import bound

        given = [np.asarray(x) for x in bound(model, args, named)]
        yield (
            (given[0].shape[0] if given and given[0].ndim else None),
            dict(zip(names, given, strict=True)),
        )
        return
    is_open = [spec.shape[:1] == (None,) for spec in model.inputs]
    if sizes and not any(is_open):
        hint = "load it with input_shapes whose first extent is None"
        raise InputError("no input has an open first extent, which would be the batch", hint=hint)
    for size in sizes or [None]:
        arrays = random_inputs(model, seed, size)
        shapes = [x.shape for x in arrays.values()]
        yield size if size else (shapes[0][0] if shapes and shapes[0] else None), arrays


def _first(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def _measured(
    cases: Mapping[Any, Callable[[], Any]], rounds: int, seconds: float
) -> tuple[dict[Any, list[list[float]]], float]:
    """Return seconds of calls by case and round, and how many cores others used meanwhile."""
    samples: dict[Any, list[list[float]]] = {key: [] for key in cases}
    start, used = time.perf_counter(), _used_elsewhere()
    for _ in range(rounds):
        for key, call in cases.items():
            warm = time.perf_counter() + min(_WARM, seconds)
            while time.perf_counter() < warm:
                call()
            taken: list[float] = []
            while len(taken) < _FEWEST or sum(taken) < seconds:
                taken.append(_first(call)[0])
            samples[key].append(taken)
    return samples, (_used_elsewhere() - used) / (time.perf_counter() - start)


def timed(timing: Timing, rounds: Sequence[Sequence[float]]) -> Timing:
    """Return a timing with what the seconds of calls, round by round, tell."""
    calls = [seconds for taken in rounds for seconds in taken]
    p50, p90, p99 = map(float, np.percentile(calls, (50, 90, 99)))
    medians = list(map(median, rounds))
    return Timing(
        timing.engine,
        timing.batch,
        timing.first,
        p50,
        p90,
        p99,
        (max(medians) - min(medians)) / p50,
        (timing.batch or 1) * len(calls) / sum(calls),
        len(calls),
        timing.difference,
    )


def _used_elsewhere() -> float:
    """Return seconds of all cores that other processes used; only differences mean something."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *others = map(int, file.readline().split()[1:9])
    except OSError:
        return math.nan
    used = (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")
    return used - time.process_time()


def _relative(a: Sequence[Array], b: Sequence[Array]) -> float:
    """Return the largest difference of outputs, relative to the largest number of each."""
    if [x.shape for x in a] != [y.shape for y in b]:
        return math.inf
    found = [0.0]
    for x, y in zip(a, b, strict=True):
        x, y = x.astype(np.float64), y.astype(np.float64)
        largest = float(np.abs(x).max(initial=0)) or 1.0
        found.append(float(np.abs(x - y).max(initial=0)) / largest)
    return max(found)


def _ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(seconds * 1e3, 4)


def _short(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.4g}")


def _difference(timing: Timing) -> str:
    return "" if timing.engine == _OURS else f"{timing.difference:.1e}"
