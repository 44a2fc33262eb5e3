"""Derivatives of quantised networks: `load(..., quantization="ste")`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import archive, model_of
from tests.quantized import floats

NNEF = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [8, 3]);
    w = variable<scalar>(shape = [3, 2], label = 'w');
    h = matmul(x, w);
    y = tanh(h);
}
"""
NNEF_QUANT = """"w": linear_quantize(min = -1.0, max = 1.0, bits = 4);
"h": zero_point_linear_quantize(zero_point = 0, scale = 0.25, bits = 4, signed = true,
                                symmetric = false);"""
TRACT = NNEF.replace("version 1.0;", "version 1.0;\nextension tract_registry tract_core;").replace(
    "external<scalar>(shape = [8, 3])", "tract_core_external(shape = [8, 3], datum_type = 'f32')"
)

_RANDOM = np.random.default_rng(8)
W = _RANDOM.uniform(-1.2, 1.2, (3, 2)).astype(np.float32)
X = _RANDOM.normal(size=(8, 3)).astype(np.float32)


def load(dialect: str, **options: Any) -> nnef_jax.Model:
    text, quant = {"nnef": (NNEF, NNEF_QUANT), "tract": (TRACT, NNEF_QUANT)}[dialect]
    return nnef_jax.load(archive(graph=text, quant=quant, w=floats(W)), **options)


@jax.custom_vjp
def fake_quantised(x: Any, low: float, high: float, step: float) -> Any:
    """The nearest level from low on, and Krishnamoorthi's derivative of it."""
    return jnp.floor((jnp.clip(x, low, high) - low) / step + 0.5) * step + low


def _forward(x: Any, low: float, high: float, step: float) -> Any:
    return fake_quantised(x, low, high, step), (x >= low) & (x <= high)


fake_quantised.defvjp(_forward, lambda inside, g: (jnp.where(inside, g, 0), None, None, None))


def by_hand(w: Any) -> Any:
    h = X @ fake_quantised(w, -1.0, 1.0, 2 / 15)
    return jnp.tanh(fake_quantised(h, -2.0, 1.75, 0.25))


@pytest.mark.parametrize(
    ("dialect", "optimize"),
    [
        ("nnef", True),
        ("tract", False),
        pytest.param("nnef", False, marks=pytest.mark.slow),
        pytest.param("tract", True, marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_written_by_hand(dialect: str, optimize: bool) -> None:
    model = load(dialect, quantization="ste", optimize=optimize)
    assert np.abs(X @ W).max() > 2 and np.abs(W).max() > 1  # there is something to cut

    def loss(w: Any) -> Any:
        return jnp.sin(model.apply({"w": w}, X)).sum()

    plain = load(dialect, optimize=optimize)

    @jax.jit
    def derivatives(w: Any) -> Any:
        return (
            jax.value_and_grad(loss)(w),
            jax.jvp(loss, (w,), (jnp.ones_like(w),))[1],
            jax.grad(lambda w: plain.apply({"w": w}, X).sum())(w),
            jax.value_and_grad(lambda w: jnp.sin(by_hand(w)).sum())(w),
        )

    (found, gradient), tangent, without, (wanted, by_rule) = derivatives(W)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient, by_rule, rtol=1e-4, atol=1e-5)
    assert np.any(gradient)
    np.testing.assert_allclose(tangent, by_rule.sum(), rtol=1e-4)
    np.testing.assert_array_equal(model(X), plain(X))
    assert not np.any(without)


def test_training_a_quantised_network_lowers_its_loss() -> None:
    model = load("nnef", quantization="ste")
    wanted = by_hand(np.roll(W, 1, axis=0) * np.float32(0.8))

    @jax.jit
    def step(params: Any) -> Any:
        loss, slope = jax.value_and_grad(lambda p: ((model.apply(p, X) - wanted) ** 2).mean())(
            params
        )
        return loss, jax.tree.map(lambda p, g: p - 0.2 * g, params, slope)

    params, losses = model.params, []
    for _ in range(60):
        loss, params = step(params)
        losses.append(float(loss))
    assert min(losses) < 0.2 * losses[0]


def test_rounding_in_fragments_and_whole_expansions_is_straight_through_too() -> None:
    text = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [3]);
    y = linear_quantize(x, -1.0, 1.0, bits = 3);
}
"""
    x = np.array([-1.5, 0.2, 0.9], np.float32)
    for expand in ("auto", "all"):
        model = model_of(text, expand=expand, quantization="ste")
        gradient = jax.grad(lambda x, model=model: model.apply({}, x).sum())(x)
        np.testing.assert_allclose(gradient, [0, 1, 1], rtol=1e-6)
        slope = jax.grad(lambda x, model=model: (model.apply({}, x) ** 2).sum())
        curvature = jax.jvp(slope, (x,), (np.ones_like(x),))[1]
        np.testing.assert_allclose(curvature, [0, 2, 2], rtol=1e-6)


def test_the_choice_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="quantization must be one of apply, ignore, ste"):
        load("nnef", quantization="straight")
