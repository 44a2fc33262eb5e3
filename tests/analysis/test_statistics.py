"""Statistics of activations and gradients: what numpy has of all batches at once."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError
from nnef_jax.analysis import activation_statistics, gradient_statistics
from tests.analysis.networks import random, two_layers
from tests.helpers import model_of

_W1 = random(3, 4)
_W1[:, 1] = -np.abs(_W1[:, 1])  # a unit that positive inputs never excite
_W2 = random(4, 5, seed=1)
_BATCHES = [np.abs(random(2, 3, seed=seed)) for seed in (2, 3, 4)]


@pytest.fixture(scope="module")
def net() -> nnef_jax.Model:
    return two_layers(_W1, _W2)


def test_statistics_are_those_of_all_batches_at_once(net: nnef_jax.Model) -> None:
    found = activation_statistics(net, _BATCHES)
    assert list(found.tensors) == ["h1", "r1", "h2", "y"] and found.batches == 3
    h1 = np.concatenate(_BATCHES).astype(np.float64) @ _W1
    r1 = np.maximum(h1, 0)
    for name, wanted in (("h1", h1), ("r1", r1), ("y", r1 @ _W2 + 1)):
        x = found.tensors[name]
        assert x.count == x.size == wanted.size
        np.testing.assert_allclose(
            [x.mean, x.std, x.min, x.max, x.rms],
            [*(f(wanted) for f in (np.mean, np.std, np.min, np.max)), np.sqrt((wanted**2).mean())],
            rtol=1e-5,
        )
        singular = np.linalg.svd(wanted, compute_uv=False)
        singular = singular[singular > 1e-9]
        shares = singular / singular.sum()
        np.testing.assert_allclose(
            x.effective_rank, np.exp(-np.sum(shares * np.log(shares))), rtol=1e-5
        )
    dead = tuple(np.flatnonzero((r1 == 0).all(0)).tolist())
    assert 1 in dead and found.tensors["r1"].dead == dead and found.tensors["h1"].dead == ()
    assert found.tensors["r1"].zeros == (r1 == 0).sum()
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))["tensors"]["r1"]
    assert told["dead"] == list(dead) and told["units"] == 4
    assert told["zeros"] == (r1 == 0).mean() and told["count"] == 24
    assert f"{len(dead)} of 4" in str(found)


def test_parts_of_a_dataset_are_merged_exactly(net: nnef_jax.Model) -> None:
    whole = activation_statistics(net, _BATCHES)
    parts = [activation_statistics(net, x) for x in (_BATCHES[:1], _BATCHES[1:])]
    for merged in (parts[0].merge(parts[1]), parts[1].merge(parts[0])):
        for name, x in whole.tensors.items():
            y = merged.tensors[name]
            assert (x.count, x.min, x.max, x.dead) == (y.count, y.min, y.max, y.dead)
            np.testing.assert_allclose(
                [x.mean, x.squares, x.effective_rank],
                [y.mean, y.squares, y.effective_rank],
                rtol=1e-5,
            )
    with pytest.raises(InputError, match="other tensors"):
        whole.merge(activation_statistics(net, _BATCHES, names=["h1"]))


def test_effective_rank_of_known_singular_values() -> None:
    """Two equal ones have rank 2; shares 1/2, 1/4, 1/4 have exp(1.5 log 2)."""
    net = two_layers(np.eye(4), np.eye(4), "h1", batch=4)
    for values, rank in (
        ([3, 3, 0, 0], 2),
        ([4, 2, 2, 0], 2**1.5),
        ([1, 1, 1, 1], 4),
        ([0] * 4, 0),
    ):
        x = np.linalg.qr(random(4, 4, seed=5))[0] * np.float32(values)
        found = activation_statistics(net, [x], names=["h1"]).tensors["h1"]
        np.testing.assert_allclose(found.effective_rank, rank, rtol=1e-3)
    assert (
        activation_statistics(net, [x], names=["h1"], rank=False).tensors["h1"].effective_rank
        is None
    )


def test_nan_and_infinities_are_counted_apart(net: nnef_jax.Model) -> None:
    x = np.ones((2, 3), np.float32)
    x[0] = np.nan
    bad = activation_statistics(net, [x]).tensors["r1"]
    assert bad.nan == 4 and bad.count == 4 and bad.effective_rank is None
    np.testing.assert_allclose(bad.mean, np.maximum(_W1.sum(0), 0).mean(), rtol=1e-5)
    infinite = activation_statistics(net, [np.full((2, 3), np.inf, np.float32)]).tensors["h1"]
    assert infinite.inf + infinite.nan == infinite.size == 8 and infinite.inf >= 2
    nothing = activation_statistics(net, [np.full((2, 3), np.nan, np.float32)]).tensors["y"]
    assert nothing.count == 0 and np.isnan(nothing.std) and nothing.to_dict()["std"] == "NaN"


def test_batches_without_items_change_nothing() -> None:
    net, names = nnef_jax.load("examples/digits/model"), ["relu1"]
    empty, full = np.zeros((0, 1, 8, 8), np.float32), np.ones((1, 1, 8, 8), np.float32)
    alone = activation_statistics(net, [empty], names=names).tensors["relu1"]
    assert alone.size == 0 and alone.dead is None and np.isnan(alone.std)
    both, one = (activation_statistics(net, x, names=names) for x in ([empty, full], [full]))
    told = [x.tensors["relu1"].to_dict() | {"shape": None} for x in (both, one)]
    assert told[0] == told[1]


def test_units_of_convolutions_are_channels_and_of_products_the_last_axis() -> None:
    text = """version 1.0; graph net(x) -> (y, p, s) {
        x = external<scalar>(shape = [1,2,3,3]);
        w = variable<scalar>(shape = [4,2,1,1], label = 'w');
        v = variable<scalar>(shape = [1,1,3,5], label = 'v');
        c = conv(x, w); r = relu(c); p = transpose(r, axes = [0,2,3,1]);
        s = mean_reduce(r, axes = [3]); m = matmul(c, v); y = softmax(m); }"""
    w = np.ones((4, 2, 1, 1), np.float32)
    w[2] = -1
    net = model_of(text, data={"w": w, "v": random(1, 1, 3, 5)})
    found = activation_statistics(net, [np.ones((1, 2, 3, 3), np.float32)]).tensors
    units = {name: len(x.alive) for name, x in found.items()}
    assert units == {"c": 4, "r": 4, "p": 4, "s": 4, "m": 5, "y": 5}
    assert found["r"].dead == found["p"].dead == found["s"].dead == (2,)


def test_open_batches_and_both_dialects() -> None:
    net = nnef_jax.load("tests/torch_networks/tcn.nnef.tgz")
    shapes = [tuple(n or 5 for n in spec.shape) for spec in net.inputs]
    batch = tuple(random(*shape) for shape in shapes)
    found = activation_statistics(net, [batch], rank=False)
    assert found.tensors and all(x.size for x in found.tensors.values())


def test_gradients_of_a_quadratic_loss(net: nnef_jax.Model) -> None:
    targets = [random(2, 5, seed=seed) for seed in (6, 7, 8)]

    def loss(y: Any, target: Any) -> Any:
        return 0.5 * jnp.sum((y - target) ** 2)

    found = gradient_statistics(net, _BATCHES, loss=loss, targets=targets).tensors
    assert list(found) == ["h1", "r1", "h2", "y", "first/w", "second/w"]
    at: dict[str, list[Any]] = {"y": [], "h1": [], "second/w": []}
    for x, target in zip(_BATCHES, targets, strict=True):
        h1 = x @ _W1
        at["y"].append(np.maximum(h1, 0) @ _W2 + 1 - target)
        at["h1"].append(at["y"][-1] @ _W2.T * (h1 > 0))
        at["second/w"].append(np.maximum(h1, 0).T @ at["y"][-1])
    for name, arrays in at.items():
        np.testing.assert_allclose(
            [found[name].mean, found[name].std], [np.mean(arrays), np.std(arrays)], rtol=1e-4
        )
    assert 1 in (found["h1"].dead or ()) and found["first/w"].kind == "parameter"
    with pytest.raises(InputError, match="batch 1: there are fewer targets than batches"):
        gradient_statistics(net, _BATCHES, loss=loss, targets=targets[:1])
    alone = gradient_statistics(net, _BATCHES[:1], loss=jnp.sum, names=[], labels=["sec*"])
    assert list(alone.tensors) == ["second/w"]


def test_wrong_arguments(net: nnef_jax.Model) -> None:
    with pytest.raises(InputError, match="statistics need at least one batch"):
        activation_statistics(net, [])
    with pytest.raises(InputError, match="batch 1: input 'x' has shape"):
        activation_statistics(net, [_BATCHES[0], _BATCHES[0][:, :2]])
    with pytest.raises(InputError, match="the graph has no tensor 'r9'"):
        activation_statistics(net, _BATCHES, names=["r9"])
    with pytest.raises(InputError, match="'w1' is no tensor"):
        activation_statistics(net, _BATCHES, names=["w1"])
    with pytest.raises(TypeError, match="names must be a list"):
        activation_statistics(net, _BATCHES, names="r1")
    with pytest.raises(TypeError, match="batches must be a list"):
        activation_statistics(net, 3)  # pyright: ignore[reportArgumentType]
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"params": 3}, InputError),
        ({"labels": 3}, TypeError),
        ({"targets": 3}, TypeError),
    ]
    for given, error in wrong:
        with pytest.raises(error, match=f"{next(iter(given))} must be a"):
            gradient_statistics(net, _BATCHES, loss=jnp.sum, **given)
    with pytest.raises(TypeError, match="loss must be a function"):
        gradient_statistics(net, _BATCHES, loss=None)  # pyright: ignore[reportArgumentType]
    text = """version 1.0; graph net(x) -> (y) {
        x = external<integer>(shape = [2,3]); y = copy(x); }"""
    integers = model_of(text)
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert activation_statistics(integers, [x]).tensors["y"].mean == 2.5
    with pytest.raises(InputError, match="no parameter of the network"):
        gradient_statistics(integers, [x], loss=jnp.sum)
    with pytest.raises(InputError, match="no tensor that is computed, or chosen"):
        gradient_statistics(integers, [x], loss=jnp.sum, labels=[])


def test_pictures(net: nnef_jax.Model, monkeypatch: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    found = activation_statistics(net, _BATCHES)
    axes = found.plot()
    assert [x.get_text() for x in axes.get_yticklabels()] == ["h1", "r1", "h2", "y"]
    assert any("of 4 dead" in text.get_text() for text in axes.texts)
    gradients = gradient_statistics(net, _BATCHES, loss=jnp.sum)
    sizes = gradients.plot().lines[0].get_xdata()
    np.testing.assert_allclose(sizes, [x.rms for x in gradients.tensors.values()])
