"""`load(dtype=)` narrows what is stored and written: what is finite stays so, infinity does too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import helper, numpy_helper

import nnef_jax
from tests.helpers import COMPOSITIONAL, model_of
from tests.onnx.models import model, node, tensor
from tests.openvino.documents import Writer
from tests.tract_text import graph

pytestmark = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
LEAST = np.finfo(np.float32).min  # as masks have it


def require_zeros(network: nnef_jax.Model, shape: Any = (1, 2)) -> None:
    """Require that all which the network multiplies by its input of zeros is finite."""
    found = network(np.zeros(shape, np.float32))
    outputs = found._asdict() if isinstance(found, tuple) else {"y": found}
    assert {name for name, y in outputs.items() if not (np.asarray(y, "f4") == 0).all()} == set()


NNEF = f"""{COMPOSITIONAL}
graph net(x) -> (stored, written, added, filled, padded, folded, chosen)
{{
    x = external<scalar>(shape = [1,2]);
    least = variable<scalar>(label = 'least', shape = [1,1]);
    stored = mul(least, x);
    written = mul(x, {LEAST});
    sum = add(x, {LEAST}); added = mul(sum, x);
    one = constant<scalar>(shape = [1,1], value = [{LEAST}]); filled = mul(one, x);
    around = pad(x, padding = [(0,0),(1,1)], border = 'constant', value = {LEAST});
    zeros = pad(x, padding = [(0,0),(1,1)], border = 'constant', value = 0.0);
    padded = mul(around, zeros);
    folded = mul(x, {LEAST / 2} * 2.0);
    masked = select(x > 1.0, 0.0, {LEAST}); chosen = mul(masked, x);
}}
"""


def test_nnef(dtype: str) -> None:
    require_zeros(model_of(NNEF, data={"least": np.full((1, 1), LEAST)}, dtype=dtype))


def test_what_a_user_hands_over(dtype: str) -> None:
    text = """version 1.0; graph net(x, z) -> (y, i) {
    x = external<scalar>(shape = [1,2]); z = external<scalar>(shape = [1,2]);
    p = variable<scalar>(label = 'p', shape = [1,2]); q = add(x, p); y = mul(q, z); i = copy(x); }
    """
    least, zeros = np.full((1, 2), LEAST), np.zeros((1, 2), np.float32)
    network = model_of(text, data={"p": zeros}, dtype=dtype)
    infinite = np.float32([[-np.inf, np.nan]])
    for array in (np.asarray, np.float64, jnp.asarray):
        assert (network(array(least), zeros).y == 0).all()
        assert (network.with_params({"p": array(least)})(zeros, zeros).y == 0).all()
        np.testing.assert_array_equal(np.float32(network(array(infinite), zeros).i), infinite)
    run = jax.jit(lambda x: network.apply(network.params, x, jnp.zeros((1, 2), dtype)).y)
    assert (run(jnp.asarray(least)) == 0).all()
    fixed = model_of(text, data={"p": zeros}, dtype=dtype, values={"x": least})
    assert (fixed(zeros).y == 0).all()


def test_onnx(dtype: str) -> None:
    made = [
        node("Mul", "x stored", "a"),
        node("Constant", "", "written", value=numpy_helper.from_array(np.array(LEAST))),
        node("Mul", "x written", "b"),
        node("Mul", "half two", "folded"),
        node("Mul", "x folded", "c"),
        node("ConstantOfShape", "shape", "filled", value=helper.make_tensor("v", 1, [1], [LEAST])),
        node("Mul", "x filled", "d"),
        node("Where", "mask zero written", "masked"),
        node("Mul", "x masked", "e"),
        node("Clip", "x written", "f"),
        node("Cast", "double", "cast", to=1),
        node("Mul", "x cast", "g"),
        node("Cast", "x", "y", to=11),
        node("Pad", "y around beyond", "padded"),
        node("Pad", "y around", "zeros"),
        node("Mul", "padded zeros", "h"),
    ]
    weights = {
        "stored": np.full((1, 2), LEAST), "half": np.float32(LEAST / 2), "two": np.float32(2),
        "shape": np.int64([1, 2]), "zero": np.float32(0), "mask": np.array([[True, False]]),
        "double": np.full((1, 2), float(LEAST)), "beyond": np.float64(-1e308),
        "around": np.int64([0, 1, 0, 1]),
    }  # fmt: skip
    outputs = [tensor(name, None) for name in "abcdefgh"]
    loaded = model(made, [tensor("x", (1, 2))], outputs, weights)
    require_zeros(nnef_jax.load(loaded, dtype=dtype))


def test_openvino(dtype: str, tmp_path: Path) -> None:
    net, shapes = Writer(), [(1, 2)]
    x = net.input("x", (1, 2))
    stored = [net.constant(np.full(shape, LEAST)) for shape in ((1, 2), ())]
    hot = net.layer(
        "OneHot", [net.constant(np.int64([1])), *map(net.constant, (2, np.float32(0), LEAST))],
        shapes, attributes={"axis": -1},
    )  # fmt: skip
    net.result(*(net.layer("Multiply", [x, y], shapes) for y in (*stored, hot)))
    require_zeros(net.load(tmp_path, dtype=dtype))


def test_tract(dtype: str) -> None:
    text = graph(
        "stored = variable<scalar>(label = 'stored', shape = [1,2]); a = mul(x, stored); "
        f"b = mul(x, {LEAST}); sum = add(x, {LEAST}); c = mul(sum, x);",
        results="a, b, c", x="[1,2] f32",
    )  # fmt: skip
    require_zeros(model_of(text, data={"stored": np.full((1, 2), LEAST)}, dtype=dtype))


def test_infinity_stays(dtype: str) -> None:
    text = """version 1.0; graph net(x) -> (y) {
    x = external<scalar>(shape = [1,3]); p = variable<scalar>(label = 'p', shape = [1,3]);
    y = add(x, p); }
    """
    stored = np.float32([[np.inf, -np.inf, np.nan]])
    network = model_of(text, data={"p": stored}, dtype=dtype)
    np.testing.assert_array_equal(np.float32(network(np.zeros((1, 3), np.float32))), stored)
