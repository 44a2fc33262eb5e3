"""Singular values of Jacobians, trace and eigenvalues of Hessians: known of linear networks."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnef_jax import InputError
from nnef_jax.analysis import (
    HessianTrace,
    JacobianSpectrum,
    hessian_eigenvalues,
    hessian_trace,
    jacobian_spectrum,
)
from nnef_jax.analysis.krylov import eigenpairs, singular_triplets
from tests.analysis.networks import linear, random, two_layers
from tests.helpers import model_of

_W, _W2 = random(5, 3), random(5, 4, seed=2)


def test_singular_values_of_a_linear_network_are_those_of_its_matrix() -> None:
    x = random(2, 3, seed=1)
    _, s, v = np.linalg.svd(_W)
    found = jacobian_spectrum(linear(_W.T), random(2, 5), k=2)
    np.testing.assert_allclose(found.values, np.tile(s[:2], (2, 1)), rtol=1e-5)
    found = jacobian_spectrum(linear(_W), x)  # of four there are three
    np.testing.assert_allclose(found.values, np.tile(s, (2, 1)), rtol=1e-5)
    assert np.max(found.residuals) < 1e-5
    assert found.values.shape == (2, 3) and (found.input, found.output) == ("x", "y")
    np.testing.assert_array_equal(found.lipschitz, found.values[:, 0])
    np.testing.assert_allclose(np.abs(found.directions[1] @ v.T), np.eye(3), atol=1e-4)
    assert "singular value" in str(found)
    assert found.to_dict()["input"] == "x"


def test_items_have_jacobians_of_their_own() -> None:
    net, x = two_layers(_W.T, _W2), random(2, 3, seed=3)
    wanted = jax.vmap(jax.jacobian(lambda x: net(jnp.stack([x, x]))[0]))(x)
    wanted = np.linalg.svd(wanted, compute_uv=False)
    net = net.with_params(params := {label: 2 * p for label, p in net.params.items()})
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    inside = jacobian_spectrum(net, {"x": x}, k=1, wrt="r1")
    close(inside.values, np.full((2, 1), 2 * np.linalg.norm(_W2, 2)))
    bad = x.copy()
    bad[1, 0] = np.nan
    found = jacobian_spectrum(net, bad, k=1, wrt="r1")
    assert np.isfinite(found.values[0]).all() and np.isnan(found.values[1]).all()
    jitted = jax.jit(
        jax.vmap(lambda p, x: jacobian_spectrum(net, x, k=3, params=p), in_axes=(None, 0))
    )
    close(jitted(params, jnp.stack([x, x[::-1]])).values, 4 * np.stack([wanted, wanted[::-1]]))


def matrix(values: Any, rows: int, columns: int) -> Any:
    """A matrix of these singular values."""
    u = np.linalg.qr(np.random.default_rng(1).normal(size=(rows, len(values))))[0]
    v = np.linalg.qr(np.random.default_rng(2).normal(size=(columns, len(values))))[0]
    return np.float32(u * values @ v.T)


@partial(jax.jit, static_argnames="steps")
def of_matrix(a: Any, steps: int) -> Any:
    def forward(v: Any) -> Any:
        return jnp.einsum("mn,bnw->bmw", a, v)

    def adjoint(u: Any) -> Any:
        return jnp.einsum("mn,bmw->bnw", a, u)

    return singular_triplets(forward, adjoint, jax.random.key(0), 1, a.shape, 3, steps)


@pytest.mark.parametrize(
    "values",
    [
        0.8 ** np.arange(60),
        np.r_[5, 5, 5, np.ones(40)],  # as often as there are columns in a block
        np.r_[7, 2.0],  # of low rank: the space ends before the steps do
        np.zeros(60),
    ],
)
def test_a_krylov_space_finds_values(values: Any) -> None:
    a = matrix(values, 70, 60)
    wanted = np.linalg.svd(a, compute_uv=False)
    found, vectors, off = of_matrix(a, 8)
    np.testing.assert_allclose(found[0], wanted[:3], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(vectors[0].T @ vectors[0], np.eye(3), atol=1e-4)
    assert np.max(off) < 0.01


def test_residuals_say_how_near_a_value_is() -> None:
    wanted = 0.97 ** np.arange(60)
    found, vectors, off = of_matrix(matrix(wanted, 60, 70), 3)
    distance = np.abs(wanted - np.asarray(found)[0, :, None]).min(1)
    assert (distance <= np.asarray(off)[0]).all() and np.max(off) > 0.01
    norms = np.linalg.norm(matrix(wanted, 60, 70) @ vectors[0], axis=0)
    assert (norms <= 1).all()


def test_eigenvalues_of_a_krylov_space() -> None:
    a = matrix(0.8 ** np.arange(50), 50, 50)
    a = a + a.T - np.float32(0.9) * np.eye(50, dtype=np.float32)
    wanted = np.linalg.eigvalsh(a)
    wanted = wanted[np.argsort(-np.abs(wanted))]
    found, vectors, off = jax.jit(
        lambda a: eigenpairs(lambda v: a @ v, jax.random.key(0), 50, 2, 12)
    )(a)
    np.testing.assert_allclose(found, wanted[:2], rtol=1e-4)
    np.testing.assert_allclose(
        np.linalg.norm(a @ vectors - vectors * found[None], axis=0), off, atol=1e-5
    )


def squares(y: Any) -> Any:
    return 0.5 * jnp.sum(y**2)


def test_hessian_of_a_quadratic_loss() -> None:
    """The Hessian of |x w^T|^2 / 2 to w is x^T x for each of its rows."""
    net, x = linear(_W, batch=4), random(4, 3, seed=4)
    gram = x.T @ x
    eigen = np.linalg.eigvalsh(gram)[::-1]
    found = hessian_eigenvalues(net, x, loss=squares, k=7)
    np.testing.assert_allclose(found.values, [*[eigen[0]] * 5, eigen[1], eigen[1]], rtol=1e-4)
    assert np.max(found.residuals) < 1e-3
    assert found.vectors["w"].shape == (7, 5, 3)
    direction = np.linalg.eigh(gram)[1][:, -1]
    np.testing.assert_allclose(np.abs(found.vectors["w"][0] @ direction).max(), np.linalg.norm(
        found.vectors["w"][0]), rtol=1e-3)  # fmt: skip
    assert "w (100%)" in str(found)
    trace = hessian_trace(net, x, loss=squares, samples=400)
    assert abs(trace.value - 5 * np.trace(gram)) < 4 * trace.error
    spread = 5 * 2 * (np.sum(gram**2) - np.sum(np.diag(gram) ** 2))  # Hutchinson's variance
    np.testing.assert_allclose(trace.error, np.sqrt(spread / 400), rtol=0.25)


def test_blocks_and_labels() -> None:
    """Of losses whose Hessian is diagonal, estimates have no error."""
    net = two_layers(np.eye(3), np.eye(3), "h1")
    x = np.diag(np.float32([1, 2, 3]))[:2]
    trace = hessian_trace(net, x, loss=squares, samples=2, labels=["first/*"])
    assert list(trace.samples) == ["first/w"]
    assert float(trace.value) == 3 * (1 + 4) and float(trace.error) == 0
    jitted = jax.jit(lambda p: hessian_trace(net, x, loss=squares, params=p, samples=400))
    trace = jitted(net.params)
    wanted = np.sum([np.trace(x.T @ x) * 3] * 2)  # of either: h1 is x, and w2 the identity
    assert abs(trace.value - wanted) < 4 * trace.error
    told = trace.to_dict()
    np.testing.assert_allclose(sum(told["parameters"].values()), told["value"], rtol=1e-5)
    assert "first/w" in str(trace) and "all" in str(trace)


def test_wrong_arguments() -> None:
    net, x = linear(_W), random(2, 3)
    with pytest.raises(InputError, match="wrt: the graph has no tensor 'z'"):
        jacobian_spectrum(net, x, wrt="z")
    with pytest.raises(InputError, match="output: the graph has no tensor 'z'"):
        jacobian_spectrum(net, x, output="z")
    with pytest.raises(ValueError, match="k must be at least 1"):
        jacobian_spectrum(net, x, k=0)
    with pytest.raises(TypeError, match="steps must be an integer"):
        jacobian_spectrum(net, x, steps=1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="model must be"):
        jacobian_spectrum(lambda x: x, x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="has shape"):
        jacobian_spectrum(net, x[:, :2])
    with pytest.raises(InputError, match="no real parameter has the label 'v'"):
        hessian_trace(net, x, loss=squares, labels=["v"])
    with pytest.raises(TypeError, match=r"single real number, it returns float32\[2, 5\]"):
        hessian_trace(net, x, loss=lambda y: y)
    with pytest.raises(TypeError, match="loss must be a function"):
        hessian_eigenvalues(net, x, loss=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="loss must return an array, it returns None"):
        hessian_trace(net, x, loss=lambda y: None)
    with pytest.raises(InputError, match="params must be a dict of arrays by label"):
        hessian_trace(net, x, loss=squares, params=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="no parameter of the network, or of those chosen"):
        hessian_trace(net, x, loss=squares, labels=[])
    key: Any = 3
    for analysis in (jacobian_spectrum, partial(hessian_trace, loss=squares)):
        with pytest.raises(TypeError, match="key must be one of"):
            analysis(net, x, key=key)
    with pytest.raises(ValueError, match="samples must be at least 2"):
        hessian_trace(net, x, loss=squares, samples=1)


def test_pictures(monkeypatch: Any) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    found = JacobianSpectrum(
        values=jnp.array([[3.0, 1.0]]),
        residuals=jnp.zeros((1, 2)),
        directions=jnp.zeros((1, 2, 3)),
        input="x",
        output="y",
    )
    drawn = found.plot().lines[0].get_ydata()
    np.testing.assert_allclose(drawn, found.values[0])
    axes = HessianTrace(samples={"$\\frac$": jnp.array([2.0, 4.0])}).plot()
    assert axes.patches[0].get_width() == 3
    axes.figure.canvas.draw()  # a label is no formula


def test_integers_have_no_jacobian() -> None:
    text = """version 1.0; graph net(x) -> (y) {
        x = external<integer>(shape = [2,3]); y = copy(x); }"""
    with pytest.raises(InputError, match="no output is of real numbers"):
        jacobian_spectrum(model_of(text), np.zeros((2, 3), np.int32))


def test_items_that_depend_on_one_another_are_one_item() -> None:
    a = np.float32([[1, 2, 0], [0, 1, 0], [0, 0, 4]])
    text = """version 1.0; graph net(x) -> (y) {
        x = external<scalar>(shape = [3,2]);
        a = variable<scalar>(shape = [3,3], label = 'a');
        y = matmul(a, x); }"""
    net, x = model_of(text, data={"a": a}), random(3, 2)
    with pytest.raises(InputError, match="items of 'y' depend on other items of 'x'") as raised:
        jacobian_spectrum(net, x, k=1)
    assert "batched=False" in str(raised.value)
    assert np.isnan(jax.jit(lambda x: jacobian_spectrum(net, x, k=1).values)(x)).all()
    found = jacobian_spectrum(net, x, k=6, batched=False)
    wanted = np.repeat(np.linalg.svd(a, compute_uv=False), 2)
    np.testing.assert_allclose(found.values, wanted[None], rtol=1e-5)
    assert found.directions.shape == (1, 6, 3, 2)
