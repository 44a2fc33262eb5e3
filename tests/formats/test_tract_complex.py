"""Complex numbers within a network: no document takes them from outside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import TensorType
from lowering.ops import rules

TO_PAIRS = rules["complex_to_pairs"]
TO_COMPLEX = rules["pairs_to_complex"]


def test_types():
    assert TO_PAIRS.infer(TensorType((2, UNKNOWN), "complex64")).shape == (2, UNKNOWN, 2)
    assert TO_PAIRS.infer(TensorType((), "complex128")) == TensorType((2,), "float64")
    assert TO_COMPLEX.infer(TensorType((3, 2), "float16")) == TensorType((3,), "complex64")
    with pytest.raises(InvalidOperation, match="must hold complex numbers"):
        TO_PAIRS.infer(TensorType((2,), "float32"))
    with pytest.raises(InvalidOperation, match="pairs"):
        TO_COMPLEX.infer(TensorType((2, 3), "float32"))


def test_values():
    x = np.array([[1 + 2j, -3j], [4, -5 + 6j]], np.complex64)
    pairs = TO_PAIRS.lower(x)
    np.testing.assert_array_equal(pairs, [[[1, 2], [0, -3]], [[4, 0], [-5, 6]]])
    assert pairs.dtype == np.float32
    np.testing.assert_array_equal(TO_COMPLEX.lower(pairs), x)


def test_derivative_through_complex_numbers():
    x = np.random.default_rng(0).uniform(-1, 1, (3, 2)).astype(np.float32)

    def squared(x: jax.Array) -> jax.Array:
        z = TO_COMPLEX.lower(x)
        return jnp.sum(TO_PAIRS.lower(z * jnp.conj(z)))

    np.testing.assert_allclose(jax.grad(squared)(x), 2 * x, rtol=1e-6)
