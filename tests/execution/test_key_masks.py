"""Keys that masks hide from all queries: not read, and without a difference to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from lowering import jaxprs
from lowering.cpu import attention as pass_
from lowering.cpu import blocks, key_masks
from lowering.emit import network
from lowering.ops.transformer import attention
from lowering.program import Program
from lowering.targets.cpu import CPU
from lowering.tracing import Context
from tests.lowering.passes.programs import program as inlined
from tests.programs import optimised

HEADS, KEYS, SIZE = 4, 100, 16
Attend = Callable[[Any, Sequence[Array]], Array]


def operands(seen: Any, *, queries: int = 1, heads: int = HEADS) -> list[Array]:
    shapes = (1, heads, queries, SIZE), (1, HEADS, KEYS, SIZE), (1, HEADS, KEYS, SIZE)
    draw = np.random.default_rng(0).standard_normal
    return [*(jnp.asarray(draw(shape), jnp.float32) for shape in shapes), jnp.asarray(seen)]


def whole(_: Any, x: Sequence[Array]) -> Array:
    return attention(Context(), *x, 0.0, False)


def added(_: Any, x: Sequence[Array]) -> Array:
    scores = x[0] @ x[1].mT * 0.25 + jnp.where(x[3][None, None], 0, -jnp.inf)
    return jax.nn.softmax(scores) @ x[2]


def added_to_all(_: Any, x: Sequence[Array]) -> Array:
    return jax.nn.softmax(jnp.where(x[3][None, None], x[0] @ x[1].mT, -jnp.inf)) @ x[2] + 1


def finite(_: Any, x: Sequence[Array]) -> Array:
    return jax.nn.softmax(jnp.where(x[3][None, None], x[0] @ x[1].mT, -1e9)) @ x[2]


def smoothed(_: Any, x: Sequence[Array]) -> Array:
    return (jax.nn.softmax(jnp.where(x[3][None, None], x[0] @ x[1].mT, -jnp.inf)) + 0.01) @ x[2]


def capped(_: Any, x: Sequence[Array]) -> Array:
    return jax.nn.softmax(jnp.tanh(jnp.where(x[3][None, None], x[0] @ x[1].mT, -jnp.inf))) @ x[2]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_, "_FEWEST_KEY_BYTES", 1)
    monkeypatch.setattr(pass_, "_MOST_ITEM_BYTES", 4)


def branches(function: Attend, x: Sequence[Array]) -> int:
    traced = jax.make_jaxpr(optimised(function, alone=True))((), x)
    return sum(jaxprs.primitive(e) == "cond" for e in traced.eqns)


UP_TO = [np.arange(KEYS) < count for count in (0, 1, 25, 26, 50, 51, 99, 100)]
HOLES = np.isin(np.arange(KEYS), (3, 40))


def both(function: Attend) -> Callable[[Sequence[Array]], tuple[Array, Array]]:
    """What a network computes, and what is written, compiled as one."""
    return jax.jit(lambda x: (network(function)((), x), function((), x)))


@pytest.mark.parametrize("function", [whole, added, added_to_all])
def test_equals_what_is_written(function: Attend) -> None:
    assert branches(function, operands(HOLES[None]))
    run = both(function)
    for seen in (*UP_TO, HOLES, ~HOLES):
        found, expected = run(operands(seen[None]))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("queries", "heads"), [(3, HEADS), (1, 2 * HEADS)], ids=["some queries", "grouped"]
)
def test_any_query_may_see_a_key(queries: int, heads: int) -> None:
    seen = np.random.default_rng(1).random((heads, queries, KEYS)) > 0.95
    x = operands(seen, queries=queries, heads=heads)
    assert branches(whole, x)
    np.testing.assert_allclose(*both(whole)(x), rtol=1e-5, atol=1e-6)


def test_only_keys_that_are_seen_are_read() -> None:
    query, keys, values, seen = operands(UP_TO[2][None])
    run = both(whole)
    _, expected = run([query, keys, values, seen])
    bad = np.full((1, HEADS, KEYS - 25, SIZE), np.nan, np.float32)
    x = [query, *(np.concatenate([y[:, :, :25], bad], axis=2) for y in (keys, values)), seen]
    found, written = run(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.isnan(written).all()


@pytest.mark.parametrize("function", [smoothed, capped])
def test_what_hidden_keys_change_is_left_as_it_is(function: Attend) -> None:
    x = operands(UP_TO[1][None])
    assert not branches(function, x)
    np.testing.assert_allclose(*both(function)(x), rtol=1e-5, atol=1e-6)


def test_a_mask_of_finite_numbers_hides_nothing() -> None:
    x = operands(UP_TO[1][None])
    keys = x[1].at[0, :, 90].set(1e9)
    np.testing.assert_allclose(*both(finite)([x[0], keys, *x[2:]]), rtol=1e-5, atol=1e-6)


def test_gradients_and_batches() -> None:
    x = operands(UP_TO[2][None])
    fast, seen = network(whole), x[3]

    def gradients(f: Attend) -> Any:
        return jax.grad(lambda y: jnp.sum(jnp.sin(f((), [*y, seen]))))(x[:3])

    def batch(f: Attend) -> Any:
        masks = jnp.stack([jnp.asarray(mask)[None] for mask in UP_TO[1:4]])
        return jax.vmap(lambda mask: f((), [*x[:3], mask]))(masks)

    for way in (gradients, batch):
        found, expected = jax.jit(lambda w=way: (w(fast), w(whole)))()
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_causal_blocks_read_what_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MOST_BYTES_AT_ONCE", "_MOST_BYTES_OF_BLOCK"):
        monkeypatch.setattr(blocks, name, 40_000)
    draw = np.random.default_rng(0).standard_normal
    x = [jnp.asarray(draw((1, 2, 600, 8)), jnp.float32) for _ in range(3)]

    def causal(_: Any, x: Sequence[Array]) -> Array:
        return attention(Context(), *x, False, 0.0, True)

    traced = str(jax.make_jaxpr(optimised(causal, alone=True))((), x))
    assert "cond[" in traced
    found, expected = jax.jit(lambda x: (optimised(causal, alone=True)((), x), causal((), x)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_items_of_hidden_keys() -> None:
    def of(function: Attend) -> Any:
        program = pass_.run(inlined(lambda *x: function((), x), *operands(HOLES[None])), CPU)
        found = [e for e in program.equations if jaxprs.primitive(e) == "attention"]
        return [key_masks.hidden_keys(Program(e.params["jaxpr"])) for e in found]

    for function in (whole, added):
        (found,) = of(function)
        assert found is not None
    assert of(capped) == []
