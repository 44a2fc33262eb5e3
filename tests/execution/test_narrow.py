"""Networks of 16 bits on CPUs: their products are of bfloat16, all else is computed in 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

import nnef_jax
from lowering.cpu.convolution import convolution, direct
from lowering.cpu.sliding_filter import Window
from lowering.cpu.stacked_filters import is_narrow
from lowering.cpu.xla_options import compiler_options, least_memory
from lowering.machine import using
from tests.helpers import model_of
from tests.machines import with_units
from tests.programs import optimised, random

BF16, F16, F32 = (jnp.dtype(x) for x in (jnp.bfloat16, jnp.float16, jnp.float32))

NET = """
version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [2,16,6,6]);
    f = variable<scalar>(shape = [16,16,3,3], label = 'f');
    g = variable<scalar>(shape = [4,576], label = 'g');
    c = conv(x, f, padding = [(1,1),(1,1)]);
    r = tanh(c);
    flat = reshape(r, shape = [2,576]);
    y = linear(flat, g);
}
"""


def error(found: Any, wanted: Any) -> float:
    """Return the largest difference, relative to the largest item."""
    found, wanted = np.asarray(found, np.float32), np.asarray(wanted, np.float32)
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.fixture(params=[True, False], ids=["with units", "without"])
def units(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Take the host for one that has units for bfloat16, or has none."""
    with using(with_units(request.param)):
        yield request.param


@pytest.mark.parametrize(
    ("shape", "stride", "padding", "dilation"),
    [
        ((2, 7, 6, 16), (1, 1), ((1, 1), (1, 1)), (1, 1)),
        ((1, 9, 8, 16), (1, 1), ((0, 2), (3, 0)), (2, 1)),  # one product
        ((2, 9, 8, 16), (2, 3), ((1, 1), (0, 1)), (1, 2)),  # one for each cell
    ],
)
def test_windows_of_16_bits_are_products(
    shape: tuple[int, ...], stride: Any, padding: Any, dilation: Any
) -> None:
    window = Window(stride, padding, (1, 1), dilation, 1, None, F32)
    x, filter = (y.astype(BF16) for y in (random(*shape), random(3, 2, 16, 24, seed=1)))
    assert is_narrow(x, filter, window)

    @jax.jit
    def both(x: Array, filter: Array) -> Any:
        wide = (y.astype(F32) for y in (x, filter))
        return convolution(x, filter, window), direct(*wide, window)

    found, wanted = both(x, filter)
    assert found.dtype == F32
    assert error(found, wanted) < 1e-6  # products of 8-bit mantissas are exact in float32


def moved(x: Array) -> Array:
    """Move items, which no rounding may change."""
    y = jnp.concatenate([x[:, ::-1], jnp.pad(x, ((0, 0), (1, 2)))], axis=1)
    return jnp.where(y > 0, y, y.T[: len(y), :1]).reshape(-1)[3:]


def looped(x: Array) -> Array:
    def turn(carry: Array, item: Array) -> tuple[Array, Array]:
        return jnp.sin(carry + item), carry * item

    last, items = lax.scan(turn, x[0], x)
    return jnp.concatenate([last[None], items])


def branched(x: Array) -> Array:
    y = lax.cond(x.sum() > 0, jnp.cos, jnp.sin, jnp.exp(x))
    return lax.while_loop(lambda y: jnp.max(y) < 9, lambda y: y * 2, y)


def updated(x: Array) -> Array:
    cache = lax.dynamic_update_slice(x, jnp.exp(x[:1]) / 7, (2, 0))
    return lax.reduce_window(cache, -jnp.inf, lax.max, (2, 1), (1, 1), "SAME") + cache.cumsum(0)


def multiplied(x: Array) -> Array:
    scores = jnp.einsum("ij,kj->ik", x / 3, jnp.tanh(x))
    return jax.nn.softmax(scores, axis=-1) @ x


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        *((x, BF16) for x in (moved, looped, branched, updated, multiplied)),
        *((x, F16) for x in (moved, multiplied)),
        *(pytest.param(x, F16, marks=pytest.mark.slow) for x in (looped, branched, updated)),
    ],
)
def test_what_is_computed_in_32_bits_has_its_types_and_is_nearer(
    function: Callable[[Array], Array], dtype: Any, units: bool
) -> None:
    @jax.jit
    def run(x: Array) -> Any:
        narrow = optimised(lambda _, inputs: function(inputs[0]))({}, [x])
        return function(x), narrow, function(x.astype(F32))

    written, found, wanted = run(np.asarray(random(16, 16)).astype(dtype))
    assert found.dtype == written.dtype
    assert found.shape == written.shape
    rounding = float(jnp.finfo(dtype).eps)
    assert error(found, wanted) <= max(error(written, wanted), rounding)
    if function is moved:
        np.testing.assert_array_equal(found, written)


def test_what_a_document_rounds_is_rounded(units: bool) -> None:
    def function(p: Array, inputs: Any) -> Array:
        narrow = inputs[0].astype(BF16) @ p.astype(BF16) + jnp.asarray(256, BF16)
        return narrow.astype(F32)

    x, matrix = random(4, 32), random(32, 5, seed=1)
    found = jax.jit(optimised(function))(matrix, [x])
    np.testing.assert_array_equal(found, found.astype(BF16).astype(F32))
    np.testing.assert_allclose(found, function(matrix, [x]), rtol=2**-7)


def test_what_bodies_of_loops_round_is_rounded() -> None:
    def squared(x: Array) -> Array:
        return jnp.square(x.astype(BF16)).astype(F32)

    def function(_: Any, inputs: Any) -> Any:
        (x,) = inputs
        ends = lax.while_loop(lambda y: jnp.max(y) < 99, squared, x)
        return ends, lax.scan(lambda y, item: (y, squared(item)), 0, x)

    x = random(4, 32)
    found = jax.tree.leaves(jax.jit(optimised(function))({}, [x]))
    wanted = np.square(np.asarray(x, BF16)).astype(F32)
    np.testing.assert_array_equal(found[-1], wanted)
    np.testing.assert_array_equal(found[0], found[0].astype(BF16).astype(F32))


@pytest.mark.parametrize("first", [BF16, F16], ids=str)
def test_one_format_of_16_bits_is_rounded_to_the_other(first: Any) -> None:
    second = F16 if first == BF16 else BF16
    x = jnp.asarray([10.81, -3.3, 65504, 99840, 1e-7]).astype(first)
    found = optimised(lambda _, inputs: inputs[0].astype(second).astype(F32))({}, [x])
    np.testing.assert_array_equal(found, x.astype(second).astype(F32))


def test_products_alone_are_of_16_bits(units: bool) -> None:
    run = optimised(lambda p, inputs: jnp.tanh(inputs[0] @ p) + inputs[0])
    x, matrix = random(4, 32).astype(BF16), random(32, 32, seed=1).astype(BF16)
    text = str(jax.make_jaxpr(run)(matrix, [x]))
    assert ("tanh", "bf16[4,32] = tanh" in text) == ("tanh", False)
    assert ("preferred_element_type=float32" in text) or not units
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 1
    assert "f32[" in products[0].split("=")[0]


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"precision": "BF16_BF16_F32"}], ids=str
)
def test_networks(options: dict[str, Any], units: bool) -> None:
    data = {"f": np.asarray(random(16, 16, 3, 3)) / 12, "g": np.asarray(random(4, 576)) / 24}
    wide, narrow = model_of(NET, data=data), model_of(NET, data=data, **options)
    x = random(2, 16, 6, 6, seed=2)
    real = BF16 if "dtype" in options else F32
    wanted, found = wide(x), narrow(x.astype(real))
    assert found.dtype == real
    assert error(found, wanted) < 2e-2
    if "precision" in options:
        assert error(found, wanted) > 1e-5

    def total(model: nnef_jax.Model, dtype: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            return jnp.sum(model.apply(params, x).astype(F32) ** 2)

        return jax.grad(loss, argnums=(0, 1))(model.params, x.astype(dtype))

    @jax.jit
    def derived() -> Any:
        several = jnp.stack([x, x / 2]).astype(real)
        mapped = jax.vmap(lambda x: narrow.apply(narrow.params, x))(several)
        return mapped[0], total(narrow, real), total(wide, F32)

    mapped, *gradients = derived()
    assert error(mapped, found) < 2e-2
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        assert a.dtype == real
        assert error(a, b) < 4e-2


def test_options_of_the_compiler_are_those_of_most_products(units: bool) -> None:
    data = {"f": np.zeros((16, 16, 3, 3), np.float32), "g": np.zeros((4, 576), np.float32)}
    bfloat16 = compiler_options(1 << 20, bfloat16=True)
    assert bfloat16 != compiler_options(1 << 20)
    assert units or bfloat16 == compiler_options(1 << 20) | least_memory()
    large = NET.replace("[4,576]", "[1000,576]")
    data["g"] = np.zeros((1000, 576), np.float32)
    assert model_of(large, data=data, dtype="bfloat16").compiler_options == bfloat16
    assert model_of(large, data=data, precision="BF16_BF16_F32").compiler_options == bfloat16
    assert model_of(large, data=data).compiler_options == compiler_options(1 << 20)
    assert model_of(large, data=data, optimize=False, dtype="bfloat16").compiler_options == {}


def test_other_platforms_multiply_in_bfloat16_too() -> None:
    data = {"f": np.asarray(random(16, 16, 3, 3)), "g": np.asarray(random(4, 576))}
    model = model_of(NET, data=data, precision="BF16_BF16_F32")
    exported = jax.export.export(jax.jit(model.apply), platforms=["cuda"])(
        model.params, jax.ShapeDtypeStruct((2, 16, 6, 6), F32)
    )
    text = str(exported.mlir_module())
    (window,) = (line for line in text.splitlines() if "stablehlo.convolution" in line)
    assert "bf16" in window
    (product,) = (line for line in text.splitlines() if "stablehlo.dot_general" in line)
    assert "bf16" in product


@pytest.mark.parametrize("transposed", (True, False))
@pytest.mark.parametrize("known", (True, False))
def test_one_row_is_computed_as_two(units: bool, transposed: bool, known: bool) -> None:
    def function(parameters: Any, inputs: Any) -> Array:
        (x, *_), (matrix, *_) = inputs, parameters or inputs[1:]
        return x @ (matrix.T if transposed else matrix)

    shapes = (1, 256), (300, 256) if transposed else (256, 300)
    row, matrix = (np.asarray(random(*shape)).astype(BF16) for shape in shapes)
    arguments = ([matrix], [row]) if known else ([], [row, matrix])
    traced = jax.make_jaxpr(optimised(function))(*arguments)
    (product,) = (e for e in traced.eqns if e.primitive.name == "dot_general")
    extents = {n for v in product.invars for n in v.aval.shape}
    assert (2 in extents) == units
    wanted = function(*jax.tree.map(lambda x: x.astype(F32), arguments))
    assert error(jax.jit(optimised(function))(*arguments), wanted) < 2**-8


def held(dtype: Any, text: str, data: dict[str, Any]) -> int:
    """Return the bytes of arrays that are in memory for a model that was called."""
    before = {x.unsafe_buffer_pointer() for x in jax.live_arrays()}
    model = model_of(text, data=data, dtype=str(dtype))
    assert np.isfinite(np.asarray(model(np.ones(model.inputs[0].shape, dtype)), np.float32)).all()
    found = {x.unsafe_buffer_pointer(): x.nbytes for x in jax.live_arrays()}
    return sum(size for pointer, size in found.items() if pointer not in before)


@pytest.mark.parametrize(
    ("input", "weights", "layer"),
    [
        ("[1,256]", (256, 256), "linear"),
        ("[1,64,8,8]", (64, 64, 3, 3), "conv"),
        ("[1,64,8,8]", (64, 64, 1, 1), "conv"),
    ],
)
def test_weights_are_in_memory_in_16_bits(
    input: str, weights: tuple[int, ...], layer: str, units: bool
) -> None:
    lines = [
        f"v{i} = variable<scalar>(shape = {[*weights]}, label = 'v{i}'); "
        f"n{i} = {layer}(x{i}, v{i}); s{i} = mul(n{i}, 0.9); x{i + 1} = tanh(s{i});"
        for i in range(2)
    ]
    body = "\n".join([f"x0 = external<scalar>(shape = {input});", *lines])
    text = f"version 1.0;\ngraph net(x0) -> (x2)\n{{\n{body}\n}}\n"
    data = {f"v{i}": np.asarray(random(*weights, seed=i)) / 16 for i in range(2)}
    assert held(BF16, text, data) <= 0.6 * held(F32, text, data)
