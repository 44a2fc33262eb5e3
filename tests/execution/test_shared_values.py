"""Prepared values are shared where they are equal and in one place, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import nnef_jax
from lowering.graph import TensorType
from lowering.prepare import prepared
from lowering.program import Program
from lowering.registry import Registry
from lowering.split import split
from lowering.targets import target_of
from tests.helpers import model_of

NET = """version 1.0; extension KHR_enable_fragment_definitions;
fragment change( x: tensor<scalar> ) -> ( y: tensor<scalar> );
graph net(x) -> (y)
{
    x = external(shape = [4,4]);
    w = variable(shape = [4,4], label = 'w');
    h = change(w);
    e = exp(w);
    s = add(h, e);
    y = add(x, s);
}
"""
INNER = """version 1.0;
graph inner(x) -> (y)
{
    x = external(shape = [4,4]);
    v = variable(shape = [4,4], label = 'v');
    y = matmul(x, v);
}
"""
RANDOM = np.random.default_rng(0)
W, X, *TABLES = RANDOM.standard_normal((4, 4, 4)).astype(np.float32)
DEVICES = jax.devices()

Change = Callable[[Any], Any]


class Host:
    """A function on the host, whose repr is that of another one too."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def __call__(self, x: Any) -> Any:
        return np.asarray(x) * self.table

    def __repr__(self) -> str:
        return "Host()"


def in_loop(table: np.ndarray) -> Change:
    array = jnp.asarray(table)
    step = jax.jit(lambda x: x * array)
    return lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=2)[0]


def on_host(table: np.ndarray) -> Change:
    host = Host(table)
    return lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def on_host_in_loop(table: np.ndarray) -> Change:
    step = on_host(table)
    return lambda x: jax.lax.scan(lambda x, _: (step(x), None), x, None, length=2)[0]


def by_model(table: np.ndarray) -> Change:
    return model_of(INNER, data={"v": table})


def by_table(table: np.ndarray) -> Change:
    return lambda x: x + 2 * jnp.asarray(table)


def model(change: Change, operand: str = "w", **options: Any) -> nnef_jax.Model:
    rules = Registry()

    def infer(x: TensorType) -> TensorType:
        return x

    @rules.rule("change", infer)
    def lower(x: Any) -> Any:
        return change(x)

    text = NET.replace("change(w)", f"change({operand})")
    return model_of(text, data={"w": W}, rules=rules, **options)


def expected(change: Change, operand: np.ndarray = W) -> Any:
    return X + change(operand) + np.exp(W)


@pytest.mark.parametrize("kind", [in_loop, on_host, on_host_in_loop, by_table])
def test_functions_that_differ_by_what_they_hold(kind: Callable[[np.ndarray], Change]) -> None:
    held, w = list[Any](), jnp.asarray(W)  # so that values stay
    for table in TABLES:
        change = kind(table)
        closed = jax.make_jaxpr(lambda w, x, change=change: change(w) + x)(w, X)
        parts = split(Program(closed, 1), target_of("cpu"))
        held.append(prepared(parts, [w]))
        (found,) = parts.call(held[-1], [X])
        np.testing.assert_allclose(found, change(w) + X, rtol=1e-5)


@pytest.mark.parametrize("kind", [on_host, by_model])
@pytest.mark.parametrize("optimize", [True, False])
def test_rules_that_differ_by_what_they_hold(
    kind: Callable[[np.ndarray], Change], optimize: bool
) -> None:
    first, second = (model(kind(table), optimize=optimize) for table in TABLES)
    second = second.with_params(first.params)
    for each, table in zip((first, second), TABLES, strict=True):
        packed = each.prepare(each.params, X)
        found = [each(X), jax.jit(lambda x, each=each: each(x))(X), jax.jit(each.apply)(packed, X)]
        for y in found:
            np.testing.assert_allclose(y, expected(kind(table)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimize", [True, False])
def test_random_keys_are_constants(optimize: bool) -> None:
    for key in map(jax.random.key, range(2)):

        def change(x: Any, key: Any = key) -> Any:
            return x * jax.random.normal(key, (4, 4))

        net = model(change, optimize=optimize)
        for run in (net, jax.jit(lambda x, net=net: net(x))):
            np.testing.assert_allclose(run(X), expected(change), rtol=1e-5)


def test_constants_beside_committed_arrays_are_for_these() -> None:
    net = model(by_table(TABLES[0]), "x")
    committed = net.with_params({"w": jax.device_put(W, DEVICES[0])})
    assert committed(X).committed
    y = net(X)
    assert not y.committed
    np.testing.assert_allclose(y, expected(by_table(TABLES[0]), X), rtol=1e-5)


def test_constants_are_on_their_mesh() -> None:
    net, held = model(by_table(TABLES[0]), "x"), list[Any]()
    for devices in (DEVICES[:2], DEVICES[1::-1]):
        held.append(net.shard(Mesh(np.array(devices), "d"), batch="d"))
        np.testing.assert_allclose(held[-1](X), expected(by_table(TABLES[0]), X), rtol=1e-5)


def test_deleted_values_are_computed_again() -> None:
    net = model(by_table(TABLES[0]))
    packed = net.prepare(net.params, X)
    for x in jax.tree.leaves(packed.values):
        x.delete()
    y = jax.jit(net.apply)(net.prepare(net.params, X), X)
    np.testing.assert_allclose(y, expected(by_table(TABLES[0])), rtol=1e-5)


def test_what_is_prepared_for_open_extents_is_read_in_functions_of_users() -> None:
    text = "version 1.0; graph net(x) -> (y) { x = external(shape = [4,512]); " + (
        "w = variable(shape = [512,512], label = 'w'); e = exp(w); y = matmul(x, e); }"
    )
    w, x = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((512, 512), (40, 512)))
    net = model_of(text, data={"w": w}, input_shapes={"x": (None, 512)})
    run = jax.jit(net.apply).lower(net.prepare(net.params, x), x).compile()
    assert "exponential" not in run.as_text()
    y = run(net.prepare(net.params, x), x)
    np.testing.assert_allclose(y, x @ np.exp(w), rtol=1e-4, atol=1e-3)


def test_a_squeezed_weight_is_no_copy() -> None:
    x = jnp.ones((1, 4, 4))
    parts = split(Program(jax.make_jaxpr(lambda w, x: w[0] @ x)(x, x[0]), 1), target_of("cpu"))
    assert parts.sources == (0,)
