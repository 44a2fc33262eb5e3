"""Scales and offsets after a convolution are in its filter and bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from lowering.kernels.levels import noted
from lowering.passes import folding
from tests.lowering.passes.programs import changed, names, program, random

W, S, X = random(5, 3, 3, 3), random(1, 5, 1, 1, seed=1), random(2, 3, 6, 6, seed=2)
CONV = "conv_general_dilated"


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def test_scales_and_offsets_are_one_bias() -> None:
    def function(w: Any, s: Any, x: Any) -> Any:
        return (((conv(x, w) + s) * 2 - s) / s.reshape(5)[None, :, None, None] + 1) * s

    before = program(function, W, S, X, parameters=2)
    assert names(changed(folding.run, before, W, S, X)) == [CONV, "add"]


def test_what_is_read_twice_varies_or_is_no_factor_of_channels_stays() -> None:
    def twice(w: Any, s: Any, x: Any) -> Any:
        y = conv(x, w)
        return y * s, jnp.sin(y)

    def varies(w: Any, s: Any, x: Any) -> Any:
        return conv(x, w) * x[:, :1]

    def rows(w: Any, s: Any, x: Any) -> Any:
        return conv(x, w) * w[0, 0, 0, 0] * jnp.arange(6.0).reshape(1, 1, 1, 6) * s[0, 0, 0, 0]

    for function in (twice, varies):
        before = program(function, W, S, X, parameters=2)
        assert folding.run(before, None).closed is before.closed  # pyright: ignore
    assert "mul" in names(changed(folding.run, program(rows, W, S, X, parameters=2), W, S, X))


def test_a_filter_that_varies_is_scaled_if_it_is_small() -> None:
    def function(w: Any, s: Any, x: Any) -> Any:
        return conv(x, w) * s

    for x, is_scaled in ((X, True), (X[:1, :, :2, :2], False)):
        before = replace(program(function, W, S, x, parameters=2), prepares=False)
        scaled = changed(folding.run, before, W, S, x).makers
        (product,) = [e for v, e in scaled.items() if e.primitive.name == "mul"]
        assert (product.outvars[0].aval.shape == W.shape) == is_scaled


def test_a_filter_of_levels_stays_one() -> None:
    def function(w: Any, s: Any, x: Any) -> Any:
        return conv(x, noted(w, jnp.round(w), 1.0, 0.0, -8, 7)) * s

    before = program(function, W, S, X, parameters=2)
    assert folding.run(before, None) is before  # pyright: ignore
