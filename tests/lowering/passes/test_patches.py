"""Gradients of filters whose windows do not overlap are products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from lowering.passes import patches
from lowering.program import Program
from lowering.targets import mesh_target, target_of
from tests.lowering.passes.programs import changed, names, program, random

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")


def gradient_of(numbers: Any, strides: Sequence[int], **options: Any) -> Any:
    """The gradient of a filter, as jax writes it."""

    def gradient(filter: Any, x: Any) -> Any:
        def loss(filter: Any) -> Any:
            y = lax.conv_general_dilated(
                x, filter, strides, "VALID", dimension_numbers=numbers, **options
            )
            return jnp.sum(jnp.sin(y))

        return jax.grad(loss)(filter)

    return gradient


PATCHES = pytest.mark.parametrize(
    ("numbers", "filter", "x", "strides"),
    [
        (FIRST, (5, 3, 4, 4), (2, 3, 8, 12), (4, 4)),
        (FIRST, (5, 3, 4, 2), (2, 3, 11, 9), (4, 2)),  # items after the last patch
        (FIRST, (5, 3, 4, 1), (2, 3, 8, 3), (4, 1)),
        (FIRST, (5, 3, 4, 4), (2, 3, 4, 4), (4, 4)),  # a single patch
        (LAST, (4, 4, 3, 5), (2, 8, 12, 3), (4, 4)),
        (("NCH", "OIH", "NCH"), (5, 3, 4), (2, 3, 10), (4,)),
        (("NCDHW", "OIDHW", "NDHWC"), (5, 3, 2, 3, 4), (2, 3, 4, 6, 8), (2, 3, 4)),
    ],
)


@PATCHES
def test_gradients(
    numbers: Any, filter: Sequence[int], x: Sequence[int], strides: Sequence[int]
) -> None:
    arguments = random(*filter), random(*x, seed=1)
    before = program(gradient_of(numbers, strides), *arguments)
    after = names(changed(patches.run, before, *arguments))
    assert after.count("dot_general") == 1
    assert after.count("conv_general_dilated") == 1  # the forward one stays


@PATCHES
def test_embeddings_before_derivatives(
    numbers: Any, filter: Sequence[int], x: Sequence[int], strides: Sequence[int]
) -> None:
    def embedding(filter: Any, x: Any) -> Any:
        return lax.conv_general_dilated(x, filter, strides, "VALID", dimension_numbers=numbers)

    def run(program: Program, _: Any) -> Program:
        return patches.run(program, mesh_target("tpu"))

    arguments = random(*filter), random(*x, seed=1)
    after = names(changed(run, program(embedding, *arguments), *arguments))
    assert after.count("dot_general") == 1
    assert "conv_general_dilated" not in after


@pytest.mark.parametrize(
    ("filter", "x", "strides", "options"),
    [
        ((5, 3, 3, 3), (2, 3, 9, 9), (2, 2), {}),  # windows that overlap
        ((5, 3, 2, 2), (2, 3, 9, 9), (4, 4), {}),  # gaps between windows
        ((6, 1, 4, 4), (2, 3, 8, 8), (4, 4), {"feature_group_count": 3}),
        ((5, 3, 4, 4), (2, 3, 16, 16), (4, 4), {"rhs_dilation": (2, 2)}),
        ((5, 3, 1, 1), (2, 3, 8, 8), (1, 1), {}),
        ((5, 8, 2, 2), (2, 8, 4, 4), (2, 2), {}),  # many channels
    ],
)
def test_other_gradients_stay(
    filter: Sequence[int], x: Sequence[int], strides: Sequence[int], options: Any
) -> None:
    before = program(gradient_of(FIRST, strides, **options), random(*filter), random(*x))
    assert "dot_general" not in names(patches.run(before, target_of("tpu")))
