"""Measures the time that each operation of the document takes in a call, with jax's profiler."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import ArrayLike

from lowering import multiply_adds
from lowering.extents import volume, with_ones
from lowering.graph import Graph
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.execution.places import debugs_or_disables_jit
from nnef_jax.measure.examples import devices_of, subject_of
from nnef_jax.measure.instructions import HloProgram, Run, program_of, recorded, times
from nnef_jax.model import Model
from nnef_jax.options import require, require_flags, require_path
from nnef_jax.results import Axes, Result, Table, axes, literally, table_of
from nnef_jax.storage import files

_CALL = "nnef_jax.profile"
_SECONDS = 1.0  # By default calls are recorded for about this many seconds.
# By default at least 5 and at most 100 calls are recorded.
_FEWEST_CALLS = 5
_MOST_CALLS = 100
# Threads start their records during their first calls, so the profile ignores the first 3 calls.
_UNRECORDED_CALLS = 3
_WIDEST_TITLE = 60  # A row names as many operations as fit into this many characters.
_MOST_BARS = 20  # A picture has bars for this many rows.


@dataclass(frozen=True, slots=True)
class Row:
    """The time of all kernels that compute the same operations.

    The operations are those of a fusion, or a single operation.

    Attributes:
        operations: names of operations, in the order of the document.
        kinds: the kind of each operation, such as "conv".
        seconds: the time of the kernels in a call, in seconds.
        nbytes: bytes of the results of the operations.
        kernels: the names of the kernels, which are instructions of the compiled program.
    """

    operations: tuple[str, ...]
    kinds: tuple[str, ...]
    seconds: float
    nbytes: int
    kernels: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Result):
    """The time that each operation takes in a call.

    Times are means over the faster half of the calls, since other processes can only slow calls
    down.

    Attributes:
        network: the name of the network.
        device: the devices that computed.
        calls: the number of recorded calls.
        seconds: the duration of a call without recording, in seconds.
        recorded_seconds: the duration of a call while it is recorded, in seconds.
        rows: rows from slowest to fastest. The seconds of all rows and `other_seconds` sum to
            `recorded_seconds`.
        other_seconds: the time of calling and returning, and of kernels without an operation.
        operations: maps the name of each operation to a dict with the keys "kind", "line", "bytes"
            (of the results) and "multiply_adds".
    """

    network: str
    device: str
    calls: int
    seconds: float
    recorded_seconds: float
    rows: tuple[Row, ...]
    other_seconds: float
    operations: Mapping[str, Mapping[str, Any]]

    def by_operation(self) -> dict[str, float]:
        """Return the seconds that each operation takes in a call, as a dict by name.

        The time of a fusion is assigned to its operation with the most multiply-adds. If several
        operations have the most, the first one gets the time.
        """
        seconds = dict.fromkeys(self.operations, 0.0)
        for row in self.rows:
            multiply_adds = [self.operations[name]["multiply_adds"] for name in row.operations]
            largest_operation = row.operations[int(np.argmax(multiply_adds))]
            seconds[largest_operation] += row.seconds
        return seconds

    def to_dict(self) -> dict[str, object]:
        """Return the profile as values that JSON can hold.

        "rows" has the rows. "operations" has a dict for each operation. The dict includes the
        seconds that `by_operation` returns.
        """
        names = "network", "device", "calls", "seconds", "recorded_seconds", "other_seconds"
        attributes: dict[str, object] = {name: getattr(self, name) for name in names}
        operations: list[dict[str, Any]] = []
        for name, seconds in self.by_operation().items():
            operations.append({"name": name, "seconds": seconds, **self.operations[name]})
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            fields = {
                "operations": list(row.operations),
                "seconds": row.seconds,
                "share": row.seconds / self._total,
                "bytes": row.nbytes,
                "kernels": list(row.kernels),
            }
            rows.append(fields)
        return attributes | {"operations": operations, "rows": rows}

    def table(self) -> Table:
        """Return a table with a line for each row: its operations, time, share and bytes."""
        rows: list[tuple[Any, ...]] = []
        for row in self.rows:
            kinds = ", ".join(dict.fromkeys(row.kinds))
            rows.append((_title(row), kinds, *self._columns(row.seconds), row.nbytes))
        rows.append(("other", "", *self._columns(self.other_seconds), None))
        title = (
            f"{self.network} on {self.device}: {self.seconds * 1e3:.4g} ms a call, "
            f"{self.recorded_seconds * 1e3:.4g} ms while it is recorded"
        )
        return table_of(title, ("operations", "kinds", "ms", "%", "bytes"), rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the slowest rows as bars. Return the axes of matplotlib."""
        # A bar has a name, a time in seconds, and a colour.
        bars = [(_title(row), row.seconds, "#1f4e79") for row in self.rows[:_MOST_BARS]]
        faster_rows = self.rows[_MOST_BARS:]
        if faster_rows:
            seconds_of_faster = sum(row.seconds for row in faster_rows)
            bars.append((f"{len(faster_rows)} more", seconds_of_faster, "0.6"))
        bars.append(("other", self.other_seconds, "0.8"))
        ax = axes(ax, (7.2, 0.8 + 0.27 * len(bars)))
        names, seconds, colors = zip(*bars, strict=True)
        positions = range(len(bars))
        patches = ax.barh(positions, np.multiply(seconds, 1e3), color=colors, height=0.72)
        shares = [f"{bar_seconds / self._total:.1%}" for bar_seconds in seconds]
        ax.bar_label(patches, shares, padding=3, fontsize=8)
        ax.set_yticks(positions, map(literally, names), fontsize=8)
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlabel("ms of a call, while recorded", fontsize=9)
        title = f"{self.network} on {self.device}: {self._total * 1e3:.3g} ms"
        ax.set_title(title, fontsize=10)
        ax.tick_params(axis="x", labelsize=8)
        return ax

    @property
    def _total(self) -> float:
        """Return the duration of a recorded call in seconds, as a divisor. It is never 0."""
        return self.recorded_seconds or 1.0

    def _columns(self, seconds: float) -> tuple[float, float]:
        """Return a time in milliseconds, and as a percentage of the call."""
        return round(seconds * 1e3, 4), round(100 * seconds / self._total, 1)


def profile(
    model: Model,
    *inputs: ArrayLike,
    entry: Literal["apply", "step", "scan"] = "apply",
    calls: int | None = None,
    trace: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    **named: ArrayLike,
) -> Profile:
    """Measure the time that each operation of the document takes in a call.

    The compiled network of `model(*inputs)` runs under jax's profiler. XLA's metadata tell which
    operations each kernel computes. The time of a fusion is not divided between its operations.
    Kernels that run at the same time share the time equally, so that all times sum to the time of a
    call.

    Args:
        model: the model, which runs on the device of the inputs.
        calls: the number of recorded calls. By default calls are recorded for about a second: at
            least 5 and at most 100.
        trace: a .json or .json.gz file to which the recorded events are written, with the names of
            their operations. https://ui.perfetto.dev and chrome://tracing show such a file.
        overwrite: whether an existing file at `trace` is replaced; otherwise it raises
            FileExistsError.

    The other arguments are those of `benchmark`.

    Raises InputError in the same cases as a call, and if shapes are open and no inputs are passed.
    Raises UnsupportedError if jax does not compile, as when it debugs NaN. Raises RuntimeError if
    jax's profiler is already running.

    >>> print(nnef_jax.profile(model, images))
    """
    require("model", model, Model, "a nnef_jax.Model")
    require("calls", calls, int | None, "a number")
    require_flags(overwrite=overwrite)
    if calls is not None and calls < 1:
        raise ValueError(f"calls must be at least 1, it is {calls}")
    if trace is not None:
        require_path("trace", trace)
        _check_trace(trace, overwrite=overwrite)
    if debugs_or_disables_jit():
        raise UnsupportedError("nothing is compiled while jax looks for NaN or jit is disabled")
    subject = subject_of(model, inputs, named, entry)
    call = subject.run
    device = devices_of(call())
    names = {operation.name for operation in subject.graph.operations}
    program = program_of(subject.compiled().as_text() or "", names)
    if calls is None:
        calls_in_time = round(_SECONDS / _seconds(call, _FEWEST_CALLS))
        calls = min(_MOST_CALLS, max(_FEWEST_CALLS, calls_in_time))
    # Calls are slower while they are recorded, so they are also timed without a recording.
    unrecorded_seconds = _seconds(call, max(_FEWEST_CALLS, calls))
    with tempfile.TemporaryDirectory(prefix="nnef_jax-") as folder:
        _record(call, calls, folder)
        (recording,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(recording))
        if trace is not None:
            _write_trace(folder, trace, program, overwrite=overwrite)
    return _profile(subject.graph, program, data, unrecorded_seconds, device)


def _record(call: Callable[[], Any], calls: int, folder: str) -> None:
    """Run a function under jax's profiler, which writes its recording to a folder.

    `calls` is the number of annotated calls. Before them the function runs a few times without an
    annotation. The profile ignores these runs.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # A trace of Python's functions would slow the calls down.
    with jax.profiler.trace(folder, profiler_options=options):
        for _ in range(_UNRECORDED_CALLS):
            call()
        for _ in range(calls):
            with jax.profiler.TraceAnnotation(_CALL):
                call()


def _seconds(call: Callable[[], Any], calls: int) -> float:
    """Return the mean duration in seconds of the faster half of `calls` calls."""
    timed_calls: list[Run] = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        timed_calls.append(Run("", start, time.perf_counter_ns()))
    return mean([timed_call.seconds for timed_call in _faster(timed_calls)])


def _profile(
    graph: Graph, program: HloProgram, data: Any, unrecorded_seconds: float, device: str
) -> Profile:
    """Return the profile of the calls that jax's profiler recorded in `data`.

    `unrecorded_seconds` is the duration of a call without recording.
    """
    calls, runs = recorded(data, program.module, _CALL)
    operations = _operations(graph)
    faster_calls = _faster(calls)
    recorded_seconds = mean([call.seconds for call in faster_calls])
    rows = _rows(faster_calls, runs, program, operations)
    # The rows may sum to slightly more than the call, because of rounding.
    other_seconds = max(0.0, recorded_seconds - sum([row.seconds for row in rows]))
    return Profile(
        network=graph.name,
        device=device,
        calls=len(calls),
        seconds=unrecorded_seconds,
        recorded_seconds=recorded_seconds,
        rows=tuple(rows),
        other_seconds=other_seconds,
        operations=operations,
    )


def _rows(
    calls: Sequence[Run],
    runs: Sequence[Run],
    program: HloProgram,
    operations: Mapping[str, Mapping[str, Any]],
) -> list[Row]:
    """Return the rows of a profile from slowest to fastest. Times are means over the calls.

    `runs` are the runs of kernels. `operations` maps names of operations to their figures.
    """
    positions = {name: index for index, name in enumerate(operations)}
    # The keys of both dicts are the names of the operations that kernels compute together.
    kernels: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for call in calls:
        for kernel, kernel_seconds in times(runs, call, program.control).items():
            computed_operations = program.operations.get(kernel, ())
            names = tuple(sorted(computed_operations, key=positions.__getitem__))
            seconds[names] += kernel_seconds / len(calls)
            kernels[names].add(kernel)
    # Kernels without an operation have no row.
    kernels.pop((), None)
    rows: list[Row] = []
    for names, kernel_names in kernels.items():
        row = Row(
            operations=names,
            kinds=tuple([operations[name]["kind"] for name in names]),
            seconds=seconds[names],
            nbytes=sum([operations[name]["bytes"] for name in names]),
            kernels=tuple(sorted(kernel_names)),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -row.seconds)


def _faster(calls: Sequence[Run]) -> Sequence[Run]:
    """Return the faster half of the calls, since other processes can only slow calls down."""
    count = (len(calls) + 1) // 2
    return sorted(calls, key=lambda call: call.seconds)[:count]


def _operations(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the kind, line, bytes and multiply-adds of each operation, as dicts by name.

    Bytes and multiply-adds of operations with the same name are summed.
    """
    operations: dict[str, dict[str, Any]] = {}
    for operation in graph.operations:
        result_bytes = 0
        for value in operation.writes():
            # An open extent counts as 1.
            items = volume(with_ones(value.type.shape))
            result_bytes += items * jax.numpy.dtype(value.type.dtype).itemsize
        new_figures = {
            "kind": operation.kind,
            "line": operation.span.line if operation.span else None,
            "bytes": 0,
            "multiply_adds": 0,
        }
        figures = operations.setdefault(operation.name, new_figures)
        figures["bytes"] += result_bytes
        figures["multiply_adds"] += multiply_adds(operation)
    return operations


def _title(row: Row) -> str:
    """Return the names of a row's operations: as many as fit into `_WIDEST_TITLE` characters.

    The title is for example "conv1 + relu1 + 3 more".
    """
    title = row.operations[0]
    shown_count = 1
    for name in row.operations[1:]:
        longer_title = f"{title} + {name}"
        if len(longer_title) > _WIDEST_TITLE:
            return f"{title} + {len(row.operations) - shown_count} more"
        title = longer_title
        shown_count += 1
    return title


def _check_trace(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise an error, before the measurement, if a trace cannot be written to the path."""
    if not os.fspath(path).endswith((".json", ".json.gz")):
        raise InputError(f"{os.fspath(path)}: a trace is a .json or a .json.gz")
    files.check_target(os.fspath(path), overwrite=overwrite)


def _write_trace(
    folder: str, path: str | os.PathLike[str], program: HloProgram, *, overwrite: bool
) -> None:
    """Write the events that jax's profiler recorded in `folder` to the file `path`.

    The names of operations are added to the events of the program. An event of the kernel
    "fusion.1" gets for example the name "conv1 + relu1 (fusion.1)".
    """
    (recording,) = Path(folder).rglob("*.trace.json.gz")
    trace = json.loads(gzip.decompress(recording.read_bytes()))
    for event in trace["traceEvents"]:
        event_arguments = event.get("args", {})
        kernel = event_arguments.get("hlo_op")
        operations = sorted(program.operations.get(kernel, ()))
        if operations:
            event["name"] = f"{' + '.join(operations)} ({event['name']})"
            event_arguments["operations"] = operations
    content = json.dumps(trace).encode()
    if os.fspath(path).endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    with files.replacing(os.fspath(path), overwrite=overwrite) as file:
        file.write(content)
