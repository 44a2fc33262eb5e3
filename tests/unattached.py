"""Compiles programs for devices that are not attached, from shapes alone, and prints JSON.

    JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1 \\
        python -m tests.unattached tpu [table]
        python -m tests.unattached cuda [attention]

The compiler for a TPU is in libtpu (`pip install "jax[tpu]"`), that for a GPU in jax's plugin for
CUDA (`jax-cuda13-plugin`, `jax-cuda13-pjrt`, `nvidia-cuda-nvcc`, `nvidia-nvvm`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import nnef_jax
from nnef_jax.execution.executables import Executables
from nnef_jax.execution.places import Placement, platform_of
from nnef_jax.execution.run_options import Prepared
from nnef_jax.execution.runnable import execution_of
from nnef_jax.measure.topologies import topology_of
from nnef_jax.parameters.sharding import layout_of
from tests import eight_devices, torch_networks
from tests.parallel_networks import BLOCKS, transformer

_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    r".*?channel_id=([0-9]+)"
)


def devices(platform: str) -> Any:
    """Return the devices of a v5e with four chips, or of a host with eight H100."""
    topology = topology_of({"tpu": "v5e:2x2", "cuda": "h100:8"}[platform])
    return get_topology_desc(**topology.description()).devices


def both_parts(model: nnef_jax.Model, arrays: Sequence[Any], platform: str) -> list[int]:
    """Return the bytes of arguments of both compiled parts of `model(x)` there."""
    place = NamedSharding(Mesh(np.array(devices(platform)[:1]), ("x",)), PartitionSpec())

    def on_device(types: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), types)

    definition = execution_of(model).definition
    graph = definition.network.graph
    params = {p.label: p.value.type for p in graph.parameters if p.label in definition.labels}
    types = {
        label: jax.ShapeDtypeStruct(type.shape, jnp.dtype(type.dtype))
        for label, type in params.items()
    }
    params = on_device(types)
    inputs = on_device(list(arrays))
    parts, call = Executables(definition).lower(
        execution_of(model).outputs, params, (inputs,), definition.target(platform)
    )
    assert parts.platform == platform
    stored = [*params.values()]
    values = on_device(jax.eval_shape(parts.prepare, stored))
    stages = parts.lower_first(stored), jax.jit(call).lower(values, inputs)
    return [stage.compile().memory_analysis().argument_size_in_bytes for stage in stages]


def attention(model: nnef_jax.Model, arrays: Sequence[Any]) -> int:
    """Return how many attentions cuDNN computes in a call of the model on an H100."""
    (device, *_) = devices("cuda")
    place = NamedSharding(Mesh(np.array([device]), ("x",)), PartitionSpec())
    execution = execution_of(model)
    types = [
        jax.ShapeDtypeStruct(x.shape, y.dtype) for x, y in zip(arrays, model.inputs, strict=True)
    ]
    function, arguments = execution.program(
        execution.outputs,
        types,
        platform_of(device),
        compute_capability=Placement(device, True).compute_capability,
    )
    compiled = jax.jit(function, in_shardings=place).lower(*arguments).compile()
    return (compiled.as_text() or "").count('custom_call_target="__cudnn$fmhaSoftmax"')


def moved(name: str, dtype: str) -> str:
    """Return the collectives of a row of the table, on four chips of a v5e."""
    if name in BLOCKS:
        model, inputs = transformer(name, dtype=dtype)
    else:
        model, inputs = (
            torch_networks.load("resnet", dtype=dtype),
            eight_devices.network("resnet")[1],
        )
    mesh = Mesh(np.array(devices("tpu")).reshape(2, 2), ("data", "model"))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    types = [
        jax.ShapeDtypeStruct(x.shape, spec.dtype, sharding=rows)
        for x, spec in zip(inputs, model.inputs, strict=True)
    ]
    layout = layout_of(execution_of(model).definition, mesh, "data", "model", 0)
    definition = execution_of(model).definition.with_layout(layout)

    def typed(arrays: Mapping[str, Any], place: Callable[[str], NamedSharding]) -> Any:
        pairs = ((label, x, place(label)) for label, x in arrays.items())
        return {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for n, x, s in pairs}

    places = layout.divided_shardings()
    opened = jax.eval_shape(layout.with_axes, {label: model.params[label] for label in places})
    params = typed(model.params, layout.of_parameter)
    given = Prepared(params, typed(opened, places.__getitem__), definition)

    def call(params: Prepared, *inputs: Any) -> Any:
        sharded = model.with_params(params.params).shard(mesh, batch="data", params="model")
        return sharded.apply(params, *inputs)

    text = jax.jit(call).lower(given, *types).compile().as_text() or ""
    channels = {channel: kind for kind, channel in _COLLECTIVE.findall(text)}
    kinds = [*channels.values()]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted({*kinds}, reverse=True))


def main(platform: str, part: str) -> None:
    """Print what was compiled for each network."""
    if part == "attention":
        models = {name: transformer(name, dtype="bfloat16") for name in BLOCKS}
        print(json.dumps({name: attention(*model) for name, model in models.items()}))
        return
    if part == "table":
        rows = [*BLOCKS, eight_devices.RESNET]
        print(json.dumps({f"{x} {d}": moved(x, d) for x in rows for d in ("float32", "bfloat16")}))
        return
    networks = {name: eight_devices.network(name) for name in ("digits", "resnet", "bert")}
    print(json.dumps({name: both_parts(*x, platform) for name, x in networks.items()}))


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2:3] or [""])
