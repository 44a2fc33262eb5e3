"""`compare`: the first tensor that differs, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError
from nnef_jax.analysis import compare
from nnef_jax.analysis.differences import difference
from nnef_jax.analysis.matching import TensorKind, match
from tests.analysis.networks import random, two_layers
from tests.helpers import model_of

_W1, _W2, _X = random(3, 4), random(4, 5, seed=1), random(2, 3, seed=2)


@pytest.fixture(scope="module")
def net() -> nnef_jax.Model:
    return two_layers(_W1, _W2)


def test_a_model_is_equal_to_itself(net: nnef_jax.Model) -> None:
    found = compare(net, net, _X, isolate=True)
    assert list(found.tensors) == ["h1", "r1", "h2", "y"]
    assert found.first is None and found.origins == ()
    assert all(x.by == "name" and x.snr == np.inf for x in found.tensors.values())
    assert "none differs" in str(found)


def test_the_layer_of_a_changed_parameter_is_the_first_and_the_only_origin(
    net: nnef_jax.Model,
) -> None:
    changed = _W2 + np.float32(0.1)
    other = net.with_params({**net.params, "second/w": changed})
    found = compare(net, other, _X, isolate=True)
    assert found.first is not None and (found.first.a, found.first.reason) == ("h2", "values")
    assert [x.reason for x in found.tensors.values()] == ["", "", "values", "values"]
    assert found.origins == ("h2",) and found.tensors["y"].own == ""
    r1 = np.maximum(_X @ _W1, 0).astype(np.float64)
    error = np.abs(r1 @ changed - r1 @ _W2).max()
    np.testing.assert_allclose(found.tensors["h2"].absolute, error, rtol=1e-5)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["first"] == "h2" and told["origins"] == ["h2"] and told["isolated"]
    assert told["tensors"]["h2"]["reason"] == "values" and told["unmatched"] == {"a": [], "b": []}


def test_nan_and_overflow_are_reasons(net: nnef_jax.Model) -> None:
    bad = _W2.copy()
    bad[0, 0] = np.nan
    x = np.abs(_X)
    found = compare(net, net.with_params({**net.params, "second/w": bad}), x)
    assert found.first is not None and (found.first.a, found.first.reason) == ("h2", "nan")
    assert found.first.nan == (0, 2)  # of the first column, in both rows
    half = two_layers(_W1, _W2, dtype="float16")
    large = np.full((2, 3), 60000.0, np.float32)
    expected = large @ np.abs(_W1)
    assert (expected > 65504).any()
    positive = {**net.params, "first/w": np.abs(_W1)}
    found = compare(net.with_params(positive), half.with_params(positive), large)
    assert found.first is not None and (found.first.a, found.first.reason) == ("h1", "inf")
    assert found.first.inf == (0, (expected > 65504).sum())


def test_what_cuts_values_is_saturation(net: nnef_jax.Model) -> None:
    cut = two_layers(_W1, _W2, "clamp(h1, 0.0, 0.25)")
    assert (np.sort((_X @ _W1).ravel())[-2:] > 0.25).all()
    first = compare(net, cut, _X).first
    assert first is not None and (first.a, first.reason, first.saturated) == ("r1", "saturation", 1)


_RENAMED = """version 1.0; extension tract_registry tract_core;
graph other(input) -> (result)
{
    input = external<scalar>(shape = [2, 3]);
    a = variable<scalar>(shape = [3, 4], label = 'a');
    b = variable<scalar>(shape = [4, 5], label = 'b');
    first = matmul(input, a);
    more = neg(neg(first));
    second = relu(more);
    third = matmul(second, b);
    result = third + 1.0;
}
"""


def test_dialects_are_compared_by_kind_and_position(net: nnef_jax.Model) -> None:
    tract = model_of(_RENAMED, data={"a": _W1, "b": _W2})
    found = compare(net, tract, _X, isolate=True)
    names = {name: (x.b, x.by) for name, x in found.tensors.items()}
    assert names["h1"] == ("first", "position") and names["r1"] == ("second", "position")
    assert names["h2"] == ("third", "position") and names["y"] == ("result", "output")
    assert found.first is None and len(found.unmatched["b"]) == 2
    found = compare(net, tract, _X, names={"h1": "third"})
    assert found.tensors["h1"].by == "given" and found.tensors["h1"].reason == "shape"


def test_engines_and_records(net: nnef_jax.Model) -> None:
    y = np.maximum(_X @ _W1, 0) @ _W2 + 1
    for engine in (lambda x: y, lambda x: {"Y": y}, {"y": y}, lambda x: (y,)):
        found = compare(net, engine, _X)
        assert list(found.tensors) == ["y"] and found.first is None
        assert found.unmatched["a"] == ("h1", "r1", "h2")
    assert compare({"y": y}, net, {"x": _X}).first is None
    h1 = compare(net, {"h1": _X @ _W1, "r1": _X @ _W1}, _X).first
    assert h1 is not None and h1.a == "r1"
    integers = compare({"i": np.array([1, 2**62 + 1])}, {"i": np.array([1, 2**62 + 1])})
    assert integers.first is None


def test_measures_are_what_numpy_has() -> None:
    wanted = np.array([1.0, -2.0, 0.0, 4.0], np.float32)
    found = wanted + np.array([0.5, 0.25, 0.125, 0.0], np.float32)
    reason, measured = difference(found, wanted, 0.1, 0.0)
    rms = np.sqrt(21 / 4)
    assert reason == "values" and measured["absolute"] == 0.5 and measured["relative"] == 0.5
    np.testing.assert_allclose(measured["excess"], 0.5 / (0.1 * rms))
    np.testing.assert_allclose(measured["snr"], 10 * np.log10(21 / (0.25 + 0.0625 + 1 / 64)))
    three = wanted
    for _ in range(3):
        three = np.nextafter(three, np.float32(9))
    assert difference(three, wanted, 1e-3, 0)[1]["ulps"] == 3
    tiny = np.float32([-1e-45]), np.float32([1e-45])  # on both sides of zero
    assert difference(*tiny, 0, 1)[1]["ulps"] == 2
    half = np.array([1.0, 1 + 2**-7], ml_dtypes.bfloat16)  # its eps is 2^-7
    assert difference(half, np.ones(2, np.float32), 1, 0)[1]["ulps"] == 1
    both = np.array([np.nan, np.inf, 1.0], np.float32)
    assert difference(both, both, 1e-3, 0)[0] == ""
    assert difference(both, np.float32([np.nan, -np.inf, 1]), 1e-3, 0)[0] == "inf"
    assert difference(np.ones(2), np.ones(2, int), 1e-3, 0)[0] == "dtype"
    assert difference(np.ones(2), np.ones(3), 1e-3, 0)[0] == "shape"
    assert difference(np.ones((0, 3)), np.ones((0, 3)), 1e-3, 0)[0] == ""
    assert difference(1j * np.ones(2), np.ones(2) + 0j, 1e-3, 0)[0] == "values"


def test_names_of_other_spellings_and_repetitions_match() -> None:
    def tensors(**kinds: str) -> dict[str, TensorKind]:
        return {name: TensorKind(kind, (2,)) for name, kind in kinds.items()}

    a = {
        "/conv1/Conv": TensorKind("conv", (2,)),
        "x.y": TensorKind("", (1,)),
        "x_y": TensorKind("", (1,)),
    }
    pairs = match(a, {"conv1_Conv": TensorKind("conv", (2,)), "x-y": TensorKind("", (1,))}, {})
    assert [(p.a, p.b, p.by) for p in pairs] == [("/conv1/Conv", "conv1_Conv", "name")]
    left = tensors(p="conv", q="relu", same="add", r="conv", s="relu")
    right = tensors(u="conv", v="relu", same="add", new="mul", w="conv", z="relu")
    assert {p.a: p.b for p in match(left, right, {})} == {
        "p": "u", "q": "v", "same": "same", "r": "w", "s": "z",
    }  # fmt: skip


def test_as_many_as_can_be_are_matched_by_position() -> None:
    """Of blocks that repeat, whatever is left out in one of both."""
    kinds = ["matmul", "add", "relu", "matmul", "add", "softmax"] * 50
    left = {f"a{i}": TensorKind(kind, (2, 3)) for i, kind in enumerate(kinds)}
    kept = np.flatnonzero(np.random.default_rng(0).random(300) > 0.1)
    right = {f"b{i}": left[f"a{i}"] for i in kept}
    pairs = match(left, right, {})
    assert len(pairs) == len(kept)
    assert all(left[p.a].kind == right[p.b].kind for p in pairs)
    places = [(list(left).index(p.a), list(right).index(p.b)) for p in pairs]
    assert places == sorted(places)


def test_a_loop_of_states_is_one_cycle() -> None:
    net = nnef_jax.load("tests/tract_archives/stream_recurrence.nnef.tgz")
    inputs = [random(*(n or 2 for n in spec.shape), seed=3) for spec in net.inputs]
    found = compare(net, net, *inputs, isolate=True)
    assert found.tensors and found.first is None and not found.origins


def test_wrong_arguments(net: nnef_jax.Model) -> None:
    with pytest.raises(InputError, match="b: input 'x' has shape"):
        compare({"y": _X}, net, _X[:, :2])
    with pytest.raises(InputError, match=r"a has no tensor 'h11'") as raised:
        compare(net, net, _X, names={"h11": "h1"})
    assert "did you mean 'h1'" in str(raised.value)
    with pytest.raises(InputError, match="'h1' of b is given for 'h1' and 'h2'"):
        compare(net, net, _X, names={"h1": "h1", "h2": "h1"})
    with pytest.raises(InputError, match="no tensor of a is found in b"):
        compare(net, {"zzz": np.ones((1, 1))}, _X)
    with pytest.raises(InputError, match="'text' holds no numbers"):
        compare(net, {"text": np.array(["x"])}, _X)
    with pytest.raises(TypeError, match="b must be a model"):
        compare(net, 3, _X)
    with pytest.raises(TypeError, match="isolate runs layers of b"):
        compare(net, {"y": _X}, _X, isolate=True)
    with pytest.raises(ValueError, match="rtol and atol"):
        compare(net, net, _X, rtol=0, atol=0)
    nan = compare(net, net, np.full_like(_X, np.nan))
    assert nan.first is None and nan.tensors["y"].nan == (10, 10)


def test_arrays_that_cannot_be_read(net: nnef_jax.Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "recorded.npz", h1=np.array([None, {}]))
    unreadable = pytest.raises(InputError, match="b: its arrays cannot be read: Object arrays")
    with np.load(tmp_path / "recorded.npz") as recorded, unreadable:
        compare(net, recorded, _X)


def test_names_in_pictures_are_no_formulas(monkeypatch: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    recorded = {"$\\frac$": _X}
    axes = compare(recorded, {name: x + 1 for name, x in recorded.items()}).plot()
    axes.figure.canvas.draw()


def test_a_picture_of_errors(net: nnef_jax.Model, monkeypatch: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    other = net.with_params(jax.tree.map(lambda x: x * 1.01, net.params))
    axes = compare(net, other, _X, isolate=True).plot()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["h1", "r1", "h2", "y"]
    (line,) = [x for x in axes.lines if x.get_label() == "error"]
    np.testing.assert_allclose(line.get_ydata()[:2], 0.01, rtol=1e-3)
    bars = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose([bars[0], bars[2]], 0.01, rtol=1e-3)
