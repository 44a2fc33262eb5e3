"""Operations that the provisional text declares differently, and its recurrent examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import model_of
from tests.reference import OPERATIONS

X = np.random.default_rng(0).uniform(-1, 1, (2, 4, 5)).astype(np.float32)
LENGTHS = np.sum(X.astype(np.float64) ** 2, axis=1, keepdims=True)


def run(statement: str, *arrays: np.ndarray) -> Any:
    """The result of one provisional statement on x, or on x and w."""
    names = ["x", "w"][: len(arrays)]
    externals = "\n".join(
        f"{name} = external(shape = {list(array.shape)})"
        for name, array in zip(names, arrays, strict=True)
    )
    text = (
        f"version 1.0\ngraph g( {', '.join(names)} ) -> ( y )\n{{\n{externals}\n{statement}\n}}\n"
    )
    return np.asarray(model_of(text)(*arrays))


def mean_of_window(x: np.ndarray) -> np.ndarray:
    """Of three items along the last axis, zeros outside."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    return (padded[..., :-2] + padded[..., 1:-1] + padded[..., 2:]) / 3


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("y = transpose(x, perm = [1,0])", np.swapaxes(X, 0, 1)),
        ("y = l1_normalization(x, axes = [1], bias = 0.5)",
         X / (np.abs(X).sum(1, keepdims=True) + 0.5)),
        ("y = l2_normalization(x, axes = [1], bias = 0.5)", X / np.sqrt(LENGTHS + 0.5)),
        ("y = local_variance_normalization(x, size = [1,1,3], bias = 0.1)",
         X / np.sqrt(mean_of_window(X**2) + 0.1)),
        ("y = local_contrast_normalization(x, size = [1,1,3], bias = 0.1)",
         (c := X - mean_of_window(X)) / np.sqrt(mean_of_window(c**2) + 0.1)),
        ("y = quantize_linear(x, min = -1.0, max = 1.0, bits = 2)",
         np.floor((X + 1) * 1.5 + 0.5) / 1.5 - 1),
        # max = 3 is rounded up to 4; two bits reach down to 1; the result is in units of that.
        ("y = logarithmic_quantize(x, max = 3.0, bits = 2)", np.ones_like(X)),
        ("y, i = max_pool_with_indices(x, size = [1,1,2], stride = [1,1,2], padding = [(0,0)] * 3)",
         np.maximum(X[..., 0:4:2], X[..., 1:4:2])),
        ("y = leaky_relu(x, alpha = 2)", np.where(X < 0, 2 * X, X)),
        ("y = elu(x)", np.where(X < 0, np.expm1(X), X)),
    ],
    ids=lambda value: value.split("(")[0][4:] if isinstance(value, str) else "",
)  # fmt: skip
def test_operation(statement: str, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(run(statement, X), wanted, rtol=1e-5, atol=1e-6)


def test_matmul() -> None:
    a, b = X[0], X[1]
    np.testing.assert_allclose(run("y = matmul(x, w, trB = true)", a, b), a @ b.T, rtol=1e-5)
    np.testing.assert_allclose(run("y = matmul(x, w, trA = true)", a, b), a.T @ b, rtol=1e-5)


@pytest.mark.parametrize("operation", ["conv", "deconv"])
def test_planewise(operation: str) -> None:
    w = np.random.default_rng(1).uniform(-1, 1, (4, 1, 3)).astype(np.float32)
    arguments: dict[str, Any] = {
        "border": "constant", "padding": [(1, 0)], "stride": [2], "dilation": [], "groups": 0
    }  # fmt: skip
    if operation == "deconv":
        arguments["output_shape"] = []
    wanted = OPERATIONS[operation](X.astype(np.float64), w.astype(np.float64), 0.0, **arguments)
    got = run(f"y = planewise_{operation}(x, w, padding = [(1,0)], stride = [2])", X, w)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_external_by_its_older_name() -> None:
    text = "version 1.0 graph g( x ) -> ( y ) { x = tensor(shape = [2]) y = neg(x) }"
    np.testing.assert_array_equal(model_of(text)(np.float32([1, 2])), [-1, -2])


LSTM = """
version 1.0
fragment gate( x: tensor, channels: extent, scope: string ) -> ( y: tensor )
{
    w = variable(shape = [channels, shape_of(x)[1]], label = scope + '_w')
    b = variable(shape = [1, channels], label = scope + '_b')
    y = linear(x, w, b)
}
fragment lstm( x: tensor, channels: extent ) -> ( y: tensor )
{
    h = variable(shape = [shape_of(x)[0], channels], label = 'h')
    c = variable(shape = [shape_of(x)[0], channels], label = 'c')
    both = concat([x, h], axis = 1)
    [f, i, o, z] = [gate(both, channels = channels, scope = s) for s in ['f', 'i', 'o', 'z']]
    kept = update(c, c * sigmoid(f) + tanh(z) * sigmoid(i))
    y = update(h, tanh(kept) * sigmoid(o))
}
graph net( x ) -> ( y ) { x = external(shape = [2,3]) y = lstm(x, channels = 4) }
"""


def test_lstm() -> None:
    random = np.random.default_rng(2)
    data: dict[str, np.ndarray] = {
        "h": np.zeros((2, 4), np.float32),
        "c": np.zeros((2, 4), np.float32),
    }
    for name in "fioz":
        data[f"{name}_w"] = random.uniform(-1, 1, (4, 7)).astype(np.float32)
        data[f"{name}_b"] = random.uniform(-1, 1, (1, 4)).astype(np.float32)
    xs = random.uniform(-1, 1, (6, 2, 3)).astype(np.float32)
    ys, state = model_of(LSTM, data=data).scan(xs)
    h, c = np.zeros((2, 4)), np.zeros((2, 4))
    for x, y in zip(xs, ys, strict=True):
        both = np.concatenate([x, h], axis=1)
        f, i, o, z = (both @ data[f"{n}_w"].T + data[f"{n}_b"] for n in "fioz")
        f, i, o = (1 / (1 + np.exp(-gate)) for gate in (f, i, o))
        c = c * f + np.tanh(z) * i
        h = np.tanh(c) * o
        np.testing.assert_allclose(y, h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["c"], c, rtol=1e-5, atol=1e-6)


def test_simple_recurrent_network() -> None:
    text = """version 1.0
    fragment rnn( x: tensor, n: extent ) -> ( y: tensor )
    {
        k = shape_of(x)[0]
        m = shape_of(x)[1]
        w = variable(shape = [n,m], label = 'w')
        u = variable(shape = [n,n], label = 'u')
        b = variable(shape = [1,n], label = 'b')
        s = variable(shape = [k,n], label = 's')
        y = update(s, sigmoid(linear(x, w) + linear(s, u) + b))
    }
    graph net( x ) -> ( y ) { x = external(shape = [2,3]) y = rnn(x, n = 4) }
    """
    random = np.random.default_rng(3)
    shapes = {"w": (4, 3), "u": (4, 4), "b": (1, 4), "s": (2, 4)}
    data = {k: random.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items()}
    xs = random.uniform(-1, 1, (3, 2, 3)).astype(np.float32)
    ys, _ = model_of(text, data=data).scan(xs)
    s = data["s"].astype(np.float64)
    for x, y in zip(xs, ys, strict=True):
        s = 1 / (1 + np.exp(-(x @ data["w"].T + s @ data["u"].T + data["b"])))
        np.testing.assert_allclose(y, s, rtol=1e-5)
