"""Sums of products over named axes, against `numpy.einsum`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN
from lowering.kernels.contraction import contract, contracted_shape, multiply_adds, parse


def test_letters_for_dots() -> None:
    assert parse("ij, jk -> ik", [2, 2]) == (["ij", "jk"], "ik")
    assert parse("...i,ij->...j", [3, 2]) == (["abi", "ij"], "abj")
    assert parse("i...,...->i...", [3, 1]) == (["iab", "b"], "iab")
    for expr in ("ij,jk", "ij->i,j"):
        with pytest.raises(InvalidOperation, match="of one result"):
            parse(expr, [2, 2])


def test_shapes() -> None:
    assert contracted_shape([(2, 3), (3, 4)], ["ij", "jk"], "ik") == (2, 4)
    assert contracted_shape([(2, 1), (UNKNOWN, 4)], ["ij", "jk"], "kxji") == (4, 1, UNKNOWN, 2)
    for shapes, terms, output, what in (
        ([(2, 3), (4, 5)], ["ij", "jk"], "ik", "extents 3 and 4"),
        ([(2, 3)], ["i"], "i", "names its axes 'i'"),
        ([(2, 3)], ["ij", "j"], "i", "2 input"),
        ([(2, 3)], ["ij"], "ii", "repeat"),
    ):
        with pytest.raises((InvalidShape, InvalidOperation), match=what):
            contracted_shape(shapes, terms, output)


def test_multiply_adds() -> None:
    assert multiply_adds([(2, 3), (3, 4)], ["ij", "jk"], "ik") == 2 * 3 * 4
    assert multiply_adds([(2, 3)], ["ij"], "i") == 0
    # (2x100 times 100x3) times 3x1 is dearer than the other order.
    shapes, terms = [(2, 100), (100, 3), (3, 1)], ["ij", "jk", "kl"]
    assert multiply_adds(shapes, terms, "il") == 100 * 3 + 2 * 100


@pytest.mark.parametrize(
    ("shapes", "expr"),
    [
        ([(2, 3), (3, 4)], "ij,jk->ki"),
        ([(2, 3, 3)], "ijj->ji"),
        ([(2, 3), (2, 3), (3,)], "ij,ij,j->i"),
    ],
)
def test_values(shapes, expr) -> None:
    arrays = [np.random.default_rng(1).standard_normal(s).astype(np.float32) for s in shapes]
    terms, output = parse(expr, list(map(len, shapes)))
    made = contract(arrays, terms, output, jnp.float32, None)
    np.testing.assert_allclose(made, np.einsum(expr, *arrays), rtol=1e-5, atol=1e-6)


def test_extents_of_1_count_for_all() -> None:
    x, y = np.arange(2, dtype=np.int32)[:, None], np.arange(6, dtype=np.int32).reshape(3, 2)
    made = contract([x, y], ["ij", "jk"], "ixk", jnp.int32, None)
    np.testing.assert_array_equal(made, (np.repeat(x, 3, 1) @ y)[:, None])
    diagonal = contract([y.reshape(1, 6)], ["ii"], "i", jnp.int32, None)
    np.testing.assert_array_equal(diagonal, np.arange(6))
    half = [a.astype(jnp.bfloat16) for a in (x, y)]
    made = contract(half, ["ij", "jk"], "ik", jnp.float32, None)
    np.testing.assert_array_equal(made, np.repeat(x, 3, 1) @ y)


def test_products_of_bfloat16_are_summed_in_float32() -> None:
    x = np.full((1, 300), 1.0, jnp.bfloat16)
    made = contract([x, x], ["ij", "kj"], "ki", jnp.float32, None)
    assert made.dtype == jnp.float32 and made.item() == 300  # bfloat16 would stay at 256
