"""Networks with operators that are not supported: `summary` and `view` show them, `load` does not.

What is before such an operator has its types, what is made of its results has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError, UnsupportedError
from tests.cli_support import fails, ok
from tests.openvino.documents import Writer

_NNEF = """version 1.0;
extension KHR_enable_fragment_definitions;
fragment splurge( x: tensor<scalar>, k: integer ) -> ( y: tensor<scalar> );
fragment twice( x: tensor<scalar> ) -> ( y: tensor<scalar> ) { y = splurge(x, k = 2); }
graph net(x) -> (y, z, q)
{
    x = external(shape = [1, 3]);
    a = relu(x);
    b = splurge(a, k = 3);
    c = twice(a);
    y = mul(b, c);
    z = tanh(a);
    q = fancy(z, k = [1, 2]);
}
"""


def onnx_model(folder: Path) -> Path:
    pytest.importorskip("onnx")
    from tests.onnx.models import model, node, tensor

    w = np.ones((3, 4), np.float32)
    nodes = [
        node("MatMul", "x w", "a"),
        node("Splurge", "a w2 s", "b c", domain="com.acme"),
        node("Relu", "b", "d"),
        node("Add", "d a", "y"),
        node("Relu", "a", "z"),
    ]
    outputs = [tensor("y", None), tensor("z", None)]
    made = model(nodes, [tensor("x", ("batch", 3))], outputs, {"w": w, "w2": w, "s": np.int64([1])})
    (folder / "net.onnx").write_bytes(made.SerializeToString())
    return folder / "net.onnx"


def openvino_net(folder: Path) -> Path:
    net = Writer()
    a = net.layer("ReLU", [net.input("x", (1, 3))], [(1, 3)], name="a")
    b = net.layer("Splurge", [a, net.constant(np.ones((1, 3), np.float32))], [(1, 3)], name="b")
    y = net.layer("Add", [b, a], [(1, 3)], name="y")
    return net.result(y, net.layer("Tanh", [a], [(1, 3)], name="z")).write(folder)


def nnef_text(folder: Path) -> Path:
    (folder / "graph.nnef").write_text(_NNEF)
    return folder


def tract_text(folder: Path) -> Path:
    text = _NNEF.replace("extension", "extension tract_registry tract_core;\nextension", 1)
    text = text.replace("external(shape = [1, 3])", "tract_core_external('f32', [1, 3])")
    lines = (line for line in text.splitlines() if not line.startswith("fragment splurge"))
    (folder / "graph.nnef").write_text("\n".join(lines))
    return folder


# Of each format: rows of the summary, and the operators that are not supported.
_ROWS: dict[Any, tuple[dict[str, list[str]], list[str]]] = {
    onnx_model: (
        {
            "x": ["external", "[batch,3]", "float32"], "a": ["matmul", "[?,4]", "float32"],
            "b": ["Splurge", "(unknown)", "unknown"], "c": ["unknown"], "d": ["Relu", "unknown"],
            "y": ["Add", "unknown"], "z": ["relu", "[?,4]", "float32"],
        },
        ["Splurge"],
    ),
    openvino_net: (
        {
            "a": ["relu", "[1,3]", "float32"], "b": ["Splurge", "(unknown)", "unknown"],
            "y": ["Add", "unknown"], "z": ["tanh", "[1,3]", "float32"],
        },
        ["Splurge"],
    ),
    nnef_text: (
        {
            "a": ["relu", "[1,3]", "float32"], "b": ["splurge", "(unknown)", "unknown"],
            "c": ["twice", "(unknown)", "unknown"], "y": ["mul", "unknown"],
            "z": ["tanh", "[1,3]", "float32"], "q": ["fancy", "(unknown)", "unknown"],
        },
        ["splurge", "twice", "fancy"],
    ),
}  # fmt: skip
_ROWS[tract_text] = _ROWS[nnef_text]


@pytest.mark.parametrize("write", _ROWS)
def test_they_are_shown_as_unknown(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    rows, operators = _ROWS[write]
    text = ok("summary", path)
    shown = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    for name, row in rows.items():
        assert shown[name][: len(row)] == row
    for operator in operators:
        assert f"unknown         {operator}\n" in text
    told = json.loads(ok("summary", path, "--json"))
    assert told["unknown"] == operators
    assert told["outputs"][0]["shape"] is None
    data = json.loads(ok("view", path, "--json"))
    kinds = [node.get("kind") for node in data["nodes"]]
    assert all(f"{x} (unknown)" in kinds for x in operators)
    assert {t["name"] for t in data["tensors"] if t["shape"] is None} >= {"b", "y"}
    assert "(unknown)" in nnef_jax.view(path).html


@pytest.mark.parametrize("write", _ROWS)
def test_they_are_refused_elsewhere(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(NnefError, match=r"not supported|unknown operation|no rule for"):
        nnef_jax.load(path)
    for command in ("check", "profile", "cost", "compile"):
        assert "plurge" in fails(command, path) or write is nnef_text


def test_a_state_that_nothing_known_updates_is_shown(tmp_path: Path) -> None:
    net = Writer()
    x, state = net.input("x", (-1, 3)), {"variable_id": "past"}
    shape = {**state, "variable_type": "f32", "variable_shape": "?,3"}
    past = net.layer("ReadValue", outputs=[(-1, 3)], attributes=shape, opset="opset6")
    made = net.layer("Splurge", [past, x], [(-1, 3)], name="made")
    net.layer("Assign", [made], [(-1, 3)], attributes=state, opset="opset6")
    path = net.result(made).write(tmp_path)
    assert "Splurge (unknown)" in ok("summary", path)
    assert json.loads(ok("view", path, "--json"))["totals"]["state"] is None


def test_weights_are_counted(tmp_path: Path) -> None:
    found = json.loads(ok("summary", onnx_model(tmp_path), "--json"))
    assert found["counts"]["parameters"] == 24


def test_what_holds_an_unknown_operator_is_unknown_itself(tmp_path: Path) -> None:
    """A choice of graphs, and a function of the file."""
    pytest.importorskip("onnx")
    from onnx import helper

    from tests.onnx.models import model, node, tensor

    def graph(made: Any) -> Any:
        return helper.make_graph([made], "body", [], [tensor("r", None)])

    sets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    inner = [node("Relu", "a", "c"), node("Fancy", "c", "b")]
    function = helper.make_function("own", "F", ["a"], ["b"], inner, sets)
    branches = {"then_branch": graph(node("Splurge", "x", "r")),
                "else_branch": graph(node("Relu", "x", "r"))}  # fmt: skip
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m zero", "p"),
        node("If", "p", "i", **branches), node("F", "x", "f", domain="own"), node("Add", "i f"),
    ]  # fmt: skip
    made = model(nodes, weights={"zero": np.float32(0)}, functions=[function])
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(UnsupportedError):
        nnef_jax.load(tmp_path / "net.onnx")
    found = json.loads(ok("summary", tmp_path / "net.onnx", "--json"))
    assert found["unknown"] == ["If", "F"]
    assert found["operations"][-1]["kind"] == "Add"


def test_other_errors_are_errors(tmp_path: Path) -> None:
    (tmp_path / "graph.nnef").write_text(_NNEF.replace("relu(x)", "relu(w)"))
    assert "'w'" in fails("summary", tmp_path)
