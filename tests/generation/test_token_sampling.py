"""How the next token is chosen."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnef_jax.errors import InputError
from nnef_jax.generation import Sampling
from nnef_jax.generation.token_sampling import has_less_above, stop_tokens


def test_the_repetition_penalty() -> None:
    logits = jnp.asarray([[2.0, -1.0, 1.5]])
    seen = jnp.asarray([[True, True, False]])
    penalised = Sampling(repetition_penalty=2.0).penalised(logits, seen)
    np.testing.assert_allclose(penalised, [[1.0, -2.0, 1.5]])


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Sampling(1.0, top_k=2), {0, 2}),
        (Sampling(1.0, top_p=0.6), {2}),
        (Sampling(1.0, top_p=0.8), {0, 2}),
        (Sampling(0.01), {2}),
        (Sampling(), {2}),
    ],
)
def test_words_that_can_be_drawn(sample: Sampling, words: set[int]) -> None:
    probabilities = jnp.log(jnp.asarray([[0.2, 0.05, 0.65, 0.1]]))
    keys = jax.random.split(jax.random.key(0), 100)
    assert {int(sample.choose(probabilities, key)[0]) for key in keys} == words


@pytest.mark.parametrize("scale", [0.01, 3.0, 1e30])
def test_the_drawn_words_are_those_of_a_sort(scale: float) -> None:
    """The words above a drawn word are fewer than `top_k`, and less probable than `top_p`."""
    random = np.random.default_rng(4)
    logits = (scale * random.integers(-9, 9, (4, 60)) / 4).astype(np.float32)  # many are equal
    logits[1, 5:] = -np.inf
    logits -= logits.max(axis=1, keepdims=True)
    probabilities = np.asarray(jax.nn.softmax(logits))
    is_more_probable = logits[:, None, :] > logits[:, :, None]  # word by word

    def check(weights: Any, limit: Any) -> None:
        weight_above = (is_more_probable * weights[:, None, :].astype(np.float64)).sum(axis=2)
        drawn = has_less_above(jnp.asarray(logits), jnp.asarray(weights), limit)
        np.testing.assert_array_equal(drawn, weight_above < limit)

    for top_k in 1, 2, 7, 59, 60, 100, 2**31 - 1:
        check(np.ones_like(logits, np.int32), np.int32(top_k))
    for top_p in 1e-6, 0.1, 0.5, 0.9, 0.99:
        check(probabilities, np.float32(top_p))


def test_frequencies_are_those_of_the_probabilities() -> None:
    logits = jnp.log(jnp.asarray([0.1, 0.2, 0.7]))
    drawn = Sampling(1.0).choose(jnp.tile(logits, (20_000, 1)), jax.random.key(1))
    frequencies = np.bincount(drawn, minlength=3) / 20_000
    np.testing.assert_allclose(frequencies, [0.1, 0.2, 0.7], atol=0.015)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"repetition_penalty": 0},
    ],
)
def test_numbers_that_cannot_be(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(InputError, match=f"{name} must be"):
        Sampling(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-46}, {"top_p": 1e-40}, {"repetition_penalty": 1e39},
        {"temperature": float("inf")},
    ],
)  # fmt: skip
def test_numbers_beyond_32_bits_are_refused(options: Any) -> None:
    with pytest.raises(InputError, match="must be a normal number of 32 bits"):
        Sampling(**options)


@pytest.mark.parametrize("options", [{"temperature": "hot"}, {"top_p": [0.5]}, {"top_k": 1.5}])
def test_settings_that_are_no_numbers(options: Any) -> None:
    (name,) = options
    with pytest.raises(TypeError, match=f"{name} must be"):
        Sampling(**options)


def test_stop_tokens_beyond_all_tokens_are_left_out() -> None:
    assert stop_tokens([7, 2**40, -1, np.int64(3), 7]) == (3, 7)
    assert stop_tokens(np.uint64(2**63)) == ()


def test_stop_tokens_of_more_than_64_bits_are_left_out() -> None:
    assert stop_tokens([7, 2**70, -1]) == (7,)
    for stop in ("ab", [1.5], [True]):
        with pytest.raises(InputError, match="stop must be token numbers"):
            stop_tokens(stop)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("temperature", [1e-37, 1.2e-38])
def test_the_least_temperatures_take_the_largest_logit(temperature: float) -> None:
    logits = jnp.array([[35.0, 40.0, -1.0], [-200.0, -100.0, -300.0]])
    tokens = Sampling(temperature).choose(logits, jax.random.key(0))
    np.testing.assert_array_equal(tokens, [1, 1])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_penalty_is_not_rounded_to_16_bits(dtype: Any) -> None:
    logits = jnp.array([[3.0, -2.0, 1.0]], dtype)
    seen = jnp.array([[True, True, False]])
    small = Sampling(repetition_penalty=1.003).penalised(logits, seen)
    np.testing.assert_allclose(small, [[3 / 1.003, -2 * 1.003, 1]], rtol=1e-6)
    large = Sampling(repetition_penalty=1e6).penalised(logits, seen)
    np.testing.assert_allclose(large, [[3e-6, -2e6, 1]], rtol=1e-6)
