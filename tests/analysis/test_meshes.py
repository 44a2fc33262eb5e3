"""Analyses of a model that lives on two devices are those of one that lives on one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnef_jax import analysis
from tests.analysis.networks import random, two_layers


def loss(y: Any) -> Any:
    return 0.5 * jnp.sum(y**2)


def loss_to(y: Any, answer: Any) -> Any:
    return loss(y - answer)


def test_models_on_a_mesh() -> None:
    net, x = two_layers(random(3, 4), random(4, 6, seed=1)), random(2, 3, seed=2)
    mesh = jax.make_mesh((2,), ("data",))
    sharded = net.shard(mesh, batch="data", params="data")
    assert analysis.compare(net, sharded, x, isolate=True).first is None
    for found in (
        [analysis.activation_statistics(m, [x]).to_dict() for m in (net, sharded)],
        [
            analysis.gradient_statistics(m, [x], loss=loss, names=["h1"]).to_dict()
            for m in (net, sharded)
        ],
    ):
        one, two = (jax.tree.leaves(told["tensors"]) for told in found)
        for a, b in zip(one, two, strict=True):
            assert a == b or abs(a - b) < 1e-4 * abs(a) + 1e-6
    halves = jax.tree.map(lambda p: p / 2, net.params)
    pair, net = (x, random(2, 6, seed=3)), two_layers(random(3, 4), random(4, 6, seed=1), batch=0)
    sharded = net.shard(mesh, batch="data", params="data")
    one, two = (
        analysis.tracin(m, pair, pair, loss=loss_to, checkpoints=[m.params, halves]).values
        for m in (net, sharded)
    )
    np.testing.assert_allclose(one, two, rtol=1e-4)
    one, two = (analysis.jacobian_spectrum(m, x, k=2, params=halves).values for m in (net, sharded))
    np.testing.assert_allclose(one, two, rtol=1e-4)
