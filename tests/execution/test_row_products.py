"""One row by a matrix, and caches of bfloat16 written in place, as in a language model's step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.cpu import options
from lowering.cpu.products import row_product

PARAMS = {"precision": None, "preferred_element_type": np.dtype(np.float32)}


@pytest.mark.parametrize("columns", [64, 61])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_by_a_matrix(columns: int, axis: int) -> None:
    draw = np.random.default_rng(0).standard_normal
    row, matrix = draw(32), draw((32, columns) if axis == 0 else (columns, 32))
    found = row_product(jnp.float32(row), jnp.float32(matrix), axis, PARAMS)
    expected = row @ (matrix if axis == 0 else matrix.T)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_cache_of_bfloat16_is_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "multiplies_bfloat16", lambda: True)
    chosen = options.compiler_options(1 << 20, bfloat16=True, in_place=True)

    def write(cache: jax.Array, x: jax.Array, place: jax.Array) -> jax.Array:
        return cache.at[jnp.arange(3), place].set(x)

    cache, x = jnp.zeros((3, 40, 8), jnp.bfloat16), jnp.ones((3, 8), jnp.bfloat16)
    jitted = jax.jit(write, donate_argnums=0, compiler_options=chosen)
    text = jitted.lower(cache, x, jnp.int32(7)).compile().as_text()
    assert text is not None
    assert "f32[3,40,8]" not in text
    found = np.asarray(jitted(cache, x, jnp.int32(7)), np.float32)
    expected = np.zeros((3, 40, 8), np.float32)
    expected[:, 7] = 1
    np.testing.assert_array_equal(found, expected)


def test_other_networks_keep_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "multiplies_bfloat16", lambda: True)
    in_place = set(options.compiler_options(1 << 20, bfloat16=True, in_place=True))
    assert in_place > set(options.compiler_options(1 << 20, bfloat16=True))
    assert options.compiler_options(1 << 20, in_place=True) == options.compiler_options(1 << 20)
