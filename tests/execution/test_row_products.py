"""One row by a matrix, and caches of bfloat16 written in place, as in a language model's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.cpu import xla_options as options
from lowering.cpu.products import row_product
from lowering.cpu.widening import computes_narrow
from lowering.machine import using
from tests.helpers import model_of
from tests.machines import with_units

PARAMS = {"precision": None, "preferred_element_type": np.dtype(np.float32)}


@pytest.mark.parametrize("columns", [64, 61])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_by_a_matrix(columns: int, axis: int) -> None:
    draw = np.random.default_rng(0).standard_normal
    row, matrix = draw(32), draw((32, columns) if axis == 0 else (columns, 32))
    found = row_product(jnp.float32(row), jnp.float32(matrix), axis, PARAMS)
    expected = row @ (matrix if axis == 0 else matrix.T)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_units", [True, False])
def test_a_cache_of_bfloat16_is_written_in_place(has_units: bool) -> None:
    with using(with_units(has_units)):
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


@pytest.mark.parametrize("has_units", [True, False])
def test_writing_in_place_is_one_more_option(has_units: bool) -> None:
    with using(with_units(has_units)):
        in_place = set(options.compiler_options(1 << 20, bfloat16=True, in_place=True))
        assert in_place > set(options.compiler_options(1 << 20, bfloat16=True))


CACHED = """version 1.0;
extension tract_registry tract_core;
graph net(x, at, cache) -> (y) {
  x = external(shape = [4, 256]); at = external<integer>(shape = [4, 1]);
  cache = external(shape = [40, 640]); w = variable(shape = [256, 640], label = 'w');
  y = tract_core_scatter_nd(cache, tract_core_cast(at, to = 'i64'), matmul(x, w));
}
"""


def test_users_functions_may_compute_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, str]] = []
    chosen = options.compiler_options

    def spy(*sizes: int, **kinds: bool) -> dict[str, str]:
        found.append(chosen(*sizes, **kinds))
        return found[-1]

    monkeypatch.setattr(options, "compiler_options", spy)
    draw = np.random.default_rng(0).standard_normal
    w, x, cache = (draw(shape).astype(np.float32) for shape in ((256, 640), (4, 256), (40, 640)))
    model = model_of(CACHED, data={"w": w}, dtype="bfloat16")
    at = np.array([[3], [0], [39], [7]], np.int32)
    expected = cache.copy()
    expected[at[:, 0]] = x @ w
    with using(with_units(True)):
        y = np.asarray(model(x, at, cache), np.float32)
    np.testing.assert_allclose(y, expected, rtol=0.05, atol=0.3)
    assert "xla_disable_hlo_passes" in found[-1]
    given = model.compiler_options
    product = jax.jit(lambda x, y: x @ y, compiler_options=given)
    assert product(jnp.ones((2, 64), jnp.bfloat16), jnp.ones((64, 48), jnp.bfloat16))[0, 0] == 64


@pytest.mark.parametrize(
    ("function", "computes"),
    [
        (lambda x: lax.dot(x.at[2].set(x[0]), x, preferred_element_type=jnp.float32), False),
        (lambda x: lax.scan(lambda c, y: (c, y[::-1]), x, x)[1], False),
        (lambda x: x @ x, True),
        (lambda x: lax.scan(lambda c, y: (c + y, y), x[0], x)[0], True),
        (lambda x: x.at[2].add(x[0]), True),
        (lambda x: lax.conv(x[None, None], x[None, None], (1, 1), "SAME"), True),
    ],
)
def test_what_computes_in_16_bits(function: Callable[[Any], Any], computes: bool) -> None:
    traced = jax.make_jaxpr(function)(jnp.ones((8, 8), jnp.bfloat16))
    assert computes_narrow(traced.jaxpr) == computes


@pytest.mark.parametrize(
    ("batch", "columns", "is_large"), [(1, 1024, True), (1, 64, False), (32, 64, False)]
)
def test_a_loop_with_large_products_is_not_one_kernel(
    batch: int, columns: int, is_large: bool
) -> None:
    net = f"""version 1.0;
    graph net(x) -> (y) {{
        x = external(shape = [{batch}, 1, 512]);
        w = variable(shape = [{batch}, 512, {columns}], label = 'w');
        y = matmul(x, w);
    }}"""
    model = model_of(net, data={"w": np.ones((batch, 512, columns), np.float32)})

    def repeat(params: Any, x: jax.Array, count: jax.Array) -> jax.Array:
        start = jnp.zeros((batch, 1, columns), jnp.float32)
        return lax.fori_loop(0, count, lambda _, y: model.apply(params, x + y[..., :1]), start)

    chosen = model.compiler_options
    assert ("small-while-loop-hoisting" in str(chosen)) == is_large
    jitted = jax.jit(repeat, compiler_options=chosen)
    compiled = jitted.lower(model.params, jnp.ones((batch, 1, 512)), jnp.int32(3)).compile()
    has_kernel = "xla_cpu_small_call" in str(compiled.as_text())
    takes_products = jax.__version_info__ >= (0, 12)
    assert has_kernel == (takes_products and not is_large)
