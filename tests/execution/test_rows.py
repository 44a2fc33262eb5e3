"""Narrow channels are computed in rows of several positions, and equal what is written."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.cpu.rows import positions_in_row
from tests.programs import optimised, random, split_of


def conv(x: Any, filter: Any, padding: Any, **options: Any) -> Any:
    options = {"window_strides": (1, 1)} | options
    return lax.conv_general_dilated(x, filter, padding=padding, **options)


def excited(parameters: Any, inputs: Any) -> Any:
    """A block that is wide inside, with everything that meets narrow channels."""
    (x,), (wide, bias, window, narrow, wide_window) = inputs, parameters
    y = jax.nn.silu(conv(x, wide, "VALID") + bias)
    y = conv(y, window, [(2, 0), (1, 3)], rhs_dilation=(1, 2), feature_group_count=6)
    y = jax.nn.relu(y + bias)
    y = y * jax.nn.sigmoid(y.mean((2, 3), keepdims=True))
    pooled = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    strided = conv(y, window, "SAME", window_strides=(2, 2), feature_group_count=6)
    mixed = conv(jnp.tanh(y), wide_window, "SAME")
    return (
        conv(y, narrow, "VALID"),
        mixed,
        jnp.tanh(pooled * bias),
        jnp.exp((strided - bias) / 8),  # up to e**6: an error grows by the exponent
        y + x[:, :1],
    )


SHAPES = (6, 3, 1, 1), (1, 6, 1, 1), (6, 1, 3, 3), (2, 6, 1, 1), (6, 6, 3, 3)


def test_rows_equal_what_is_written() -> None:
    parameters = [random(*shape, seed=seed) for seed, shape in enumerate(SHAPES)]
    inputs = [random(8, 3, 30, 26, seed=7)]
    wanted = jax.jit(excited)(parameters, inputs)
    parts = split_of(excited, parameters, inputs)
    prepared = parts.prepare(parameters)
    varying = optimised(excited, alone=True, prepares=False)
    for found in (
        jax.jit(parts.call)(prepared, inputs),
        jax.jit(varying)(parameters, inputs),
    ):
        for got, value in zip(jax.tree.leaves(found), wanted, strict=True):
            atol = 1e-5 * float(jnp.abs(value).max())
            np.testing.assert_allclose(got, value, rtol=0, atol=atol)


def test_loops_are_over_rows() -> None:
    parameters = [random(*shape) for shape in SHAPES]
    inputs = [random(8, 3, 30, 26)]
    parts = split_of(excited, parameters, inputs)
    program = jax.jit(parts.call).lower(parts.prepare(parameters), inputs).compile()
    text = program.as_text() or ""
    # The window's input with its zeros, and what is multiplied by the excitation.
    assert re.search(r"f32\[8,32,180\][^=]* fusion\(", text)
    assert re.search(r"f32\[8,30,1,156\][^=]* fusion\(", text)


def test_factors_of_rows_are_prepared() -> None:
    parameters = [random(*shape) for shape in SHAPES]
    parts = split_of(excited, parameters, [random(8, 3, 30, 26)])
    assert 6 * 26 in [x.size for x in parts.prepare(parameters)]


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ((1, 93, 98, 24), 98),
        ((1, 93, 98, 64), 0),  # loops over channels are of vectors
        ((1, 93, 98, 72), 98),
        ((1, 4000, 8), 1000),
        ((1, 93, 3, 8), 0),  # short: it would be written out as well
        ((1, 14, 14, 24), 0),  # little work
        ((1, 0, 7, 8), 0),
        ((24, 24), 0),
    ],
)
def test_a_row_has_as_many_positions_as_pay(shape: tuple[int, ...], row: int) -> None:
    assert positions_in_row(shape) == row


@pytest.mark.parametrize(("channels", "places"), [(128, 128), (64, 128)])
def test_a_map_of_places_meets_a_gate_of_channels(channels: int, places: int) -> None:
    """Neither is of the result's shape, and extents that are equal by chance are not the same."""

    def function(parameters: Any, inputs: Any) -> Any:
        x, gate = inputs
        return jax.nn.sigmoid(conv(x, parameters[0], "VALID")) * gate

    parameters = [random(1, 4, 1, 1)]
    inputs = [random(1, 4, 128, places, seed=1), random(1, channels, 1, 1, seed=2)]
    wanted = jax.jit(function)(parameters, inputs)
    found = jax.jit(optimised(function, alone=True))(parameters, inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
