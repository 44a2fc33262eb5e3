"""Edits and captures: what a run changes and shows inside a network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import model_of

_TEXT = """version 1.0;
extension KHR_enable_operator_expressions;

graph net(x) -> (y, z)
{
    x = external<scalar>(shape = [2, 3]);
    w = variable<scalar>(shape = [3, 3], label = 'w');
    apart = variable<scalar>(shape = [1, 3], label = 'apart');
    h1 = matmul(x, w);
    r1 = relu(h1);
    h2 = matmul(r1, w);
    r2 = relu(h2);
    y = r2 + 1.0;
    z = r1 * 2.0;
    aside = apart * 3.0;
}
"""
_W = np.random.default_rng(3).normal(size=(3, 3)).astype(np.float32)
_APART = np.arange(3, dtype=np.float32)[None]
X = np.random.default_rng(4).normal(size=(2, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def net() -> nnef_jax.Model:
    return model_of(_TEXT, data={"w": _W, "apart": _APART})


def by_hand(x: Any, w: Any = _W, r1: Any = None, h1: Any = lambda v: v) -> tuple[Any, Any]:
    r1 = np.maximum(h1(x @ w), 0) if r1 is None else r1
    return np.maximum(r1 @ w, 0) + 1, r1 * 2


def test_captures_are_the_tensors(net: nnef_jax.Model) -> None:
    for (y, z), found in (
        net(X, capture=["h1", "r*", "x", "w"]),
        net.apply(net.params, X, capture=["h1", "r*", "x", "w"]),
        jax.jit(lambda p, x: net.apply(p, x, capture=["h1", "r*", "x", "w"]))(net.params, X),
    ):
        assert sorted(found) == ["h1", "r1", "r2", "w", "x"]
        np.testing.assert_allclose(found["h1"], X @ _W, rtol=1e-5)
        np.testing.assert_allclose(found["r1"], np.maximum(X @ _W, 0), rtol=1e-5)
        np.testing.assert_array_equal(found["w"], _W)
        for got, want in zip((y, z), by_hand(X), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_edits_are_what_all_readers_see(net: nnef_jax.Model) -> None:
    shifted = by_hand(X, h1=lambda v: v + 1)
    for outputs in (
        net(X, edit={"h1": lambda v: v + 1}),
        net.apply(net.params, X, edit={"h1": lambda v: v + 1}),
        net(X, edit={"h1": X @ _W + 1}),
        net(X, edit={"?1": lambda v: v + 5, "h1": lambda v: v + 1, "r1": lambda v: v}),
    ):
        for got, want in zip(outputs, shifted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    replaced = np.full((2, 3), 0.5, np.float32)
    (y, z), found = net(X, edit={"r1": replaced}, capture=["r1", "h1"])
    np.testing.assert_array_equal(found["r1"], replaced)
    np.testing.assert_allclose(found["h1"], X @ _W, rtol=1e-5)
    np.testing.assert_allclose(z, 2 * replaced)
    np.testing.assert_allclose(y, by_hand(X, r1=replaced)[0], rtol=1e-5)
    for name, want in (("x", by_hand(2 * X)), ("w", by_hand(X, 2 * _W))):
        for got, expected in zip(net(X, edit={name: lambda v: 2 * v}), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_gradients_at_inner_tensors(net: nnef_jax.Model) -> None:
    def loss(delta: Any) -> Any:
        return net.apply(net.params, X, edit={"r1": lambda v: v + delta})[0].sum()

    r1 = np.maximum(X @ _W, 0)
    wanted = jax.grad(lambda r: (jnp.maximum(r @ _W, 0) + 1).sum())(r1)
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_allclose(gradient(jnp.zeros((2, 3))), wanted, rtol=1e-5)
    # As an array, and a batch of them.
    both = jnp.stack([r1, r1 + 1])
    found = jax.vmap(lambda r: net.apply(net.params, X, edit={"r1": r})[0])(both)
    for got, r in zip(found, both, strict=True):
        np.testing.assert_allclose(got, by_hand(X, r1=r)[0], rtol=1e-5)


def test_functions_are_traced_once_for_each_object(net: nnef_jax.Model) -> None:
    traced: list[int] = []

    def edit(v: Any) -> Any:
        traced.append(1)
        return v

    for _ in range(3):
        net(X, edit={"h1": edit})
    assert len(traced) == 1
    before = jnp.zeros((2, 3))
    for k in range(3):  # arrays are arguments
        np.testing.assert_allclose(net(X, edit={"r1": before + k})[1], np.full((2, 3), 2 * k))


_GRU = """version 1.0;
extension KHR_enable_operator_expressions;

graph net(x) -> (y)
{
    x = external<scalar>(shape = [1, 3]);
    s = variable<scalar>(shape = [1, 3], label = 's');
    t = s + x;
    y = t * 2.0;
    after = update(s, t);
}
"""


def test_states_in_step_and_scan() -> None:
    net = model_of(_GRU, data={"s": np.zeros((1, 3), np.float32)})
    xs = np.ones((4, 1, 3), np.float32)
    state = net.init_state()
    y, after, found = net.step(state, xs[0], edit={"s": lambda v: v + 1}, capture=["s", "t"])
    np.testing.assert_array_equal(found["s"], np.ones((1, 3)))
    np.testing.assert_array_equal(y, 4 * np.ones((1, 3)))
    np.testing.assert_array_equal(after["s"], found["t"])
    for params in (None, {}):
        ys, after, found = net.scan(xs, params=params, edit={"s": lambda v: 2 * v}, capture=["t"])
        np.testing.assert_array_equal(found["t"][:, 0, 0], [1, 3, 7, 15])
        np.testing.assert_array_equal(ys, 2 * found["t"])
        np.testing.assert_array_equal(after["s"], found["t"][-1])
    ys, _ = net.scan(xs, edit={"s": np.full((1, 3), 5, np.float32)})
    np.testing.assert_array_equal(ys, np.full((4, 1, 3), 12))
    _, found = net(xs[0], capture=["t"])
    np.testing.assert_array_equal(found["t"], xs[0])


def test_captures_may_need_what_outputs_do_not(net: nnef_jax.Model) -> None:
    _, found = net(X, capture=["aside"])
    np.testing.assert_array_equal(found["aside"], 3 * _APART)
    given = {**net.params, "apart": 2 * _APART}
    _, found = net.apply(given, X, capture=["aside"])
    np.testing.assert_array_equal(found["aside"], 6 * _APART)
    with pytest.raises(nnef_jax.InputError, match="captures need 'apart', which params does not"):
        net.apply(net.params, X, capture=["aside"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"edit": {"aparts": abs}},
            nnef_jax.InputError,
            "no tensor 'aparts'.*did you mean 'apart'",
        ),
        ({"capture": ["nothing*"]}, nnef_jax.InputError, "no tensor 'nothing"),
        ({"capture": "h1"}, TypeError, "capture must be a list of names of tensors"),
        ({"edit": ["h1"]}, TypeError, "edit must be a dict"),
        ({"edit": {1: abs}}, TypeError, "a name in edit must be a name of a tensor, it is 1"),
        (
            {"edit": {"h1": "abs"}},
            nnef_jax.InputError,
            "edit of 'h1' must be a function or an array",
        ),
        ({"edit": {"h1": [[1], [1, 2]]}}, nnef_jax.InputError, "edit of 'h1' must be a function"),
        ({"edit": {"h1": lambda v: v[0]}}, nnef_jax.InputError, r"float32\[3\].* float32\[2,3\]"),
        ({"edit": {"h1": lambda v: v > 0}}, nnef_jax.InputError, "bool.* float32"),
        ({"edit": {"h1": lambda v: None}}, nnef_jax.InputError, "returns no array but None"),
        ({"edit": {"h1": np.zeros((3, 2))}}, nnef_jax.InputError, r"\[3,2\].* float32\[2,3\]"),
    ],
)
def test_wrong_arguments(
    net: nnef_jax.Model, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    for run in (net, lambda x, **given: net.apply(net.params, x, **given)):
        with pytest.raises(error, match=f"(?s){message}"):
            run(X, **arguments)


def test_a_folded_tensor_is_told_as_such() -> None:
    """The hint names the tensors that it leads to, through other folded ones."""
    text = """version 1.0;
extension tract_registry tract_core;
graph net(x) -> (y)
{
    x = tract_core_external(shape = [2, 3], datum_type = 'f32');
    s = tract_core_shape_of(x);
    n = s[0] * 2;
    r = tract_core_broadcast([[1.0, 2.0, 3.0]], shape = [n, 3]);
    h = neg(x);
    y = concat([h, tract_core_cast(n, to = 'f32') * h], axis = 0);
}
"""
    found = model_of(text)
    for probe in ({"capture": ["n"]}, {"edit": {"n": jnp.abs}}, {"capture": ["[ns]"]}):
        with pytest.raises(nnef_jax.InputError, match="the graph has no tensor") as error:
            found(X, **probe)
        name = "s" if "[ns]" in str(error.value) else "n"
        assert f"'{name}' was folded" in error.value.hint
        assert error.value.hint.endswith("take what reads it: 'y'")
    with pytest.raises(nnef_jax.InputError, match="outputs: the graph has no tensor 's'") as error:
        found.cut(outputs=["s"])
    assert "'s' was folded" in error.value.hint
    seen = found(X, capture=["y", "h"])[1]
    np.testing.assert_array_equal(seen["y"], np.concatenate([-X, -4 * X]))
