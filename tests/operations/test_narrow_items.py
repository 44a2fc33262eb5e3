"""Items of 2 and 4 bits are moved and cast. What computes refuses them, and complex numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation
from lowering.graph import NARROW, TensorType
from lowering.ops import rules


@pytest.mark.parametrize("dtype", sorted(NARROW))
def test_joined(dtype: str) -> None:
    """XLA ends the process where it compiles a concatenation of items of 2 bits for a CPU."""
    x = np.array([[0, 1], [1, 0]]).astype(dtype)
    found = jax.jit(lambda *xs: rules["concat"].lower(xs, axis=0))(x, x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found).astype(int), [[0, 1], [1, 0]] * 2)


@pytest.mark.parametrize(
    ("kind", "names", "attributes"),
    [
        ("argmax_reduce", "input", {"axes": (0,)}),
        ("matmul", "A B", {"transposeA": False, "transposeB": False}),
        ("sub", "x y", {}),
        ("neg", "x", {}),
        ("sum_reduce", "input", {"axes": (0,), "normalize": False}),
    ],
)
@pytest.mark.parametrize("dtype", sorted(NARROW))
def test_computed(kind: str, names: str, attributes: dict[str, Any], dtype: str) -> None:
    builder = GraphBuilder()
    operands = {n: builder.input(n, TensorType((2, 2), dtype)) for n in names.split()}
    with pytest.raises(InvalidOperation, match=f"8 bits or more, it holds {dtype}"):
        builder.operation(kind, operands, attributes, ["y"])


def test_remainders_of_complex_numbers() -> None:
    type = TensorType((2,), "complex64")
    with pytest.raises(InvalidOperation, match="real numbers or integers"):
        rules["rem"].infer(type, type)


def test_complex_regions() -> None:
    nearest = "nearest", "asymmetric", "floor"
    with pytest.raises(InvalidOperation, match="'roi' must hold scalars"):
        x, roi = TensorType((2,), "float32"), TensorType((2,), "complex64")
        rules["resize"].infer(x, roi, (2.0,), (), *nearest)
