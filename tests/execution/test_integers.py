"""Products of what is rounded to few levels: by codes of 8 bits, summed as integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import nnef_jax
from lowering.cpu import integers
from lowering.cpu.integers import names_of_products
from lowering.kernels.levels import noted
from lowering.machine import using
from lowering.program import Program
from lowering.targets.cpu import CPU
from tests.helpers import archive
from tests.machines import with_units
from tests.quantized import floats

NET = """version 1.0;
graph G( x ) -> ( y )
{
    x = external(shape = [2,16,6,5]);
    f = variable(shape = [8,16,3,3], label = 'f');
    g = variable(shape = [4,240], label = 'g');
    c = conv(x, f, padding = [(1,1),(1,1)], stride = [1,1], border = 'constant');
    r = relu(c);
    flat = reshape(r, shape = [2,240]);
    y = linear(flat, g);
}
"""
ZERO = (
    "zero_point_linear_quantize(zero_point = {}, scale = {}, bits = 8, signed = {},"
    " symmetric = false)"
)
EVEN = "linear_quantize(min = {}, max = {}, bits = 8)"
# Scales are powers of 2: products and sums are exact in float32 as well.
EXACT = {
    "x": (100, 0.125, "false"),
    "f": (3, 0.25, "true"),
    "r": (0, 8.0, "false"),
    "g": (-7, 0.5, "true"),
}
SHAPES = {"f": (8, 16, 3, 3), "g": (4, 240)}
X = np.random.default_rng(1).uniform(-16, 20, (2, 16, 6, 5)).astype(np.float32)


@pytest.fixture(params=[True, False], ids=["with units", "without"], autouse=True)
def units(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Take the host for one that has units for 8 bits, or has none."""
    with using(with_units(request.param)):
        yield request.param


def network(quant: str, items: int = 2, **options: Any) -> nnef_jax.Model:
    rng = np.random.default_rng(0)
    data = {
        n: floats(rng.uniform(-20, 20, shape).astype(np.float32)) for n, shape in SHAPES.items()
    }
    text = NET.replace("[2,", f"[{items},")
    return nnef_jax.load(archive(graph=text, quant=quant, **data), **options)


def exact(**options: Any) -> nnef_jax.Model:
    lines = (f'"{name}": {ZERO.format(*given)};' for name, given in EXACT.items())
    return network("\n".join(lines), **options)


def rounded(x: Any, zero: int, scale: float, signed: str) -> Any:
    """Return codes less their zero point."""
    low, high = (-128, 127) if signed == "true" else (0, 255)
    return (
        np.clip(np.floor(np.asarray(x, np.float64) / scale + 0.5) + zero, low, high).astype(int)
        - zero
    )


@pytest.mark.parametrize("items", [1, 2])
def test_sums_are_those_of_integers(items: int) -> None:
    model = exact(items=items)
    x, f, g = (rounded(v, *EXACT[n]) for n, v in (("x", X[:items]), *model.params.items()))
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    c = sum(
        np.einsum("bchw,oc->bohw", x[:, :, i : i + 6, j : j + 5], f[:, :, i, j])
        for i, j in itertools.product(range(3), range(3))
    )
    r = rounded(np.maximum(c, 0) * (0.125 * 0.25), *EXACT["r"])
    np.testing.assert_array_equal(model(X[:items]), r.reshape(items, 240) @ g.T * (8.0 * 0.5))


def test_summary_says_what_ran(units: bool) -> None:
    assert str(exact().summary()).count("(int8)") == (2 if units else 0)
    assert "(int8)" not in str(exact(optimize=False).summary())


def test_levels_without_zero(units: bool) -> None:
    """Steps that vary by channel, no level for 0: float32 corrects the sums by what 0 adds."""
    lines = [
        f'"x": {EVEN.format(0.0, 20.0)};',
        f'"f": {EVEN.format("-15.3", "16.1")};',
        f'"r": {EVEN.format(0.0, 30000.0)};',
        f'"g": {EVEN.format("[-17.1, -20.0, -19.0, -10.0]", "[15.0, 18.0, 19.5, 11.0]")};',
    ]
    model, literal = (network("\n".join(lines), optimize=o) for o in (True, False))
    assert str(model.summary()).count("(int8)") == (2 if units else 0)
    found, wanted = model(X), literal(X)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_traced_batched_and_prepared() -> None:
    model, literal = exact(), exact(optimize=False)
    wanted = literal(X)
    jitted = jax.jit(model.apply)
    np.testing.assert_array_equal(jitted(model.params, X), wanted)
    np.testing.assert_array_equal(jitted(model.prepare(model.params), X), wanted)
    several = jax.jit(jax.vmap(model.apply, (None, 0)))(model.params, np.stack([X, -X]))
    np.testing.assert_array_equal(several, np.stack([wanted, literal(-X)]))


def test_straight_through_derivatives() -> None:
    def gradient(model: nnef_jax.Model) -> Any:
        return jax.jit(jax.grad(lambda p: jnp.sum(model.apply(p, X) ** 2)))(model.params)

    found, wanted = (gradient(exact(quantization="ste", optimize=o)) for o in (True, False))
    for name, expected in wanted.items():
        assert np.abs(expected).max() > 0
        error = np.abs(found[name] - expected).max()
        assert error <= 1e-5 * np.abs(expected).max()


def stored_weights(codes: Array, steps: Array, x: Array) -> Array:
    """A product with a matrix of bytes, its zero points a column, as OpenVINO has them."""
    level = jnp.clip(jnp.round(x / 0.5), 0.0, 255.0)
    x = noted(level * 0.5, level, 0.5, 0.0, 0, 255)
    matrix = (codes.astype(jnp.float32) - 120.0) * steps
    return lax.dot_general(x, matrix, (((1,), (1,)), ((), ())))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_bytes_as_parameters(dtype: Any, units: bool) -> None:
    rng = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    codes = rng.integers(limits.min, limits.max, (5, 32), dtype, endpoint=True)
    steps = rng.uniform(1, 2, (5, 1)).astype(np.float32)
    x = rng.uniform(-10, 140, (3, 32)).astype(np.float32)
    closed = jax.make_jaxpr(stored_weights)(codes, steps, x)
    assert len(names_of_products(closed)) == 1
    made = integers.run(Program(closed), CPU)
    assert ("preferred_element_type=int32" in str(made.closed)) == units
    assert "levels" not in str(made.closed)
    (found,) = jax.jit(made)(codes, steps, x)
    level = np.clip(np.rint(x / 0.5), 0, 255)
    wanted = (level * 0.5).astype(np.float64) @ ((codes.astype(np.float64) - 120) * steps).T
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_derivatives_of_notes() -> None:
    def function(x: Array) -> Array:
        return jnp.sum(noted(x, jnp.round(x), 1.0, 0.0, 0, 9) ** 2)

    x = np.array([[1.0, 2.5], [3.0, 4.0]], np.float32)
    np.testing.assert_array_equal(jax.jit(jax.grad(function))(x), 2 * x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(function, 1))(x), np.sum(x**2, 0))


@pytest.mark.parametrize("ends", [(np.nan, 1.0), (-np.inf, np.inf)])
def test_ends_that_are_no_numbers(ends: tuple[float, float]) -> None:
    low, high = (np.full((1, 1), end, np.float32) for end in ends)
    with np.errstate(invalid="ignore"):
        step = (high - low) / 9
    function = jax.jit(lambda x: noted(x, jnp.round(x), step, low, 0, 9))
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.testing.assert_array_equal(function(x), x)


def test_codes_by_zero() -> None:
    def function(codes: Array, x: Array) -> Array:
        level = jnp.round(x)
        x = noted(level, level, 1.0, 0.0, 0, 9) / np.float32(0)
        return x @ (codes.astype(jnp.float32) * np.float32(3e38) * np.float32(3e38))

    codes, x = np.ones((16, 2), np.int8), np.ones((3, 16), np.float32)
    (found,) = integers.run(Program(jax.make_jaxpr(function)(codes, x)), CPU)(codes, x)
    np.testing.assert_array_equal(found, np.full((3, 2), np.inf))
