"""Which axis of each parameter is divided for tensor parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from nnef_jax.parameters.sharding import chosen_divisions
from tests import torch_networks
from tests.helpers import model_of
from tests.mesh_support import lstm
from tests.parallel_networks import BLOCKS, transformer

COLUMNS, ROWS = 0, 1  # of [output channels, input channels]


def divided(model: nnef_jax.Model, count: int = 2, **options: Any) -> dict[str, Any]:
    """Return the axis by label, with the extent of the factors before the one that is divided."""
    found = chosen_divisions(execution_of(model).definition, count, "cpu", **options)
    return {k: x.axis if x.before == 1 else (x.axis, x.before) for k, x in found.items()}


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


def test_blocks_of_a_transformer_need_a_sum_for_each_pair() -> None:
    found = divided(torch_networks.load("bert"))
    for block in "01":
        own = {k.removeprefix(f"blocks.{block}."): v for k, v in found.items() if f".{block}." in k}
        assert own.pop("output.weight") == own.pop("down.weight") == ROWS
        names = ["query", "key", "value", "up"]
        assert own == {f"{k}.{kind}": COLUMNS for k in names for kind in ("weight", "bias")}
    assert found["words.weight"] == found["positions.weight"] == 0
    # Keys and values of all positions are results, whole on each device: heads stay together.
    found = divided(torch_networks.load("gpt"))
    assert (found["blocks.0.up.weight"], found["blocks.0.down.weight"]) == (COLUMNS, ROWS)
    assert "blocks.0.qkv.bias" not in found


@pytest.mark.parametrize("name", BLOCKS)
def test_heads_and_gates_are_found_however_they_are_stored(name: str) -> None:
    model, _ = transformer(name)
    found = divided(model)
    fused = 1 if "heads, 3" in name else (1, 3)
    for block in "01":
        assert found[f"{block}/o/weight"] == (1 if "torch" in name else 2)
        assert found[f"{block}/down/weight"] == 2
        assert found[f"{block}/up/weight"] == ((1, 2) if "gate" in name else 1)
        for label in {f"{block}/{name}/weight" for name in ("q", "k", "v", "qkv")} & {*found}:
            assert found[label] == (fused if "qkv" in label else 1)
    assert "first/bias" not in found and "0/norm1" not in found


def test_convolutions_are_divided_in_pairs() -> None:
    found = divided(torch_networks.load("resnet"))
    filters = {k.removesuffix(".weight"): v for k, v in found.items() if len(k.split(".")) > 1}
    assert filters == {
        "conv1": 0,
        **{"layer1.conv1": 1, "layer1.conv2": 0},
        **{"layer2.conv1": 1, "layer2.shortcut.0": 1, "layer2.conv2": 0},
        "fc": 0,
    }
    # What follows the convolutions whose output channels are divided is divided with them.
    assert {label: x for label, x in found.items() if "running_var" in label} == {
        "bn1__running_var_0_running_var": 1,
        "layer1__bn2__running_var_0_running_var": 1,
    }


def test_groups_stay_together() -> None:
    windows = "border = 'constant', padding = [], stride = [], dilation = []"
    body = (
        f"a = conv(x, f, 0.0, groups = 3, {windows}); y = conv(a, g, 0.0, groups = 3, {windows});"
    )
    model = network(body, x=(1, 6, 9), f=(12, 2, 3), g=(6, 4, 3))
    for count, follows in ((2, False), (3, True)):
        found = chosen_divisions(execution_of(model).definition, count, "cpu")
        assert {(x.axis, x.follows) for x in found.values()} == {(0, follows)}


def test_recurrent_layers_are_divided_by_hidden_unit() -> None:
    weights = {
        label: axis
        for gate in "fiog"
        for label, axis in ((f"{gate}/w", COLUMNS), (f"{gate}/u", COLUMNS), (f"{gate}/b", 1))
    }
    assert divided(lstm()) == weights | {"h": 1, "c": 1}
    found = divided(torch_networks.load("lstm"))  # its layers are loops
    assert {found[f"lstm.l0_w_{k}{gate}"] for k in "ih" for gate in "ifgo"} == {1}
    assert {found[f"lstm.l0_b_{gate}"] for gate in "ifgo"} == {2}


def test_what_is_small_or_does_not_divide_stays_whole() -> None:
    model = network("a = linear(x, v); y = linear(a, w);", x=(4, 8), v=(15, 8), w=(6, 15))
    assert divided(model) == {"v": ROWS, "w": COLUMNS}
    assert divided(model, least=200) == {}
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
    assert divided(network(along, **shapes)) == {"v": (0, 2), "w": (1, 2)}
    merged = body.replace("[1,0,2]);\nh", "[1,2,0]);\nh")
    assert divided(network(merged, **shapes)) == {"v": COLUMNS, "w": (1, 8)}


def test_joined_tensors_are_divided_along_other_axes() -> None:
    body = "a = linear(x, v); b = linear(x, u); c = concat([a, b], axis = 0); y = linear(c, w);"
    shapes: dict[str, Any] = {"x": (4, 8), "v": (16, 8), "u": (16, 8), "w": (8, 16)}
    assert divided(network(body, **shapes))["w"] == ROWS
    along = body.replace("axis = 0", "axis = 1")
    assert divided(network(along, **shapes | {"w": (8, 32)}))["w"] == COLUMNS


def test_a_table_is_divided_by_word_or_by_width() -> None:
    text = """version 1.0;
extension tract_registry tract_core;
graph net(i) -> (y)
{{
    i = tract_core_external(shape = [4], datum_type = 'i64');
    t = variable(shape = [{0},8], label = 't');
    x = tract_core_gather(t, i, axis = 0, datum_type = 'f32');
    y = tract_core_softmax(x, axes = [1], exp = 'libc');
}}
"""
    for words, axis in ((10, 0), (9, 1)):
        model = model_of(text.format(words), data={"t": np.zeros((words, 8), np.float32)})
        assert divided(model) == {"t": axis}
