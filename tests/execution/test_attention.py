"""Attention on CPUs: scores laid out for softmax, and taken by blocks where they are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from lowering import jaxprs
from lowering.contexts import disabled
from lowering.cpu import blocks
from lowering.emit import network
from lowering.ops.transformer import attention
from lowering.tracing import Context
from tests.operation_checks import Together
from tests.programs import optimised, random

Inputs = Sequence[Array]
HEADS, TIMES, KEYS = 4, 70, 90


def operands(*more: Array) -> list[Array]:
    shapes = ((2, HEADS, TIMES, 16), (2, HEADS, KEYS, 16), (2, HEADS, KEYS, 24))
    return [*(random(*shape, seed=i) for i, shape in enumerate(shapes)), *more]


def spelled(_: Any, x: Inputs) -> Array:
    scores = x[0] @ jnp.swapaxes(x[1], -1, -2) * 0.25
    for mask in x[3:]:
        scores = jnp.where(mask, scores, -1e9) if mask.dtype == jnp.bool_ else scores + mask
    return jax.nn.softmax(scores) @ x[2]


def beside_numbers(_: Any, x: Inputs) -> Array:
    return 1 / (2 + jnp.abs(spelled((), x) / 2))


def evenly(_: Any, x: Inputs) -> Array:
    largest = jnp.max(x[0] @ jnp.swapaxes(x[1], -1, -2), axis=-1, keepdims=True)
    return 1 / jnp.broadcast_to(1 + jnp.abs(largest), (2, HEADS, TIMES, KEYS)) @ x[2]


def chained(_: Any, x: Inputs) -> Array:
    return jax.nn.softmax(spelled((), x[:3])) @ x[3]


def whole(_: Any, x: Inputs, causal: bool = False) -> Array:
    return attention(Context(), *x[:3], x[3] if len(x) > 3 else False, 0.0, causal)


def causal(_: Any, x: Inputs) -> Array:
    return whole(_, x, causal=True)


def between_layers(p: Inputs, x: Inputs) -> Array:
    def heads(y: Array) -> Array:
        return y.reshape(2, TIMES, HEADS, 8).transpose(0, 2, 1, 3)

    y = whole((), [heads(x[0] @ matrix) for matrix in p[:3]])
    return y.transpose(0, 2, 1, 3).reshape(2, TIMES, HEADS * 8) @ p[3]


ROWS = np.random.default_rng(9).random((TIMES, KEYS)) > 0.5
ROWS[3] = False
CASES: dict[str, tuple[Callable[[Any, Inputs], Array], list[Array], list[Array]]] = {
    "spelled": (spelled, [], operands()),
    "mask of all": (spelled, [], operands(random(2, HEADS, TIMES, KEYS))),
    "mask of items": (spelled, [], operands(random(2, 1, TIMES, KEYS))),
    "mask of heads": (spelled, [], operands(random(1, HEADS, 1, KEYS))),
    "logical": (spelled, [], operands(ROWS[None, None])),
    "of itself": (spelled, [], [random(2, HEADS, TIMES, 16)] * 3),
    "beside numbers": (beside_numbers, [], operands()),
    "evenly": (evenly, [], operands()),
    "chained": (
        chained,
        [],
        [*operands()[:2], random(2, HEADS, KEYS, 40), random(2, HEADS, 40, 8, seed=7)],
    ),
    "whole": (whole, [], operands()),
    "causal": (causal, [], operands()),
    "nothing seen": (whole, [], operands(ROWS)),
    "grouped": (causal, [], [random(2, 2 * HEADS, TIMES, 16, seed=7), *operands()[1:]]),
    "grouped, mask": (
        whole,
        [],
        [random(2, 2 * HEADS, TIMES, 16, seed=7), *operands(random(2 * HEADS, 1, KEYS))[1:]],
    ),
    "between layers": (
        between_layers,
        [random(32, 32, seed=i) / 6 for i in range(4)],
        [random(2, TIMES, 32)],
    ),
}


# Cases that are made of what others are made of, by blocks and at once.
SLOW = {
    True: {
        "mask of all", "mask of heads", "of itself", "beside numbers", "whole", "causal",
        "nothing seen",
    },
    False: {"mask of items", "mask of heads", "of itself"},
}  # fmt: skip


def three_ways(name: str, alone: bool) -> tuple[Any, Any]:
    function, *arguments = CASES[name]
    functions = [function, optimised(function, alone=alone)]
    if not alone or name == "grouped":  # by blocks it is the same program
        functions.append(network(function))
    return lambda parameters, inputs: [f(parameters, inputs) for f in functions], arguments


TESTED = {
    (by_blocks, is_slow): [name for name in CASES if (name in SLOW[by_blocks]) == is_slow]
    for by_blocks in (True, False)
    for is_slow in (False, True)
}
computed = {
    key: Together(names, partial(three_ways, alone=key[0])) for key, names in TESTED.items()
}


def rows() -> list[Any]:
    return [
        pytest.param(
            *(name, by_blocks, is_slow),
            id=f"{'blocks' if by_blocks else 'at once'}-{name}",
            marks=[pytest.mark.slow] if is_slow else [],
        )
        for (by_blocks, is_slow), names in TESTED.items()
        for name in names
    ]


@pytest.mark.parametrize(("name", "by_blocks", "is_slow"), rows())
def test_equals_what_is_written(
    name: str, by_blocks: bool, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_blocks:
        for limit in ("_MOST_BYTES_AT_ONCE", "_MOST_BYTES_OF_BLOCK"):
            monkeypatch.setattr(blocks, limit, 40_000)
    function, *arguments = CASES[name]
    traced = jax.make_jaxpr(optimised(function, alone=by_blocks))(*arguments)
    loops = [e for e in traced.eqns if jaxprs.primitive(e) == "scan"]
    assert bool(loops) == by_blocks
    expected, *found = computed[by_blocks, is_slow](name)
    for result in found:
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mask of items", "grouped"])
def test_gradients_and_batches(name: str) -> None:
    function, parameters, inputs = CASES[name]
    fast = network(function)

    def both(f: Any, inputs: Any) -> Any:
        gradient = jax.grad(lambda x: jnp.sum(jnp.sin(f(parameters, x))))(inputs)
        batch = [jnp.stack([x, x + 1]) for x in inputs]
        return gradient, jax.vmap(lambda x: f(parameters, x))(batch)

    results = jax.jit(lambda inputs: [both(f, inputs) for f in (fast, function)])(inputs)
    for found, expected in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_softmax_goes_over_rows_and_divides_last() -> None:
    function, parameters, inputs = CASES["spelled"]
    traced = jax.make_jaxpr(optimised(function))(parameters, inputs)
    (maximum,) = (e for e in traced.eqns if jaxprs.primitive(e) == "reduce_max")
    assert maximum.params["axes"] == (2,)
    (division,) = (e for e in traced.eqns if jaxprs.primitive(e) == "div")
    assert division.outvars[0].aval.size == 2 * HEADS * TIMES * 24


def test_many_scores_are_never_in_memory_together() -> None:
    x = [jax.ShapeDtypeStruct((1, 2, 4096, 8), jnp.float32)] * 3
    traced = jax.make_jaxpr(optimised(spelled, alone=True))([], x)
    assert _largest(traced.jaxpr) * 4 < 10 << 20
    with disabled("attention"):
        traced = jax.make_jaxpr(optimised(spelled, alone=True))([], x)
    assert _largest(traced.jaxpr) == 2 * 4096**2


def _largest(jaxpr: Any) -> int:
    own = (v.aval.size for e in jaxpr.eqns for v in e.outvars)
    inner = (_largest(x.jaxpr) for e in jaxpr.eqns for x in jaxprs.function_params(e))
    return max([*own, *inner])


def test_scores_that_are_read_elsewhere_stay() -> None:
    def function(_: Any, x: Inputs) -> Any:
        weights = jax.nn.softmax(x[0] @ jnp.swapaxes(x[1], -1, -2))
        return weights @ x[2], weights.sum(-2)

    inputs = operands()
    results = jax.jit(lambda x: [f([], x) for f in (optimised(function), function)])(inputs)
    for result, expected in zip(*results, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
