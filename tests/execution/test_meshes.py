"""Batches that are sharded over a mesh, of Auto and of Explicit axes: no result is gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from tests.helpers import model_of
from tests.mesh_support import (
    BATCH,
    WIDTH,
    assert_close,
    collectives,
    lstm,
    put,
    result_and_collectives,
)

ALONG, WHOLE = PartitionSpec("batch"), PartitionSpec()
RANDOM = np.random.default_rng(0)
XS = RANDOM.standard_normal((3, BATCH, WIDTH)).astype(np.float32)
# A batch of this size is taken a few items at a time on one device.
IMAGES = RANDOM.standard_normal((64, 1, 8, 8)).astype(np.float32)


@pytest.fixture(params=(AxisType.Auto, AxisType.Explicit), ids=("auto", "explicit"))
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return jax.make_mesh((2,), ("batch",), axis_types=(request.param,))


@pytest.fixture(scope="module")
def digits() -> nnef_jax.Model:
    return nnef_jax.load("examples/digits/model")


@pytest.fixture(scope="module")
def recurrent() -> nnef_jax.Model:
    return lstm()


def assert_along(array: Any, mesh: Mesh, *axes: Any) -> None:
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    assert array.sharding.is_equivalent_to(sharding, array.ndim), array.sharding


def test_a_call_gathers_nothing(digits: nnef_jax.Model, mesh: Mesh) -> None:
    wanted = digits(IMAGES)
    images = put(IMAGES, mesh, "batch")
    jitted, moved = result_and_collectives(
        lambda params, x: (digits(x), digits.apply(params, x)), digits.params, images
    )
    assert moved == {}
    for probabilities in (digits(images), digits.apply(digits.params, images), *jitted):
        assert_close(probabilities, wanted)
        assert_along(probabilities, mesh, "batch")
    executable = execution_of(digits).executable_for((images,))
    if executable is not None:
        assert collectives(executable.func, *executable.args, [images]) == {}


def test_shards_by_other_means(digits: nnef_jax.Model, mesh: Mesh) -> None:
    wanted, params = digits(IMAGES), digits.params
    place, whole = NamedSharding(mesh, ALONG), NamedSharding(mesh, WHOLE)
    given = jax.jit(digits.apply, in_shardings=(whole, place))(params, IMAGES)
    mapped = jax.jit(
        jax.shard_map(digits.apply, mesh=mesh, in_specs=(WHOLE, ALONG), out_specs=ALONG)
    )
    with jax.set_mesh(mesh):
        results = given, mapped(params, put(IMAGES, mesh, "batch")), digits(IMAGES)
    for probabilities, axis in zip(results, ("batch", "batch", None), strict=True):
        assert_close(probabilities, wanted)
        assert_along(probabilities, mesh, axis)


@pytest.fixture(scope="module")
def gradient(digits: nnef_jax.Model) -> tuple[Callable[..., Any], Any]:
    """The gradient of a loss, and what it is of the images on one device."""

    def loss(params: Any, images: Any) -> jax.Array:
        return jnp.square(digits.apply(params, images)).sum(axis=1).mean()

    found = jax.jit(jax.grad(loss))
    return found, found(digits.params, IMAGES)


def test_gradients_are_summed_over_devices(
    digits: nnef_jax.Model, gradient: tuple[Callable[..., Any], Any], mesh: Mesh
) -> None:
    function, wanted = gradient
    found, moved = result_and_collectives(function, digits.params, put(IMAGES, mesh, "batch"))
    assert_close(found, wanted)
    assert set(moved) == {"all-reduce"}


def test_cycles_keep_the_sharding_of_the_state(recurrent: nnef_jax.Model, mesh: Mesh) -> None:
    state = recurrent.init_state()
    ys, last = recurrent.scan(XS, state=state)
    sharded = jax.tree.map(lambda x: put(x, mesh, "batch"), state)
    found, after = recurrent.scan(put(XS, mesh, None, "batch"), state=sharded)
    assert_close((found, after), (ys, last))
    assert_along(found, mesh, None, "batch")
    for x, y in zip(XS, ys, strict=True):
        found, sharded = recurrent.step(sharded, put(x, mesh, "batch"))
        assert_close(found, y)
    assert_close(sharded, last)
    for array in (found, *after.values(), *sharded.values()):
        assert_along(array, mesh, "batch")
    # The stored state is on one device.
    assert_close(recurrent(put(XS[0], mesh, "batch")), ys[0])
    assert_close(recurrent.step(state, put(XS[0], mesh, "batch"))[0], ys[0])


def test_captures_are_sharded_as_the_batch(recurrent: nnef_jax.Model, mesh: Mesh) -> None:
    x, names = put(XS[0], mesh, "batch"), ["new_h", "kept"]
    outputs, inside = recurrent(x, edit={"new_c": jnp.zeros_like}, capture=names)
    assert_along(inside["new_h"], mesh, "batch")
    np.testing.assert_array_equal(outputs, np.zeros_like(outputs))
    assert_close(recurrent.intermediates(x), recurrent.intermediates(XS[0]))


def test_mapped_axes_may_be_sharded(digits: nnef_jax.Model, mesh: Mesh) -> None:
    stacked = IMAGES.reshape(2, 32, 1, 8, 8)
    found = jax.vmap(digits)(put(stacked, mesh, "batch"))
    assert_close(found, digits(IMAGES).reshape(2, 32, 10))
    assert_along(found, mesh, "batch")


def test_results_without_the_batch_are_whole(mesh: Mesh) -> None:
    text = """version 1.0;
graph sums(x) -> (rows, columns, total)
{
    x = external(shape = [4,6]);
    rows = sum_reduce(x, axes = [1]);
    columns = sum_reduce(x, axes = [0]);
    total = squeeze(sum_reduce(x, axes = [0,1]), axes = [0,1]);
}
"""
    model, x = model_of(text), np.arange(24, dtype=np.float32).reshape(4, 6)
    found = model(put(x, mesh, "batch"))
    assert_close(found, (x.sum(1, keepdims=True), x.sum(0, keepdims=True), x.sum()))
    assert_along(found.rows, mesh, "batch")
    assert found.columns.is_fully_replicated and found.total.is_fully_replicated
    assert_close(model(put(x, mesh, None, "batch")), found)
