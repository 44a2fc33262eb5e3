"""Rules are found by primitive, then by fact; a pass notes what it knows of variables."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.program import Program
from lowering.rewriting import Matcher, Rules, rewritten


def rules() -> Rules:
    found = Rules(only=lambda equation: equation.outvars[0].aval.ndim > 0)
    found("tanh")(lambda: "own")
    found(moves=True)(lambda: "moves")
    found(by_item=True)(lambda: "item")
    return found


def test_the_own_rule_counts_most_then_the_first_fact() -> None:
    def function(x: Any) -> Any:
        return jnp.sort(jnp.tanh(x).astype(int) * 2)[None], jnp.tanh(x[0])

    equations = jax.make_jaxpr(function)(np.ones(3, np.float32)).jaxpr.eqns
    kinds = {e.primitive.name + str(e.outvars[0].aval.ndim): rules().rule_for(e) for e in equations}
    found = {name: rule and rule() for name, rule in kinds.items()}
    assert found["tanh1"] == "own" and found["convert_element_type1"] == "moves"
    assert found["mul1"] == "item" and found["broadcast_in_dim2"] == "moves"
    assert found["tanh0"] is None and found["jit1" if "jit1" in found else "sort1"] is None


def test_what_is_noted_is_read_or_left_out() -> None:
    """A rule traces ahead what later ones may read; a literal is a number of numpy to it."""

    def exp(matcher: Matcher, equation: Any) -> None:
        (x,), (y,) = equation.invars, equation.outvars
        matcher.notes[y] = matcher.trace(lambda x: {"x": x, "twice": x * np.float32(2)}, x)

    def log(matcher: Matcher, equation: Any) -> Any:
        note = matcher.note(equation.invars[0])
        return note and matcher.trace(
            lambda x, y: (x + y) / np.float32(3), note["x"], note["twice"]
        )

    def function(x: Any) -> Any:
        return jnp.log(jnp.exp(x)) + jnp.exp(x + 1)

    x = np.arange(3, dtype=np.float32)
    after = rewritten(Program(jax.make_jaxpr(function)(x)), {"exp": exp, "log": log})
    names = [e.primitive.name for e in after.equations]
    assert sorted(names) == ["add", "add", "add", "div", "exp", "mul"]
    np.testing.assert_allclose(after(x)[0], x + np.exp(x + 1), rtol=1e-6)
