"""What `--against` measures of a checkout, by the parts that the command line names."""

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
    """Something that a worker prepares once, and then takes turns at."""

    kind: str  # for `benchmarks.worker`
    titles: Mapping[str, str]  # of its figures, by the names in the worker's answers
    write: Callable[[Path], dict[str, str]]  # writes what is read into a folder: the arguments


def tasks(parts: Sequence[str], networks: Sequence[str], batches: Sequence[int]) -> list[Task]:
    """The tasks of "table", "training", "startup" and "parse"."""
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
    # The path is relative: each checkout has a cache of its own.
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

        # One set of variables for all blocks, so that their files take no time beside the text.
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
