"""Notes of levels change nothing, and stay under derivatives and batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.kernels.levels import MOST, NOTE, Levels, noted

X = np.float32([[-1.0, 0.5, 2.0]])


def rounded(x, step=0.5, start=-1.0, highest=255):
    return noted(x, jnp.round((x - start) / step), step, start, 0, highest)


def notes(function, *arrays):
    jaxpr = jax.make_jaxpr(function)(*arrays).jaxpr
    return [e.params["levels"] for e in jaxpr.eqns if e.primitive.name == NOTE]


def test_what_is_noted() -> None:
    assert notes(rounded, X) == [Levels(0, 255, 2)]  # 0.5 * 2 - 1 is 0
    assert notes(lambda x: rounded(x, 0.4), X) == [Levels(0, 255, None)]
    assert notes(lambda x: rounded(x, x[0, 2]), X) == [Levels(0, 255, None)]
    assert notes(lambda x: rounded(x, highest=MOST), X) == []
    assert notes(lambda x: rounded(x, jnp.bfloat16(0.5)), X.astype(jnp.bfloat16)) == []
    assert rounded(X) is X


@pytest.mark.parametrize("axis", [0, 1])
def test_derivatives_and_batches(axis: int) -> None:
    """Those of the array itself; what has no batch axis keeps its rank."""
    batch = np.moveaxis(np.stack([X, 2 * X]), 0, axis)
    batched = jax.vmap(lambda x: 3 * rounded(x), axis, axis)
    assert len(notes(batched, batch)) == 1
    made, pull = jax.vjp(jax.jit(batched), batch)
    np.testing.assert_array_equal(made, 3 * batch)
    np.testing.assert_array_equal(pull(jnp.ones_like(batch))[0], np.full_like(batch, 3))


def test_steps_in_batches() -> None:
    steps = np.float32([[0.5, 0.25, 1], [1, 2, 4]])
    each = jax.vmap(lambda step: jax.jit(rounded)(X, step[None]))
    np.testing.assert_array_equal(each(steps), np.stack([X, X]))
