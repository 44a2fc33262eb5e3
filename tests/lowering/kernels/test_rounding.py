"""Rounding to 16 bits: on every platform as numpy converts, and within the range where stored."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.kernels.rounding import rounded_to, saturated

DTYPES = (jnp.dtype(jnp.float16), jnp.dtype(jnp.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_is_that_of_numpy(dtype: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    small = np.random.default_rng(1).integers(0, 2**31, 100_000) * 2.0**-50  # below 2**-19
    ends = [0, np.inf, np.nan, 65519.99, 65520, 70000, 3.4e38, 2**-24, 2**-25, 3 * 2**-26]
    x = np.concatenate(
        [bits, *(np.float32([*small, *ends]) * sign for sign in np.float32([1, -1]))]
    )
    x = x[~(np.abs(x) < np.finfo(np.float32).tiny) | (x == 0)]  # CPUs take others for 0
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype).astype(np.float32)
    found = jax.jit(lambda x: rounded_to(x, dtype).astype(jnp.float32))(x)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_are_rounded(dtype: Any) -> None:
    x = np.int32([2049, -70000, 2**24 + 1, 257])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            rounded_to(jnp.asarray(x), dtype), x.astype("f4").astype(dtype)
        )


def test_the_derivative_of_rounding_is_1() -> None:
    x = jnp.asarray([1.0001, 1e-6, 7e4])
    slopes = jax.grad(lambda x: rounded_to(x, "float16").astype(jnp.float32).sum())(x)
    np.testing.assert_array_equal(slopes, [1, 1, 1])


@pytest.mark.parametrize("dtype", [*DTYPES, np.dtype(np.float32)], ids=str)
def test_what_is_finite_stays_so(dtype: Any) -> None:
    found = saturated([-1e300, 1e300, np.inf, -np.inf, np.nan, 1.5], dtype)
    most = jnp.finfo(dtype).max
    wanted = np.array([-most, most, np.inf, -np.inf, np.nan, 1.5], dtype)
    np.testing.assert_array_equal(found.astype("f4"), wanted.astype("f4"))
    assert found.dtype == dtype and saturated(found, dtype) is found
    assert saturated(np.array([70000]), "float16").tolist() == [65504]
    assert saturated(np.array([3.7]), "int8").tolist() == [3]
