"""Sums of products leave a loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.jaxprs import primitive
from lowering.passes import sums
from tests.lowering.passes.programs import changed, program, random

W, X = random(4, 4), random(5, 2, 4, seed=1)


def test_what_steps_only_add_up_is_one_product() -> None:
    def function(x: Any) -> Any:
        def turn(state: Any, item: Any) -> tuple[Any, Any]:
            total, last = state
            return (total + (item.T @ last).reshape(2, 8), jnp.sin(item)), last

        return lax.scan(turn, (jnp.ones((2, 8)), jnp.zeros((2, 4))), x)

    after = changed(sums.run, program(function, X), X)
    (loop,) = [e for e in after.equations if primitive(e) == "scan"]
    assert "dot_general" not in str(loop.params["jaxpr"])
    assert "dot_general" in map(primitive, after.equations)


def test_terms_of_a_step_of_a_backward_pass_are_one_product() -> None:
    def function(w: Any, x: Any) -> Any:
        def turn(state: Any, item: Any) -> tuple[Any, Any]:
            return jnp.sin(item @ w + state @ w.T + item), state

        return lax.scan(turn, jnp.zeros((2, 4)), x)

    before = replace(program(function, W, X, parameters=1), role="backward")
    (loop,) = [e for e in changed(sums.run, before, W, X).equations if primitive(e) == "scan"]
    assert str(loop.params["jaxpr"]).count("dot_general") == 1
