"""Inputs that are fixed, and open extents by name, for whatever command reads a network."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nnef_jax
from tests.cli_support import call, fails, ok
from tests.onnx.models import model, node, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A network that sums along axes which are an input, of any batch."""
    path = tmp_path_factory.mktemp("sums") / "sums.onnx"
    inputs = [tensor("x", ("batch", 3)), tensor("axes", ("n",), 7), tensor("scale", (), 1)]
    nodes = [node("ReduceSum", "x axes", "s", keepdims=0), node("Mul", "s scale")]
    path.write_bytes(model(nodes, inputs).SerializeToString())
    return path


@pytest.mark.parametrize(("axes", "axis"), [("[1]", 1), ("[0]", 0)])
def test_a_value_decides_what_is_computed(sums, tmp_path, axes, axis):
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "y.npy"
    fixed = ("--value", f"axes={axes}", "--value", "scale=0.5")
    ok("run", sums, tmp_path / "x.npy", *fixed, "-o", out, "--no-cache")
    np.testing.assert_allclose(np.load(out), 0.5 * X.sum(axis))


def test_commands_that_read_a_network_take_values(sums, tmp_path):
    fixed = ("--value=axes=[1]", "--value=scale=2")
    told = json.loads(ok("summary", sums, "--json", *fixed))
    assert [x["name"] for x in told["inputs"]] == ["x"]
    assert ok("check", sums, *fixed).startswith("ok")
    assert "sum_reduce(x, axes = [1])" in ok("convert", sums, "--flat", *fixed)
    ok("convert", sums, tmp_path / "net.nnef.tgz", *fixed)
    y = nnef_jax.load(tmp_path / "net.nnef.tgz", input_shapes={"x": (2, 3)})(X)
    np.testing.assert_allclose(y, 2 * X.sum(1))


def test_what_is_converted_has_the_shapes_asked_for(sums, tmp_path):
    fixed = ("--value=axes=[1]", "--value=scale=2")
    for name, shape, batch in (
        ("named", "batch=4", 4),
        ("whole", "x=5,3", 5),
        ("open", "x=?,3", None),
    ):
        made = tmp_path / f"{name}.nnef.tgz"
        ok("convert", sums, made, *fixed, "--shape", shape)
        assert nnef_jax.load(made).inputs[0].shape == (batch, 3)
    assert "shape = [6,3]" in ok("convert", sums, "--flat", *fixed, "--shape", "batch=6")
    refused = fails("convert", sums, tmp_path / "no.nnef.tgz", *fixed, "--shape", "z=1")
    assert "input_shapes names 'z'" in refused and not (tmp_path / "no.nnef.tgz").exists()


def test_onnxruntime_is_given_values_too(sums, tmp_path):
    """Of two .onnx the second is run here: by itself it tells whether both agree."""
    pytest.importorskip("onnxruntime")
    np.save(tmp_path / "x.npy", X)
    fixed = ("--value=axes=[1]", "--value=scale=0.5", "--shape", "batch=2")
    found = json.loads(ok("compare", sums, sums, tmp_path / "x.npy", *fixed, "--json"))
    assert found["tensors"]["y"]["reason"] == ""


@pytest.mark.parametrize(
    "text", ["axes", "axes=", "=1", "axes=x", "axes=[1", "axes=[[1],2]", 'axes="1"', "axes=null",
             "axes={}", "axes=" + "[" * 100_000, f"axes={1 << 70}"]
)  # fmt: skip
def test_what_is_no_value_is_wrong_usage(sums, text):
    code, _, err = call("check", sums, "--value", text)
    assert code == 2 and "is not a name and numbers as in axis=1" in " ".join(err.split())


def test_values_that_the_network_does_not_take_are_errors(sums):
    assert "values names 'b', the graph's inputs are" in fails("check", sums, "--value", "b=1")
    told = fails("check", sums, "--value", "axes=1")
    assert "input 'axes': its value has the shape []" in told


def test_an_open_extent_has_its_name(sums, tmp_path):
    fixed = ("--value=axes=[1]", "--value=scale=2", "--cache-dir", tmp_path / "cache")
    assert "x: float32[8,3]" in ok("compile", sums, *fixed, "--shape", "batch=8")
    assert "x: float32[7,3]" in ok("compile", sums, *fixed, "--shape", "x=7,3")
    for shape in ("batch=8,3", "batc=8"):
        assert "input_shapes names 'batc" in fails("compile", sums, *fixed, "--shape", shape)
