"""Small networks of ONNX for every use, with what they compute written in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from onnx import helper

from tests.onnx.models import INT, model, node, tensor

HALF, BOOL = 10, 9
Array = Any
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Example:
    """A network: its file, inputs, and the function of weights and inputs that it computes."""

    made: Any
    inputs: tuple[Array, ...]
    wanted: Callable[..., tuple[Array, ...]]
    params: Weights
    inside: str = ""  # a tensor, that real outputs follow from alone
    is_real: bool = True  # whether it has derivatives
    lacks: str = ""  # what NNEF has not to say it
    batch_axis: int = 0
    closed: Mapping[str, int] = field(default_factory=dict[str, int])  # open extents, as of inputs
    rtol: float = 2e-5

    def truth(self, *inputs: Array, params: Weights | None = None) -> tuple[Array, ...]:
        """Return the outputs, computed in 64 bits."""
        weights = self.params if params is None else params
        wide = {name: _wide(x) for name, x in weights.items()}
        return self.wanted(*map(_wide, inputs or self.inputs), **wide)


def _wide(x: Array) -> Array:
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def _convolutional() -> Example:
    """A convolution, batch norm, pool and linear layer, with an exporter's names."""
    params = {
        "conv.weight": _random(3, 2, 3, 3), "conv.bias": _random(3, seed=1),
        "bn.scale": _random(3, seed=2) + 2, "bn.bias": _random(3, seed=3),
        "bn.mean": _random(3, seed=4), "bn.var": _random(3, seed=5) + 2,
        "fc.weight": _random(4, 12, seed=6), "fc.bias": _random(4, seed=7),
    }  # fmt: skip
    nodes = [
        node("Conv", "image conv.weight conv.bias", "/conv/out", name="/conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "/conv/out bn.scale bn.bias bn.mean bn.var", "/bn/out"),
        node("Relu", "/bn/out", "/relu/out"),
        node("MaxPool", "/relu/out", "/pool/out", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "/pool/out", "/flat/out"),
        node("Gemm", "/flat/out fc.weight fc.bias", "logits", transB=1),
    ]

    def wanted(x: Array, **w: Array) -> tuple[Array, ...]:
        n = len(x)
        around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        y = np.zeros((n, 3, 4, 4))
        for i in range(4):
            for j in range(4):
                window = around[:, None, :, i : i + 3, j : j + 3]
                y[:, :, i, j] = (window * w["conv.weight"]).sum((2, 3, 4)) + w["conv.bias"]
        scale = w["bn.scale"] / np.sqrt(w["bn.var"] + 1e-5)
        y = (y - w["bn.mean"][:, None, None]) * scale[:, None, None] + w["bn.bias"][:, None, None]
        y = np.maximum(y, 0).reshape(n, 3, 2, 2, 2, 2).max((3, 5)).reshape(n, 12)
        return (y @ w["fc.weight"].T + w["fc.bias"],)

    made = model(nodes, [tensor("image", ("batch", 2, 4, 4))], [tensor("logits", None)], params)
    return Example(
        made, (_random(2, 2, 4, 4, seed=8),), wanted, params, "/relu/out", closed={"batch": 2}
    )


def _transformer() -> Example:
    """A block of attention whose batch and length are open; shapes follow from shapes."""
    params = {
        "norm.scale": _random(4) + 1, "norm.bias": _random(4, seed=1),
        "qkv": _random(4, 12, seed=2), "out": _random(4, 4, seed=3),
        "up": _random(4, 8, seed=4), "down": _random(8, 4, seed=5),
    }  # fmt: skip
    numbers = {
        "heads": np.array([2, 2]), "all": np.array([-1]), "first": np.array([0]),
        "second": np.array([1]), "third": np.array([2]), "root": np.float32(2**0.5),
    }  # fmt: skip
    nodes = [
        node("LayerNormalization", "x norm.scale norm.bias", "n", axis=-1),
        node("MatMul", "n qkv", "m"),
        node("Split", "m", "q k v", axis=-1, num_outputs=3),
        node("Shape", "x", "shape"),
        node("Slice", "shape first third", "batch_length"),
        node("Concat", "batch_length heads", "split", axis=0),
    ]
    for name in "qkv":
        axes = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            node("Reshape", f"{name} split", f"{name}_s"),
            node("Transpose", f"{name}_s", f"{name}_t", perm=axes),
        ]
    nodes += [
        node("MatMul", "q_t k_t", "scores"),
        node("Div", "scores root", "scaled"),
        node("Softmax", "scaled", "p", axis=-1),
        node("MatMul", "p v_t", "mixed"),
        node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        node("Concat", "batch_length all", "joined", axis=0),
        node("Reshape", "back joined", "heads_joined"),
        node("MatMul", "heads_joined out", "attended"),
        node("Add", "x attended", "a"),
        node("MatMul", "a up", "u"),
        node("Relu", "u", "g"),
        node("MatMul", "g down", "d"),
        node("Add", "a d", "y"),
    ]

    def wanted(x: Array, **w: Array) -> tuple[Array, ...]:
        batch, length, _ = x.shape
        n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        m = (n * w["norm.scale"] + w["norm.bias"]) @ w["qkv"]
        q, k, v = (m[..., 4 * i : 4 * i + 4].reshape(batch, length, 2, 2) for i in range(3))
        e = np.exp(np.einsum("blhd,bmhd->bhlm", q, k) / 2**0.5)
        p = e / e.sum(-1, keepdims=True)
        a = x + np.einsum("bhlm,bmhd->blhd", p, v).reshape(batch, length, 4) @ w["out"]
        u = a @ w["up"]
        return (a + np.maximum(u, 0) @ w["down"],)

    ports = [tensor("x", ("batch", "length", 4))]
    made = model(nodes, ports, [tensor("y", None)], {**params, **numbers})
    closed = {"batch": 2, "length": 3}
    return Example(made, (_random(2, 3, 4, seed=6),), wanted, params, "a", closed=closed)


def _recurrent() -> Example:
    params = {
        "W": _random(1, 12, 2), "R": _random(1, 12, 3, seed=1), "B": _random(1, 24, seed=2),
    }  # fmt: skip
    nodes = [
        node("LSTM", "x W R B _ h c", "all h_after c_after", hidden_size=3),
        node("Squeeze", "all axis", "y"),
    ]

    def wanted(x: Array, h: Array, c: Array, **w: Array) -> tuple[Array, ...]:
        outputs, (h,), (c,) = [], h, c
        sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
        for step in x:
            gates = step @ w["W"][0].T + h @ w["R"][0].T + w["B"][0, :12] + w["B"][0, 12:]
            i, o, f, g = (gates[:, 3 * k : 3 * k + 3] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            outputs.append(h)
        return np.stack(outputs), h[None], c[None]

    made = model(
        nodes,
        [tensor("x", (4, 2, 2)), tensor("h", (1, 2, 3)), tensor("c", (1, 2, 3))],
        [tensor(name, None) for name in ("y", "h_after", "c_after")],
        {**params, "axis": np.array([1])},
    )
    inputs = _random(4, 2, 2, seed=3), _random(1, 2, 3, seed=4), _random(1, 2, 3, seed=5)
    return Example(made, inputs, wanted, params, lacks="'scan'", batch_axis=1)


def _controlled() -> Example:
    """A loop of three turns, then one of two branches."""
    params = {"w": _random(3, 3), "b": _random(3, seed=1), "zero": np.float32(0)}
    body = helper.make_graph(
        [node("MatMul", "state w", "m"), node("Tanh", "m", "after"),
         node("Identity", "going", "goes_on"), node("ReduceSum", "after", "sum", keepdims=0)],
        "body",
        [tensor("i", (), INT), tensor("going", (), BOOL), tensor("state", None)],
        [tensor("goes_on", (), BOOL), tensor("after", None), tensor("sum", None)],
    )  # fmt: skip
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(kind, "last b", name)], name, [], [tensor(name, None)]
        )
        for name, kind in (("then", "Mul"), ("else", "Add"))
    }
    nodes = [
        node("Loop", "turns yes x", "last sums", body=body),
        node("ReduceMax", "x", "most", keepdims=0),
        node("Greater", "most zero", "positive"),
        node("If", "positive", "y", **branches),
    ]
    numbers = {"turns": np.array(3), "yes": np.array(True)}

    def wanted(x: Array, **w: Array) -> tuple[Array, ...]:
        state, sums = x, []
        for _ in range(3):
            state = np.tanh(state @ w["w"])
            sums.append(state.sum())
        return (state * w["b"] if x.max() > w["zero"] else state + w["b"]), np.array(sums)

    outputs = [tensor("y", None), tensor("sums", None)]
    made = model(nodes, [tensor("x", (2, 3))], outputs, {**params, **numbers})
    return Example(made, (_random(2, 3, seed=2),), wanted, params, "last", lacks="'branch'")


def _lists() -> Example:
    """The indices of positive items, and these items."""
    nodes = [
        node("Greater", "x zero", "positive"),
        node("NonZero", "positive", "places"),
        node("Compress", "x positive", "items", axis=0),
    ]

    def wanted(x: Array) -> tuple[Array, ...]:
        items = x[x > 0]
        padded = np.full(5, np.nan)
        padded[: len(items)] = items
        places = np.full((1, 5), -1)
        places[0, : len(items)] = np.flatnonzero(x > 0)
        return places, padded

    made = model(
        nodes,
        [tensor("x", (5,))],
        [tensor("places", None, INT), tensor("items", None)],
        {"zero": np.float32(0)},
    )
    inputs = (np.float32([3, -1, 0, 2, -5]),)
    return Example(made, inputs, wanted, {}, is_real=False, lacks="'non_zero'")


def _quantised() -> Example:
    """A product of levels. All numbers are among a few, so that rounding is exact."""
    params = {"q": np.int8([[1, -2], [3, 4], [-5, 6]]), "steps": np.float32([0.5, 0.125])}
    numbers = {"step": np.float32(0.25), "zero": np.int8(0), "zeros": np.int8([0, 0])}
    nodes = [
        node("QuantizeLinear", "x step zero", "codes"),
        node("DequantizeLinear", "codes step zero", "real"),
        node("DequantizeLinear", "q steps zeros", "weight", axis=1),
        node("MatMul", "real weight", "y"),
    ]

    def wanted(x: Array, q: Array, steps: Array) -> tuple[Array, ...]:
        codes = np.clip(np.rint(x / 0.25), -128, 127)
        return ((codes * 0.25) @ (q * steps),)

    made = model(nodes, [tensor("x", (2, 3))], [tensor("y", None)], {**params, **numbers})
    x = np.float32([[0.3, -0.7, 1.1], [40, -0.2, 0.05]])
    return Example(made, (x,), wanted, params, "real", is_real=False, lacks="'even'")


def _half() -> Example:
    params = {"w": _random(3, 2, dtype=np.float16), "b": _random(2, seed=1, dtype=np.float16)}
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Tanh", "a", "y")]

    def wanted(x: Array, w: Array, b: Array) -> tuple[Array, ...]:
        return (np.tanh(x @ w + b),)

    made = model(nodes, [tensor("x", ("batch", 3), HALF)], [tensor("y", None, HALF)], params)
    return Example(
        made, (_random(2, 3, seed=2, dtype=np.float16),), wanted, params, "m",
        closed={"batch": 2}, lacks="items of float16", rtol=3e-3,
    )  # fmt: skip


_MADE = {
    "convolutional": _convolutional, "transformer": _transformer, "recurrent": _recurrent,
    "controlled": _controlled, "lists": _lists, "quantised": _quantised, "half": _half,
}  # fmt: skip
NAMES = tuple(_MADE)


@cache
def example(name: str) -> Example:
    """Return an example by its name."""
    return _MADE[name]()
