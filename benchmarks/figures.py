"""The tasks that `--against` measures in each checkout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import parsing, startup, training
from benchmarks.builders.base import Array
from benchmarks.engines import example, write_nnef


@dataclass(frozen=True)
class Task:
    """A measurement that a worker process prepares once and then repeats."""

    kind: str  # the kind of task, which `benchmarks.worker` defines
    titles: Mapping[str, str]  # a title for each figure, by its name in the worker's answers
    # Writes the files of the task into a folder, and returns the arguments for the worker.
    write: Callable[[Path], dict[str, str]]


def tasks(parts: Sequence[str], networks: Sequence[str], batches: Sequence[int]) -> list[Task]:
    """Return the tasks of the parts "table", "training", "startup" and "parse"."""
    found: list[Task] = []
    if "table" in parts:
        found += [_of_network("call", name, batch, "") for name in networks for batch in batches]
    if "training" in parts:
        trained = [name for name in training.TRAINED if name in networks]
        found += [_of_network("step", name, training.BATCH, ", step") for name in trained]
    if "startup" in parts:
        found += _startup(startup.NETWORK if startup.NETWORK in networks else networks[0])
    if "parse" in parts:
        found += [_reading(size, tract) for size in parsing.SIZES for tract in (False, True)]
    return found


def _of_network(kind: str, network: str, batch: int, suffix: str) -> Task:
    def write(folder: Path) -> dict[str, str]:
        inputs = folder / "inputs.npz"
        np.savez(inputs, **example(network, batch))
        return {"path": str(write_nnef(network, batch, folder)), "inputs": str(inputs)}

    return Task(kind, {"seconds": f"{network}, {batch}{suffix}"}, write)


def _startup(network: str) -> Iterator[Task]:
    def write(folder: Path, suffix: str, **others: str) -> dict[str, str]:
        return {"path": str(write_nnef(network, 1, folder, suffix)), **others}

    run = partial(write, suffix="", task="nnef_jax run")
    yield Task("process", {"done": f"{network}, first result"}, run)
    # The path of the cache is relative, so each checkout has its own cache.
    run = partial(run, cache="cache")
    yield Task("process", {"done": f"{network}, first result with cache_dir"}, run)
    for name, suffix in (("folder", ""), (".tgz", ".tgz")):
        title = {"seconds": f"{network}, load of a {name}"}
        yield Task("load", title, partial(write, suffix=suffix))
        title = {"peak": f"{network}, peak memory of a {name}'s load"}
        yield Task("process", title, partial(write, suffix=suffix, task="nnef_jax load"))
    yield _of_network("call", "mlp", 1, ", dispatch")


def _reading(statements: int, tract: bool) -> Task:
    def write(folder: Path) -> dict[str, str]:
        from nnef_jax.storage.writer import write_members

        # All blocks share one set of variables. Reading the tensor files thus takes little time,
        # compared with reading the text.
        text = re.sub(r"block\d+/", "", parsing.document(statements))
        if tract:
            text = text.replace(";", ";\nextension tract_registry tract_core;", 1)
            text = text.replace("relu(norm", "tract_core_erf(norm")
        row = np.ones((1, 16), np.float32)
        data: dict[str, bytes | Array] = {"filter.dat": np.ones((16, 16, 3, 3), np.float32)}
        data |= {f"{name}.dat": row for name in ("mean", "variance", "offset", "scale")}
        write_members(folder / "text", {"graph.nnef": text.encode(), **data})
        return {"path": str(folder / "text")}

    dialect = "tract" if tract else "standard"
    return Task("load", {"seconds": f"{statements:,} statements, {dialect}"}, write)
