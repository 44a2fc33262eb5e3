"""Operations without derivatives in reverse mode: an error that names them, and what helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import UnsupportedError, analysis

pytest.importorskip("onnx")

from onnx import helper

from tests.onnx.models import model, node, tensor

X = np.full((2, 3), 1.5, np.float32)
PLANE = np.random.default_rng(0).normal(size=(1, 1, 6, 6)).astype(np.float32)
REGIONS = np.float32([[0, 0, 4, 4]])


def doubled(most: str = "_", **more: Any) -> nnef_jax.Model:
    """Return a network that doubles x until its sum is 100, and multiplies by a weight."""
    nodes = [
        node("Mul", "c two", "d"),
        node("ReduceSum", "d", "s", keepdims=0),
        node("Less", "s limit", "goes_on"),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [tensor("i", (), 7), tensor("on", (), 9), tensor("c", (2, 3))],
        [tensor("goes_on", (), 9), tensor("d", (2, 3))],
    )
    loop = node("Loop", f"{most} begins x", "z", body=body)
    weights = {"two": np.float32(2), "limit": np.float32(100), "begins": np.array(True)}
    inputs = [tensor("x"), *([tensor(most, (), 7)] if most != "_" else [])]
    network = model([loop, node("Mul", "z w", "y")], inputs, weights={**weights, "w": X})
    return nnef_jax.load(network, **more)


def pooled(mode: str) -> nnef_jax.Model:
    size = {"output_height": 2, "output_width": 2}
    nodes = [helper.make_node("RoiAlign", ["x", "regions", "batch"], ["y"], mode=mode, **size)]
    inputs = [tensor("x", PLANE.shape), tensor("regions", REGIONS.shape)]
    return nnef_jax.load(model(nodes, inputs, weights={"batch": np.array([0])}))


def total(network: nnef_jax.Model, *others: Any) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(network(x, *others))


@pytest.mark.parametrize("way", [jax.grad, lambda f: jax.jit(jax.grad(f)), jax.hessian])
def test_a_loop_until_a_condition(way: Any) -> None:
    with pytest.raises(UnsupportedError) as error:
        way(total(doubled()))(X)
    assert "'loop' has no derivatives in reverse mode" in str(error.value)
    assert "Loop (, begins, x) -> (z)" in str(error.value)
    assert "values=" in error.value.hint and "jax.jacfwd" in error.value.hint


def test_the_hints_help() -> None:
    wanted = np.full((2, 3), 16 * 1.5)  # the sum 9 is doubled four times
    np.testing.assert_allclose(jax.jacfwd(total(doubled()))(X), wanted)
    np.testing.assert_allclose(jax.grad(total(doubled("m", values={"m": 10})))(X), wanted)
    with pytest.raises(UnsupportedError, match="'loop'"):
        jax.grad(total(doubled("m"), 10))(X)


def test_what_does_not_pass_the_loop_has_derivatives() -> None:
    network = doubled()
    gradient = jax.grad(lambda w: jnp.sum(network.apply({**network.params, "w": w}, X)))
    np.testing.assert_allclose(gradient(jnp.asarray(X)), 16 * X)


def test_many_at_once() -> None:
    xs = np.stack([X, 2 * X])
    slopes = jax.vmap(jax.jacfwd(total(doubled())))(xs)
    np.testing.assert_allclose(slopes, [np.full((2, 3), 24.0), np.full((2, 3), 12.0)])
    with pytest.raises(UnsupportedError, match="'loop'"):
        jax.vmap(jax.grad(total(doubled())))(xs)


def test_a_maximum_of_samples() -> None:
    network = pooled("max")
    with pytest.raises(UnsupportedError, match=r"'roi_align'.* samples of a maximum") as error:
        jax.grad(total(network, REGIONS))(PLANE)
    assert "RoiAlign (x, regions, batch) -> (y)" in str(error.value)
    forwards = jax.jacfwd(total(network, REGIONS))(PLANE)
    step = 1e-2 * np.random.default_rng(1).normal(size=PLANE.shape).astype(np.float32)
    difference = total(network, REGIONS)(PLANE + step) - total(network, REGIONS)(PLANE - step)
    np.testing.assert_allclose(np.sum(forwards * step), difference / 2, rtol=1e-2, atol=1e-4)
    assert np.asarray(jax.grad(total(pooled("avg"), REGIONS))(PLANE)).any()


def test_analyses_and_exports_say_the_same(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'roi_align' has no derivatives in reverse mode"):
        analysis.saliency(pooled("max"), PLANE, REGIONS, target=lambda y: y.sum(axis=(1, 2, 3)))
    with pytest.raises(UnsupportedError, match="'loop' has no derivatives in reverse mode"):
        doubled().export(tmp_path / "net.npz", batch=None, vjp_order=1)
    doubled().export(tmp_path / "net.npz", batch=None)
