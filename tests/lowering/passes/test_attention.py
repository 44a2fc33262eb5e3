"""Attention is one equation, which layouts compute at once or by blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering.cpu import attention
from lowering.program import Program
from tests.lowering.passes.programs import changed, names, program, random

QUERIES, KEYS, VALUES = random(2, 40, 8), random(2, 50, 8, seed=1), random(2, 50, 12, seed=2)


def attend(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(q @ k.mT) @ v


def inside(program: Program) -> Program:
    (equation,) = [e for e in program.equations if e.primitive is attention.ATTENTION]
    return Program(equation.params["jaxpr"])


def test_the_division_is_last_and_queries_are_columns() -> None:
    before = program(attend, QUERIES, KEYS, VALUES)
    after = inside(changed(attention.run, before, QUERIES, KEYS, VALUES))
    assert [v.aval.shape for v in after.arguments] == [(2, 40, 8), (2, 50, 8), (2, 50, 12)]
    assert names(after)[-1] == "div" and names(after).count("div") == 1
    products = [e for e in after.equations if "dot_general" in str(e.primitive)]
    assert [e.outvars[0].aval.shape for e in products] == [(2, 50, 40), (2, 12, 40)]


def test_all_operands_may_be_one() -> None:
    after = changed(attention.run, program(lambda x: attend(x, x, x), QUERIES), QUERIES)
    assert len(inside(after).arguments) == 3


def test_masks_are_operands() -> None:
    def function(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return jax.nn.softmax(q @ k.mT * 0.3 + jnp.sin(mask)) @ v

    arguments = QUERIES, KEYS, VALUES, random(2, 40, 50, seed=3)
    after = changed(attention.run, program(function, *arguments), *arguments)
    assert len(inside(after).arguments) == 4
    assert "sin" in names(after) and "sin" not in names(inside(after))


def test_it_is_found_in_loops() -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        return lax.map(lambda x: attend(x, k, v), jnp.stack([q, q + 1]))

    after = changed(attention.run, program(function, QUERIES, KEYS, VALUES), QUERIES, KEYS, VALUES)
    assert "attention" in str(after)


def test_what_is_none_stays() -> None:
    def weights_are_read(q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(q @ k.mT)
        return weights @ v, weights.sum(1)

    def without_softmax(q: Any, k: Any, v: Any) -> Any:
        return jnp.tanh(q @ k.mT) @ v

    few = QUERIES[:, :4]
    for function, queries in (
        (weights_are_read, QUERIES),
        (without_softmax, QUERIES),
        (attend, few),
    ):
        before = program(function, queries, KEYS, VALUES)
        assert attention.run(before, None).closed is before.closed  # pyright: ignore
    backward = Program(program(attend, QUERIES, KEYS, VALUES).closed, role="backward")
    assert attention.run(backward, None).closed is backward.closed  # pyright: ignore


def test_it_is_computed_as_it_stands() -> None:
    after = attention.run(program(attend, QUERIES, KEYS, VALUES), None)  # pyright: ignore
    arrays = [jnp.asarray(x) for x in (QUERIES, KEYS, VALUES)]
    np.testing.assert_allclose(jax.jit(after)(*arrays)[0], attend(*arrays), rtol=1e-5, atol=1e-6)
