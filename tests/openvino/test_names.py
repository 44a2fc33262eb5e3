"""What inputs, outputs and tensors inside are called, and what they may be called as well."""

from __future__ import annotations

import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer

X = np.float32([-1, 2])


def named(*names: str, version: int = 11, input: str = "x") -> Writer:
    """A network whose outputs are of these names: x, -x, |x| ..., by names of their ports."""
    net = Writer(version)
    x = net.input("data", (2,))
    _name(net, x, input)
    for type, name in zip(("Relu", "Negative", "Abs", "Exp"), names, strict=False):
        y = net.layer(type, [x], [(2,)], name=f"layer {type}")
        _name(net, y, name)
        net.result(y)
    return net


def _name(net: Writer, layer: int, names: str) -> None:
    before, port, after = net.layers[layer].rpartition("<output><port ")
    net.layers[layer] = f'{before}{port}names="{names}" {after}'


def test_outputs_by_any_name(tmp_path: Path) -> None:
    y = named("output:0,other", "12", r"a\,b").load(tmp_path)(X)
    for name in ("output:0", "other", "layer Relu"):
        np.testing.assert_array_equal(y[name], [0, 2])
    np.testing.assert_array_equal(y["12"], [1, -2])
    np.testing.assert_array_equal(y["a,b"], [1, 2])
    np.testing.assert_array_equal(y[1], y["12"])
    assert len(y[1:]) == 2 and list(y._asdict()) == ["output:0", "12", "a,b"]
    with pytest.raises(
        KeyError, match=r"no output is 'output:1', the outputs are .* did you mean 'output:0"
    ):
        y["output:1"]
    with pytest.raises(IndexError):
        y[3]


def test_outputs_of_one_name(tmp_path: Path) -> None:
    model = named("y", "y", "y").load(tmp_path)
    assert [spec.name for spec in model.outputs] == ["y", "y_1", "y_2"]
    np.testing.assert_array_equal(model(X)["y"], [0, 2])
    np.testing.assert_array_equal(model(X).y_1, [1, -2])


def test_results_are_trees_that_pickle(tmp_path: Path) -> None:
    model = named("a:0,a", "b:0,b").load(tmp_path)
    for y in (pickle.loads(pickle.dumps(model(X))), jax.jit(model)(X), jax.tree.map(abs, model(X))):
        np.testing.assert_array_equal(abs(y["b"]), [1, 2])
    many = jax.vmap(model.apply, (None, 0))(model.params, X[None])
    assert many["a:0"].shape == (1, 2)


def test_inputs_by_any_name(tmp_path: Path) -> None:
    path = named("y", input="x:0,x").write(tmp_path)
    model = nnef_jax.load(path)
    assert [spec.name for spec in model.inputs] == ["x:0"]
    for name in ("x:0", "x", "data"):
        np.testing.assert_array_equal(model(**{name: X}), [0, 2])
        other = nnef_jax.load(path, input_shapes={name: (None,)})
        np.testing.assert_array_equal(other(X[:1]), [0])
    with pytest.raises(nnef_jax.InputError, match="'x:0' is given by position and by name"):
        model(X, x=X)
    with pytest.raises(nnef_jax.InputError, match="no input 'z', its inputs are x:0"):
        model(z=X)


def test_states_and_tensors_inside_by_any_name(tmp_path: Path) -> None:
    path = named("h", "y,z", input="x:0,x").write(tmp_path)
    model = nnef_jax.load(path, state={"data": "z"})
    y, state = model.step({"x:0": X})
    np.testing.assert_array_equal(y, [0, 2])
    np.testing.assert_array_equal(state["x:0"], [1, -2])
    inside = nnef_jax.load(path).intermediates(X, names=["z"])
    np.testing.assert_array_equal(inside["z"], [1, -2])


def test_recorded_outputs_are_compared_by_the_names_of_outputs(tmp_path: Path) -> None:
    model = named("output:0", "12").load(tmp_path)
    recorded = {"data": X, "output:0": np.float32([0, 2]), "12": np.float32([1, 2])}
    found = nnef_jax.analysis.compare(recorded, model, X)
    assert {x.a: (x.b, x.by) for x in found.tensors.values()} == {
        "output:0": ("layer Relu", "output"),
        "12": ("layer Negative", "output"),
    }
    assert found.first is not None and found.first.a == "12"


def test_old_names(tmp_path: Path) -> None:
    net = Writer(5)
    x = net.input("a b", (2,))
    net.layer("Split", [x], [(1,), (1,)], name="s p", attributes={"axis": 0, "num_split": 2})
    y = net.load(tmp_path)(**{"a b": X})
    assert y["s p.0"] == -1 and y["s p.1"] == 2
