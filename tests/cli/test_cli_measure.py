"""`nnef-jax profile`, `benchmark`, `cost`, `compare`, `diff` and statistics."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import nnef_jax
from tests.cli_support import BIAS, FILTER, call, fails, linear_scores, ok, picture, through, write

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    return linear_scores(tmp_path_factory.mktemp("networks") / "scores")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The same network with another bias."""
    folder = linear_scores(tmp_path_factory.mktemp("networks") / "other")
    nnef_jax.write_tensor(folder / "bias.dat", BIAS + np.float32([[0, 0.25, 0]]))
    return folder


@pytest.fixture
def x(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


def test_profile(scores, x, tmp_path):
    trace = tmp_path / "trace.json"
    out = ok("profile", scores, x, "--calls", 3, "--trace", trace)
    assert out.startswith("scores on cpu: ") and out.endswith(f"saved {trace}\n")
    assert "traceEvents" in json.loads(trace.read_text())
    found = json.loads(ok("profile", scores, "--shape", "x=2,4", "--calls", 3, "--json"))
    assert [(x["name"], x["line"]) for x in found["operations"]] == [("y", 6)]
    assert found["calls"] == 3


def test_a_picture(scores, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "profile.png"
    assert ok("profile", scores, "--shape", "x=2,4", "--calls", 1, "--plot", path).endswith(
        f"saved {path}\n"
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "the suffix must be .png" in fails(
        "weight-statistics", scores, "--plot", tmp_path / "profile.txt"
    )
    assert "No such file" in fails(
        "weight-statistics", scores, "--plot", tmp_path / "none" / "a.png"
    )


def test_benchmark(scores, x):
    short = ("--rounds", 1, "--seconds", 0, "--json")
    found = json.loads(ok("benchmark", scores, "--batch", "1,3", *short))
    assert [x["batch"] for x in found["timings"]] == [1, 3]
    assert all(x["engine"] == "nnef_jax" and x["p50"] > 0 for x in found["timings"])
    found = json.loads(ok("benchmark", scores, x, *short))
    assert [x["batch"] for x in found["timings"]] == [2]


def test_inputs_of_any_name(tmp_path):
    """Also those that arguments of the functions have."""
    text = "graph g(calls, seed) -> (y) { calls = external<scalar>(shape = [2]); " \
        "seed = external<scalar>(shape = [2]); y = add(calls, seed); }"  # fmt: skip
    net = write(tmp_path / "g", f"version 1.0;\n{text}\n")
    np.savez(tmp_path / "x.npz", calls=X[0, :2], seed=X[1, :2])
    ok("profile", net, tmp_path / "x.npz", "--calls", 1)
    ok("benchmark", net, tmp_path / "x.npz", "--rounds", 1, "--seconds", 0)
    ok("compare", net, net, tmp_path / "x.npz", "--outputs")
    assert "not go with --batch" in call("benchmark", net, "--entry", "step", "--batch", "1")[2]


def test_a_fixed_batch_is_opened(tmp_path):
    text = "graph g(x) -> (y) { x = external<scalar>(shape = [1,4]); y = relu(x); }"
    net = write(tmp_path / "g", f"version 1.0;\n{text}\n")
    out = ok("benchmark", net, "--batch", "2", "--rounds", 1, "--seconds", 0)
    assert "items/s" in out


def test_benchmark_against_what_is_not_there(scores, tmp_path):
    pytest.importorskip("onnxruntime")
    assert "cannot read" in fails(
        "benchmark", scores, "--batch", "1", "--onnx", scores / "graph.nnef"
    )
    missing = fails("benchmark", scores, "--batch", "1", "--onnx", tmp_path / "none.onnx")
    assert "none.onnx: No such file" in missing


def test_cost(scores):
    found = json.loads(ok("cost", scores, "--shape", "x=2,4", "--json", "--platform", "tpu"))
    assert found["multiply_adds"] == 2 * 4 * 3
    assert found["flops"] == 2 * 2 * 4 * 3 + 2 * 3  # and the bias
    assert "flops a byte" in ok("cost", scores, "--shape", "x=2,4")
    assert "--shape x=1,4" in fails("cost", scores)


# In a process of its own, in which jax is not imported yet.
_PLATFORMS = """
import sys
from nnef_jax import cli
code = cli.main(sys.argv[1:])
import jax
print([code, jax.config.jax_platforms])
"""


@pytest.mark.parametrize(
    ("chosen", "platforms"), [(None, "cpu"), ("", ""), ("cpu,tpu", "cpu,tpu")], ids=str
)
def test_cost_on_a_topology_searches_for_no_devices(scores, chosen, platforms):
    """Plugins that search print tracebacks. The topology is wrong, so nothing is compiled."""
    environment = {name: x for name, x in os.environ.items() if name != "JAX_PLATFORMS"}
    if chosen is not None:
        environment["JAX_PLATFORMS"] = chosen
    command = [sys.executable, "-c", _PLATFORMS, "cost", str(scores), "--topology", "v5e:1x3"]
    command += ["--shape", "x=2,4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert "v5e:1x2" in done.stderr
    assert done.stdout == f"{[1, platforms]}\n"


def test_cost_leaves_the_environment_of_a_process_with_jax(scores, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert "no layout" in fails("cost", scores, "--topology", "v5e:1x3", "--shape", "x=2,4")
    assert "JAX_PLATFORMS" not in os.environ


def test_weight_statistics(scores):
    found = json.loads(ok("weight-statistics", scores, "--json"))["weights"]
    assert found["dense/filter"]["min"] == FILTER.min()
    assert found["bias"]["mean"] == BIAS.mean()
    assert "histogram" in ok("weight-statistics", scores)


def test_activation_statistics(scores, x, tmp_path):
    found = json.loads(ok("activation-statistics", scores, x, "--json"))["tensors"]
    y = X @ FILTER.T + BIAS
    assert found["y"]["mean"] == pytest.approx(y.mean(), rel=1e-6)
    assert found["y"]["max"] == y.max()
    net = through(tmp_path / "net", [1, 1, 2, 2])
    scans = [picture(tmp_path / f"{i}.png", np.full((2, 2), 10 * i)) for i in (1, 2)]
    found = json.loads(
        ok("activation-statistics", net, *scans, "--scale", "0.1", "--name", "y", "--json")
    )
    assert found["tensors"]["y"]["mean"] == pytest.approx(1.5)


def test_diff(scores, other):
    assert ok("diff", scores, scores) == "nothing differs, of 1 operations and 2 arrays\n"
    code, out, err = call("diff", scores, other)
    assert (code, err) == (1, "")
    assert "bias" in out and "1 of 3 numbers, by 0.25 at most" in out
    code, out, _ = call("diff", scores, other, "--json")
    assert (code, json.loads(out)["same"]) == (1, False)
    assert "No such file" in fails("diff", scores, "none")


def test_compare(scores, other, x):
    assert ok("compare", scores, scores, x) == "1 tensors, none differs\n"
    code, out, err = call("compare", scores, other, x)
    assert (code, err) == (1, "")
    assert "the first that differs is y: values" in out
    ok("compare", scores, other, x, "--atol", "0.3")
    assert ok("compare", scores, scores, x, "--outputs") == "1 tensors, none differs\n"
    found = json.loads(ok("compare", scores, scores, "--shape", "x=2,4", "--json"))
    assert found["tensors"]["y"]["absolute"] == 0


def test_compare_with_what_was_recorded(scores, tmp_path):
    """A .npz may hold the inputs too."""
    y = X @ FILTER.T + BIAS
    np.savez(tmp_path / "right.npz", x=X, y=y)
    np.savez(tmp_path / "wrong.npz", x=X, z=y + 1)
    ok("compare", scores, tmp_path / "right.npz")
    code, out, _ = call("compare", tmp_path / "wrong.npz", scores, "--name", "z=y")
    assert (code, "first that differs is z: values" in out) == (1, True)


def test_compare_with_onnxruntime(scores, x, tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    ends = [make.make_tensor_value_info(n, 1, ["n", k]) for n, k in (("x", 4), ("y", 3))]
    arrays = {"w": FILTER.T.copy(), "b": BIAS}
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [make.make_node("MatMul", ["x", "w"], ["p"]), make.make_node("Add", ["p", "b"], ["y"])]
    graph = make.make_graph(nodes, "net", [ends[0]], [ends[1]], stored)
    opsets = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "net.onnx")
    ok("compare", scores, tmp_path / "net.onnx", x)
    found = json.loads(ok("compare", tmp_path / "net.onnx", scores, x, "--json"))
    assert found["tensors"]["y"]["reason"] == ""
    assert found["unmatched"]["a"] == ["p"]  # a tensor inside
    found = json.loads(ok("compare", tmp_path / "net.onnx", scores, x, "--outputs", "--json"))
    assert list(found["tensors"]) == ["output0"] and not found["unmatched"]["a"]


def test_wrong_usage(scores, x, tmp_path):
    for arguments in (
        ("benchmark", scores, "--batch", "1,x"),
        ("compare", scores, scores, x, "--name", "y"),
        ("cost", scores, "--platform", "gpu"),
        ("profile", scores, "--calls", "0"),
    ):
        code, _, err = call(*arguments)
        assert code == 2 and err
    np.savez(tmp_path / "a.npz", y=X)
    assert "one side must be a network" in fails(
        "compare", tmp_path / "a.npz", tmp_path / "a.npz", x
    )
    assert call("compare", scores, tmp_path / "a.npz", x, "--isolate")[0] == 2
