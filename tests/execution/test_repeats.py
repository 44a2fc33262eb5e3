"""Equal steps of a function become a loop, and only those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.cpu import looped
from lowering.prepare import split
from tests.helpers import model_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)


def layers(count: int, width: int = 8) -> list[Any]:
    shapes = ((width, width), (width,)) * count
    return [RNG.standard_normal(shape).astype(np.float32) / 4 for shape in shapes]


def check(function: Any, params: list[Any], inputs: list[Any]) -> tuple[list[int], tuple[Any, ...]]:
    """Compare with the function itself; give the steps of loops, and what was prepared."""
    parts = split(function, params, inputs, rewrite=looped)
    prepared = parts.prepare(params)
    whole, found = function(params, inputs), parts.run(prepared, inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), whole, found)
    jaxpr: Any = jax.make_jaxpr(parts.run)(prepared, inputs).jaxpr
    return lengths(jaxpr), prepared


def lengths(jaxpr: Any) -> list[int]:
    """Return the steps of loops, each before those within it."""
    scans = [e.params for e in jaxpr.eqns if e.primitive.name == "scan"]
    return [n for p in scans for n in (p["length"], *lengths(p["jaxpr"].jaxpr))]


def dense(x: Any, weight: Any, bias: Any) -> Any:
    return jnp.maximum(x @ weight + bias[None], 0)


def test_equal_layers_are_a_loop_over_stacked_parameters() -> None:
    def network(params: Any, inputs: Any) -> Any:
        x = inputs[0] * 2
        for i in range(0, len(params), 2):
            x = dense(x, params[i], params[i + 1])
        return x - 1

    loops, prepared = check(network, layers(12), [X])
    assert loops == [12]
    assert sorted(x.shape for x in prepared) == [(12, 1, 8), (12, 8, 8)]


def test_what_all_steps_read_is_no_part_of_the_loop() -> None:
    def network(params: Any, inputs: Any) -> Any:
        x = jnp.tanh(inputs[0])
        for i in range(0, len(params), 2):
            x = (x @ params[i] + inputs[0]) * params[1][None]
        return x

    assert check(network, layers(10), [X])[0] == [10]


def test_steps_may_hand_on_several_results() -> None:
    def network(params: Any, inputs: Any) -> Any:
        x = y = inputs[0]
        for i in range(0, len(params), 2):
            y = jnp.sin(y)
            x = x + dense(y, params[i], params[i + 1])
        return x, y

    (steps,) = check(network, layers(12), [X])[0]
    assert steps >= 11  # the first may be apart, since both of its values are the input


def test_a_layer_apart_divides_the_loop() -> None:
    def network(params: Any, inputs: Any) -> Any:
        x = inputs[0]
        for i in range(0, len(params), 2):
            x = dense(x, params[i], params[i + 1])
            x = jnp.sin(x) if i == 6 else x
        return x

    assert check(network, layers(14), [X])[0] == [10]


def different(x: Any, params: list[Any]) -> Any:
    for i in range(0, len(params), 2):
        x = x @ params[i] * float(i)
    return x


def two_back(x: Any, params: list[Any]) -> Any:
    older = jnp.sin(x)
    for i in range(0, len(params), 2):
        x, older = older @ params[i], x
    return x + older


def computed(x: Any, params: list[Any]) -> Any:
    """Each step reads another part of what is computed of the input."""
    y = jnp.exp(x)
    for i in range(12):
        x = x * y[i % 4][None]
    return x


def few(x: Any, params: list[Any]) -> Any:
    for i in range(0, 10, 2):
        x = dense(x, params[i], params[i + 1])
    return x


def unused(x: Any, params: list[Any]) -> Any:
    [jnp.tanh(x @ weight) for weight in params[::2]]
    return x + 1


def without_parameters(x: Any, params: list[Any]) -> Any:
    for _ in range(20):
        x = jnp.sin(x) + x
    return x


def read_elsewhere(x: Any, params: list[Any]) -> Any:
    results = [x]
    for i in range(0, len(params), 2):
        results.append(dense(results[-1], params[i], params[i + 1]))
    return results[3], results[-1]


@pytest.mark.parametrize(("rows", "parts"), [(8, [2]), (12, [2]), (16, [4]), (9, []), (64, [])])
def test_a_loop_over_parts_is_handed_to_no_other_thread(rows: int, parts: list[int]) -> None:
    x = RNG.standard_normal((rows, 8)).astype(np.float32)
    params = layers(13)

    def network(params: Any, inputs: Any) -> Any:
        x = inputs[0]
        for i in range(0, len(params), 2):
            x = dense(x, params[i], params[i + 1])
        return x

    loops, prepared = check(network, params, [x])
    assert loops == [*parts, 13]
    run = split(network, params, [x], rewrite=looped).run
    cost: Any = jax.jit(run).lower(prepared, [x]).compile().cost_analysis()
    assert (cost["flops"] < 1000) == bool(parts)


@pytest.mark.parametrize(
    "mixed", [lambda x, _: x - x.mean(0, keepdims=True), lambda x, first: x + first]
)
def test_items_that_read_others_are_no_parts(mixed: Any) -> None:
    """What all parts of the batch read would have to be divided as well."""
    x = RNG.standard_normal((8, 8)).astype(np.float32)

    def network(params: Any, inputs: Any) -> Any:
        x = inputs[0]
        for i in range(0, len(params), 2):
            x = dense(mixed(x, inputs[0]), params[i], params[i + 1])
        return x

    assert check(network, layers(12), [x])[0] in ([12], [11])


@pytest.mark.parametrize("network", [different, computed, few, without_parameters, read_elsewhere])
def test_other_steps_stay_as_they_are(network: Any) -> None:
    assert check(lambda params, inputs: network(inputs[0], params), layers(12), [X])[0] == []


def test_steps_may_be_pairs_of_layers() -> None:
    loops, _ = check(lambda params, inputs: two_back(inputs[0], params), layers(24), [X])
    assert loops[-1] in (12, 11)


def test_a_network_of_equal_layers(tmp_path: Path) -> None:
    lines = ["version 1.0;", "graph net( x0 ) -> ( x12 ) {", "x0 = external(shape = [4, 8]);"]
    data: dict[str, Any] = {}
    for i, (weight, bias) in enumerate(zip(*(layers(12)[k::2] for k in (0, 1)), strict=True)):
        data[f"w{i}"], data[f"b{i}"] = weight, bias[None]
        lines.append(f"w{i} = variable(shape = [8, 8], label = 'w{i}');")
        lines.append(f"b{i} = variable(shape = [1, 8], label = 'b{i}');")
        lines.append(f"y{i} = linear(x{i}, w{i}, b{i}); x{i + 1} = relu(y{i});")
    text = "\n".join((*lines, "}"))
    wanted = model_of(text, data=data, optimize=False)(X)
    for _ in range(2):
        model = model_of(text, data=data, cache_dir=tmp_path)
        np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model_of(text, data=data)(X), wanted, rtol=1e-5, atol=1e-6)
