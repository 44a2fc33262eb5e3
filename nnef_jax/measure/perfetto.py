"""Writes what jax's profiler recorded for Perfetto, each kernel named by its operations."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from nnef_jax.errors import InputError
from nnef_jax.measure.hlo import HloProgram
from nnef_jax.storage import files


def check(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse what could not be written there, before anything is measured."""
    if not os.fspath(path).endswith((".json", ".json.gz")):
        raise InputError(f"{os.fspath(path)}: a trace is a .json or a .json.gz")
    files.check_target(os.fspath(path), overwrite=overwrite)


def write(
    folder: str, path: str | os.PathLike[str], program: HloProgram, *, overwrite: bool
) -> None:
    """Write the events that jax put into a folder, those of the program with their operations."""
    (recorded,) = Path(folder).rglob("*.trace.json.gz")
    trace = json.loads(gzip.decompress(recorded.read_bytes()))
    for event in trace["traceEvents"]:
        instruction = event.get("args", {}).get("hlo_op")
        if operations := sorted(program.operations.get(instruction, ())):
            event["name"] = f"{' + '.join(operations)} ({event['name']})"
            event["args"]["operations"] = operations
    text = json.dumps(trace).encode()
    packed = os.fspath(path).endswith(".gz")
    with files.replacing(os.fspath(path), overwrite=overwrite) as file:
        file.write(gzip.compress(text, mtime=0) if packed else text)
