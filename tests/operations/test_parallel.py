"""Which axis of each parameter is divided for tensor parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnef_jax
from lowering.parallel import divided_axes
from nnef_jax.sharding import example_of
from tests import torch_networks
from tests.helpers import model_of
from tests.mesh_support import lstm

COLUMNS, ROWS = 0, 1  # of [output channels, input channels]


def divided(model: nnef_jax.Model, count: int = 2, **options: Any) -> dict[str, int]:
    return divided_axes(example_of(model.execution.network), count, **options)


def network(body: str, **shapes: tuple[int, ...]) -> nnef_jax.Model:
    """Return a network from x to y, whose other names are variables of these shapes."""
    variables = [
        f"{name} = variable(shape = {list(shape)}, label = '{name}');"
        for name, shape in shapes.items()
        if name != "x"
    ]
    lines = [f"x = external(shape = {list(shapes['x'])});", *variables, body]
    text = "version 1.0;\ngraph net(x) -> (y)\n{\n" + "\n".join(lines) + "\n}\n"
    data = {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name != "x"}
    return model_of(text, data=data)


def test_products_are_divided_by_columns_then_rows() -> None:
    body = (
        """a = linear(x, v, b); c = relu(a); d = linear(c, w, e); f = tanh(d); y = linear(f, u);"""
    )
    model = network(body, x=(4, 8), v=(16, 8), b=(1, 16), w=(8, 16), e=(1, 8), u=(6, 8))
    assert divided(model) == {"v": COLUMNS, "b": 1, "w": ROWS, "u": COLUMNS}


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_blocks_of_a_transformer_need_a_sum_for_each_pair(name: str) -> None:
    found = divided(torch_networks.load(name))
    for block in "01":
        own = {k.removeprefix(f"blocks.{block}."): v for k, v in found.items() if f".{block}." in k}
        assert own.pop("output.weight") == own.pop("down.weight") == ROWS
        names = ["qkv", "up"] if name == "gpt" else ["query", "key", "value", "up"]
        assert own == {f"{k}.{kind}": COLUMNS for k in names for kind in ("weight", "bias")}
    assert found["words.weight"] == found["positions.weight"] == 0


def test_convolutions_are_divided_by_output_channel() -> None:
    found = divided(torch_networks.load("resnet"))
    filters = [label for label in found if "conv" in label or "shortcut.0" in label]
    assert len(filters) == 6 and {found[label] for label in filters} == {0}
    assert {found[label] for label in found if "running" in label} == {1}
    assert found["fc.weight"] == ROWS


def test_groups_stay_together() -> None:
    windows = "border = 'constant', padding = [], stride = [], dilation = []"
    body = f"y = conv(x, f, 0.0, groups = {{}}, {windows});"
    shapes: dict[str, Any] = {"x": (1, 6, 9), "f": (12, 2, 3)}
    assert divided(network(body.format(3), **shapes)) == {}
    assert divided(network(body.format(3), **shapes), 3) == {"f": 0}


def test_recurrent_layers_are_divided_by_hidden_unit() -> None:
    assert divided(lstm()) == {
        label: axis
        for gate in "fiog"
        for label, axis in ((f"{gate}/w", COLUMNS), (f"{gate}/u", COLUMNS), (f"{gate}/b", 1))
    }
    found = divided(torch_networks.load("lstm"))  # its layers are loops
    assert {found[f"lstm.l0_w_{k}{gate}"] for k in "ih" for gate in "ifgo"} == {1}
    assert {found[f"lstm.l0_b_{gate}"] for gate in "ifgo"} == {2}


def test_what_is_small_or_does_not_divide_stays_whole() -> None:
    model = network("a = linear(x, v); y = linear(a, w);", x=(4, 8), v=(15, 8), w=(6, 15))
    assert divided(model) == {"w": COLUMNS}
    assert divided(model, least=100) == {}
    table = network("y = linear(x, v);", x=(4, 8), v=(16, 8))
    assert divided(table, 5) == {}


def test_axes_are_followed_through_shapes() -> None:
    body = """
a = linear(x, v);
b = reshape(a, shape = [4,2,8]);
c = transpose(b, axes = [1,0,2]);
d = unsqueeze(c, axes = [0]);
e = squeeze(d, axes = [0]);
f = softmax(e, axes = [2]);
g = transpose(f, axes = [1,0,2]);
h = reshape(g, shape = [4,16]);
y = linear(h, w);
"""
    shapes: dict[str, Any] = {"x": (4, 8), "v": (16, 8), "w": (6, 16)}
    assert divided(network(body, **shapes)) == {"v": COLUMNS, "w": ROWS}
    along = body.replace("softmax(e, axes = [2])", "softmax(e, axes = [0])")
    assert divided(network(along, **shapes)) == {"v": COLUMNS, "w": COLUMNS}
    # Merged behind another axis a divided one is not followed.
    merged = body.replace("[1,0,2]);\nh", "[1,2,0]);\nh")
    assert divided(network(merged, **shapes)) == {"v": COLUMNS, "w": COLUMNS}


def test_joined_tensors_are_divided_if_all_are() -> None:
    body = "a = linear(x, v); b = linear(x, u); c = concat([a, b], axis = 0); y = linear(c, w);"
    shapes: dict[str, Any] = {"x": (4, 8), "v": (16, 8), "u": (16, 8), "w": (8, 16)}
    assert divided(network(body, **shapes))["w"] == ROWS
    one = body.replace("b = linear(x, u);", "b = linear(x, u); d = softmax(b, axes = [1]);")
    assert divided(network(one.replace("[a, b]", "[a, d]"), **shapes))["w"] == COLUMNS


def test_a_table_is_divided_by_word_or_by_width() -> None:
    text = """version 1.0;
extension tract_registry tract_core;
graph net(i) -> (y)
{{
    i = tract_core_external(shape = [4], datum_type = 'i64');
    t = variable(shape = [{0},8], label = 't');
    y = tract_core_gather(t, i, axis = 0, datum_type = 'f32');
}}
"""
    for words, axis in ((10, 0), (9, 1)):
        model = model_of(text.format(words), data={"t": np.zeros((words, 8), np.float32)})
        assert divided(model) == {"t": axis}
