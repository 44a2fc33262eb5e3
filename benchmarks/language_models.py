"""Plans a Llama of 7 billion parameters on TPUs from the shapes of its parameters alone.

    python -m benchmarks.language_models [--topology v5e:2x4] [--rows 8] [--shards 8]

The model is an ONNX network with caches, and has no weights. Two programs of a decoder are compiled
for devices that are not attached: one reads 256 tokens of a prompt, and one is a step. `--shards`
devices share the parameters and the heads of the caches, and each such group of devices has
`--rows` texts. The tables show the compiler's figures of memory, time and collectives.
docs/language_models.md has the table for one text, and docs/devices.md the table for eight texts.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import onnx
from onnx import TensorProto, helper

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from nnef_jax.generation import Decoder
from nnef_jax.measure.device_costs import DeviceCost, mesh_of
from nnef_jax.measure.topologies import topology_of

WIDTH, HIDDEN, HEADS, WORDS = 4096, 11008, 32, 32000
ITEMS = WIDTH // HEADS
CHUNK = 256


def llama(layers: int = 32) -> Any:
    """Return a Llama as an ONNX model of opset 23, whose weights are in the file `weights.bin`."""
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        weights.append(tensor)
        return name

    def node(kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [*outputs], **attributes))
        return outputs[0]

    def product(name: str, x: str, inputs: int, outputs: int) -> str:
        return node("MatMul", [x, weight(f"{name}.weight", inputs, outputs)], name)

    def norm(name: str, x: str) -> str:
        return node("RMSNormalization", [x, weight(f"{name}.weight", WIDTH)], name, epsilon=1e-5)

    def rotated(name: str, x: str) -> str:
        reads = [x, *tables, "position_ids"]
        return node("RotaryEmbedding", reads, f"{name}_rotated", num_heads=HEADS)

    tables = [weight(f, 4096, ITEMS // 2) for f in ("cos", "sin")]
    heads: Any = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    y = node("Gather", [weight("embed.weight", WORDS, WIDTH), "input_ids"], "embed")
    caches: list[tuple[str, str]] = []
    for i in range(layers):
        x = norm(f"norm.{i}", y)
        q, k, v = (product(f"{n}.{i}", x, WIDTH, WIDTH) for n in ("query", "key", "value"))
        q, k = rotated(f"query.{i}", q), rotated(f"key.{i}", k)
        pairs = [(f"past_{n}.{i}", f"present_{n}.{i}") for n in ("key", "value")]
        caches += pairs
        reads = [q, k, v, "", *(before for before, _ in pairs)]
        writes = [f"attention.{i}", *(after for _, after in pairs)]
        attended = node("Attention", reads, *writes, is_causal=1, **heads)
        y = node("Add", [y, product(f"output.{i}", attended, WIDTH, WIDTH)], f"attended.{i}")
        x = norm(f"hidden_norm.{i}", y)
        gate, up = (product(f"{n}.{i}", x, WIDTH, HIDDEN) for n in ("gate", "up"))
        sigmoid = node("Sigmoid", [gate], f"sigmoid.{i}")
        silu = node("Mul", [gate, sigmoid], f"silu.{i}")
        hidden = node("Mul", [silu, up], f"hidden.{i}")
        y = node("Add", [y, product(f"down.{i}", hidden, HIDDEN, WIDTH)], f"layer.{i}")
    product("logits", norm("last_norm", y), WIDTH, WORDS)
    tokens = ["batch", "tokens"]
    integer, real = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info(x, integer, tokens) for x in ("input_ids", "position_ids")
    ]
    shape = ["batch", HEADS, "past", ITEMS]
    inputs += [helper.make_tensor_value_info(before, real, shape) for before, _ in caches]
    outputs = [helper.make_tensor_value_info("logits", real, [*tokens, WORDS])]
    outputs += [helper.make_tensor_value_info(after, real, None) for _, after in caches]
    graph = helper.make_graph(nodes, "llama", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


def decoder(layers: int, places: int) -> Decoder:
    """Return a decoder of the model in bfloat16, which has the types of its parameters only."""
    with TemporaryDirectory() as folder:
        # All parameters are the first bytes of one file without content, which is not read.
        with open(Path(folder) / "weights.bin", "wb") as file:
            file.truncate(WORDS * WIDTH * 4)
        onnx.save(llama(layers), Path(folder) / "llama.onnx")
        source = Path(folder) / "llama.onnx"
        model = nnef_jax.load(source, parameters="shapes", dtype="bfloat16")
        return nnef_jax.decoder(model, places)


def mesh_axes(devices: int, shards: int) -> dict[str, int]:
    """Return the extents of a mesh of several devices, whose axis "model" has up to `shards`."""
    model = math.gcd(devices, shards)
    return {"data": devices // model, "model": model} if devices > model else {"model": model}


def cost_of(decoder: Decoder, topology: str, tokens: int, rows: int, shards: int) -> DeviceCost:
    """Return the cost of reading `tokens` tokens of each text.

    Each group of `shards` devices has `rows` texts, and divides caches by heads.
    """
    devices = topology_of(topology)
    model = decoder.model
    state = 2  # the position of the state in the arguments of the program
    if devices.devices > 1:
        state = 1
        axes = mesh_axes(devices.devices, shards)
        rows *= axes.get("data", 1)
        batch = "data" if "data" in axes else None
        model = model.shard(mesh_of(devices, axes), batch=batch, params="model")
    execution = execution_of(model)
    inputs = [jax.ShapeDtypeStruct((rows, tokens), "int32")]
    platform = devices.chip.platform
    function, arguments = execution.program(execution.step, inputs, platform, state_rows=rows)
    return nnef_jax.cost(jax.jit(function, donate_argnums=state), *arguments, topology=topology)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", nargs="+", default=["v5e:1", "v5e:2x2", "v5e:2x4"])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--places", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=32)
    arguments = parser.parse_args()
    llama = decoder(arguments.layers, arguments.places)
    print("| devices | mesh | program | memory of a device, GB | fits | ms | collectives |")
    print("|---|---|---|---|---|---|---|")
    for topology in arguments.topology:
        for name, tokens in ((f"{CHUNK} tokens of a prompt", CHUNK), ("a step", 1)):
            cost = cost_of(llama, topology, tokens, arguments.rows, arguments.shards)
            mesh = ", ".join(f"{axis}={extent}" for axis, extent in cost.mesh.items())
            collectives = ", ".join(f"{x.count} {x.kind}" for x in cost.collectives)
            seconds = "" if cost.seconds is None else f"{1e3 * cost.seconds:.1f}"
            needed = "" if cost.needed_bytes is None else f"{cost.needed_bytes / 1e9:.1f}"
            fits = "yes" if cost.fits else "no"
            cells = [topology, mesh, name, needed, fits, seconds, collectives]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
