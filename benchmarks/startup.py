"""Measures start-up: the time to a first result, the memory, and the overhead of a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import timing
from benchmarks.engines import OnnxRuntime, example, write_nnef, write_onnx

NETWORK = "resnet50"  # the network that `--against` measures
NETWORKS = ("resnet18", "resnet50")
_RUNS = 5


def run(rounds: int, networks: Sequence[str], batches: Sequence[int]) -> dict[str, Any]:
    """Return three tables by name: times, memory, and dispatch (the overhead of a call)."""
    seconds: list[dict[str, Any]] = []
    memory: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        for network in networks:
            for batch in batches:
                place = Path(folder) / f"{network}-{batch}"
                place.mkdir()
                found = _processes(network, batch, place)
                seconds += found[0]
                memory += found[1]
        return {"startup": seconds, "memory": memory, "dispatch": _dispatch(rounds, Path(folder))}


def _processes(network: str, batch: int, folder: Path) -> tuple[list[Any], list[Any]]:
    """Run each task several times in fresh processes. Return tables of median times and memory."""
    archive = write_nnef(network, batch, folder)
    cached = ["nnef_jax run", str(archive), str(folder / "cache")]
    probe(cached)  # so that the cache is filled
    tasks = {
        "import jax": ["jax", ""],
        "nnef_jax, load": ["nnef_jax load", str(archive)],
        "nnef_jax, cold": ["nnef_jax run", str(archive)],
        "nnef_jax, warm": cached,
        "literal, cold": ["literal run", str(archive)],
    }
    if not OnnxRuntime.missing():
        model = str(write_onnx(network, batch, folder))
        tasks["onnxruntime, load"] = ["onnxruntime load", model]
        tasks["onnxruntime"] = ["onnxruntime run", model]
    probes: dict[str, list[dict[str, Any]]] = {name: [] for name in tasks}
    for _ in range(_RUNS):
        for name, arguments in tasks.items():
            probes[name].append(probe(arguments))
    medians = {name: _medians(found) for name, found in probes.items()}

    def titled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"network": f"{network}, {batch}"} | row for row in rows]

    return titled(_times(medians)), titled(_memory(medians, archive))


def _medians(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parts = found[0].get("parts", {})
    medians: dict[str, Any] = {k: median(p[k] for p in found) for k in found[0] if k != "parts"}
    return medians | {"parts": {key: median(p["parts"][key] for p in found) for key in parts}}


def probe(arguments: list[str]) -> dict[str, Any]:
    """Run `benchmarks.probe` in a fresh process, and return its figures.

    Times count from the start of the process.

    Python may write byte code, as it does for users. If the process fails, a RuntimeError is raised
    with the last line of its error output.
    """
    command = [sys.executable, "-m", "benchmarks.probe", *arguments]
    given = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start, used = time.time(), timing.used_elsewhere()
    process = subprocess.run(command, capture_output=True, text=True, env=given)
    elsewhere = (timing.used_elsewhere() - used) / (time.time() - start)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"status {process.returncode}"]
        raise RuntimeError(lines[-1])
    found = json.loads(process.stdout)
    kept = {key: found.pop(key) for key in ("parts", "peak") if key in found}
    times = {key: value - start for key, value in found.items()}
    return {**times, **kept, "elsewhere": elsewhere}


def _times(medians: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each task: seconds to the first result, ratios, and seconds by part."""
    rows: list[dict[str, Any]] = []
    for name in ("import jax", "nnef_jax, cold", "nnef_jax, warm", "literal, cold", "onnxruntime"):
        if name not in medians:
            continue
        found = medians[name]
        row: dict[str, Any] = {"process": name, "s_to_first_result": found["done"]}
        for other in ("literal, cold", "onnxruntime"):
            done = medians.get(other, {}).get("done")
            row[f"to {other}"] = found["done"] / done if done else "-"
        parts = {"load": found["loaded"]}
        if "imported" in found:
            parts = {"imports": found["imported"], "load": found["loaded"] - found["imported"]}
        parts |= found["parts"] or {"call": found["done"] - found["loaded"]}
        row["parts"] = ", ".join(f"{part} {seconds:.2f}" for part, seconds in parts.items())
        rows.append({**row, "cores_used_elsewhere": found["elsewhere"]})
    return rows


def _memory(medians: dict[str, dict[str, Any]], archive: Path) -> list[dict[str, Any]]:
    """Return a row for each task with its largest memory.

    The row also has this memory minus that of a process that only imports jax, in MB and as a
    multiple of the weights.
    """
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
    """Compare a call of a network of 200 parameters with the same function in plain `jax.jit`.

    In the plain function the parameters are constants.
    """
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
