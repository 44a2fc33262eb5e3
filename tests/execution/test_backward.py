"""Kernels of backward passes: in value as what is written, and computed as intended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.cpu.products import over_rows
from lowering.cpu.rereads import reread
from lowering.emit import network
from lowering.program import Program, Role
from tests.programs import random


def assert_close(got: Any, wanted: Any) -> None:
    """Within 1e-5 of the largest item of each array."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        scale = max(float(np.max(np.abs(y), initial=0)), 1e-3)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * scale)


ALL = ("each", "second", "along")


def assert_as_written(
    function: Callable[[Any, Any], Any], parameters: Any, x: Any, more: Sequence[str] = ()
) -> None:
    """Compare the gradients, and `more`: those of batches, of gradients, and tangents."""

    def results(f: Callable[[Any, Any], Any], parameters: Any, x: Any) -> Any:
        def loss(p: Any, x: Any) -> Any:
            return jnp.sum(jnp.sin(f(p, x)))

        gradient = jax.grad(loss, (0, 1))
        made: dict[str, Callable[[Any, Any], Any]] = {
            "each": lambda p, x: jax.vmap(gradient, (None, 0))(p, jnp.stack([x, 2 * x])),
            "second": jax.grad(lambda p, x: jnp.sum(jnp.sin(jax.grad(loss, 1)(p, x)))),
            "along": lambda p, x: jax.jvp(gradient, (p, x), (p, x))[1],
        }
        return [g(parameters, x) for g in (gradient, *(made[name] for name in more))]

    run = jax.jit(lambda *x: [results(f, *x) for f in (network(function), function)])
    assert_close(*run(parameters, x))


@pytest.mark.parametrize(
    ("rows", "left", "right"),
    (
        (1024, 96, 32),
        (1024, 32, 96),
        (1089, 40, 8),
        (256, 3, 5),
        (255, 5, 3),
        (257, 5, 3),
        (0, 2, 3),
    ),
)
def test_outer_products_of_rows_are_summed(rows: int, left: int, right: int) -> None:
    x, y = random(rows, left), random(rows, right, seed=1)
    wanted = np.asarray(x, np.float64).T @ np.asarray(y, np.float64)
    np.testing.assert_allclose(
        jax.jit(partial(over_rows, is_alone=True))(x, y), wanted, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("is_turned", "more"),
    [(True, ["each"]), (False, []), pytest.param(True, ALL, marks=pytest.mark.slow)],
)
def test_gradients_of_matrices(is_turned: bool, more: Sequence[str]) -> None:
    def function(matrices: list[Any], x: Any) -> Any:
        x = jnp.swapaxes(x, 1, 3) if is_turned else x
        x = jnp.tanh(x @ matrices[0])
        return jnp.einsum("nhwc,oc->nhwo", x, matrices[1])

    parameters, x = [random(24, 96) / 5, random(16, 96) / 5], random(4, 24, 12, 24, seed=1)
    assert_as_written(function, parameters, x, more)
    gradient = jax.grad(lambda p, x: jnp.sum(jnp.sin(network(function)(p, x))))
    text = jax.jit(gradient).lower(parameters, x).as_text()
    products = re.findall(r"stablehlo.dot_general .*batching_dims = \[0\] x \[0\]", text)
    assert len(products) == 2, text


@pytest.mark.parametrize("is_left", (True, False))
def test_sums_of_products_of_no_columns(is_left: bool) -> None:
    def function(_: Any, x: Any) -> Any:
        left, right = (x[..., :0], x) if is_left else (x, x[..., :0])
        return lax.dot_general(left, right, (((0, 1), (0, 1)), ((), ())))

    found = jax.jit(network(function))(None, random(2, 5, 3))
    assert found.shape == ((0, 3) if is_left else (3, 0))


def test_what_several_products_read_is_computed_once() -> None:
    def function(w: Any, x: Any) -> Any:
        several = jnp.tanh(x)  # by a product of rows, and as what is summed over rows
        once = jnp.sin(several @ w)
        small = jnp.cos(x[:1])
        products = several.reshape(-1, 32).T @ once.reshape(-1, 32), small @ w, small[0].T @ x[0]
        kept = jnp.log1p(x)  # by a convolution, and a backward pass
        window = lax.conv(kept[:, None], w[None, None], (1, 1), "VALID")
        return *products, jnp.exp(x) + 1, once, kept, window

    closed = jax.make_jaxpr(function)(random(32, 32), random(64, 32, 32))
    roles: tuple[Role, ...] = ("value", "forward", "backward")
    results = {role: reread(Program(closed, role=role)) for role in roles}
    made = {v: e.primitive.name for e in closed.eqns for v in e.outvars}
    names = {role: {made[v] for v in found} for role, found in results.items()}
    assert names["value"] == names["backward"] == {"tanh"}
    assert names["forward"] == {"tanh", "sin", "log1p"}


@pytest.mark.parametrize(
    ("shape", "filter", "groups"),
    (
        ((4, 24, 24, 32), (3, 3, 4, 32), 8),  # two items at a time, two blocks of four groups
        ((3, 9, 7, 12), (3, 2, 2, 24), 6),  # all groups at once, one item at a time
        ((2, 8, 8, 64), (3, 3, 32, 64), 2),  # wide: by themselves
    ),
)
def test_gradients_of_groups(
    shape: tuple[int, ...], filter: tuple[int, ...], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lowering.cpu.groups._MOST_BYTES_AT_A_TIME", 1)

    def function(filter: Any, x: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            filter,
            (2, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    more = ALL if groups == 6 else ()
    assert_as_written(function, random(*filter) / 5, random(*shape, seed=1), more)
