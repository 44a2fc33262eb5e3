"""Start-up: time to a first result in fresh processes, memory, and what a call costs at least."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.engines import OnnxRuntime, example, write_nnef, write_onnx

NETWORK = "resnet50"
_RUNS = 5


def run(rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Tables by name: time, memory and dispatch."""
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        seconds, memory = _processes(Path(folder))
        return {"startup": seconds, "memory": memory, "dispatch": _dispatch(rounds, Path(folder))}


def _processes(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each task in fresh processes, in turns; medians."""
    archive = write_nnef(NETWORK, 1, folder)
    cached = ["nnef_jax run", str(archive), str(folder / "cache")]
    probe(cached)  # fills the cache
    tasks = {
        "import jax": ["jax", ""],
        "nnef_jax, load": ["nnef_jax load", str(archive)],
        "nnef_jax, cold": ["nnef_jax run", str(archive)],
        "nnef_jax, warm": cached,
    }
    if not OnnxRuntime.missing():
        model = str(write_onnx(NETWORK, 1, folder))
        tasks["onnxruntime, load"] = ["onnxruntime load", model]
        tasks["onnxruntime"] = ["onnxruntime run", model]
    probes: dict[str, list[dict[str, float]]] = {name: [] for name in tasks}
    for _ in range(_RUNS):
        for name, arguments in tasks.items():
            probes[name].append(probe(arguments))
    medians = {
        name: {key: median(p[key] for p in found) for key in found[0]}
        for name, found in probes.items()
    }
    return _times(medians), _memory(medians, archive)


def probe(arguments: list[str]) -> dict[str, float]:
    """What `benchmarks.probe` finds in a fresh process; its times count from the process's start.

    Raises RuntimeError with the last line of what a process that failed wrote.
    """
    command = [sys.executable, "-m", "benchmarks.probe", *arguments]
    start, used = time.time(), timing.used_elsewhere()
    process = subprocess.run(command, capture_output=True, text=True)
    elsewhere = (timing.used_elsewhere() - used) / (time.time() - start)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"status {process.returncode}"]
        raise RuntimeError(lines[-1])
    found = json.loads(process.stdout)
    times = {key: value - start for key, value in found.items() if key != "peak"}
    return {**times, "peak": found["peak"], "elsewhere": elsewhere}


def _times(medians: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Seconds since the process was started, and the ratio to onnxruntime's first result."""
    reference = medians.get("onnxruntime", {}).get("done")
    rows: list[dict[str, Any]] = []
    for name in ("nnef_jax, cold", "nnef_jax, warm", "onnxruntime"):
        if name in medians:
            done = medians[name]["done"]
            ratio = done / reference if reference else "-"
            row: dict[str, Any] = {"process": name, "s_to_loaded": medians[name]["loaded"]}
            row |= {"s_to_first_result": done, "to_onnxruntime": ratio}
            rows.append({**row, "cores_used_elsewhere": medians[name]["elsewhere"]})
    return rows


def _memory(medians: dict[str, dict[str, float]], archive: Path) -> list[dict[str, Any]]:
    """Most bytes resident, over those of a process that imported jax, in units of the weights."""
    weights = sum(file.stat().st_size for file in archive.glob("*.dat"))
    empty = medians["import jax"]["peak"]
    rows: list[dict[str, Any]] = []
    for name, found in medians.items():
        more = found["peak"] - empty
        over: tuple[Any, Any] = (more / 1e6, more / weights)
        if name.startswith("onnxruntime"):  # it does not import jax
            over = ("-", "-")
        row = {"process": name, "peak_MB": found["peak"] / 1e6, "over_jax_MB": over[0]}
        rows.append({**row, "over_jax_in_weights": over[1]})
    return rows


def _dispatch(rounds: int, folder: Path) -> list[dict[str, Any]]:
    """The 200-parameter network against the same function jitted with its constants closed over."""
    import jax
    import jax.numpy as jnp

    import nnef_jax

    model = nnef_jax.load(write_nnef("mlp", 1, folder))
    x = jnp.asarray(example("mlp", 1)["x"])
    constants = {label: np.asarray(value) for label, value in model.params.items()}
    closed = jax.jit(lambda x: model.apply(constants, x))
    calls = {
        "nnef_jax": lambda: model(x).block_until_ready(),
        "constants closed over": lambda: closed(x).block_until_ready(),
    }
    measured = timing.measure(calls, max(rounds, 20))
    times = measured.medians
    row: dict[str, Any] = {f"{name}_us": seconds * 1e6 for name, seconds in times.items()}
    row["difference_us"] = (times["nnef_jax"] - times["constants closed over"]) * 1e6
    return [{"parameters": len(constants), **row, "cores_used_elsewhere": measured.elsewhere}]
