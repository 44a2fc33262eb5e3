"""The split: what depends on parameters alone is done once, large broadcasts are not kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.prepare import Split
from lowering.program import Program
from lowering.split import split


def shapes(arrays: Any) -> list[tuple[int, ...]]:
    return [a.shape for a in arrays]


def parts_of(function: Any, params: list[Any], inputs: list[Any]) -> Split:
    closed = jax.make_jaxpr(function)(params, inputs)
    return split(Program(closed, len(params)))


def check(function: Any, params: list[Any], inputs: list[Any]) -> tuple[Any, ...]:
    """Run the parts, compare with the whole, give what was prepared."""
    parts = parts_of(function, params, inputs)
    prepared = parts.prepare(params)
    whole, found = jax.tree.leaves(function(params, inputs)), parts.call(prepared, inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, found)
    return prepared


def test_work_on_parameters_is_done_once() -> None:
    def function(params: Any, inputs: Any) -> Any:
        return inputs[0] @ jnp.flip(params[0], 0).T * jnp.exp(params[1])

    params = [np.arange(12, dtype=np.float32).reshape(3, 4), np.float32(0.5)]
    prepared = check(function, params, [np.ones((2, 4), np.float32)])
    (flipped,) = [p for p in prepared if p.ndim == 2]
    np.testing.assert_array_equal(flipped, params[0][::-1].T)
    parts = parts_of(function, params, [np.ones((2, 4), np.float32)])
    text = jax.jit(parts.call).lower(prepared, [np.ones((2, 4), np.float32)]).as_text()
    assert "reverse" not in text and "exponential" not in text


def test_broadcasts_are_repeated_in_the_call() -> None:
    def function(params: Any, inputs: Any) -> Any:
        return inputs[0] + jnp.broadcast_to(params[0], (64, 64, 64)) * 2.0

    prepared = check(function, [np.float32([3])], [np.ones((64, 64, 64), np.float32)])
    assert shapes(prepared) == [(1,)]


def test_scaled_filters_are_kept() -> None:
    def function(params: Any, inputs: Any) -> Any:
        return inputs[0] @ (params[0] * params[1][:, None])

    params = [np.ones((64, 64), np.float32), np.arange(64, dtype=np.float32)]
    assert shapes(check(function, params, [np.ones((2, 64), np.float32)])) == [(64, 64)]


def test_outputs_may_be_parameters_inputs_or_constants() -> None:
    def function(params: Any, inputs: Any) -> Any:
        return {"p": params[0], "x": inputs[0], "c": jnp.zeros(3), "q": -params[0]}

    check(function, [np.ones(3, np.float32)], [np.ones(2, np.float32)])


def test_constants_become_arguments() -> None:
    table = np.random.default_rng(0).uniform(size=(300, 300)).astype(np.float32)

    def function(params: Any, inputs: Any) -> Any:
        return inputs[0] @ jnp.asarray(table)

    parts = parts_of(function, [], [np.ones((1, 300), np.float32)])
    prepared = parts.prepare([])
    assert shapes(prepared) == [(300, 300)]
    text = jax.jit(parts.call).lower(prepared, [np.ones((1, 300), np.float32)]).as_text()
    assert len(text) < 3_000
