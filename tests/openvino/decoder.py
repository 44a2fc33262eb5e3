"""Writes a small decoder with a cache, as exporters of language models do.

python -m tests.openvino.decoder examples/decoder     # train it, and write it there
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.openvino.documents import Writer

LETTERS, TIMES, WIDTH, HEADS, HIDDEN, LAYERS = 26, 32, 16, 2, 32, 2
ITEMS = WIDTH // HEADS
SHAPES = {
    "tokens": (LETTERS, WIDTH), "places": (TIMES, WIDTH), "logits": (LETTERS, WIDTH),
    **{
        f"{i}.{name}": (WIDTH, WIDTH)
        for i in range(LAYERS)
        for name in ("query", "key", "value", "out")
    },
    **{f"{i}.wide": (HIDDEN, WIDTH) for i in range(LAYERS)},
    **{f"{i}.narrow": (WIDTH, HIDDEN) for i in range(LAYERS)},
}  # fmt: skip


def written(weights: Mapping[str, np.ndarray]) -> Writer:
    """Return the network: tokens, mask of past and present, places and beams to logits."""
    net = Writer()
    ids, mask = (
        net.input("input_ids", (-1, -1), "i64"),
        net.input("attention_mask", (-1, -1), "i64"),
    )
    places, beam = net.input("position_ids", (-1, -1), "i64"), net.input("beam_idx", (-1,), "i32")
    zero, one = net.constant(np.array(0)), net.constant(np.array(1))
    wide, narrow = (-1, -1, WIDTH), (-1, HEADS, -1, ITEMS)

    def product(x: int, name: str) -> int:
        w = net.constant(weights[name], name)
        shape = (-1, -1, len(weights[name]))
        return net.layer("MatMul", [x, w], [shape], attributes={"transpose_b": "true"})

    def taken(x: int, index: int, axis: int, shape: Any) -> int:
        return net.layer(
            "Gather", [x, index, net.constant(np.array(axis))], [shape], opset="opset8"
        )

    def shape_of(x: int, axis: int) -> int:
        shape = net.layer("ShapeOf", [x], [(2,)], attributes={"output_type": "i64"})
        return taken(shape, net.constant(np.array(axis)), 0, ())

    def kept(x: int, label: str) -> int:
        """Append a layer's new items to its past, and keep the result as state."""
        rest = net.constant(np.array([HEADS, 0, ITEMS]))
        batch = net.layer("Unsqueeze", [shape_of(ids, 0), zero], [(1,)])
        start = net.layer("Concat", [batch, rest], [(4,)], attributes={"axis": 0})
        nothing = net.constant(np.float32(0))
        empty = net.layer("Broadcast", [nothing, start], [(-1, HEADS, 0, ITEMS)], opset="opset3")
        given = {"variable_id": label, "variable_type": "f32"}
        declared = given | {"variable_shape": f"?,{HEADS},?,{ITEMS}"}
        past = net.layer("ReadValue", [empty], [narrow], attributes=declared, opset="opset6")
        past = taken(past, beam, 0, narrow)
        joined = net.layer("Concat", [past, x], [narrow], attributes={"axis": 2})
        net.layer("Assign", [joined], [narrow], attributes=given, opset="opset6")
        return joined

    def heads(x: int) -> int:
        shape = net.constant(np.array([0, 0, HEADS, ITEMS]))
        parts = net.layer("Reshape", [x, shape], [narrow], attributes={"special_zero": "true"})
        return net.layer("Transpose", [parts, net.constant(np.array([0, 2, 1, 3]))], [narrow])

    def numbers(start: int, stop: int) -> int:
        given = {"output_type": "i64"}
        return net.layer("Range", [start, stop, one], [(-1,)], attributes=given, opset="opset4")

    # A query sees keys up to its own place, if the mask has them.
    whole, new = shape_of(mask, 1), shape_of(ids, 1)
    first = net.layer("Subtract", [whole, new], [()])
    queries = net.layer("Unsqueeze", [numbers(first, whole), one], [(-1, 1)])
    seen = net.layer("LessEqual", [numbers(zero, whole), queries], [(-1, -1)])
    there = net.layer("NotEqual", [mask, zero], [(-1, -1)])
    axes = net.constant(np.array([1, 2]))
    there = net.layer("Unsqueeze", [there, axes], [(-1, 1, 1, -1)])
    seen = net.layer("LogicalAnd", [seen, there], [(-1, 1, -1, -1)])

    tokens, where = (net.constant(weights[name], name) for name in ("tokens", "places"))
    x = net.layer("Add", [taken(tokens, ids, 0, wide), taken(where, places, 0, wide)], [wide])
    for i in range(LAYERS):
        query = heads(product(x, f"{i}.query"))
        key = kept(heads(product(x, f"{i}.key")), f"past.{i}.key")
        value = kept(heads(product(x, f"{i}.value")), f"past.{i}.value")
        given, inputs = {"causal": "false"}, [query, key, value, seen]
        found = net.layer(
            "ScaledDotProductAttention", inputs, [narrow], attributes=given, opset="opset13"
        )
        found = net.layer("Transpose", [found, net.constant(np.array([0, 2, 1, 3]))], [narrow])
        shape = net.constant(np.array([0, 0, WIDTH]))
        found = net.layer("Reshape", [found, shape], [wide], attributes={"special_zero": "true"})
        x = net.layer("Add", [x, product(found, f"{i}.out")], [wide])
        more = net.layer("ReLU", [product(x, f"{i}.wide")], [(-1, -1, HIDDEN)])
        x = net.layer("Add", [x, product(more, f"{i}.narrow")], [wide])
    return net.result(product(x, "logits"))


def random_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Return initial weights."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def train(folder: Path, steps: int = 4000) -> None:
    """Train the decoder to continue letters of equal distance, and write it."""
    weights = random_weights()
    model = written(weights).load(folder)
    times = jnp.arange(12)
    start, step = jnp.meshgrid(jnp.arange(LETTERS), jnp.array([-3, -2, -1, 1, 2, 3]))
    ids = (start.reshape(-1, 1) + step.reshape(-1, 1) * times) % LETTERS
    places, beam = jnp.broadcast_to(times, ids.shape), jnp.arange(len(ids))

    def loss(params: Any) -> jax.Array:
        logits = model.apply(params, ids, jnp.ones_like(ids), places, beam)
        scores = jax.nn.log_softmax(logits[:, 1:-1])
        return -jnp.take_along_axis(scores, ids[:, 2:, None], -1).mean()

    @jax.jit
    def update(params: Any, m: Any, v: Any, t: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(params)
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, slope)
        v = jax.tree.map(lambda a, g: 0.99 * a + 0.01 * g * g, v, slope)

        def moved(p: Any, a: Any, b: Any) -> Any:
            return p - 3e-3 * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.99**t)) + 1e-8)

        return jax.tree.map(moved, params, m, v), m, v, value

    params: Any = {name: jnp.asarray(x) for name, x in model.params.items()}
    m = v = jax.tree.map(jnp.zeros_like, params)
    for t in range(1, steps + 1):
        params, m, v, value = update(params, m, v, t)
        if t % 500 == 0:
            print(t, float(value))
    written({name: np.asarray(params[name]) for name in SHAPES}).write(folder, "decoder")


if __name__ == "__main__":
    train(Path(sys.argv[1]))
