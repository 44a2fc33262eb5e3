"""Compiles a network for a topology by `jax.jit(...).lower().compile()` alone, and prints figures.

    JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1 \\
        python -m tests.devices.plain NETWORK TOPOLOGY DATA MODEL
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental.topologies import get_topology_desc
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import nnef_jax
from nnef_jax.measure.topologies import topology_of
from nnef_jax.workings import program_on
from tests import eight_devices

AXES = ("data", "model")


def training_step(model: nnef_jax.Model, mesh: Mesh | AbstractMesh) -> tuple[Any, list[Any]]:
    """A step of gradient descent on a mean of squares that overwrites the parameters."""

    def step(params: Any, image: Any) -> Any:
        loss = lambda params: (model.apply(params, image) ** 2).mean()  # noqa: E731
        return jax.tree.map(lambda x, g: x - 0.1 * g, params, jax.grad(loss)(params))

    def typed(x: Any, *axes: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    image = typed(np.zeros((8, 1, 8, 8), np.float32), "data")
    return jax.jit(step, donate_argnums=0), [jax.tree.map(typed, model.params), image]


def abstract_mesh(topology: str, sizes: tuple[int, int]) -> AbstractMesh:
    """The mesh of `sizes`, of devices of a topology."""
    chip = topology_of(topology).chip
    device = AbstractDevice(chip.kind, None, chip.platform)
    types = (AxisType.Auto,) * len(sizes)
    return AbstractMesh(sizes, AXES, types, abstract_device=device)


def main(network: str, name: str, sizes: tuple[int, int]) -> None:
    """Print the compiler's figures."""
    topology = topology_of(name)
    devices: Any = get_topology_desc(**topology.description()).devices
    mesh = Mesh(np.array(devices[: math.prod(sizes)]).reshape(sizes), AXES)
    if network == "training":
        function, arguments = training_step(eight_devices.network("digits")[0], mesh)
    else:
        model, inputs = eight_devices.network(network)
        sharded = model if sizes == (1, 1) else model.shard(mesh, batch="data", params="model")
        types = [
            jax.ShapeDtypeStruct(x.shape, spec.dtype)
            for x, spec in zip(inputs, model.inputs, strict=True)
        ]
        function, arguments = program_on(sharded, types, topology.chip.platform)
        if sizes == (1, 1):
            place = partial(jax.ShapeDtypeStruct, sharding=NamedSharding(mesh, PartitionSpec()))
            arguments = jax.tree.map(lambda x: place(x.shape, x.dtype), arguments)
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    compiled = jitted.lower(*arguments).compile()
    memory = compiled.memory_analysis()
    kinds = ("argument", "output", "alias", "temp")
    figures = {kind: getattr(memory, f"{kind}_size_in_bytes") for kind in kinds}
    figures |= {x: (compiled.cost_analysis() or {}).get(x) for x in ("flops", "bytes accessed")}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], (int(sys.argv[3]), int(sys.argv[4])))
