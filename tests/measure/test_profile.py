"""Time by operation."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError, UnsupportedError
from tests.helpers import model_of

HEAVY = """version 1.0;
graph net(x) -> (y) {
    x = external<scalar>(shape = [512,512]);
    w = variable<scalar>(shape = [512,512], label = 'w');
    light = relu(x);
    heavy = matmul(light, w);
    y = mul(heavy, 2.0);
}
"""
SUM = """version 1.0;
graph sum(x) -> (y) {
    x = external<scalar>(shape = [2]);
    total = variable<scalar>(shape = [2], label = 'total');
    y = add(total, x);
    next = update(total, y);
}
"""


@pytest.fixture(scope="module")
def heavy():
    return model_of(HEAVY, data={"w": np.ones((512, 512), np.float32)})


@pytest.fixture(scope="module")
def found(heavy, tmp_path_factory):
    """A profile and its trace."""
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    return nnef_jax.profile(heavy, calls=8, trace=path), path


def test_each_operation_has_a_row(found):
    profile, _ = found
    (row,) = [row for row in profile.rows if "heavy" in row.operations]
    assert row.kernels
    assert set(profile.by_operation()) == {"light", "heavy", "y"}
    assert [row.seconds for row in profile.rows] == sorted(
        (row.seconds for row in profile.rows), reverse=True
    )
    assert profile.network == "net"
    assert profile.device == "cpu"
    assert profile.calls == 8


def test_rows_sum_to_a_call(found):
    profile, _ = found
    rows = sum(row.seconds for row in profile.rows)
    assert rows > 0
    assert profile.other_seconds >= 0
    assert rows + profile.other_seconds == pytest.approx(profile.recorded_seconds)


def test_bytes_are_those_of_results(found):
    profile, _ = found
    assert {x["bytes"] for x in profile.operations.values()} == {512 * 512 * 4}
    assert all(row.nbytes == 512 * 512 * 4 * len(row.operations) for row in profile.rows)


def test_json(found):
    profile, _ = found
    data = json.loads(json.dumps(profile.to_dict(), allow_nan=False))
    seconds = {x["name"]: x["seconds"] for x in data["operations"]}
    assert list(seconds) == ["light", "heavy", "y"]
    assert seconds == profile.by_operation()
    assert sum(seconds.values()) == pytest.approx(sum(row["seconds"] for row in data["rows"]))
    heavy = data["operations"][1]
    assert (heavy["kind"], heavy["line"], heavy["multiply_adds"]) == ("matmul", 6, 512**3)


def test_the_trace_names_operations(found):
    _, path = found
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [x for x in events if "heavy" in x.get("args", {}).get("operations", ())]
    assert len(named) >= 8
    assert all("heavy" in x["name"] and x["dur"] > 0 for x in named)


def test_table_and_picture(found):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    profile, _ = found
    text = str(profile)
    assert "heavy" in text and "other" in text and "ms a call" in text
    axes = replace(profile, rows=(replace(profile.rows[0], operations=("$\\frac{$",)),)).plot()
    axes.figure.canvas.draw()  # where a name is no formula
    assert [x.get_text() for x in axes.get_yticklabels()][-1] == "other"
    matplotlib.pyplot.close(axes.figure)


def test_state_and_loops():
    model = model_of(SUM, data={"total": np.ones(2, np.float32)})
    assert set(nnef_jax.profile(model, calls=2).operations) == {"y"}
    for entry, x in (("step", np.ones(2, np.float32)), ("scan", np.ones((3, 2), np.float32))):
        assert nnef_jax.profile(model, x, entry=entry, calls=2).by_operation()["y"] > 0
    assert nnef_jax.profile(model, entry="scan", calls=2).by_operation()["y"] > 0


def test_names_of_other_formats():
    """Names of PyTorch begin with a slash; others hold quotes, and what is not ASCII."""
    pytest.importorskip("onnx")
    from onnx import helper

    from tests.onnx.models import model, tensor

    names = ["/conv1/MatMul_output_0", "a//b", 'q"uote', "größe\\x", "y"]
    nodes = [
        helper.make_node("MatMul", [before, "w"], [name])
        for before, name in zip(["x", *names], names, strict=False)
    ]
    w = np.eye(128, dtype=np.float32)
    found = nnef_jax.profile(nnef_jax.load(model(nodes, [tensor("x", w.shape)], weights={"w": w})))
    assert [row.operations for row in sorted(found.rows, key=lambda row: row.operations)] == sorted(
        (name,) for name in names
    )


def test_a_model_on_other_parameters(heavy):
    half = heavy.with_params(jax.tree.map(lambda x: x / 2, heavy.params))
    assert nnef_jax.profile(half, calls=2).by_operation()["heavy"] > 0


def test_wrong_arguments(heavy, tmp_path):
    with pytest.raises(TypeError, match="model must be"):
        nnef_jax.profile("net.nnef")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="entry must be one of apply, step, scan"):
        nnef_jax.profile(heavy, entry="call")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="calls must be at least 1"):
        nnef_jax.profile(heavy, calls=0)
    with pytest.raises(InputError, match=r"a trace is a \.json"):
        nnef_jax.profile(heavy, trace=tmp_path / "trace.txt")
    with pytest.raises(FileNotFoundError):
        nnef_jax.profile(heavy, trace=tmp_path / "none" / "trace.json")
    with pytest.raises(InputError, match="input 'x'"):
        nnef_jax.profile(heavy, np.ones((2, 2), np.float32))
    with jax.disable_jit(), pytest.raises(UnsupportedError, match="nothing is compiled"):
        nnef_jax.profile(heavy)


def test_open_shapes_are_asked_for():
    text = HEAVY.replace("external<scalar>(shape = [512,512]", "external<scalar>(shape = [0,512]")
    model = model_of(text, data={"w": np.ones((512, 512), np.float32)})
    with pytest.raises(InputError, match=r"input 'x' is not known, it is \[\?,512\]") as error:
        nnef_jax.profile(model)
    assert "--shape x=1,512" in str(error.value)
