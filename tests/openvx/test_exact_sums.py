"""Wide sums and digits against Python's integers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.kernels import correlation
from nnef_jax.openvx import exact_sums
from tests.openvx.reference import POLICIES, fitted, rounded

COUNT = 64
# Shifts of three terms and of their sum: Q7.8, 8 bits, far apart, a result that is multiplied.
SHIFTS = [((0, 8, 16), 8), ((0, 0, 0), 0), ((3, 20, 0), 31), ((0, 4, 8), -3), ((8, 8, 0), 16)]


@jax.jit
def all_sums(terms: Any) -> Any:
    made: list[Any] = []
    for shifts, shift in SHIFTS:
        largest = sum(1 << (23 + s) for s in shifts)
        base = exact_sums.base_for(largest, shift)
        assert base is not None
        total = exact_sums.total(list(zip(terms, shifts, strict=True)), base)
        for overflow, rounding in POLICIES:
            for dtype in ("int16", "uint8"):
                made.append(exact_sums.narrow(total, shift, overflow, rounding, dtype))
    return made


@settings(max_examples=6)
@given(seed=st.integers(0, 1 << 30), bits=st.tuples(*[st.integers(0, 23)] * 3))
def test_wide_sums_are_rounded_as_integers_are(seed: int, bits: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    terms = [rng.integers(-(1 << n), (1 << n) + 1, COUNT, np.int32) for n in bits]
    for value in (-(1 << 23), 1 << 23, 128, -128, 384, -384):  # ends and halves
        terms[0][rng.integers(COUNT)] = value
    terms[1][: COUNT // 4] = terms[2][: COUNT // 4] = 0
    made = iter(all_sums(terms))
    for shifts, shift in SHIFTS:
        sums = [
            sum(int(x) << s for x, s in zip(row, shifts, strict=True))
            for row in zip(*terms, strict=True)
        ]
        for overflow, rounding in POLICIES:
            whole = [rounded(Fraction(x) / Fraction(2) ** shift, rounding) for x in sums]
            for dtype in ("int16", "uint8"):
                result, beyond = next(made)
                wanted = [fitted(x, overflow, dtype) for x in whole]
                np.testing.assert_array_equal(result, wanted, f"{shifts} {shift} {overflow}")
                kept = [fitted(x, "saturate", dtype) == x for x in whole]
                np.testing.assert_array_equal(beyond, np.logical_not(kept))


def test_no_base_holds_more_than_47_bits() -> None:
    assert exact_sums.base_for((1 << 47) - 1, 8) == 16
    assert exact_sums.base_for(1 << 47, 8) is None


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("depth", [1, 1100])
def test_the_largest_sums_of_products_are_exact(dtype: str, depth: int) -> None:
    """Of numbers at the end of their type, as known weights and as traced ones."""
    limits = np.iinfo(dtype)
    end = limits.max if dtype == "uint8" else limits.min
    x, weights = np.full((1, depth), end, dtype), np.full((2, depth), end, dtype)
    weights[1] = limits.max
    wanted = depth * int(end) * np.array([[int(end), int(limits.max)]], object)

    def sums(x: Any, weights: Any) -> Any:
        factors = exact_sums.factors(weights)
        assert factors is not None and factors.largest >= max(map(abs, wanted[0]))
        base = exact_sums.base_for(factors.largest, 0)
        assert base is not None
        return exact_sums.total(exact_sums.sums_of_products(x, factors, correlation.Slide()), base)

    for made in (sums(jnp.asarray(x), weights), jax.jit(sums)(x, weights)):
        exact = np.asarray(made.high, object) * 2**made.base + np.asarray(made.low, object)
        np.testing.assert_array_equal(exact, wanted)


def test_convolutions_of_other_platforms_are_the_same() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (2, 4, 6, 7)).astype(np.float32)
    filter = rng.integers(-99, 99, (6, 2, 3, 2)).astype(np.float32)
    slide = correlation.Slide((2, 1), ((3, -1), (0, 2)), (2, 3), (1, 2), 2)
    ways = (exact_sums._by_cells, exact_sums._convolved)
    made, wanted = jax.jit(lambda *arrays: [way(*arrays, slide) for way in ways])(x, filter)
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_factors_are_written_exactly(dtype: str) -> None:
    """As digits of so many bits, whose sums of products with the input's stay within 2**24."""
    weights = np.random.default_rng(0).integers(-128, 128, (3, 5)).astype(dtype)
    factors = exact_sums.factors(weights)
    assert factors is not None
    digits = [np.asarray(digit, np.int64) for digit in factors.digits]
    whole = sum(digit << (k * factors.width) for k, digit in enumerate(digits))
    np.testing.assert_array_equal(whole, weights)
    reach = 128 if factors.pieces == 2 else -int(np.iinfo(dtype).min)
    for start in range(0, 5, factors.depth):
        for digit in digits:
            part = np.abs(digit[:, start : start + factors.depth]).sum(1)
            assert part.max() * reach <= 1 << 24
    most = np.abs(weights.astype(np.int64)).sum(1).max()
    assert most * -int(np.iinfo(dtype).min) <= factors.largest


def test_too_many_products_have_no_digits() -> None:
    cells = np.full((1, 1, 129, 128), -(1 << 15), np.int16)
    assert exact_sums.factors(cells) is None
