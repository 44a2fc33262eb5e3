"""How long calls take: the arithmetic, and engines that are made up."""

from __future__ import annotations

import json
import math
import sys
from types import ModuleType

import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError, LimitError, UnsupportedError
from nnef_jax.measure import engines
from nnef_jax.measure.benchmarking import Timing, timed
from tests.helpers import model_of

NET = """version 1.0;
graph net(x) -> (y) {
    x = external<scalar>(shape = [0,4]);
    y = mul(x, 2.0);
}
"""
SHORT = {"rounds": 2, "seconds": 0.001}


@pytest.fixture(scope="module")
def net():
    return model_of(NET)


def test_percentiles():
    rounds = [[k / 100 for k in range(1, 101)], [k / 100 for k in range(2, 102)]]
    found = timed(Timing("nnef_jax", 3, 9.0), rounds)
    calls = np.array(rounds).ravel()
    assert (found.p50, found.p99) == (np.percentile(calls, 50), np.percentile(calls, 99))
    assert found.throughput == pytest.approx(3 * 200 / calls.sum())
    assert found.spread == pytest.approx(0.01 / found.p50)
    assert (found.calls, found.first) == (200, 9)


def test_batches(net):
    found = nnef_jax.benchmark(net, batches=(1, 4), **SHORT)
    assert [x.batch for x in found.timings] == [1, 4]
    for x in found.timings:
        assert 0 < x.p50 <= x.p90 <= x.p99
        assert x.calls >= 6
    assert "items/s" in str(found)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["timings"][1]["batch"] == 4


def test_inputs(net):
    (timing,) = nnef_jax.benchmark(net, np.ones((3, 4), np.float32), **SHORT).timings
    assert timing.batch == 3


@pytest.mark.parametrize("entry", ["step", "scan"])
def test_a_recurrent_network(entry):
    text = "y = add(total, x); next = update(total, y);"
    text = (
        NET.replace("y = mul(x, 2.0);", text)
        .replace("0,4", "4")
        .replace("y =", "total = variable<scalar>(shape = [4], label = 'total');\n y =", 1)
    )
    for donate in (False, True):
        model = model_of(text, data={"total": np.ones(4, np.float32)}, donate_state=donate)
        (timing,) = nnef_jax.benchmark(model, entry=entry, **SHORT).timings
        assert timing.batch is None and timing.p50 > 0


@pytest.fixture
def fake(monkeypatch):
    """An engine that computes 2 x, 3 x for two rows, and fails for more."""

    def read(module, path):
        def prepare(inputs):
            (x,) = inputs.values()
            if len(x) > 2:
                raise RuntimeError("too many rows\nat all")
            return lambda: [x * (1 + len(x))]

        return prepare

    monkeypatch.setitem(engines.ENGINES, "fake", read)
    monkeypatch.setitem(sys.modules, "fake", ModuleType("fake"))


def test_other_engines(net, fake, tmp_path):
    (tmp_path / "net").touch()
    found = nnef_jax.benchmark(net, batches=(1, 2, 3), against={"fake": tmp_path / "net"}, **SHORT)
    ours, theirs = ([x for x in found.timings if x.engine == e] for e in ("nnef_jax", "fake"))
    assert all(math.isnan(x.difference) for x in ours)
    assert [x.difference for x in theirs[:2]] == pytest.approx([0, 0.5])
    assert theirs[2].failure == "too many rows"
    assert "too many rows" in str(found)
    axes = pytest.importorskip("matplotlib.axes")
    assert isinstance(found.plot(), axes.Axes)
    sys.modules["matplotlib.pyplot"].close("all")


@pytest.mark.parametrize("theirs", [[np.nan, 2.0], [np.inf, 2.0], [-np.inf, 2.0]])
def test_what_is_no_number_is_infinitely_far(fake, monkeypatch, tmp_path, theirs):
    (tmp_path / "net").touch()
    call = np.float32([[*theirs, 0, 0]])
    monkeypatch.setitem(engines.ENGINES, "fake", lambda *_: lambda _: lambda: [call])
    net, x = model_of(NET), np.float32([[0, 1, 0, 0]])
    against = {"fake": tmp_path / "net"}
    found = nnef_jax.benchmark(net, x, against=against, rounds=1, seconds=0)
    assert found.timings[1].difference == math.inf
    same = nnef_jax.benchmark(net, call / 2, against=against, rounds=1, seconds=0)
    assert same.timings[1].difference == 0


def test_onnxruntime(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    ends = [make.make_tensor_value_info(n, 1, ["n", 4]) for n in ("x", "y")]
    graph = make.make_graph([make.make_node("Add", ["x", "x"], ["y"])], "net", *([x] for x in ends))
    opsets = [make.make_opsetid("", 17)]
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "net.onnx")
    against = {"onnxruntime": tmp_path / "net.onnx"}
    _, timing = nnef_jax.benchmark(model_of(NET), batches=(2,), against=against, **SHORT).timings
    assert timing.difference == 0
    assert timing.calls > 0


def test_wrong_arguments(net, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="batches must be at least 1"):
        nnef_jax.benchmark(net, batches=(0,))
    with pytest.raises(ValueError, match="it is inf"):
        nnef_jax.benchmark(net, seconds=math.inf)  # for ever
    with pytest.raises(LimitError, match="'x' has 400000000000000 items"):
        nnef_jax.benchmark(net, batches=(10**14,))
    with pytest.raises(TypeError, match="against must be a dict"):
        nnef_jax.benchmark(net, against=["tract"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="need the entry 'apply'"):
        nnef_jax.benchmark(net, entry="step", batches=(1,))
    with pytest.raises(InputError, match="either inputs or batches"):
        nnef_jax.benchmark(net, np.ones((3, 4), np.float32), batches=(1,))
    with pytest.raises(InputError, match="no input has an open first extent"):
        nnef_jax.benchmark(model_of(NET.replace("0,4", "1,4")), batches=(1,))
    with pytest.raises(InputError, match="input 'x' is not known"):
        nnef_jax.benchmark(net)
    with pytest.raises(ValueError, match="there is no 'torch'"):
        nnef_jax.benchmark(net, against={"torch": "net"})
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UnsupportedError, match="pip install onnxruntime"):
        nnef_jax.benchmark(net, against={"onnxruntime": tmp_path / "net.onnx"})
