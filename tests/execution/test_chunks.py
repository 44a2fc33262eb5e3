"""A large batch goes through a network a few items at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.contexts import disabled
from nnef_jax.execution.runnable import execution_of
from tests.helpers import model_of
from tests.programs import (
    Function,
    assert_same,
    equations,
    made_of,
    optimised,
    pooling_network,
    random,
)


def conv(x: Any, filter: Any) -> Any:
    return lax.conv_general_dilated(x, filter, (1, 1), [(1, 1), (1, 1)])


def pooled(x: Any, size: int) -> Any:
    sides = (1, 1, size, size)
    return lax.reduce_window(x, -np.inf, lax.max, sides, sides, "VALID")


def lengths(made: list[Any]) -> list[int]:
    """The lengths of loops."""
    return [e.params["length"] for e in made if e.primitive.name == "scan"]


slowly = pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.slow)])


def assert_equal(function: Function, *arguments: Any) -> None:
    chunked = optimised(function, alone=True)
    assert_same(*jax.jit(lambda *x: (function(*x), chunked(*x)))(*arguments))


def test_a_large_batch_goes_through_in_chunks() -> None:
    def separable(parameters: list[Any], inputs: list[Any]) -> Any:
        y = pooled(jax.nn.relu(conv(inputs[0], parameters[0])), 2)
        score = jnp.mean(y, (2, 3)) @ parameters[1]
        return jax.nn.softmax(score), jnp.transpose(y, (1, 0, 2, 3)), parameters[1] * 2.0

    arguments = [random(64, 3, 3, 3), random(64, 5)], [random(6, 3, 200, 200)]
    assert lengths(made_of(separable, *arguments, alone=True))[0] in (3, 6)
    assert_equal(separable, *arguments)


@pytest.mark.parametrize(
    ("axis", "runs"), [(0, False), (1, True), pytest.param(0, True, marks=pytest.mark.slow)]
)
def test_later_layers_take_more_items_at_a_time(axis: int, runs: bool) -> None:
    """What one stage hands on is in its own layout, with the batch along any axis."""

    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        wide, narrow, deep = parameters
        x = pooled(jnp.moveaxis(jax.nn.relu(conv(inputs[0], wide)), 0, axis), 8)
        branch = jnp.mean(x, (2, 3))
        for matrix in (narrow, deep, deep, deep):
            x = jnp.moveaxis(conv(jnp.moveaxis(x, axis, 0), matrix), 0, axis)
            x = jax.nn.relu(x) * 2.0 + branch[:, :, None, None]
        return x, branch, deep * 2.0, jnp.float32(1)

    parameters = [random(16, 3, 3, 3), random(16, 16, 3, 3), random(16, 16, 3, 3, seed=1)]
    arguments = parameters, [random(8, 3, 258, 258)]
    with disabled("stacked"):
        made = jax.make_jaxpr(optimised(function, alone=True))(*arguments).eqns
    assert lengths(made) == [4]
    later = [e for e in made if e.primitive.name == "conv_general_dilated"]
    assert [e.invars[0].aval.shape[0] for e in later] == [8] * 4
    if runs:
        assert_equal(function, *arguments)


@slowly
def test_stages_of_a_very_large_batch_hand_on_a_part_of_it(runs: bool) -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        first, second, matrix = parameters
        x = pooled(jax.nn.relu(conv(inputs[0], first)), 8)
        for _ in range(6):
            x = jax.nn.relu(conv(x, second)) + x
        return jnp.mean(x, (2, 3)) @ matrix, x[:, :, 0, 0], matrix * 2.0

    parameters = [random(40, 3, 3, 3), random(40, 40, 3, 3) / 20, random(40, 4)]
    arguments = parameters, [random(64, 3, 128, 128)]
    made = jax.make_jaxpr(optimised(function, alone=True))(*arguments).eqns
    (outer,) = (e for e in made if e.primitive.name == "scan")
    inner = lengths(equations(outer.params["jaxpr"].jaxpr))
    assert inner and all(1 < n * outer.params["length"] <= 64 for n in inner)
    if runs:
        assert_equal(function, *arguments)


def test_what_is_the_same_for_all_items_is_as_large_as_a_chunk() -> None:
    def function(parameters: list[Any], inputs: list[Any]) -> Any:
        x = conv(inputs[0], parameters[0])
        token = jnp.broadcast_to(parameters[1], (6, 64, 1, 100))
        shared = jnp.broadcast_to(parameters[1][0], x.shape)
        x = jnp.where(x > 0, x, jnp.zeros_like(x))
        return jnp.concatenate([token, x], axis=2), shared

    arguments = [random(64, 3, 3, 3), random(1, 64, 1, 100)], [random(6, 3, 200, 100)]
    assert lengths(made_of(function, *arguments, alone=True))
    assert_equal(function, *arguments)


MEETING: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x - jnp.mean(x, 0, keepdims=True),
    "reversed": lambda x: x[::-1] + x,
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "sorted": lambda x: jnp.sort(x, 0),
    "parts": lambda x: x.reshape(3, 2, *x.shape[1:]).sum(1),
    "counted": lambda x: x + jnp.arange(6.0)[:, None, None, None],
    "moved": lambda x: jnp.concatenate([x[1:], x[:1]]),
    "product": lambda x: jnp.einsum("bchw,dchw->bdhw", x, x),
    "zeros": lambda x: (lambda zero: jnp.where(x > 0, x, zero) + jnp.cumsum(zero, 0))(x * 0),
}


def test_a_batch_whose_items_meet_is_taken_at_once() -> None:
    arguments = [random(64, 3, 3, 3)], [random(6, 3, 200, 200)]
    parted = [
        name
        for name, mix in MEETING.items()
        if lengths(made_of(lambda p, x, mix=mix: mix(conv(x[0], p[0])), *arguments, alone=True))
    ]
    assert not parted


def test_inputs_without_a_batch() -> None:
    for shape in ((), (1, 3), (0, 3)):

        def function(parameters: Any, inputs: list[Any], shape: Any = shape) -> Any:
            return jnp.broadcast_to(inputs[0], (2, *shape)) + jnp.sum(parameters)

        assert_equal(function, random(2), [np.ones(shape, np.float32)])


def test_a_large_batch_of_a_network_goes_in_chunks() -> None:
    text = pooling_network(8, 3, 256, 256)
    data, x = {"f": np.asarray(random(4, 3, 3, 3))}, random(8, 3, 256, 256)
    model = model_of(text, data=data)
    assert_same(model_of(text, data=data, optimize=False)(x), model(x))
    executable = execution_of(model).executable_for((x,))
    assert executable is not None
    assert "stablehlo.while" in executable.func.lower(*executable.args, [x]).as_text()
    # Not the zeros of the activation, of which there are as many as items.
    assert all(array.nbytes < 1000 for array in executable.args[0])
