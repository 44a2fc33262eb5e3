"""What is optimised equals what is written, in value and gradient, and is computed as intended."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

import nnef_jax
from lowering import jaxprs
from lowering.ablation import without
from lowering.cpu import kernel_costs as costs
from lowering.cpu import layouts
from lowering.cpu import xla_options as options
from lowering.cpu.convolution import Window, convolution, direct, kernel_for
from lowering.cpu.pending_view import plain
from lowering.cpu.xla_options import fastest
from lowering.emit import network
from lowering.kernels.broadcast import maximum, minimum
from lowering.program import Program
from tests import torch_networks
from tests.helpers import model_of
from tests.operation_checks import Together
from tests.programs import optimised, random, split_of

Function = Callable[[Any, list[Any]], Any]


def assert_equal(function: Function, parameters: Any, inputs: list[Any]) -> None:
    """Value, and gradient in parameters and inputs, with and without optimisation."""
    assert_same(*jax.jit(both_ways(function))(parameters, inputs))


def both_ways(function: Function) -> Callable[[Any, list[Any]], Any]:
    """Value, and gradient of what is real, as written and optimised, to be compiled as one.

    What is compiled for a CPU alone has no derivatives.
    """
    anywhere = network(function)

    def loss(f: Function) -> Function:
        def total(parameters: Any, inputs: list[Any]) -> Any:
            leaves = [y for y in jax.tree.leaves(f(parameters, inputs)) if y.dtype == jnp.float32]
            return sum((jnp.sum(jnp.sin(y)) for y in leaves), jnp.float32(0))

        return total

    def results(parameters: Any, inputs: list[Any]) -> Any:
        return [
            (f(parameters, inputs), jax.grad(loss(g), argnums=(0, 1))(parameters, inputs))
            for f, g in (
                (function, function),
                (optimised(function), anywhere),
                (anywhere, anywhere),
            )
        ]

    return results


def assert_same(wanted: Any, *others: Any) -> None:
    for got in others:
        assert jax.tree.structure(wanted) == jax.tree.structure(got)
        jax.tree.map(assert_close, wanted, got)


def assert_close(wanted: Any, got: Any) -> None:
    wanted, got = np.asarray(wanted), np.asarray(got)
    assert wanted.shape == got.shape and wanted.dtype == got.dtype
    scale = max(float(np.abs(wanted).max(initial=0)), 1e-6)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * scale)


def primitives(function: Function, parameters: Any, inputs: list[Any]) -> list[str]:
    """The names of the primitives of what is optimised, in order, those of loops included."""
    jaxpr = jax.make_jaxpr(optimised(function))(parameters, inputs)
    return [e.primitive.name for e in _equations(jaxpr.jaxpr)]


def _equations(jaxpr: Any) -> list[Any]:
    found: list[Any] = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for value in equation.params.values():
            if isinstance(value, core.ClosedJaxpr):
                found += _equations(value.jaxpr)
    return found


def conv(x: Any, filter: Any, **options: Any) -> Any:
    options = {"window_strides": (1, 1), "padding": [(1, 1), (1, 1)]} | options
    return lax.conv_general_dilated(x, filter, **options)


# Kernels


KERNELS: dict[str, tuple[tuple[int, ...], Window, int, int]] = {
    "pointwise": ((1, 1), Window((1, 1), ((0, 0),) * 2, (1, 1), (1, 1), 1, None, None), 5, 7),
    "pointwise_strided": (
        (1, 1),
        Window((2, 3), ((0, 0),) * 2, (1, 1), (1, 1), 1, None, None),
        5,
        7,
    ),
    "depthwise": ((3, 3), Window((2, 1), ((1, 2), (0, 1)), (1, 1), (2, 1), 6, None, None), 6, 6),
    "depthwise_sparse": (
        (2, 2),
        Window((3, 2), ((1, 0), (-1, 4)), (1, 1), (1, 3), 6, None, None),
        6,
        6,
    ),
    "depthwise_strided": ((3,), Window((2,), ((1, 1),), (1,), (1,), 4, None, None), 4, 8),
    "depthwise_cut": ((3, 3), Window((1, 1), ((-1, 0),) * 2, (1, 1), (1, 1), 6, None, None), 6, 6),
    "depthwise_large": (
        (7, 4),
        Window((2, 1), ((1, 2), (0, 1)), (1, 1), (1, 2), 6, None, None),
        6,
        6,
    ),
    "depthwise_long": (
        (27,),
        Window((2,), ((20, 26),), (1,), (2,), 32, None, None),
        32,
        32,
    ),
    "depthwise_long_multiplied": (
        (27, 2),
        Window((1, 1), ((13, 13), (1, 0)), (1, 1), (1, 1), 16, None, None),
        16,
        32,
    ),
    "depthwise_multiplied": ((3,), Window((1,), ((1, 1),), (1,), (1,), 4, None, None), 4, 12),
    "grouped": ((3, 3), Window((2, 1), ((1, 2), (0, 1)), (1, 1), (2, 1), 3, None, None), 6, 12),
    "grouped_3d": (
        (3, 2, 1),
        Window((1, 2, 1), ((1, 1), (1, 0), (0, 0)), (1,) * 3, (1, 1, 2), 2, None, None),
        4,
        6,
    ),
    "grouped_in_loop": (
        (2, 3),
        Window((1, 2), ((1, 0),) * 2, (1, 1), (1, 1), 20, None, None),
        40,
        60,
    ),
    "grouped_joined": (
        (2, 3),
        Window((1, 1), ((1, 2), (0, 1)), (1, 1), (2, 1), 8, None, None),
        48,
        8,
    ),
    "grouped_deep": ((3, 3), Window((1, 1), ((1, 1),) * 2, (1, 1), (1, 1), 2, None, None), 96, 98),
    "tiled": ((2, 3), Window((1, 1), ((1, 1), (2, 2)), (2, 3), (1, 1), 1, None, None), 6, 4),
    "tiled_cut": ((2, 3), Window((1, 1), ((0, 1), (2, 0)), (2, 3), (1, 1), 1, None, None), 6, 4),
    "summed": ((3, 3), Window((2, 1), ((1, 2), (0, 1)), (1, 1), (1, 2), 1, None, None), 3, 7),
    "summed_cut": ((5,), Window((1,), ((-1, 2),), (1,), (1,), 1, None, None), 6, 1),
    "summed_3d": (
        (3, 2, 1),
        Window((1, 2, 1), ((1, 1), (1, 0), (0, 0)), (1,) * 3, (1, 1, 2), 1, None, None),
        1,
        6,
    ),
    "sliced": (
        (3, 2, 3),
        Window((2, 1, 1), ((1, 2), (1, 0), (-1, 2)), (1,) * 3, (2, 1, 2), 1, None, None),
        6,
        5,
    ),
    "stacked": ((3, 3), Window((1, 1), ((1, 2), (0, 1)), (1, 1), (2, 1), 1, None, None), 24, 7),
    "stacked_cut": ((5,), Window((1,), ((-1, 2),), (1,), (2,), 1, None, None), 24, 8),
    "winograd": ((3, 3), Window((1, 1), ((1, 1), (1, 0)), (1, 1), (1, 1), 1, None, None), 48, 50),
    "winograd_cut": (
        (3, 3),
        Window((1, 1), ((-1, 1), (1, -2)), (1, 1), (1, 1), 1, None, None),
        48,
        50,
    ),
}


def general(window: Window) -> Callable[[Any, Any], Any]:
    """The convolution of an input and a filter, its kernels chosen where it is lowered."""
    chosen = network(lambda filter, x: direct(x, filter, window))
    return lambda x, filter: chosen(filter, x)


def test_windows_of_three_axes_are_ones_of_two() -> None:
    size, window, depth, count = KERNELS["sliced"]
    x, filter = random(2, 9, 10, 8, depth), random(*size, depth, count)
    text = jax.jit(general(window)).lower(x, filter).as_text()
    assert "[b, 0, 1, 2, f]" not in text


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_take_an_empty_batch(name: str) -> None:
    size, window, depth, count = KERNELS[name]
    x = jnp.zeros((0, *(9, 10, 8)[: len(size)], depth))
    filter = jnp.ones((*size, depth // window.groups, count))
    result, pullback = jax.vjp(general(window), x, filter)
    assert result.shape == direct(x, filter, window).shape
    change_of_x, change_of_filter = pullback(result)
    assert change_of_x.shape == x.shape
    np.testing.assert_array_equal(change_of_filter, jnp.zeros_like(filter))


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


def kernel_and_general_one(name: str) -> tuple[Any, Any]:
    size, window, depth, count = KERNELS[name]
    x = random(2, *(9, 10, 8)[: len(size)], depth)
    filter = random(*size, depth // window.groups, count, seed=1)
    filter /= np.sqrt(filter.size / count)  # results around 1: sin magnifies no errors

    def function(x: Any, filter: Any) -> Any:
        as_written = partial(direct, window=window)
        return [results_of(kernel, x, filter) for kernel in (as_written, general(window))]

    return function, (x, filter)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_the_general_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, arguments = kernel_and_general_one(name)
    others = {"summed", "stacked", "winograd"} - {name.partition("_")[0]}
    monkeypatch.setattr(costs, "direct", lambda extents: math.inf)
    with without(*others if len(others) == 2 else ()):
        made = jax.make_jaxpr(lambda x, f: convolution(x, f, KERNELS[name][1]))(*arguments)
        assert "conv_general_dilated" not in {e.primitive.name for e in _equations(made.jaxpr)}
        assert_same(*jax.jit(function)(*arguments))


def test_what_long_windows_read_lies_as_vectors_of_channels() -> None:
    def function(filter: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, filter, (1,), [(16, 16)], feature_group_count=64)
        return jnp.tanh(y)

    arguments = random(64, 1, 33), random(3, 64, 50, seed=1)
    chosen = network(function)
    traced = jax.make_jaxpr(lambda w, x: optimised(lambda w, x: function(w[0], x[0]))([w], [x]))
    split = jaxprs.as_function(jaxprs.inlined(traced(*arguments)))  # as what is prepared is
    for made in (chosen, lambda w, x: split(w, x)[0]):
        program = jax.jit(made).lower(*arguments).compile()
        assert re.search(r"f32\[4,3,50,16\]\{3,2,1,0\} call\(", program.as_text() or "")
        assert_close(jax.jit(function)(*arguments), program(*arguments))


@pytest.mark.parametrize("spread", (1, 2))
def test_xla_does_not_exchange_an_input_and_a_larger_window(spread: int) -> None:
    window = Window((1, 1), ((1, 2), (2, 1)), (spread, spread), (1, 1), 1, None, None)
    x, filter = random(2, 2, 2, 12), random(3, 3, 12, 8, seed=1)
    programs = [
        jax.jit(kernel, static_argnums=2).lower(x, filter, window).compile()
        for kernel in (direct, convolution)
    ]
    assert ["rhs_reversal" in (program.as_text() or "") for program in programs] == [True, False]
    assert_close(*(program(x, filter) for program in programs))


def test_sums_of_16_bits_are_taken_in_32() -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 8, None, None)
    x, filter = random(2, 9, 9, 8), random(5, 5, 1, 8, seed=1)
    narrow = convolution(x.astype(jnp.bfloat16), filter.astype(jnp.bfloat16), window)
    assert narrow.dtype == jnp.bfloat16
    wanted = direct(*(y.astype(jnp.bfloat16).astype(jnp.float32) for y in (x, filter)), window)
    # Rounded once, to 8 bits.
    np.testing.assert_allclose(narrow.astype(jnp.float32), wanted, rtol=2**-8, atol=1e-6)


def test_gradients_of_16_bits_are_summed_in_32() -> None:
    window = Window((2, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 8, None, None)
    x, filter = random(4, 30, 30, 8), random(3, 3, 1, 8, seed=1)

    def gradient(kernel: Any, dtype: Any) -> Any:
        def total(x: Any, filter: Any) -> Any:
            return jnp.sum(kernel(x, filter, window).astype(jnp.float32) ** 2)

        halves = (y.astype(jnp.bfloat16).astype(dtype) for y in (x, filter))
        return jax.grad(total, argnums=(0, 1))(*halves)

    def chosen(x: Any, filter: Any, window: Window) -> Any:
        return general(window)(x, filter)

    for narrow, wide in zip(
        gradient(chosen, jnp.bfloat16), gradient(direct, jnp.float32), strict=True
    ):
        assert narrow.dtype == jnp.bfloat16
        # The result and its gradient are rounded to 8 bits, 450 of these are summed.
        error = jnp.linalg.norm((narrow.astype(jnp.float32) - wide).ravel())
        assert error < 2**-7 * jnp.linalg.norm(wide.ravel())


def test_winograd_in_blocks_equals_the_general_convolution() -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1, None, None)
    x, filter = random(2, 61, 67, 48), random(3, 3, 48, 64, seed=1)  # 15 MB of tiles
    assert_close(direct(x, filter, window), convolution(x, filter, window))


@pytest.mark.parametrize(
    "batch, extent, depth, results, kernel",
    (  # as they were measured, within networks where they are of ResNet-18 or a U-Net
        (1, 7, 512, 512, None),
        (1, 12, 512, 512, "winograd"),
        (1, 28, 128, 128, "winograd"),
        (8, 14, 256, 256, "winograd"),
        (1, 256, 64, 64, None),
        (4, 12, 8, 8, "stacked"),
        (1, 14, 128, 32, "stacked"),
    ),
)
def test_the_kernel_of_a_window_is_the_cheapest(
    batch: int, extent: int, depth: int, results: int, kernel: str | None
) -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1, None, None)
    x = jax.ShapeDtypeStruct((batch, extent, extent, depth), jnp.float32)
    filter = jax.ShapeDtypeStruct((3, 3, depth, results), jnp.float32)
    assert kernel_for(x, filter, window) == kernel


def test_an_open_batch_counts_as_one_item() -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1, None, None)
    (count,) = jax.export.symbolic_shape("n")
    filter = jax.ShapeDtypeStruct((3, 3, 8, 8), jnp.float32)
    open, one = (jax.ShapeDtypeStruct((n, 6, 6, 8), jnp.float32) for n in (count, 1))
    assert costs.extents(open, filter, window) == costs.extents(one, filter, window)


# Parameters that vary from call to call


def moved_filters(function: Function, parameters: Any, inputs: Any) -> list[Any]:
    """The shapes that transpositions have, in the order of what is computed where they vary."""
    made = jax.make_jaxpr(optimised(function, prepares=False))(parameters, inputs)
    return [e.outvars[0].aval.shape for e in _equations(made.jaxpr) if "transpose" in str(e)]


@pytest.mark.parametrize("options", [{}, {"window_strides": (2, 1)}, {"rhs_dilation": (1, 2)}])
def test_few_windows_take_a_filter_that_varies_as_it_lies(options: Any) -> None:
    def function(parameters: Any, inputs: Any) -> Any:
        return conv(inputs[0], parameters[0], **options)

    filter, x = random(64, 6, 3, 3), random(2, 6, 5, 4, seed=1)
    assert not {(3, 3, 6, 64)} & set(moved_filters(function, [filter], [x]))
    assert_equal(function, [filter], [x])


def test_many_windows_lay_a_filter_out() -> None:
    def function(parameters: Any, inputs: Any) -> Any:
        return conv(inputs[0], parameters[0])

    filter, x = random(64, 12, 3, 3), random(1, 12, 9, 9, seed=1)
    assert (3, 3, 12, 64) in moved_filters(function, [filter], [x])


@pytest.mark.parametrize("count", (3, 300))
def test_matrices_that_vary_are_taken_as_they_lie(count: int) -> None:
    def function(parameters: Any, inputs: Any) -> Any:
        filter, matrix = parameters
        y = conv(inputs[0], filter, padding=[(0, 0)] * 2)
        return jnp.tanh(y).reshape(-1, y.shape[1]) @ matrix.T

    parameters, x = [random(40, 8, 1, 1), random(48, 40, seed=1)], random(1, 8, count, 1, seed=2)
    moved = moved_filters(function, parameters, [x])
    assert not {(1, 1, 8, 40), (8, 40), (40, 48)} & set(moved)
    assert_equal(function, parameters, [x])


# Layouts: what follows a convolution finds its result channels last


AFTER: dict[str, Callable[[Any], Any]] = {
    "unary": lambda y: jnp.exp(-jnp.abs(y)),
    "scalar": lambda y: 2.0 * y + 1.0,
    "per_channel": lambda y: y * random(1, 6, 1, 1, seed=3),
    "per_row": lambda y: y + random(1, 1, 7, 1, seed=3),
    "two": lambda y: y * jnp.tanh(y),
    "select": lambda y: jnp.where(y > 0, y, 0.1 * y),
    "clamp": lambda y: jnp.clip(y, -0.5, 0.5),
    "transpose": lambda y: jnp.transpose(y, (2, 0, 3, 1)) * 2.0,
    "flatten": lambda y: y.reshape(2, -1),
    "merge_spatial": lambda y: jnp.swapaxes(y.reshape(2, 6, 56), 1, 2),
    "split_channels": lambda y: y.reshape(2, 2, 3, 7, 8).sum(1),
    "shuffle_channels": lambda y: jnp.swapaxes(y.reshape(2, 2, 3, 7, 8), 1, 2).reshape(y.shape),
    "mean": lambda y: jnp.mean(y, (2, 3)),
    "softmax_over_channels": lambda y: jax.nn.softmax(y, axis=1),
    "argmax": lambda y: jnp.argmax(y, 1),
    "cumsum": lambda y: jnp.cumsum(y, 2),
    "squeeze": lambda y: y[:, :1].squeeze(1),
    "slice": lambda y: y[:, 1:5:2, 2:, ::3],
    "flip": lambda y: y[:, ::-1, :, ::-1] * y,
    "pad": lambda y: jnp.pad(y, ((0, 0), (1, 0), (2, 3), (0, 1)), constant_values=0.5),
    "concat": lambda y: jnp.concatenate([y, y * 2.0, random(2, 1, 7, 8, seed=4)], 1),
    "broadcast": lambda y: y + jnp.broadcast_to(jnp.max(y, (2, 3), keepdims=True), y.shape),
    "gate": lambda y: y * jax.nn.sigmoid(jnp.mean(y, (2, 3), keepdims=True)),
    "silu": lambda y: jnp.sin(y) * jax.nn.sigmoid(2.0 * y),
    "gates": lambda y: jax.nn.sigmoid(y) * jax.nn.sigmoid(-y) * y,
    "gate_read_twice": lambda y: (lambda z: z * y + z)(jax.nn.sigmoid(y)),
    "turned_gate": lambda y: jnp.swapaxes(y, 2, 1) * jax.nn.sigmoid(random(2, 7, 6, 8, seed=6)),
    "product": lambda y: jnp.einsum("bchw,bdhw->bcd", y, jnp.sin(y)),
    "product_of_channels": lambda y: jnp.einsum("bchw,cd->bhwd", y, random(6, 5, seed=4)),
    "max_pool": lambda y: lax.reduce_window(
        y, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (0, 1))
    ),
    "sum_pool": lambda y: lax.reduce_window(
        y, 0.0, lax.add, (1, 2, 3, 3), (1, 1, 1, 2), "SAME", window_dilation=(1, 1, 2, 1)
    ),
    "large_pool": lambda y: lax.reduce_window(
        jnp.pad(y, ((0, 0), (0, 0), (9, 9), (9, 9))), 0.0, lax.add, (1, 1, 9, 9), (1,) * 4, "VALID"
    ),
    "gather": lambda y: jnp.take(y, jnp.array([3, 0, 3]), axis=1),
    "scan": lambda y: lax.scan(lambda c, x: (c + x, c * x), y[:, 0], jnp.moveaxis(y, 1, 0)),
    "twice": lambda y: conv(jnp.tanh(conv(y, random(6, 6, 3, 3, seed=5))), random(4, 6, 1, 1)),
}


def after(name: str) -> tuple[Any, Any]:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return AFTER[name](conv(inputs[0], parameters[0]))

    # Results of the convolution around 1: the sine of larger ones magnifies errors.
    arguments = [random(6, 3, 3, 3) / np.sqrt(27)], [random(2, 3, 7, 8, seed=2)]
    return both_ways(function), arguments


followed = Together(list(AFTER), after)


@pytest.mark.parametrize("name", AFTER)
def test_what_follows_a_convolution(name: str) -> None:
    assert_same(*followed(name))


def test_gates_of_extreme_numbers() -> None:
    x = np.float32([0.0, -0.0, 1e-30, 80.0, 89.0, 104.0, 3e38, np.inf])
    x = np.concatenate([x, -x, [np.float32(np.nan)]])
    y = np.float32([1.0, -3e38, np.inf, 0.0])[:, None]

    def function(parameters: Any, inputs: list[Any]) -> Any:
        return jnp.broadcast_to(inputs[1], (4, 17)) * jax.nn.sigmoid(inputs[0])

    arguments = [], [np.broadcast_to(x, (4, 17)), y]
    assert "logistic" not in str(jax.make_jaxpr(optimised(function))(*arguments))
    found, wanted = (jax.jit(f)(*arguments) for f in (optimised(function), function))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-37)


def test_a_gate_of_parameters_is_a_factor() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return inputs[0] * jax.nn.sigmoid(parameters[0])

    assert primitives(function, [random(4, 8)], [random(4, 8)]) == ["logistic", "mul"]


def test_many_sums_of_few_positions_are_reductions() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return jnp.sum(inputs[0], 1)

    assert primitives(function, [], [random(128, 16, 32)])[-1] != "reduce_sum"
    assert primitives(function, [], [random(4096, 2, 8)]) == ["reduce_sum"]


@pytest.mark.parametrize(("items", "kept"), [(1, 1), (3, 1), (3, 0)])
def test_means_of_positions(items: int, kept: int) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        y = conv(inputs[0], parameters[0]) / 50
        return jnp.mean(y, (0, 2, 3)[kept:])

    arguments = [random(48, 3, 3, 3)], [random(items, 3, 20, 24, seed=2)]
    assert "reduce_sum" not in str(jax.make_jaxpr(optimised(function))(*arguments))
    assert_equal(function, *arguments)


def test_what_a_product_and_others_read_is_kept() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        y = jnp.tanh(inputs[0] + 1.0)
        return jnp.sin(y @ parameters[0]) + y

    arguments = [random(64, 64, seed=1) / 8], [random(1024, 64)]
    kept = str(jax.make_jaxpr(optimised(function))(*arguments))
    with without("stored"):
        assert str(jax.make_jaxpr(optimised(function))(*arguments)).count(" div ") < kept.count(
            " div "
        )
    assert_equal(function, *arguments)


def test_a_stretch_of_convolutions_is_transposed_at_its_borders_alone() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        (x,) = inputs
        for filter, bias in parameters:
            x = jnp.maximum(conv(x, filter) + bias, 0.0) + x
        return x

    layers = [(random(8, 8, 3, 3, seed=i) / 9, random(1, 8, 1, 1, seed=i)) for i in range(4)]
    arguments = layers, [random(1, 8, 6, 6)]
    with without("stacked"):  # which lays out filters in its own way
        jaxpr = jax.make_jaxpr(optimised(function))(*arguments)
    moved = [e for e in jaxpr.eqns if e.primitive.name == "transpose"]
    images = [e for e in moved if e.invars[0].aval.shape[-2:] != (3, 3)]
    assert len(images) <= 2 + 4  # in and out, and each bias, which is a reshape
    assert_equal(function, *arguments)


# What depends on parameters alone


def test_scale_and_offset_are_folded_into_the_filter() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        filter, mean, scale, offset = parameters
        y = conv(inputs[0], filter)
        return (y - mean) * scale / 3.0 + offset

    channels = [random(1, 8, 1, 1, seed=i) for i in range(3)]
    arguments = [random(8, 4, 5, 5), *channels], [random(2, 4, 12, 12, seed=5)]
    assert_equal(function, *arguments)
    jaxpr = jax.make_jaxpr(optimised(function))(*arguments)
    large = [
        e.primitive.name
        for e in _equations(jaxpr.jaxpr)
        if e.primitive.name in ("add", "sub", "mul", "div") and e.outvars[0].aval.size > 1000
    ]
    assert large == ["add"]  # of filter and image; the filter has 800 items


def test_a_result_that_is_read_twice_is_not_folded() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        y = conv(inputs[0], parameters[0])
        return y * parameters[1] + jnp.sin(y)

    assert_equal(function, [random(8, 4, 3, 3), random(1, 8, 1, 1)], [random(2, 4, 9, 9)])


def test_a_scale_that_depends_on_the_input_is_not_folded() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        x, scale = inputs
        return conv(x, parameters[0]) * scale

    assert_equal(function, [random(8, 4, 3, 3)], [random(2, 4, 9, 9), random(1, 8, 1, 1)])


@pytest.mark.parametrize("padding", ("VALID", "SAME"))
@pytest.mark.parametrize("size, stride", (((3, 3), (2, 2)), ((2, 3), (1, 2)), ((1, 2), (3, 1))))
def test_maxima_of_windows_have_the_gradient_of_the_first(
    size: tuple[int, ...], stride: tuple[int, ...], padding: str
) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        x = inputs[0] * parameters[0]
        return lax.reduce_window(x, -np.inf, lax.max, (1, 1, *size), (1, 1, *stride), padding)

    # Many items are equal.
    x = jnp.asarray(np.float32(np.random.default_rng(0).integers(-1, 2, (2, 3, 9, 8))))
    assert_equal(function, [jnp.float32(2)], [x])
    optimal = network(function)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(optimal([jnp.float32(2)], [x]))))
    assert "select_and_scatter" not in gradient.lower(x).as_text()


@pytest.mark.parametrize("kernel, plain", ((maximum, jnp.maximum), (minimum, jnp.minimum)))
def test_a_bound_has_half_the_gradient_where_it_is_met(kernel: Any, plain: Any) -> None:
    x = jnp.asarray([-np.inf, -1.0, 0.5, 1.0, 2.0, np.inf, np.nan])

    def results(function: Any) -> Any:
        def total(x: Any) -> Any:
            return jnp.sum(function(x, 1.0) + function(np.float32(2), x))

        return function(x, 1.0), jax.grad(total)(x), jax.jvp(total, (x,), (x,))[1]

    for wanted, got in zip(results(plain), results(kernel), strict=True):
        np.testing.assert_array_equal(wanted, got)


@pytest.mark.parametrize("length", (64, 96, 100, 3072))
def test_rows_are_summed_by_parts(length: int) -> None:
    def function(parameters: Any, inputs: list[Any]) -> Any:
        x = inputs[0] + 5  # a mean that squares must not meet
        apart = x - x.mean(-1, keepdims=True)
        return apart / jnp.sqrt((apart**2).mean(-1, keepdims=True)) * parameters

    scale, x = random(1, 1, length), random(8, 128, length, seed=1)
    count = primitives(function, scale, [x]).count("slice")
    assert count == {64: 4, 96: 6, 100: 0, 3072: 48}[length]
    assert_equal(function, scale, [x])


def test_products_of_one_input_become_one() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        query, key, value = parameters
        (x,) = inputs
        return x @ query, jnp.swapaxes(x @ key.T, 1, 2), (x @ value) @ value[:, :4]

    arguments = [random(4, n, seed=n) for n in (6, 4, 4)], [random(2, 3, 4)]
    assert primitives(function, *arguments).count("dot_general") == 2
    assert_equal(function, *arguments)


@pytest.mark.parametrize("rows", (1, 5, 200))
def test_products_of_any_number_of_rows(rows: int) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return jnp.tanh(inputs[0] @ parameters[0] + parameters[1])[..., None]

    matrix = random(300, 512) / 20
    assert_equal(function, [matrix, random(1, 512)], [random(rows, 300, seed=1)])


def test_products_without_items_to_sum() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return inputs[0][:, :0] @ parameters[0][:0] + 1

    assert_equal(function, [random(3, 5)], [random(4, 3)])


def test_one_row_of_parameters_does_not_make_a_matrix_one() -> None:
    row, matrix = plain(random(1, 1024), True), plain(random(1024, 1024))
    program = Program(jax.make_jaxpr(jnp.matmul)(row.array, matrix.array))
    (product,) = layouts.evaluated(program, [row, matrix])
    assert not product.known


@pytest.mark.parametrize("transposed", (True, False))
def test_one_row_by_a_large_matrix(transposed: bool) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        matrix = parameters[0].T if transposed else parameters[0]
        return jnp.tanh(inputs[0] @ matrix)

    shape = (4096, 256) if transposed else (256, 4096)
    parameters, inputs = [random(*shape) / 20], [random(1, 1, 256, seed=1)]
    assert_equal(function, parameters, inputs)
    split = split_of(function, parameters, inputs)
    assert split.sources == ((0,) if transposed else (None,))  # its rows are read as they are


def test_a_loop_computes_nothing_of_parameters() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        def turn(state: Any, x: Any) -> tuple[Any, Any]:
            state = jnp.tanh(x @ parameters[0].T + state @ jnp.flip(parameters[1], 0))
            return state, state

        return lax.scan(turn, jnp.zeros((1, 4)), inputs[0], reverse=True)

    arguments = [random(4, 3), random(4, 4, seed=1)], [random(5, 1, 3)]
    jaxpr = jax.make_jaxpr(optimised(function))(*arguments)
    (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    inside = {e.primitive.name for e in loop.params["jaxpr"].jaxpr.eqns}
    assert not inside & {"rev", "transpose", "concatenate"}
    assert_equal(function, *arguments)


@pytest.mark.parametrize(("rows", "turned"), [(2, False), (31, False), (32, True), (161, False)])
def test_some_rows_are_transposed(rows: int, turned: bool) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return jax.nn.relu(inputs[0] @ parameters[0])

    arguments = [random(400, 336)], [random(rows, 400)]
    jaxpr = jax.make_jaxpr(optimised(function))(*arguments)
    (product,) = [e for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert product.outvars[0].aval.shape == ((336, rows) if turned else (rows, 336))
    assert_equal(function, *arguments)


@pytest.mark.parametrize(("rows", "width", "turned"), [(8, 24, 0), (24, 256, 0), (32, 256, 1)])
def test_a_loop_keeps_the_layout_of_its_state(rows: int, width: int, turned: int) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        def turn(state: Any, x: Any) -> tuple[Any, Any]:
            a, b = (jax.nn.sigmoid(x + state @ matrix) for matrix in parameters)
            return a * state + b, a

        return lax.scan(turn, jnp.zeros((rows, width)), inputs[0])

    matrices = [random(width, width, seed=seed) / width for seed in range(2)]
    arguments = matrices, [random(5, rows, width)]
    jaxpr = jax.make_jaxpr(optimised(function))(*arguments)
    (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    body = _equations(loop.params["jaxpr"].jaxpr)
    gates = [e for e in body if e.primitive.name in ("add", "mul", "logistic")]
    assert {e.outvars[0].aval.shape for e in gates} == {(rows, width)}
    (product,) = [e for e in body if e.primitive.name == "dot_general"]
    shape = (2 * width, rows) if turned else (rows, 2 * width)
    assert product.outvars[0].aval.shape == shape
    assert_equal(function, *arguments)


@pytest.mark.parametrize("reverse", (False, True))
def test_a_loop_reads_items_first_whose_parts_are_read(reverse: bool) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        def turn(state: Any, items: tuple[Any, Any]) -> tuple[Any, Any]:
            a, b = jnp.split(items[0] + state @ parameters[0], 2, axis=-1)
            state = jax.nn.sigmoid(a) * state + jnp.tanh(b) * items[1]
            return state, state

        return lax.scan(turn, jnp.zeros((4, 3)), (inputs[0], inputs[1]), reverse=reverse)

    arguments = [random(3, 6)], [random(5, 4, 6), random(5, 4, 3, seed=1)]
    jaxpr = jax.make_jaxpr(optimised(function))(*arguments)
    (loop,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    read = [e for e in loop.params["jaxpr"].jaxpr.eqns if e.params.get("name") == "_item"]
    assert [e.outvars[0].aval.shape for e in read] == [(4, 6)]
    compiled = jax.jit(optimised(function)).lower(*arguments).compile().as_text()
    assert " call(" in compiled
    assert_equal(function, *arguments)


def test_a_loop_of_no_steps_reads_no_item() -> None:
    def function(_: Any, inputs: list[Any]) -> Any:
        return lax.scan(lambda y, z: (y * z[:4] + z[4:], y), inputs[0], inputs[1][:0])

    assert_equal(function, [], [random(4), random(3, 8)])


# Batches


def separable(parameters: list[Any], inputs: list[Any]) -> Any:
    x = jax.nn.relu(conv(inputs[0], parameters[0]))
    pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    score = jnp.mean(pooled, (2, 3)) @ parameters[1]
    return jax.nn.softmax(score), jnp.transpose(pooled, (1, 0, 2, 3)), parameters[1] * 2.0


def test_a_large_batch_goes_through_in_chunks() -> None:
    parameters, inputs = [random(64, 3, 3, 3), random(64, 5)], [random(6, 3, 200, 200)]
    chunked = optimised(separable, alone=True)
    assert _lengths(chunked, parameters, inputs)[0] in (3, 6)
    wanted, got = jax.jit(separable)(parameters, inputs), jax.jit(chunked)(parameters, inputs)
    jax.tree.map(assert_close, wanted, got)


def _lengths(function: Callable[..., Any], *arguments: Any) -> list[int]:
    """The lengths of the loops of a function."""
    equations = jax.make_jaxpr(function)(*arguments).eqns
    return [e.params["length"] for e in equations if e.primitive.name == "scan"]


@pytest.mark.parametrize("axis", (0, 1), ids=("first", "second"))
def test_later_layers_take_more_items_at_a_time(axis: int) -> None:
    """What one stage hands on is in its own layout, with the batch along any axis."""

    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        wide, narrow, deep = parameters
        x = jnp.moveaxis(jax.nn.relu(conv(inputs[0], wide)), 0, axis)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 8, 8), (1, 1, 8, 8), "VALID")
        branch = jnp.mean(x, (2, 3))
        for matrix in (narrow, deep, deep, deep):
            x = jnp.moveaxis(conv(jnp.moveaxis(x, axis, 0), matrix), 0, axis)
            x = jax.nn.relu(x) * 2.0 + branch[:, :, None, None]
        return x, branch, deep * 2.0, jnp.float32(1)

    parameters = [random(16, 3, 3, 3), random(16, 16, 3, 3), random(16, 16, 3, 3, seed=1)]
    arguments = parameters, [random(8, 3, 258, 258)]
    chunked = optimised(function, alone=True)
    with without("stacked"):
        assert _lengths(chunked, *arguments) == [4]
        outside = jax.make_jaxpr(chunked)(*arguments).eqns
    later = [e for e in outside if e.primitive.name == "conv_general_dilated"]
    assert [e.invars[0].aval.shape[0] for e in later] == [8] * 4
    wanted, got = function(*arguments), jax.jit(chunked)(*arguments)
    jax.tree.map(assert_close, wanted, got)


def test_stages_of_a_very_large_batch_hand_on_a_part_of_it() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        first, second, matrix = parameters
        x = jax.nn.relu(conv(inputs[0], first))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 8, 8), (1, 1, 8, 8), "VALID")
        for _ in range(6):
            x = jax.nn.relu(conv(x, second)) + x
        return jnp.mean(x, (2, 3)) @ matrix, x[:, :, 0, 0], matrix * 2.0

    parameters = [random(40, 3, 3, 3), random(40, 40, 3, 3) / 20, random(40, 4)]
    arguments = parameters, [random(64, 3, 128, 128)]
    chunked = optimised(function, alone=True)
    (outer,) = (e for e in jax.make_jaxpr(chunked)(*arguments).eqns if e.primitive.name == "scan")
    body = _equations(outer.params["jaxpr"].jaxpr)
    inner = [e.params["length"] for e in body if e.primitive.name == "scan"]
    assert inner and all(1 < n * outer.params["length"] <= 64 for n in inner)
    wanted, got = function(*arguments), jax.jit(chunked)(*arguments)
    jax.tree.map(assert_close, wanted, got)


def test_what_is_the_same_for_all_items_is_as_large_as_a_chunk() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        x = conv(inputs[0], parameters[0])
        token = jnp.broadcast_to(parameters[1], (6, 64, 1, 200))
        shared = jnp.broadcast_to(parameters[1][0], x.shape)
        x = jnp.where(x > 0, x, jnp.zeros_like(x))
        return jnp.concatenate([token, x], axis=2), shared

    arguments = [random(64, 3, 3, 3), random(1, 64, 1, 200)], [random(6, 3, 200, 200)]
    chunked = optimised(function, alone=True)
    names = [e.primitive.name for e in jax.make_jaxpr(chunked)(*arguments).eqns]
    assert "scan" in names
    jax.tree.map(assert_close, function(*arguments), chunked(*arguments))


@pytest.mark.parametrize(
    "mix",
    (
        lambda x: x - jnp.mean(x, 0, keepdims=True),
        lambda x: x[::-1] + x,
        lambda x: jnp.cumsum(x, 0),
        lambda x: jnp.sort(x, 0),
        lambda x: x.reshape(3, 2, *x.shape[1:]).sum(1),
        lambda x: x + jnp.arange(6.0)[:, None, None, None],
        lambda x: jnp.concatenate([x[1:], x[:1]]),
        lambda x: jnp.einsum("bchw,dchw->bdhw", x, x),
        lambda x: (lambda zero: jnp.where(x > 0, x, zero) + jnp.cumsum(zero, 0))(x * 0),
    ),
)
def test_a_batch_whose_items_meet_is_taken_at_once(mix: Callable[[Any], Any]) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        return mix(conv(inputs[0], parameters[0]))

    arguments = [random(64, 3, 3, 3)], [random(6, 3, 200, 200)]
    jaxpr = jax.make_jaxpr(optimised(function, alone=True))(*arguments)
    assert not [e for e in jaxpr.eqns if e.primitive.name == "scan"]


@pytest.mark.parametrize("shape", ((), (1, 3), (0, 3)))
def test_inputs_without_a_batch(shape: tuple[int, ...]) -> None:
    def function(parameters: Any, inputs: list[Any]) -> Any:
        return jnp.broadcast_to(inputs[0], (2, *shape)) + jnp.sum(parameters)

    x = jnp.ones(shape)
    chunked = optimised(function, alone=True)
    assert_close(function(random(2), [x]), chunked(random(2), [x]))


# Models


@pytest.mark.parametrize("name", ("resnet", "vit", "lstm", "unet"))
def test_networks_equal_themselves_as_written(name: str) -> None:
    run = torch_networks.runs(name)[0]
    path = torch_networks.FOLDER / f"{name}.nnef.tgz"
    optimal, literal = (nnef_jax.load(path, optimize=o) for o in (True, False))
    outputs = (torch_networks.by_name(m, m(**run.input)) for m in (literal, optimal))
    jax.tree.map(assert_close, *outputs)
    as_written, optimised_ones = (torch_networks.gradients(m, run) for m in (literal, optimal))
    for wanted, got in zip(as_written, optimised_ones, strict=True):
        assert torch_networks.difference(got, wanted, floor=1e-2) < 1e-5


NETWORK = """
version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [2,3,8,8]);
    f = variable<scalar>(shape = [4,3,3,3], label = 'f');
    c = conv(x, f, padding = [(1,1),(1,1)]);
    r = relu(c);
    y = max_pool(r, size = [1,1,2,2], stride = [1,1,2,2], border = 'ignore');
}
"""


def test_nan_stays() -> None:
    model = model_of(NETWORK, data={"f": np.ones((4, 3, 3, 3), np.float32)})
    x = np.zeros((2, 3, 8, 8), np.float32)
    x[1, 0, 0, 0] = np.nan
    y = np.asarray(model(x))
    assert np.isnan(y[1, :, 0, 0]).all() and np.isnan(y).sum() == 4


def test_inside_other_transformations() -> None:
    model = model_of(NETWORK, data={"f": np.asarray(random(4, 3, 3, 3))})
    x = random(2, 3, 8, 8, seed=1)
    wanted = model(x)
    assert_close(wanted, jax.jit(lambda x: model(x))(x))
    assert_close(wanted, jax.vmap(lambda x: model(x))(x[None])[0])
    assert_close(
        jnp.ones(()), jax.jit(jax.grad(lambda s: jnp.sum(model(x) * s) / wanted.sum()))(1.0)
    )


def test_a_large_batch_of_a_network_goes_in_chunks() -> None:
    text = NETWORK.replace("[2,3,8,8]", "[8,3,256,256]")
    data = {"f": np.asarray(random(4, 3, 3, 3))}
    x = random(8, 3, 256, 256)
    model = model_of(text, data=data)
    assert_close(model_of(text, data=data, optimize=False)(x), model(x))
    (executable,) = model.execution._executables.values()  # pyright: ignore[reportPrivateUsage]
    assert "stablehlo.while" in executable.func.lower(*executable.args, [x]).as_text()
    # Not the zeros of the activation, of which there are as many as items.
    assert all(array.nbytes < 1000 for array in executable.args[0])


def test_a_call_inside_a_traced_function_keeps_nothing_of_it() -> None:
    model = model_of(NETWORK, data={"f": np.asarray(random(4, 3, 3, 3))})
    x = random(2, 3, 8, 8)
    inside = jax.jit(lambda s: model(x) * s)(1.0)
    assert_close(model(x), inside)


def test_names_of_the_document_are_those_of_the_profile() -> None:
    model = model_of(NETWORK, data={"f": np.asarray(random(4, 3, 3, 3))})
    text = model.lower().as_text(debug_info=True)
    assert all(f'"{name}' in text or f"/{name}" in text for name in ("c", "r", "y"))


# Choice by trial


def test_the_fastest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(*seconds: float) -> Callable[[], None]:
        """Take so long at each call, the last time at all that follow."""
        left = [*seconds]

        def call() -> None:
            nonlocal now
            now += left.pop(0) if len(left) > 1 else left[0]

        return call

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(options, "time", clock)
    # The first call does not count; one that was disturbed does not decide.
    assert fastest([work(0.02), work(5.0, 0.5, 0.001), work(0.01)]) == 1
    assert fastest([work(0.02, 0.02, 0.001), work(0.01)]) == 0


@pytest.mark.parametrize("choice", (0, -1))
def test_options_are_chosen_by_trial(
    choice: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def fixed(runs: Any) -> int:
        tried.append([np.asarray(run()) for run in runs])
        return range(len(runs))[choice]

    monkeypatch.setattr(options, "fastest", fixed)
    text = "version 1.0; graph g( x ) -> ( y ) { x = external(shape=[2,3]); y = softmax(x); }"
    x = random(2, 3)
    for folder in (None, tmp_path, tmp_path):  # the last finds what was chosen
        model = model_of(text, autotune=True, cache_dir=folder)
        assert_close(jax.nn.softmax(x, axis=1), model(x))
        assert_close(jax.nn.softmax(x, axis=1), model(x))
    assert len(tried) == 2
    for results in tried:
        assert len(results) == len(options.candidates())
        for result in results:
            assert_close(jax.nn.softmax(x, axis=1), result)


def test_options_for_functions_around_a_network() -> None:
    text = "version 1.0; graph g( x ) -> ( y ) { x = external(shape=[2,3]); y = softmax(x); }"
    model = model_of(text)
    function = jax.jit(lambda x: model.apply({}, x) * 2, compiler_options=model.compiler_options)
    assert_close(2 * jax.nn.softmax(random(2, 3), axis=1), function(random(2, 3)))
    assert model_of(text, optimize=False).compiler_options == {}
