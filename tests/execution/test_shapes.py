"""Models that have the shapes of their parameters only: of `parameters="shapes"`, or of a mesh."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

import nnef_jax
from nnef_jax import InputError
from tests.llama import llama

DIGITS = "examples/digits/model"
IMAGES = np.random.default_rng(0).uniform(size=(4, 1, 8, 8)).astype(np.float32)
MESH = AbstractMesh((2, 2), ("data", "model"), abstract_device=AbstractDevice("x", None, "tpu"))


@pytest.fixture(scope="module")
def full() -> nnef_jax.Model:
    return nnef_jax.load(DIGITS)


@pytest.fixture(scope="module")
def abstract() -> nnef_jax.Model:
    return nnef_jax.load(DIGITS, parameters="shapes")


def test_parameters_are_types(abstract: nnef_jax.Model, full: nnef_jax.Model) -> None:
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), full.params)
    assert abstract.params == types
    assert str(abstract.summary()) == str(full.summary())


def test_arrays_make_it_a_model_that_computes(
    abstract: nnef_jax.Model, full: nnef_jax.Model
) -> None:
    np.testing.assert_array_equal(abstract.with_params(full.params)(IMAGES), full(IMAGES))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), abstract)
    assert zeros(IMAGES).shape == (4, 10)
    np.testing.assert_array_equal(
        abstract.apply(full.params, IMAGES), full.apply(full.params, IMAGES)
    )


def test_it_is_traced_lowered_and_pickled(abstract: nnef_jax.Model, full: nnef_jax.Model) -> None:
    assert jax.eval_shape(abstract.apply, abstract.params, IMAGES).shape == (4, 10)
    assert abstract.lower(IMAGES).as_text() == full.lower(IMAGES).as_text()
    assert pickle.loads(pickle.dumps(abstract)).params == abstract.params
    assert nnef_jax.cost(abstract, IMAGES).flops == nnef_jax.cost(full, IMAGES).flops
    assert nnef_jax.view(abstract).data["totals"]["parameters"] == 9930


USES: dict[str, Callable[[Any, Path], Any]] = {
    "call": lambda model, _: model(IMAGES),
    "jit": lambda model, _: jax.jit(model)(IMAGES),
    "intermediates": lambda model, _: model.intermediates(IMAGES),
    "cut": lambda model, _: model.cut(outputs=["relu1"])(IMAGES),
    "batcher": lambda model, _: model.batcher((1, 2))(IMAGES),
    "options": lambda model, _: model.with_options(precision="highest")(IMAGES),
    "mesh": lambda model, _: model.shard(MESH, batch="data")(IMAGES),
    "save": lambda model, folder: model.save(folder / "net.nnef.tgz"),
    "export": lambda model, folder: model.export(folder / "net.npz"),
    "benchmark": lambda model, _: nnef_jax.benchmark(model, IMAGES),
    "profile": lambda model, _: nnef_jax.profile(model, IMAGES),
    "statistics": lambda model, _: nnef_jax.weight_statistics(model),
    "diff": lambda model, _: nnef_jax.diff(model, DIGITS),
    "calibrate": lambda model, _: nnef_jax.calibrate(model, [IMAGES]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_needs_arrays_says_so(
    abstract: nnef_jax.Model, use: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="'digits' has the shapes of its parameters"):
        use(abstract, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_an_unknown_word() -> None:
    with pytest.raises(ValueError, match="parameters must be 'arrays' or 'shapes'"):
        nnef_jax.load(DIGITS, parameters="none")  # pyright: ignore[reportArgumentType]


def test_a_mesh_of_no_attached_devices_has_a_plan(
    abstract: nnef_jax.Model, full: nnef_jax.Model
) -> None:
    for model in (abstract, full):
        sharded = model.shard(MESH, batch="data", params="model")
        assert str(sharded.plan) and sharded.plan is not None
        labels = {row.parameter for row in sharded.plan if any(row.sharding)}
        assert labels == {"conv2_filter", "linear_filter"}  # 1024 items or more
        specs = {x: sharded.params[x].sharding.spec for x in labels}
        assert specs == {x.parameter: x.sharding for x in sharded.plan if x.parameter in labels}


def test_it_is_lowered_for_a_mesh(abstract: nnef_jax.Model) -> None:
    sharded = abstract.shard(MESH, batch="data", params="model")
    traced = jax.jit(sharded.apply).trace(
        sharded.params, jax.ShapeDtypeStruct(IMAGES.shape, IMAGES.dtype)
    )
    assert "mhlo.num_partitions = 4" in traced.lower(lowering_platforms=("tpu",)).as_text()


def test_fully_sharded_patch_embeddings_are_products(tmp_path: Path) -> None:
    text = """version 1.0; graph patches(image) -> (y) {
        image = external(shape = [4,3,16,16]);
        w = variable(shape = [8,3,8,8], label = 'w');
        y = conv(image, w, 0.0, stride = [8,8], padding = [(0,0),(0,0)]); }"""
    (tmp_path / "graph.nnef").write_text(text)
    model = nnef_jax.load(tmp_path, parameters="shapes").shard(MESH, batch="data", params="data")
    assert model.params["w"].sharding.spec

    def gradient(params: Any, x: Any) -> Any:
        return jax.grad(lambda params: jnp.sum(model.apply(params, x) ** 2))(params)

    image = jax.ShapeDtypeStruct((4, 3, 16, 16), jnp.float32)
    assert "conv_general_dilated" not in str(jax.make_jaxpr(gradient)(model.params, image))


def test_a_document_of_seven_billion_parameters_needs_no_files(tmp_path: Path) -> None:
    (tmp_path / "graph.nnef").write_text(llama())
    model = nnef_jax.load(tmp_path, parameters="shapes", dtype="bfloat16")
    assert sum(x.size for x in model.params.values()) == 6_738_808_832
    plan = model.shard(MESH, params="model").plan
    assert plan is not None and sum(any(row.sharding) for row in plan) == 226
