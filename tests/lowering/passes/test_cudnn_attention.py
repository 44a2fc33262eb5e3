"""Attention in 16 bits becomes cuDNN's attention on GPUs of CUDA.

cuDNN runs on GPUs only. For values, jax's own implementation of the same function takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.passes import cudnn_attention
from lowering.pipeline import check
from lowering.program import Program
from lowering.targets import target_of
from tests.lowering.passes.programs import program
from tests.programs import random

TARGET = replace(target_of("cuda"), compute_capability=8.0)
B = jnp.bfloat16
HEADS_SECOND = "bnth,bnsh->bnts", "bnts,bnsh->bnth"
GROUPS = "bngth,bnsh->bngts", "bngts,bnsh->bngth"
# Batch, heads, groups of queries, queries, keys and the size of a head.
SHAPES = {"b": 2, "n": 4, "g": 3, "t": 24, "s": 40, "h": 16}


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x.astype(jnp.float32), axis=-1).astype(x.dtype)


def attention(
    equations: tuple[str, str] = HEADS_SECOND,
    scores: Callable[..., Any] = lambda x: x * 0.25,
    weights: Callable[[Any], Any] = softmax,
) -> Callable[..., Any]:
    """Return an attention: products by equations of einsum, and functions between them."""
    first, last = equations

    def attend(queries: Any, keys: Any, values: Any, *others: Any) -> Any:
        product = jnp.einsum(first, queries, keys)
        return jnp.einsum(last, weights(scores(product, *others)), values)

    return attend


def arguments(equations: tuple[str, str], *others: Any, dtype: Any = B) -> list[Any]:
    """Return random queries, keys and values, and the `others`."""
    first, last = (equation.partition("->")[0].split(",") for equation in equations)
    axes = [*first, last[1]]
    arrays = [random(*(SHAPES[x] for x in a), seed=i).astype(dtype) for i, a in enumerate(axes)]
    return [*arrays, *others]


def after(function: Callable[..., Any], *arguments: Any) -> Program:
    """Return the program after the pass."""
    return cudnn_attention.run(program(function, *arguments), TARGET)


@pytest.fixture
def with_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jax compute the same function without cuDNN."""
    monkeypatch.setattr(cudnn_attention, "_IMPLEMENTATION", "xla")


MASK = jnp.where(np.tri(24, 40, 8, dtype=bool), 0.0, -1e9).astype(B)
CASES: dict[str, tuple[tuple[str, str], Callable[..., Any], Any]] = {
    "heads second": (HEADS_SECOND, lambda x: x * 0.25, []),
    "heads third": (("btnh,bsnh->bnts", "bnts,bsnh->bnth"), lambda x: x / 4, []),
    "one batch axis": (("bth,bsh->bts", "bts,bsh->bth"), lambda x: x * 0.25, []),
    "other orders": (("hbnt,nshb->bnts", "bnts,hbsn->bnth"), lambda x: x * 0.25, []),
    "no factor": (HEADS_SECOND, lambda x: x, []),
    "two factors": (HEADS_SECOND, lambda x: x * 0.5 / 3.0, []),
    "a factor as argument": (HEADS_SECOND, lambda x, f: x / f, [jnp.full((1, 1, 1, 1), 3, B)]),
    "a mask": (HEADS_SECOND, lambda x, m: x * 0.25 + m, [MASK[None, None]]),
    "a mask first": (HEADS_SECOND, lambda x, m: m + x * 0.25, [MASK[None, None]]),
    "a mask by item": (
        HEADS_SECOND,
        lambda x, m: x + m,
        [MASK[None, None] * jnp.ones((2, 1, 1, 1), B)],
    ),
    "a mask of keys": (HEADS_SECOND, lambda x, m: x + m, [MASK[None, None, 5:6]]),
    "a bias by head": (HEADS_SECOND, lambda x, m: x + m, [random(1, 4, 24, 40).astype(B)]),
    "groups of queries": (GROUPS, lambda x: x * 0.25, []),
    "groups and a mask": (GROUPS, lambda x, m: x * 0.25 + m, [MASK[None, None, None]]),
    "a bias by group": (GROUPS, lambda x, m: x + m, [random(1, 1, 3, 24, 40).astype(B)]),
    "groups of one batch axis": (("bgth,bsh->bgts", "bgts,bsh->bgth"), lambda x: x * 0.25, []),
    "a mask and one batch axis": (
        ("bth,bsh->bts", "bts,bsh->bth"),
        lambda x, m: x * 0.25 + m,
        [MASK[None]],
    ),
}


@pytest.mark.usefixtures("with_xla")
@pytest.mark.parametrize("name", CASES)
def test_attention_by_cudnn(name: str) -> None:
    equations, scores, others = CASES[name]
    operands = arguments(equations, *others)
    function = attention(equations, scores)
    before = program(function, *operands)
    after = cudnn_attention.run(before, TARGET)
    assert after is not before
    check(before, after)
    (result,) = after(*operands)
    exact = function(*(x.astype(jnp.float32) for x in operands))
    np.testing.assert_allclose(result.astype(jnp.float32), exact, rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("with_xla")
def test_rows_whose_keys_are_all_hidden_are_means() -> None:
    hidden = jnp.full((1, 1, 24, 40), -3e38, B)
    operands = arguments(HEADS_SECOND, hidden)
    (result,) = after(attention(scores=lambda x, m: x + m), *operands)(*operands)
    means = operands[2].astype(jnp.float32).mean(axis=2, keepdims=True)
    np.testing.assert_allclose(result.astype(jnp.float32), means.repeat(24, axis=2), atol=0.02)


@pytest.mark.usefixtures("with_xla")
def test_float16() -> None:
    """jax has no kernel of its own that computes the function in float16 on a CPU."""
    before = program(attention(), *arguments(HEADS_SECOND, dtype=jnp.float16))
    after = cudnn_attention.run(before, TARGET)
    assert after is not before
    check(before, after)


def with_weights(*operands: Any) -> Any:
    weights: list[Any] = []

    def kept(x: Any) -> Any:
        weights.append(softmax(x))
        return weights[0]

    return attention(weights=kept)(*operands), *weights


def hiding(x: Any) -> Any:
    return jnp.where(x > 0, x, -jnp.inf)


def test_known_numbers_are_not_rounded() -> None:
    """1 / sqrt(80) times the queries has more digits than bfloat16."""
    factors = (3, 3, 1)
    operands = [f * random(1, 2, 32, 80, seed=i).astype(B) for i, f in enumerate(factors)]

    def attend(queries: Any, keys: Any, values: Any) -> Any:
        scores = jnp.einsum("bnth,bnsh->bnts", queries, keys, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(scores / 80**0.5, axis=-1).astype(values.dtype)
        return jnp.einsum("bnts,bnsh->bnth", weights, values)

    (result,) = after(attend, *operands)(*operands)
    exact = attend(*(x.astype(jnp.float32) for x in operands))
    error = result.astype(jnp.float32) - exact
    assert jnp.abs(error).max() < 0.015  # 0.05 if the scaled queries are rounded


OTHERS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "weights that are a result": (with_weights, arguments(HEADS_SECOND)),
    "float32": (attention(), arguments(HEADS_SECOND, dtype=jnp.float32)),
    "a softmax over queries": (
        attention(weights=lambda x: jax.nn.softmax(x, axis=-2)),
        arguments(HEADS_SECOND),
    ),
    "no maximum": (
        attention(weights=lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True)),
        arguments(HEADS_SECOND),
    ),
    "hidden scores": (attention(scores=hiding), arguments(HEADS_SECOND)),
    "a factor for each head": (
        attention(scores=lambda x, f: x * f),
        arguments(HEADS_SECOND, jnp.ones((1, 4, 1, 1), B)),
    ),
    "two masks": (
        attention(scores=lambda x, m: x + m + m),
        arguments(HEADS_SECOND, MASK[None, None]),
    ),
    "values of another size": (
        attention(),
        [*arguments(HEADS_SECOND)[:2], random(2, 4, 40, 24).astype(B)],
    ),
    "scores rounded to integers": (
        attention(scores=lambda x: x.astype(jnp.int32).astype(B)),
        arguments(HEADS_SECOND),
    ),
    "a number divided by the scores": (attention(scores=lambda x: 1 / x), arguments(HEADS_SECOND)),
    "a literal divided": (lambda x, y, z: (1 / x) @ jnp.swapaxes(y, 2, 3), arguments(HEADS_SECOND)),
    "a literal added": (attention(scores=lambda x: 1 + x), arguments(HEADS_SECOND)),
    "one text, and a mask for two": (
        attention(scores=lambda x, m: x + m),
        [
            *(x[:1] for x in arguments(HEADS_SECOND)[:2]),
            arguments(HEADS_SECOND)[2],
            MASK[None, None] * jnp.ones((2, 1, 1, 1), B),
        ],
    ),
    "an outer product": (
        attention(("bth,bsg->bthsg", "bthsg,bsh->bthg"), lambda x: x),
        [random(2, 24, 4, seed=i).astype(B) for i in range(3)],
    ),
    "a mask in float16": (
        attention(scores=lambda x, m: x + m),
        [
            x.astype(jnp.float16)
            for x in arguments(HEADS_SECOND, jnp.maximum(MASK, -6e4)[None, None])
        ],
    ),
    "few queries": (attention(), [x[:, :, :15] for x in arguments(HEADS_SECOND)]),
    "no batch": (attention(("th,sh->ts", "ts,sh->th")), arguments(("th,sh->ts", "ts,sh->th"))),
}


@pytest.mark.usefixtures("with_xla")
@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    function, operands = OTHERS[name]
    before = program(function, *operands)
    assert cudnn_attention.run(before, TARGET) is before


@pytest.mark.usefixtures("with_xla")
def test_targets_and_derivatives_that_stay() -> None:
    before = program(attention(), *arguments(HEADS_SECOND))
    for capability in (None, 7.5):
        assert cudnn_attention.run(before, replace(TARGET, compute_capability=capability)) is before
    for other in (replace(before, role="forward"), replace(before, is_alone=False)):
        assert cudnn_attention.run(other, TARGET) is other


@pytest.mark.usefixtures("with_xla")
def test_loops() -> None:
    def repeated(queries: Any, *others: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, x: attention()(x, *others), queries)

    before = program(repeated, *arguments(HEADS_SECOND))
    assert cudnn_attention.run(before, TARGET) is not before


def test_without_cudnn_programs_stay() -> None:
    if find_spec("nvidia") and find_spec("nvidia.cudnn"):
        pytest.skip("nvidia.cudnn is installed")
    before = program(attention(), *arguments(HEADS_SECOND))
    assert cudnn_attention.run(before, TARGET) is before
