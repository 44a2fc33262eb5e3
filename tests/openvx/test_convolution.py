"""Convolution layers against Python's integers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nnef_jax import openvx
from tests.openvx import reference
from tests.openvx.reference import policies

pytestmark = pytest.mark.usefixtures("compiled_quickly")


def ints(seed: int, shape: tuple[int, ...], dtype: str, spread: float = 1.0) -> np.ndarray:
    limits = np.iinfo(dtype)
    drawn = np.random.default_rng(seed).uniform(limits.min * spread, limits.max * spread, shape)
    return np.round(drawn).astype(dtype)


@pytest.mark.parametrize(("overflow", "rounding"), policies())
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
def test_sums_are_exact(dtype: str, overflow: str, rounding: str) -> None:
    x, weights = ints(1, (3, 5, 6), dtype), ints(2, (2, 3, 3, 2), dtype)
    biases = ints(3, (2, 3, 3), dtype)
    places = {"padding": (1, 0), "dilation": (0, 0), "skip": (3, 1)}
    wide = dict(overflow_policy=overflow, rounding_policy=rounding)
    made = openvx.convolution_layer(*map(openvx.Tensor, (x, weights, biases)), **places, **wide)
    position = 8 if dtype == "int16" else 0
    wanted = reference.convolution(
        x, weights, biases, **places, **wide, shape=(2, 3, 3), shift=position, bias_shift=position
    )
    np.testing.assert_array_equal(made.data, wanted)
    traced = jax.jit(lambda *ts: openvx.convolution_layer(*ts, **places, **wide))
    again = traced(*map(openvx.Tensor, (x, weights, biases)))
    np.testing.assert_array_equal(again.data, wanted)
