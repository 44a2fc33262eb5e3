"""Sums that are rounded and fitted product by product, against Python's integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lowering.kernels.correlation import Slide
from nnef_jax.openvx.stepwise import Steps, stepwise
from tests.openvx.reference import fitted, quotient

RNG = np.random.default_rng(3)


def summed(products: list[list[int]], bias: int, steps: Steps) -> int:
    """Add the products of each channel, then fit the sum: a half more is nearest."""
    overflow, rounding = steps.policies
    half = (1 << steps.shift) >> 1 if rounding == "nearest_even" else 0
    total = bias
    for channel in products:
        for product in channel:
            part = quotient(product + half, 1 << steps.shift)
            total += fitted(part, "saturate", steps.dtype) if overflow == "saturate" else part
        total = fitted(total, overflow, steps.dtype)
    return total


@pytest.mark.parametrize("overflow", ["saturate", "wrap"])
@pytest.mark.parametrize("rounding", ["to_zero", "nearest_even"])
@pytest.mark.parametrize("count", [3, 40])
def test_matrices(count: int, overflow: str, rounding: str) -> None:
    """A matrix product is one channel; more than 32 products are added in chunks."""
    steps = Steps(np.dtype(np.int16), 4, (overflow, rounding))
    x, weights = (RNG.integers(-400, 400, (n, count)).astype(np.int16) for n in (2, 3))
    bias = np.int16([[5, -7, 9]])
    made, beyond = stepwise(x, weights, bias, slide=Slide(), steps=steps)
    pairs = [[[[int(a) * int(b) for a, b in zip(r, w, strict=True)]] for w in weights] for r in x]
    wanted = [
        [summed(p, int(b), steps) for p, b in zip(row, bias[0], strict=True)] for row in pairs
    ]
    np.testing.assert_array_equal(made, wanted)
    assert beyond is None


@pytest.mark.parametrize("size", [(2, 3), (6, 6)])
def test_windows_of_groups(size: tuple[int, int]) -> None:
    steps = Steps(np.dtype(np.int16), 0, ("saturate", "to_zero"), report=True)
    slide = Slide((2, 1), ((1, 0), (0, 0)), (1, 1), (1, 1), groups=2)
    x = RNG.integers(-90, 90, (1, 4, 7, 8)).astype(np.int16)
    weights = RNG.integers(-300, 300, (2, 2, *size)).astype(np.int16)
    made, beyond = map(np.asarray, stepwise(x, weights, None, slide=slide, steps=steps))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0))).astype(int)
    for o, i, j in itertools.product(*map(range, made.shape[1:])):
        window = padded[0, 2 * o : 2 * o + 2, 2 * i : 2 * i + size[0], j : j + size[1]]
        products = (window * weights[o]).reshape(2, -1)
        assert made[0, o, i, j] == summed(products.tolist(), 0, steps)
        # Numbers that stay within the type all along give the exact sum.
        assert beyond[0, o, i, j] or made[0, o, i, j] == products.sum()
    assert beyond.any() and not beyond.all()
