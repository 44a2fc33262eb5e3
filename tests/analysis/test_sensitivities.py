"""How much a loss depends on each layer: by hand, for a network of two products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError
from nnef_jax.analysis import Sensitivity, sensitivity
from tests.analysis.networks import random, two_layers
from tests.helpers import model_of

_W1, _W2, _X = random(3, 4), random(4, 5, seed=1), random(2, 3, seed=2)


def loss(y: Any) -> Any:
    return 0.5 * jnp.sum(y**2)


def by_hand(w1: Any = _W1, w2: Any = _W2, **rounded: Any) -> float:
    """The loss, where functions round what layers compute, in 64 bits."""
    same = {name: lambda x: x for name in ("h1", "r1", "h2", "y")} | rounded
    r1 = same["r1"](np.maximum(same["h1"](_X.astype(np.float64) @ w1), 0))
    return 0.5 * np.sum(same["y"](same["h2"](r1 @ w2) + 1) ** 2)


def levels(x: Any, bits: int, axis: int | None = None) -> Any:
    """The nearest of 2^bits even levels between the extremes."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    steps = 2**bits - 1
    return np.floor((x - low) / (high - low) * steps + 0.5) / steps * (high - low) + low


@pytest.fixture(scope="module")
def net() -> nnef_jax.Model:
    return two_layers(_W1, _W2)


@pytest.fixture(scope="module")
def found(net: nnef_jax.Model) -> Sensitivity:
    return sensitivity(net, _X, loss=loss, bits=3, dtypes=("bfloat16",))


def test_scores_are_norms_of_gradients(found: Sensitivity) -> None:
    assert found.names == ("h1", "r1", "h2", "y") and found.kinds[1] == "relu"
    h1 = _X @ _W1
    r1 = np.maximum(h1, 0)
    y = r1 @ _W2 + 1
    at = {"h1": (y @ _W2.T * (h1 > 0), h1), "r1": (y @ _W2.T, r1), "h2": (y, y - 1), "y": (y, y)}
    for name, (gradient, value) in at.items():
        i = found.names.index(name)
        np.testing.assert_allclose(
            [found.scores["gradient"][i], found.scores["gradient x value"][i]],
            [np.linalg.norm(gradient), np.linalg.norm(gradient * value)],
            rtol=1e-4,
        )
    of_w2 = r1.T @ y
    np.testing.assert_allclose(
        [found.scores["parameter gradient"][2], found.scores["parameter x gradient"][2]],
        [np.linalg.norm(of_w2), np.linalg.norm(of_w2 * _W2)],
        rtol=1e-4,
    )
    assert np.isnan(found.scores["parameter gradient"][1])


def test_increases_are_of_one_layer_rounded_alone(found: Sensitivity) -> None:
    base = by_hand()
    np.testing.assert_allclose(found.loss, base, rtol=1e-5)
    wanted = {
        "weights 3 bits": [by_hand(levels(_W1, 3)), np.nan, by_hand(w2=levels(_W2, 3)), np.nan],
        "values 3 bits": [by_hand(**{n: lambda x: levels(x, 3)}) for n in found.names],
        "bfloat16": [
            by_hand(**{n: lambda x: x.astype(ml_dtypes.bfloat16).astype(float)})
            for n in found.names
        ],
    }
    assert set(found.increases) == set(wanted)
    for name, losses in wanted.items():
        increases = np.array(losses) - base
        np.testing.assert_allclose(found.increases[name], increases, rtol=1e-3, atol=2e-5 * base)
        assert np.nanmax(np.abs(increases)) > 1e-3 * base


def test_weights_of_each_row_and_options(net: nnef_jax.Model) -> None:
    found = sensitivity(
        net, {"x": _X}, loss=loss, bits=2, dtypes=(), per_channel=True, names=["h?"]
    )
    assert found.names == ("h1", "h2") and "bfloat16" not in found.increases
    wanted = [by_hand(levels(_W1, 2, 1)), by_hand(w2=levels(_W2, 2, 1))]
    np.testing.assert_allclose(
        found.increases["weights 2 bits"], np.array(wanted) - by_hand(), rtol=1e-3
    )
    doubled = {label: 2 * x for label, x in net.params.items()}
    jitted = jax.jit(
        lambda p, x: sensitivity(net, x, loss=loss, bits=None, dtypes=(), names=["y"], params=p)
    )
    alone = jitted(doubled, _X)
    np.testing.assert_allclose(alone.loss, by_hand(2 * _W1, 2 * _W2), rtol=1e-5)
    assert alone.increases == {}


def test_overflow_of_half_precision_shows(net: nnef_jax.Model) -> None:
    found = sensitivity(
        net, _X * np.float32(1e5), loss=loss, bits=None, dtypes=("float16",), names=["h1", "y"]
    )
    assert not np.isfinite(found.increases["float16"]).any()
    assert "float16" in str(found)


def test_a_weight_that_two_layers_share_is_rounded_for_both() -> None:
    text = """version 1.0; graph net(x) -> (y) {
        x = external<scalar>(shape = [2,3]);
        w = variable<scalar>(shape = [3,3], label = 'w');
        h = matmul(x, w); y = matmul(h, w); }"""
    w = random(3, 3)
    found = sensitivity(
        model_of(text, data={"w": w}), _X, loss=loss, bits=3, dtypes=(), names=["h", "y"]
    )
    both = 0.5 * np.sum((_X @ levels(w, 3) @ levels(w, 3)) ** 2) - 0.5 * np.sum((_X @ w @ w) ** 2)
    np.testing.assert_allclose(found.increases["weights 3 bits"], [both, both], rtol=1e-3)


def test_tables_and_pictures(found: Sensitivity, monkeypatch: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    with pytest.raises(ValueError, match="sort must be one of"):
        found.table(sort="weights")
    column = found.table(sort="gradient").columns[0]
    order = np.argsort(-np.asarray(found.scores["gradient"]), kind="stable")
    assert [str(cell) for cell in column.cells] == [found.names[i] for i in order]
    replace(found, increases={}).plot()  # nothing was rounded
    axes = found.plot()
    drawn = {line.get_label(): line.get_xdata() for line in axes.lines}
    np.testing.assert_allclose(drawn["bfloat16"], found.increases["bfloat16"])


def test_wrong_arguments(net: nnef_jax.Model) -> None:
    with pytest.raises(ValueError, match="bits must be at least 2"):
        sensitivity(net, _X, loss=loss, bits=1)
    with pytest.raises(ValueError, match="'int8' is not"):
        sensitivity(net, _X, loss=loss, dtypes=["int8"])
    with pytest.raises(TypeError, match="dtypes must be a list"):
        sensitivity(net, _X, loss=loss, dtypes="float16")
    with pytest.raises(InputError, match="params must be a dict of arrays by label"):
        sensitivity(net, _X, loss=loss, params=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="no tensor 'q'"):
        sensitivity(net, _X, loss=loss, names=["q"])
    with pytest.raises(TypeError, match="single real number"):
        sensitivity(net, _X, loss=lambda y: y)
    digits = nnef_jax.load("examples/digits/model")
    with pytest.raises(InputError, match=r"'ink' is empty: it is float32\[0,1,8,8\]"):
        sensitivity(digits, np.zeros((0, 1, 8, 8), np.float32), loss=loss)
