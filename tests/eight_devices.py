"""Shards models over eight devices, and prints in JSON what is wrong of each: `[]` if nothing.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.eight_devices [all]

It is a program since the tests themselves have two devices. Without `all` each layout and each kind
of mesh is tried, but not all of one with all of the other, and the larger networks run on one.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from tests import torch_networks
from tests.helpers import model_of
from tests.mesh_support import BATCH, WIDTH, assert_close, collectives, lstm, of_program
from tests.pages import session
from tests.parallel_networks import BLOCKS, transformer
from tests.quickly import unoptimised

ROOT = Path(__file__).resolve().parents[1]
RANDOM = np.random.default_rng(0)
LAYOUTS: dict[str, dict[str, Any]] = {
    "data": {"batch": ("data", "model")},
    "tensor": {"batch": "data", "params": "model"},
    "fully": {"batch": "data", "params": "data"},
    "both": {"batch": "data", "params": ("data", "model")},
}
RESNET = "ResNet, two blocks"
# Of the largest result, after sums in another order.
TOLERANCES = {"float32": 1e-5, "float16": 2**-8, "bfloat16": 2**-5}
MLP = """version 1.0;
graph mlp(x) -> (y)
{
    x = external(shape = [8,64]);
    v = variable(shape = [128,64], label = 'v');
    b = variable(shape = [1,128], label = 'b');
    w = variable(shape = [32,128], label = 'w');
    h = linear(x, v, b);
    a = relu(h);
    y = linear(a, w);
}
"""


@cache
def network(name: str) -> tuple[nnef_jax.Model, tuple[Any, ...]]:
    """Return a network and inputs for it, a batch of 8."""
    if name == "lstm":
        return lstm(), (RANDOM.standard_normal((BATCH, WIDTH)).astype(np.float32),)
    if name == "mlp":
        shapes = {"v": (128, 64), "b": (1, 128), "w": (32, 128)}
        data = {k: RANDOM.standard_normal(s).astype(np.float32) / 8 for k, s in shapes.items()}
        return model_of(MLP, data=data), (RANDOM.standard_normal((8, 64)).astype(np.float32),)
    if name == "digits":
        images = RANDOM.random((8, 1, 8, 8), np.float32)
        return nnef_jax.load(ROOT / "examples" / "digits" / "model"), (images,)
    if name == "resnet":
        return torch_networks.load(name), (RANDOM.random((8, 3, 32, 32), np.float32),)
    ids = RANDOM.integers(0, 24, (8, 12)).astype(np.int32)
    return torch_networks.load(name), (
        ids,
        np.tile(np.arange(12, dtype=np.int32), (8, 1)),
        ids * 0 + 1,
    )


def mesh_of(type: AxisType) -> Mesh:
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(type, type))


def of_one_device(name: str, layout: str, type: AxisType) -> None:
    """Check that outputs equal a single device's, by batch; parameters take less memory."""
    model, inputs = network(name)
    sharded = model.shard(mesh_of(type), **LAYOUTS[layout])
    outputs = sharded(*inputs)
    assert_close(outputs, model(*inputs))
    parts = 8 if layout == "data" else 4
    for array in jax.tree.leaves(outputs):
        assert array.addressable_shards[0].data.shape == (8 // parts, *array.shape[1:])
    held = sum(x.addressable_shards[0].data.size for x in sharded.params.values())
    least = {"data": 1, "tensor": 0.65, "fully": 0.6, "both": 0.5}[layout]
    assert held <= least * sum(x.size for x in sharded.params.values())


@cache
def recurrent() -> tuple[nnef_jax.Model, Any, Any, Any]:
    """Return a network, inputs of some cycles, and their results and gradient."""
    model, _ = network("lstm")
    xs = RANDOM.standard_normal((3, BATCH, WIDTH)).astype(np.float32)
    gradient = jax.jit(jax.grad(squares))(model.params, model, xs)
    return model, xs, model.scan(xs), gradient


def squares(params: Any, model: nnef_jax.Model, xs: Any) -> jax.Array:
    return jnp.square(model.scan(xs, params=params)[0]).mean()


def cycles(layout: str, type: AxisType) -> None:
    """Check that steps, cycles of a scan and their gradient are those of a single device."""
    model, xs, (wanted, after), gradient = recurrent()
    mesh = mesh_of(type)
    sharded = model.shard(mesh, **LAYOUTS[layout])
    state = sharded.init_state()
    found, last = sharded.scan(xs)
    assert_close((found, last), (wanted, after))
    for x, y in zip(xs, wanted, strict=True):
        found, state = sharded.step(state, x)
        assert_close(found, y)
    assert_close(state, after)
    parts = 8 if layout == "data" else 4
    for array in (found, *state.values(), *last.values()):
        assert array.addressable_shards[0].data.shape[0] == BATCH // parts
    if layout == "both":
        with jax.set_mesh(mesh):
            found = jax.jit(jax.grad(squares))(sharded.params, sharded, xs)
        assert_close(found, gradient)


def moves(name: str, layout: str, wanted: dict[str, int]) -> None:
    """Check that a call has these collectives and no others."""
    model, inputs = network(name)
    sharded = model.shard(mesh_of(AxisType.Auto), **LAYOUTS[layout])
    found = collectives(lambda params: sharded.apply(params, *inputs), sharded.params)
    assert found == wanted, found


def counted(name: str, dtype: str) -> str:
    """Return the collectives of a call, after a check that it computes what one device does."""
    if name in BLOCKS:
        model, inputs = transformer(name, dtype=dtype)
    else:
        model, inputs = torch_networks.load("resnet", dtype=dtype), network("resnet")[1]
    inputs = [x.astype(spec.dtype) for x, spec in zip(inputs, model.inputs, strict=True)]
    sharded = model.shard(mesh_of(AxisType.Auto), **LAYOUTS["tensor"])
    results = [np.asarray(x(*inputs), np.float32) for x in (sharded, model)]
    assert_close(*results, TOLERANCES[dtype] * np.abs(results).max())
    execution = execution_of(sharded)
    compiled = execution.compiled(execution.outputs, {}, execution.bind(inputs, {}))
    moved = of_program(compiled)
    return ", ".join(f"{moved[kind]} {kind}" for kind in sorted(moved, reverse=True))


def table(blocks: Sequence[str], dtype: str) -> None:
    """Two sums a layer and one move at each end, however heads are stored; the page says so."""
    found = {name: counted(name, dtype) for name in blocks}
    assert {found[x] for x in blocks if x in BLOCKS} == {"4 all-reduce, 2 all-gather"}, found
    page = (ROOT / "docs" / "devices.md").read_text()
    missing = [row for name, x in found.items() if (row := f"| {name} | {x} |") not in page]
    assert not missing, "\n".join(missing)


def trained(name: str, layout: str, type: AxisType) -> None:
    """Check that a step of training returns its arrays sharded as they were."""
    model, inputs = network(name)
    mesh = mesh_of(type)
    sharded = model.shard(mesh, **LAYOUTS[layout])

    def step(model: nnef_jax.Model, params: Any, momentum: Any) -> Any:
        def loss(params: Any) -> jax.Array:
            outputs = jax.tree.leaves(model.apply(params, *inputs))
            return sum((jnp.square(y).mean() for y in outputs), jnp.zeros(()))

        gradient = jax.grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum, gradient

    steps = [jax.jit(partial(step, x)) for x in (model, sharded)]

    def zero(x: jax.Array) -> jax.Array:
        return jax.device_put(np.zeros(x.shape, x.dtype), x.sharding)

    zeros = [jax.tree.map(zero, x.params) for x in (model, sharded)]
    with jax.set_mesh(mesh):
        found = steps[1](sharded.params, zeros[1])
    assert_close(found, steps[0](model.params, zeros[0]), 1e-4)
    for tree in found:
        for label, x in tree.items():
            assert x.sharding.is_equivalent_to(sharded.params[label].sharding, x.ndim), label


def in_turn() -> None:
    """A call holds few gathered parameters at a time: each of the layers is 64 KB whole."""
    lines = [f"v{i} = variable(shape = [128,128], label = 'v{i}');" for i in range(8)]
    lines += [f"x{i + 1} = matmul(x{i}, v{i});" for i in range(8)]
    body = "\n".join(["x0 = external(shape = [8,128]);", *lines])
    data = {f"v{i}": RANDOM.standard_normal((128, 128)).astype(np.float32) / 12 for i in range(8)}
    model = model_of(f"version 1.0;\ngraph net(x0) -> (x8)\n{{\n{body}\n}}\n", data=data)
    x = RANDOM.standard_normal((8, 128)).astype(np.float32)
    sharded = model.shard(mesh_of(AxisType.Auto), **LAYOUTS["fully"])
    assert_close(sharded(x), model(x))
    execution = execution_of(sharded)
    compiled = execution.compiled(execution.outputs, {}, execution.bind((x,), {}))
    memory: Any = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 3 * 64 << 10


def documentation() -> None:
    """Run the page's blocks as they stand, one after the other."""
    *_, (_, names) = session("docs/devices.md")
    assert names["probabilities"].sharding.spec[0] == "data"


def checks(everything: bool) -> Iterator[tuple[str, Callable[..., None], tuple[Any, ...]]]:
    yield "documentation", documentation, ()
    some = [
        ("float32", ["q, k, v in one, split on its last axis (GPT-2)", RESNET]),
        ("bfloat16", ["torch.nn.TransformerEncoderLayer"]),
    ]
    every = [(dtype, [*BLOCKS, RESNET]) for dtype in TOLERANCES]
    for dtype, blocks in every if everything else some:
        yield f"table-{dtype}", table, (blocks, dtype)
    yield "in-turn", in_turn, ()
    for names, layout, type in (
        (("digits", "bert"), "both", AxisType.Auto),
        (("mlp", "bert"), "tensor", AxisType.Explicit),
    ):
        for name in names if everything else names[:1]:
            yield f"{name}-{layout}-trained", trained, (name, layout, type)
    yield "mlp-data-moves", moves, ("mlp", "data", {})
    yield "mlp-tensor-moves", moves, ("mlp", "tensor", {"all-reduce": 1})
    yield "mlp-fully-moves", moves, ("mlp", "fully", {"all-gather": 2})
    # Two of each layer and one of the table of words; the columns of the last product.
    yield "bert-tensor-moves", moves, ("bert", "tensor", {"all-reduce": 5, "all-gather": 1})
    auto, explicit = AxisType.Auto, AxisType.Explicit
    some = {
        "lstm": [("tensor", explicit), ("both", auto)],
        "digits": [("data", explicit), ("fully", explicit), ("both", auto)],
        "resnet": [],  # the table has one
        "bert": [],
    }
    for name, rows in some.items():
        for layout, type in product(LAYOUTS, (auto, explicit)) if everything else rows:
            check = cycles if name == "lstm" else of_one_device
            own = (layout, type) if name == "lstm" else (name, layout, type)
            yield f"{name}-{layout}-{type.name}", check, own


def main() -> None:
    found: dict[str, str] = {}
    chosen = list(checks("all" in sys.argv))
    for name, check, arguments in chosen:
        start = time.time()
        try:
            check(*arguments)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        print(name, f"{time.time() - start:.1f}", file=sys.stderr)
    print()
    print(json.dumps(found))


if __name__ == "__main__":
    with unoptimised():
        main()
