"""Dtypes that sums and products are computed in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.kernels import precision

X = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float64", "float64"),
        ("uint8", "int32"),
        ("int64", "int64"),
        ("complex64", "complex64"),
    ],
)
def test_sums(dtype: str, wanted: str) -> None:
    assert precision.accumulator(jnp.dtype(dtype)) == wanted


def test_common_dtypes() -> None:
    half = X.astype(jnp.bfloat16)
    assert precision.wide_dtype(half, np.ones(2, np.int32)) == np.float32
    assert precision.wide_dtype(half, X.astype(np.complex64)) == np.complex64
    assert precision.widened(jnp.asarray(half)).dtype == np.float32


def test_bfloat16_is_for_real_numbers() -> None:
    name = "BF16_BF16_F32"
    assert precision.is_bfloat16(jax.lax.DotAlgorithmPreset.BF16_BF16_F32)
    assert not precision.is_bfloat16("highest") and not precision.is_bfloat16(None)
    assert precision.precision_of(np.int32, name) is None
    assert precision.precision_of(np.float32, name) == name
    x, filter, rest = precision.narrowed(jnp.asarray(X), jnp.asarray(X), name)
    assert x.dtype == filter.dtype == jnp.bfloat16 and rest is None
    assert precision.narrowed(jnp.asarray(X), jnp.asarray(X), "high")[0].dtype == np.float32


def test_barriers_are_for_narrow_products_alone() -> None:
    half = X.astype(jnp.bfloat16)
    for function in (precision.left_operand, precision.left_operand_anywhere):
        for x, count in ((half, 1), (X, 0)):
            text = str(jax.make_jaxpr(lambda x: function(x, jnp.float32))(x))  # noqa: B023
            assert text.count("optimization_barrier") == count
