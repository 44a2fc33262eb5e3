"""Products of one input with several matrices are one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.passes import siblings
from tests.lowering.passes.programs import changed, names, program, random

A, B, X = random(4, 6), random(6, 4, seed=1), random(3, 4, seed=2)


def test_they_are_taken_apart_where_they_are_read() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        return jnp.sin(x @ a), jnp.cos(x @ b.T)

    after = changed(siblings.run, program(function, A, B, X, parameters=2), A, B, X)
    assert names(after) == ["dot_general", "slice", "slice", "sin", "cos"]


def test_inputs_in_another_shape_are_one() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        return x.reshape(1, 3, 4) @ a + x.reshape(1, 3, 4) @ b.T

    after = changed(siblings.run, program(function, A, B, X, parameters=2), A, B, X)
    assert names(after).count("dot_general") == 1


def test_matrices_that_vary_stay_apart() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        return x @ a, x @ b.T

    before = program(function, A, B, X)
    assert siblings.run(before, None).closed is before.closed  # pyright: ignore


def test_a_step_of_a_loop() -> None:
    def function(a: Any, b: Any, x: Any) -> Any:
        def turn(state: Any, item: Any) -> tuple[Any, Any]:
            return jnp.tanh(item + state @ a[:, :4] + state @ a[:, 2:]), state

        return lax.scan(turn, jnp.zeros(4), x)

    before = program(function, A, B, X, parameters=2)
    (loop,) = [e for e in changed(siblings.run, before, A, B, X).equations if "scan" in str(e)]
    assert str(loop.params["jaxpr"]).count("dot_general") == 1
