"""Kernels of convolutions on a CPU compute what XLA's own does, and are chosen by their cost."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.contexts import disabled
from lowering.cpu import depthwise
from lowering.cpu import kernel_costs as costs
from lowering.cpu.convolution import Window, convolution, direct
from lowering.emit import network
from tests.operation_checks import Together
from tests.programs import assert_close, assert_same, equations, optimised, random


def window(
    padding: Sequence[tuple[int, int]],
    stride: Sequence[int] = (),
    spread: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Window:
    ones = (1,) * len(padding)
    return Window(stride or ones, padding, spread or ones, dilation or ones, groups, None, None)


NONE, SAME, UNEVEN = ((0, 0),) * 2, ((1, 1),) * 2, ((1, 2), (0, 1))
THREE = ((1, 1), (1, 0), (0, 0))
# Cells of a filter, its window, and the channels of input and result.
KERNELS: dict[str, tuple[tuple[int, ...], Window, int, int]] = {
    "pointwise": ((1, 1), window(NONE), 5, 7),
    "depthwise": ((3, 3), window(UNEVEN, (2, 1), dilation=(2, 1), groups=6), 6, 6),
    "grouped": ((3, 3), window(UNEVEN, (2, 1), dilation=(2, 1), groups=3), 6, 12),
    "tiled": ((2, 3), window(((1, 1), (2, 2)), spread=(2, 3)), 6, 4),
    "summed": ((3, 3), window(UNEVEN, (2, 1), dilation=(1, 2)), 3, 7),
    "sliced": (
        (3, 2, 3),
        window(((1, 2), (1, 0), (-1, 2)), (2, 1, 1), dilation=(2, 1, 2)),
        6,
        5,
    ),
    "stacked": ((3, 3), window(UNEVEN, dilation=(2, 1)), 24, 7),
    "winograd": ((3, 3), window(((1, 1), (1, 0))), 48, 50),
    "pointwise_strided": ((1, 1), window(NONE, (2, 3)), 5, 7),
    "depthwise_sparse": (
        (2, 2),
        window(((1, 0), (-1, 4)), (3, 2), dilation=(1, 3), groups=6),
        6,
        6,
    ),
    "depthwise_strided": ((3,), window(((1, 1),), (2,), groups=4), 4, 8),
    "depthwise_cut": ((3, 3), window(((-1, 0),) * 2, groups=6), 6, 6),
    "depthwise_large": ((7, 4), window(UNEVEN, (2, 1), dilation=(1, 2), groups=6), 6, 6),
    "depthwise_long": ((5,), window(((3, 4),), (2,), dilation=(2,), groups=32), 32, 32),
    "depthwise_long_multiplied": ((5, 2), window(((2, 2), (1, 0)), groups=16), 16, 32),
    "depthwise_multiplied": ((3,), window(((1, 1),), groups=4), 4, 12),
    "grouped_3d": ((3, 2, 1), window(THREE, (1, 2, 1), dilation=(1, 1, 2), groups=2), 4, 6),
    "grouped_in_loop": ((2, 3), window(((1, 0),) * 2, (1, 2), groups=20), 40, 60),
    "grouped_joined": ((2, 3), window(UNEVEN, dilation=(2, 1), groups=8), 48, 8),
    "grouped_deep": ((3, 3), window(SAME, groups=2), 96, 98),
    "tiled_cut": ((2, 3), window(((0, 1), (2, 0)), spread=(2, 3)), 6, 4),
    "summed_cut": ((5,), window(((-1, 2),)), 6, 1),
    "summed_3d": ((3, 2, 1), window(THREE, (1, 2, 1), dilation=(1, 1, 2)), 1, 6),
    "stacked_cut": ((5,), window(((-1, 2),), dilation=(2,)), 24, 8),
    "winograd_cut": ((3, 3), window(((-1, 1), (1, -2))), 48, 50),
}
# What is slow, which is made of programs of others.
EACH_ITEM, EACH_FILTER = {"gradient of each item"}, {"gradient of each filter"}
SECOND, MORE = {"second derivative"}, {"tangent", "second derivative"}
SLOW = {name: MORE | EACH_ITEM | EACH_FILTER for name in KERNELS}
SLOW |= {
    name: {"gradient"} | SLOW[name]
    for name in (
        "depthwise_cut", "depthwise_large", "depthwise_multiplied", "grouped_3d", "grouped_joined",
        "winograd_cut",
    )
}  # fmt: skip
SLOW |= {name: MORE | EACH_ITEM for name in ("tiled", "sliced", "stacked")}
SLOW |= {"grouped": MORE, "summed": MORE | EACH_FILTER}
SLOW |= {"pointwise": EACH_ITEM, "depthwise": SECOND | EACH_FILTER}


def general(window: Window) -> Callable[[Any, Any], Any]:
    """The convolution of an input and a filter, its kernels chosen where it is lowered."""
    chosen = network(lambda filter, x: direct(x, filter, window))
    return lambda x, filter: chosen(filter, x)


def test_windows_of_three_axes_are_ones_of_two() -> None:
    size, window, depth, count = KERNELS["sliced"]
    x, filter = random(2, 9, 10, 8, depth), random(*size, depth, count)
    text = jax.jit(general(window)).lower(x, filter).as_text()
    assert "[b, 0, 1, 2, f]" not in text


def of_no_items(name: str) -> tuple[Any, Any]:
    size, window, depth, count = KERNELS[name]
    x = np.zeros((0, *(9, 10, 8)[: len(size)], depth), np.float32)
    filter = np.ones((*size, depth // window.groups, count), np.float32)

    def run(x: Any, filter: Any) -> Any:
        result, pullback = jax.vjp(general(window), x, filter)
        return direct(x, filter, window), result, *pullback(result)

    return run, (x, filter)


empty = Together(list(KERNELS), of_no_items)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_take_an_empty_batch(name: str) -> None:
    wanted, result, of_x, of_filter = empty(name)
    size, window, depth, count = KERNELS[name]
    assert result.shape == wanted.shape and of_x.shape == (0, *(9, 10, 8)[: len(size)], depth)
    np.testing.assert_array_equal(of_filter, np.zeros((*size, depth // window.groups, count)))


def results_of(kernel: Callable[[Any, Any], Any], x: Any, filter: Any) -> Any:
    """Value and derivatives of a kernel, in the ways that networks ask for them."""

    def function(x: Any, filter: Any) -> Any:
        return jnp.sin(kernel(x, filter))

    def total(x: Any, filter: Any) -> Any:
        return jnp.sum(function(x, filter))

    def slope(x: Any, filter: Any) -> Any:
        return jax.jvp(total, (x, filter), changes)[1]

    changes = random(*x.shape, seed=2), random(*filter.shape, seed=3)
    filters = jnp.stack([filter, 2 * filter])
    return {
        "value": kernel(x, filter),
        "tangent": jax.jvp(function, (x, filter), changes)[1],
        "gradient": jax.grad(total, argnums=(0, 1))(x, filter),
        "second derivative": jax.grad(slope, argnums=(0, 1))(x, filter),
        "gradient of each filter": jax.vmap(jax.grad(total, 1), (None, 0))(x, filters),
        "gradient of each item": jax.vmap(jax.grad(total, 1), (0, None))(x[:, None], filter),
    }


def assert_equal_the_general_one(name: str, left_out: Collection[str]) -> None:
    size, window, depth, count = KERNELS[name]
    x = random(2, *(9, 10, 8)[: len(size)], depth)
    cells = random(*size, depth // window.groups, count, seed=1)
    # Results are around 1: sin magnifies no errors.
    filter = np.asarray(cells) / np.float32(np.sqrt(cells.size / count))

    def function(x: Any, filter: Any) -> Any:
        kernels = partial(direct, window=window), general(window)
        found = [results_of(kernel, x, filter) for kernel in kernels]
        return [{key: y for key, y in each.items() if key not in left_out} for each in found]

    others = {"summed", "stacked", "winograd"} - {name.partition("_")[0]}
    with disabled(*others if len(others) == 2 else ()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "direct", lambda extents: math.inf)
        if "long" in name:  # few cells are, so that few are compiled
            patch.setattr(depthwise, "_MANY_CELLS", 4)
        made = jax.make_jaxpr(lambda x, f: convolution(x, f, window))(x, filter)
        assert "conv_general_dilated" not in {e.primitive.name for e in equations(made.jaxpr)}
        assert_same(*jax.jit(function)(x, filter))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_the_general_convolution(name: str) -> None:
    assert_equal_the_general_one(name, left_out=SLOW[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_more_derivatives_of_kernels_equal_those_of_the_general_convolution(name: str) -> None:
    assert_equal_the_general_one(name, left_out=())


def test_what_long_windows_read_lies_as_vectors_of_channels() -> None:
    def function(filter: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, filter, (1,), [(16, 16)], feature_group_count=64)
        return jnp.tanh(y)

    arguments = random(64, 1, 33), random(3, 64, 50, seed=1)
    chosen = network(function)
    traced = jax.make_jaxpr(lambda w, x: optimised(lambda w, x: function(w[0], x[0]))([w], [x]))
    closed = jaxprs.inlined(traced(*arguments))  # as what is prepared is
    split = jaxpr_evaluation.as_function(closed)
    for made in (chosen, lambda w, x: split(w, x)[0]):
        program = jax.jit(made).lower(*arguments).compile()
        assert re.search(r"f32\[4,3,50,16\]\{3,2,1,0\} call\(", program.as_text() or "")
        assert_close(jax.jit(function)(*arguments), program(*arguments))


@pytest.mark.parametrize("spread", (1, 2))
def test_xla_does_not_exchange_an_input_and_a_larger_window(spread: int) -> None:
    large = window(((1, 2), (2, 1)), spread=(spread, spread))
    x, filter = random(2, 2, 2, 12), random(3, 3, 12, 8, seed=1)
    programs = [
        jax.jit(kernel, static_argnums=2).lower(x, filter, large).compile()
        for kernel in (direct, convolution)
    ]
    assert ["rhs_reversal" in (program.as_text() or "") for program in programs] == [True, False]
    assert_close(*(program(x, filter) for program in programs))


def in_16_bits(x: Any) -> Any:
    return np.asarray(x).astype(jnp.bfloat16)


def test_sums_of_16_bits_are_taken_in_32() -> None:
    shape = window(SAME, groups=8)
    halves = in_16_bits(random(2, 9, 9, 8)), in_16_bits(random(5, 5, 1, 8, seed=1))

    @jax.jit
    def both(x: Any, filter: Any) -> Any:
        wide = (y.astype(jnp.float32) for y in (x, filter))
        return convolution(x, filter, shape), direct(*wide, shape)

    narrow, wanted = both(*halves)
    assert narrow.dtype == jnp.bfloat16
    # Rounded once, to 8 bits.
    np.testing.assert_allclose(np.float32(narrow), wanted, rtol=2**-8, atol=1e-6)


def test_gradients_of_16_bits_are_summed_in_32() -> None:
    shape = window(SAME, (2, 1), groups=8)
    halves = in_16_bits(random(4, 30, 30, 8)), in_16_bits(random(3, 3, 1, 8, seed=1))

    def gradient(kernel: Any, dtype: Any, halves: Any) -> Any:
        def total(x: Any, filter: Any) -> Any:
            return jnp.sum(kernel(x, filter).astype(jnp.float32) ** 2)

        return jax.grad(total, argnums=(0, 1))(*(y.astype(dtype) for y in halves))

    @jax.jit
    def both(halves: Any) -> Any:
        written = partial(direct, window=shape)
        return (
            gradient(general(shape), jnp.bfloat16, halves),
            gradient(written, jnp.float32, halves),
        )

    for narrow, wide in zip(*both(halves), strict=True):
        assert narrow.dtype == jnp.bfloat16
        # The result and its gradient are rounded to 8 bits, 450 of these are summed.
        error = np.linalg.norm((np.float32(narrow) - wide).ravel())
        assert error < 2**-7 * np.linalg.norm(np.ravel(wide))


def test_winograd_in_blocks_equals_the_general_convolution() -> None:
    x, filter = random(2, 61, 67, 48), random(3, 3, 48, 64, seed=1)  # 15 MB of tiles
    kernels = (partial(kernel, window=window(SAME)) for kernel in (direct, convolution))
    assert_close(*jax.jit(lambda x, filter: [f(x, filter) for f in kernels])(x, filter))


# Products of which a convolution of 3x3 cells is made: one for each cell of Winograd's tiles, in
# one block or two, one for the results of all cells, or none where it is XLA's own.
WINOGRAD, BLOCKS, STACKED, OWN = 16, 32, 1, 0


@pytest.mark.parametrize(
    "batch, extent, depth, results, products",
    (  # as they were measured, within networks where they are of ResNet-18 or a U-Net
        (1, 7, 512, 512, OWN),
        (1, 12, 512, 512, WINOGRAD),
        (1, 28, 128, 128, WINOGRAD),
        (8, 14, 256, 256, BLOCKS),
        (1, 256, 64, 64, OWN),
        (4, 12, 8, 8, STACKED),
        (1, 14, 128, 32, STACKED),
    ),
)
def test_a_convolution_is_made_of_the_cheapest_products(
    batch: int, extent: int, depth: int, results: int, products: int
) -> None:
    x = jax.ShapeDtypeStruct((batch, extent, extent, depth), jnp.float32)
    filter = jax.ShapeDtypeStruct((3, 3, depth, results), jnp.float32)
    made = jax.make_jaxpr(partial(convolution, window=window(SAME)))(x, filter)
    names = [e.primitive.name for e in equations(made.jaxpr)]
    assert names.count("dot_general") == products
    assert ("conv_general_dilated" in names) == (products == OWN)


def test_an_open_batch_counts_as_one_item() -> None:
    (count,) = jax.export.symbolic_shape("n")
    filter = jax.ShapeDtypeStruct((3, 3, 8, 8), jnp.float32)
    open, one = (jax.ShapeDtypeStruct((n, 6, 6, 8), jnp.float32) for n in (count, 1))
    found, wanted = (costs.extents(x, filter, window(SAME)) for x in (open, one))
    assert found == wanted
