"""Inputs whose values are fixed at load: constants, of which structure may depend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.runnable import execution_of
from tests.helpers import model_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)
FINAL = """version 1.0;
graph g(x, k) -> (y)
{
    x = external(shape = [2,3]);
    k = external(shape = [1,3]);
    w = variable(shape = [1,3], label = 'w');
    p = mul(x, k);
    y = add(p, w);
}
"""
TRACT = """version 1.0;
extension tract_registry tract_core;
graph g(x, s) -> (y)
{
    x = tract_core_external(shape = [2,3], datum_type = 'f32');
    s = tract_core_external(shape = [2], datum_type = 'i64');
    y = reshape(x, shape = s);
}
"""
PORT = '<port id="{}" precision="{}">{}</port>'
IR = f"""<net name="g" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="2,3" element_type="f32"/>
<output>{PORT.format(0, "FP32", "<dim>2</dim><dim>3</dim>")}</output></layer>
<layer id="1" name="s" type="Parameter" version="opset1"><data shape="2" element_type="i64"/>
<output>{PORT.format(0, "I64", "<dim>2</dim>")}</output></layer>
<layer id="2" name="y" type="Reshape" version="opset1"><data special_zero="false"/>
<input>{PORT.format(0, "FP32", "<dim>2</dim><dim>3</dim>")}
{PORT.format(1, "I64", "<dim>2</dim>")}</input>
<output>{PORT.format(2, "FP32", "<dim>3</dim><dim>2</dim>")}</output></layer>
<layer id="3" name="end" type="Result" version="opset1">
<input>{PORT.format(0, "FP32", "<dim>3</dim><dim>2</dim>")}</input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>
</edges></net>"""


def folder(path: Path, name: str, text: str) -> Path:
    (path / name).write_text(text)
    return path / name


def test_a_network_of_nnef(tmp_path: Path) -> None:
    w, k = np.float32([[1, 2, 3]]), np.float32([[2, 0, 1]])
    model = model_of(FINAL, data={"w": w}, values={"k": k})
    assert [x.name for x in model.inputs] == ["x"]
    np.testing.assert_array_equal(model(X), X * k + w)
    model.save(tmp_path / "fixed.nnef.tgz")
    again = nnef_jax.load(tmp_path / "fixed.nnef.tgz")
    assert [x.name for x in again.inputs] == ["x"]
    np.testing.assert_array_equal(again(X), X * k + w)


@pytest.mark.parametrize(("name", "text"), [("graph.nnef", TRACT), ("net.xml", IR)])
def test_values_decide_shapes(name: str, text: str, tmp_path: Path) -> None:
    source = folder(tmp_path, name, text)
    with pytest.raises(NnefError, match="must be known") as error:
        nnef_jax.load(source)
    assert "load(..., values={" in error.value.hint
    model = nnef_jax.load(source, values={"s": [3, 2]})
    assert [x.name for x in model.inputs] == ["x"]
    np.testing.assert_array_equal(model(X), X.reshape(3, 2))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"z": 1}, "values names 'z', the graph's inputs are x, s"),
        ({"s": [1, 2, 3]}, r"its value has the shape \[3\], it must have \[2\]"),
        ({"s": [1.5, 4]}, "its value is float64, it must be int"),
        ({"s": "ab"}, "must be numbers"),
        ({"s": [[1], [2, 3]]}, "is no array|must be numbers"),
    ],
)
@pytest.mark.parametrize(("name", "text"), [("graph.nnef", TRACT), ("net.xml", IR)])
def test_wrong_values(name: str, text: str, values: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, NnefError), match=message):
        nnef_jax.load(folder(tmp_path, name, text), values=values)


def test_values_are_a_dict(tmp_path: Path) -> None:
    source = folder(tmp_path, "graph.nnef", TRACT)
    for wrong in ([1], {1: 2}):
        with pytest.raises(TypeError, match="values must be a dict of arrays by input name"):
            nnef_jax.load(source, values=wrong)  # type: ignore[arg-type]


def test_networks_differ_by_their_values(tmp_path: Path) -> None:
    source = folder(tmp_path, "graph.nnef", TRACT)
    first, second = (nnef_jax.load(source, values={"s": [n, 6 // n]}) for n in (3, 1))
    same = nnef_jax.load(source, values={"s": [3, 2]})
    assert execution_of(first).definition == execution_of(same).definition
    assert execution_of(first).definition != execution_of(second).definition
