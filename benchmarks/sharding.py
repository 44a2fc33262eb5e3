"""Collectives and memory of networks on meshes of devices that are not attached.

    python -m benchmarks.sharding [--only bert,llama] [--topology v5e:2x2] [--dtype float32]
        [--out sharding.json] [--table]

Nothing runs. Networks of two layers are compiled for each mesh, as a call and as a training step.
The batch is sharded ("data"), or the parameters ("tensor"), or both, or parameters are sharded over
all devices and gathered before they are read ("full"). `--out` keeps the figures of what is
compiled, and does not compile it again. `--table` prints the tables of docs/devices.md from them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

import nnef_jax
from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.networks import bert, gpt, resnet, vit_s
from benchmarks.networks.gpt import GptNnefBuilder
from benchmarks.networks.llama import LlamaNnefBuilder, llama
from nnef_jax.execution.runnable import execution_of
from nnef_jax.measure.device_costs import mesh_of
from nnef_jax.measure.topologies import topology_of

ITEMS = 4  # items of the batch on each shard
DTYPES = ("float32", "bfloat16")
WAYS = ("data", "tensor", "both", "full")
TOPOLOGIES = ("v5e:2x2", "v5e:16x16")
LLAMA_TOPOLOGIES = ("v5e:4x4", "v5e:8x8")  # further ones for Llama
Figures = Mapping[str, Any]
TITLES = {"bert": "BERT", "vit_s": "ViT", "llama": "Llama", "resnet": "ResNet"}  # in the tables


class Network(NamedTuple):
    """A network of two layers.

    Args:
        describe: describes the network to a builder, for a batch.
        heads: the number of heads of keys and values, or of channels, that a tensor axis divides.
        builder: the class of the builder.
    """

    describe: Callable[..., str]
    heads: int
    builder: type[NnefBuilder] = NnefBuilder


def _gpt_step(builder: Any, batch: int) -> str:
    return gpt.network(builder, 2)


GPT = "gpt_step"
NETWORKS = {
    "bert": Network(partial(bert, layers=2, width=1024, heads=16), 16),
    "vit_s": Network(partial(vit_s, layers=2, width=1024, heads=16), 16),
    GPT: Network(_gpt_step, 4, GptNnefBuilder),
    "llama": Network(partial(llama, layers=2), 4, LlamaNnefBuilder),
    "resnet": Network(partial(resnet, blocks=(1, 1), bottleneck=True), 16),
}


def mesh_axes(way: str, devices: int, heads: int) -> dict[str, int]:
    """Return the extents of a mesh.

    A tensor axis has at most one device for each head. The other devices divide the batch.
    """
    shards = math.gcd(heads, devices)
    if way in ("data", "full"):
        return {"data": devices}
    if way == "both" and shards > 1:
        shards //= 2
    axes = {"data": devices // shards, "model": shards}
    return {name: extent for name, extent in axes.items() if extent > 1}


def sharded_model(name: str, topology: str, way: str, dtype: str) -> nnef_jax.Model:
    """Return a network on a mesh, with the shapes of its parameters."""
    network = NETWORKS[name]
    axes = mesh_axes(way, topology_of(topology).devices, network.heads)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        path = Path(folder, "network")
        builder = network.builder()
        outputs = [network.describe(builder, ITEMS * axes.get("data", 1))]
        options: dict[str, Any] = {"parameters": "shapes", "dtype": dtype}
        if isinstance(builder, GptNnefBuilder):
            options["state"] = builder.states
            outputs += builder.states.values()
        builder.write(path, ", ".join(outputs))
        model = nnef_jax.load(path, **options)
    batch = "data" if "data" in axes and name != GPT else None
    params = {"data": None, "full": "data"}.get(way, "model")
    return model.shard(mesh_of(topology_of(topology), axes), batch=batch, params=params)


def cost(
    name: str, topology: str, way: str, dtype: str, *, training: bool
) -> nnef_jax.measure.device_costs.DeviceCost:
    """Compile a call, a step with a state, or a training step of a network on a mesh."""
    model = sharded_model(name, topology, way, dtype)
    inputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in model.inputs]
    execution = execution_of(model)
    if name == GPT:
        function, arguments = execution.program(execution.step, inputs, "tpu")
        return nnef_jax.cost(jax.jit(function, donate_argnums=1), *arguments, topology=topology)
    if not training:
        return nnef_jax.cost(model, *inputs, topology=topology)

    def step(params: Any, *inputs: Any) -> Any:
        gradient = jax.grad(lambda params: model.apply(params, *inputs).mean())(params)
        return jax.tree.map(lambda x, g: x - 0.1 * g, params, gradient)

    layout = execution.definition.layout
    assert layout is not None
    types = layout.typed(model.graph.inputs, inputs, 0)
    return nnef_jax.cost(jax.jit(step, donate_argnums=0), model.params, *types, topology=topology)


def figures(name: str, topology: str, way: str, dtype: str, *, training: bool) -> Figures:
    """Return the memory in MB, and the number and MB of collectives by kind."""
    estimate = cost(name, topology, way, dtype, training=training)
    return {
        "mesh": dict(estimate.mesh),
        "MB": (estimate.needed_bytes or 0) / 1e6,
        "refusal": estimate.refusal,
        "collectives": {x.kind: [x.count, x.bytes / 1e6] for x in estimate.collectives},
    }


def cases(
    only: Sequence[str], topologies: Sequence[str], dtypes: Sequence[str]
) -> Iterator[tuple[str, str, str, str, bool]]:
    """Yield name, topology, way, dtype, and whether it is a training step."""
    for dtype, name in itertools.product(dtypes, only):
        places = [*topologies, *(LLAMA_TOPOLOGIES if name == "llama" else ())]
        for topology, way in itertools.product(places, WAYS):
            if name == GPT and way in ("data", "full"):  # one sequence
                continue
            for training in (False, True)[: 1 if name == GPT else 2]:
                yield name, topology, way, dtype, training


def main(argv: Sequence[str] | None = None) -> None:
    """Compile, and print a row for each program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--dtype", default=",".join(DTYPES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=2, help="programs compiled at a time")
    parser.add_argument("--table", action="store_true", help="print a table of Markdown")
    options = parser.parse_args(argv)
    results: dict[str, Figures] = {}
    if options.out and options.out.exists():
        results = json.loads(options.out.read_text())
    if options.table:
        for dtype in options.dtype.split(","):
            print("\n".join(table(results, dtype)))
        return

    def compile_case(case: tuple[str, str, str, str, bool]) -> None:
        *names, training = case
        key = " ".join([*names, "training" if training else "call"])
        if key not in results:
            values = figures(*names, training=training)
            with lock:
                results[key] = values
                if options.out:
                    options.out.write_text(json.dumps(results, indent=1))
        print(f"{key}: {_shown(results[key])}", flush=True)

    lock = threading.Lock()
    choices = (options.only, options.topology, options.dtype)
    with ThreadPoolExecutor(options.processes) as pool:  # a thread waits for its compiler
        list(pool.map(compile_case, cases(*(choice.split(",") for choice in choices))))


def _shown(values: Figures) -> str:
    if values["refusal"]:
        return values["refusal"]
    collectives = [f"{n} {kind}" for kind, (n, _) in values["collectives"].items()]
    moved = sum(size for _, size in values["collectives"].values())
    mesh = ", ".join(f"{name}={extent}" for name, extent in values["mesh"].items())
    return f"{mesh}: {values['MB']:.1f} MB, {', '.join(collectives) or 'none'} ({moved:.2f} MB)"


def table(results: Mapping[str, Figures], dtype: str) -> Iterator[str]:
    """Yield the lines of a table: collectives and memory of a call and of a training step."""
    yield "| network | devices | mesh | collectives of a call | MB | of a training step | MB |"
    yield "|---|---|---|---|---|---|---|"

    def place(key: str) -> tuple[int, int, int]:
        name, topology, way, *_ = key.split()
        return list(NETWORKS).index(name), topology_of(topology).devices, WAYS.index(way)

    for key in sorted(results, key=place):
        name, topology, way, program_dtype, kind = key.split()
        if program_dtype != dtype or kind != "call":
            continue
        call = results[key]
        training = results.get(f"{key.removesuffix(kind)}training")
        mesh = ", ".join(f"{axis}={extent}" for axis, extent in call["mesh"].items())
        devices = str(topology_of(topology).devices)
        title = TITLES.get(name, f"`{name}`")
        cells = [title, devices, f"{mesh}, fully sharded" if way == "full" else mesh]
        for values in (call, training):
            cells += ["", ""] if values is None else [_collectives(values), f"{values['MB']:.1f}"]
        yield f"| {' | '.join(cells)} |"


def _collectives(values: Figures) -> str:
    pairs = [f"{n} {kind}" for kind, (n, _) in sorted(values["collectives"].items())]
    return ", ".join(pairs) or "none"


if __name__ == "__main__":
    main()
