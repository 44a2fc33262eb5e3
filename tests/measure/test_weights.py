"""Statistics of weights, which numpy tells too."""

from __future__ import annotations

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError
from nnef_jax.measure.weight_statistics import sparkline


def statistics(array):
    return nnef_jax.weight_statistics({"w": array}).weights["w"]


@pytest.mark.parametrize("count", [1, 1000, (1 << 20) + 7])  # the last one in parts
def test_moments(count):
    x = np.random.default_rng(0).normal(3, 2, count).astype(np.float32)
    found, wide = statistics(x), x.astype(np.float64)
    assert (found.min, found.max) == (wide.min(), wide.max())
    assert found.mean == pytest.approx(wide.mean(), rel=1e-12)
    assert found.std == pytest.approx(wide.std(), rel=1e-12)
    assert found.sampled == (count > 1 << 18)


def test_zeros_and_what_is_not_finite():
    found = statistics(np.array([[0, 0, 3, np.nan], [-1, np.inf, -np.inf, -0.0]], np.float32))
    assert (found.zeros, found.nan, found.inf) == (3 / 8, 1, 2)
    assert (found.min, found.max, found.mean) == (-1, 3, 2 / 5)
    assert found.shape == (2, 4)
    assert sum(found.histogram) == 5


def test_bits_are_those_of_how_many_values_there_are():
    x = np.tile(np.linspace(-1, 1, 16, dtype=np.float32), 100)
    assert statistics(x).bits == 4
    assert statistics(np.full(5, 2.5)).bits == 0


def test_histogram():
    x = np.concatenate([np.zeros(3), np.full(5, 16.0), np.full(2, 8.5)])
    assert statistics(x).histogram == (3, *[0] * 7, 2, *[0] * 6, 5)
    assert sparkline((0, 1, 7, 14)) == "▁▂▅█"


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, math.nextafter(1.0, 2.0)), (-1.7e308, 1.7e308), (0.0, 5e-324)]
)
def test_any_range_has_a_histogram(low, high):
    assert statistics(np.float64([low, high])).histogram == (1, *[0] * 14, 1)


@pytest.mark.parametrize(
    "array",
    [jnp.array([1, -2], jnp.bfloat16), np.array([True, False]), np.int8([1, -2]), np.float16([1])],
)
def test_dtypes(array):
    found = statistics(array)
    assert found.dtype == str(array.dtype)
    assert (found.min, found.max) == (float(array.min()), float(array.max()))


def test_complex_numbers_are_two_each():
    found = statistics(np.array([1 + 4j, 2 + 3j], np.complex64))
    assert (found.min, found.max, found.mean) == (1, 4, 2.5)


def test_nothing():
    found = nnef_jax.weight_statistics({"w": np.zeros((0, 3), np.float32)})
    assert math.isnan(found.weights["w"].mean)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["weights"]["w"]["min"] == "NaN"
    assert "1 arrays, 0 numbers" in str(found)


def test_a_model():
    model = nnef_jax.load("examples/digits/model")
    found = nnef_jax.weight_statistics(model)
    assert found.weights.keys() == model.params.keys()
    assert "conv1_filter" in str(found)


def test_what_is_no_array_of_numbers():
    with pytest.raises(InputError, match="'w' holds no numbers"):
        statistics(np.array(["a"]))
    with pytest.raises(TypeError, match="weights must be"):
        nnef_jax.weight_statistics(3)  # pyright: ignore[reportArgumentType]
