"""Products with logistic functions are quotients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from lowering.passes import gates
from tests.lowering.passes.programs import changed, names, program, random

X, Y = random(3, 4) - 1, random(1, 4, seed=1)


def test_a_product_is_a_quotient() -> None:
    before = program(lambda x, y: jax.nn.silu(x) + y * jax.nn.sigmoid(x + y), X, Y)
    found = names(changed(gates.run, before, X, Y))
    assert "logistic" not in found and found.count("div") == 2


def test_few_items_that_are_a_factor_of_many_stay() -> None:
    before = program(lambda x, y: x * jax.nn.sigmoid(y), X, Y)
    assert gates.run(before, None).closed is before.closed  # pyright: ignore


def test_extremes() -> None:
    x = np.float32([-1e30, -200, 200, 1e30])
    after = changed(gates.run, program(lambda x: jnp.float32(2) * jax.nn.sigmoid(x) * x, x), x)
    assert np.isfinite(after(x)[0]).all()
