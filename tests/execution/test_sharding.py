"""Models over a mesh of devices: `Model.shard`."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import nnef_jax
from nnef_jax.errors import InputError
from nnef_jax.execution.runnable import execution_of
from tests import torch_networks
from tests.helpers import COMPOSITIONAL, model_of
from tests.mesh_support import (
    BATCH,
    HIDDEN,
    WIDTH,
    assert_close,
    collectives,
    lstm,
    put,
    result_and_collectives,
)
from tests.parallel_networks import transformer

P = PartitionSpec
ROOT = Path(__file__).resolve().parents[2]
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.standard_normal((8, 1, 8, 8)).astype(np.float32)
XS = RANDOM.standard_normal((3, BATCH, WIDTH)).astype(np.float32)


def over_eight_devices(*arguments: str) -> dict[str, str]:
    """Return what went wrong by check."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    result = subprocess.run(
        [sys.executable, "-m", "tests.eight_devices", *arguments],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def assert_all_right(found: dict[str, str]) -> None:
    wrong = {name: trace for name, trace in found.items() if trace}
    assert found and not wrong, "\n".join(f"{name}\n{trace}" for name, trace in wrong.items())


def test_eight_devices_compute_what_one_does() -> None:
    assert_all_right(over_eight_devices())


@pytest.mark.slow
def test_all_networks_on_all_meshes() -> None:
    assert_all_right(over_eight_devices("all"))


@pytest.fixture(params=(AxisType.Auto, AxisType.Explicit), ids=("auto", "explicit"))
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return jax.make_mesh((1, 2), ("data", "model"), axis_types=(request.param,) * 2)


@pytest.fixture
def auto() -> Mesh:
    return jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="module")
def digits() -> nnef_jax.Model:
    return nnef_jax.load(ROOT / "examples" / "digits" / "model")


def shard_shape(array: jax.Array) -> tuple[int, ...]:
    return array.addressable_shards[0].data.shape


def test_parameters_go_to_their_devices_alone(digits: nnef_jax.Model, mesh: Mesh) -> None:
    model = nnef_jax.load(ROOT / "examples" / "digits" / "model")
    stored = {label: np.asarray(x) for label, x in digits.params.items()}
    sharded = model.shard(mesh, params="model")
    shapes = {label: shard_shape(x) for label, x in sharded.params.items()}
    assert shapes == {label: x.shape for label, x in stored.items()} | {
        "conv2_filter": (16, 16, 3, 3),
        "linear_filter": (10, 256),
    }
    assert_close(sharded.params, stored, 0)
    # Nothing has put them on a device as a whole.
    assert all(isinstance(execution_of(model).arrays.stored(label), np.ndarray) for label in stored)


def test_transformed_models_stay_on_the_mesh(digits: nnef_jax.Model, mesh: Mesh) -> None:
    sharded = digits.shard(mesh, batch="data", params="model")
    params = {label: np.asarray(x) / 2 for label, x in digits.params.items()}
    wanted = digits.with_params(params)(IMAGES)
    with jax.set_mesh(mesh):
        halved = jax.jit(lambda model: jax.tree.map(lambda x: x / 2, model))(sharded)
    given = sharded.with_params(params)
    for model in (halved, given):
        assert shard_shape(model.params["linear_filter"]) == (10, 256)
        assert_close(model(IMAGES), wanted)
        assert_close(jax.jit(lambda model, x: model(x))(model, IMAGES), wanted)
    assert_close(sharded.apply(params, IMAGES), wanted)
    again = digits.with_params(params).shard(mesh, params="model").shard(mesh, batch="data")
    assert shard_shape(again.params["linear_filter"]) == (10, 512)
    assert_close(again(IMAGES), wanted)


def test_copies_and_files_are_whole(digits: nnef_jax.Model, mesh: Mesh, tmp_path: Path) -> None:
    sharded = digits.shard(mesh, batch="data", params="model")
    sharded.save(tmp_path / "net")
    loaded = pickle.loads(pickle.dumps(sharded))
    assert jax.tree.structure(loaded) == jax.tree.structure(digits)  # it runs as fast, too
    for model in (nnef_jax.load(tmp_path / "net"), loaded):
        assert all(len(x.devices()) == 1 for x in model.params.values())
        assert_close(model(IMAGES), digits(IMAGES))
    assert_close(copy.copy(sharded)(IMAGES), digits(IMAGES))


def test_prepared_parameters_serve_a_sharded_batch(digits: nnef_jax.Model, auto: Mesh) -> None:
    sharded = digits.shard(auto, batch="data")
    probabilities = sharded(IMAGES)
    assert_close(probabilities, digits(IMAGES))
    assert shard_shape(probabilities) == (4, 10)
    images = put(IMAGES, auto, "data")
    executable = execution_of(sharded).executable_for((images,))
    assert executable is not None
    assert_close(sharded(images), probabilities)
    assert collectives(executable.func, *executable.args, [images]) == {}


def test_arrays_on_the_mesh_stay_as_they_are(digits: nnef_jax.Model, auto: Mesh) -> None:
    sharded = digits.shard(auto, batch="data")
    rows = put(IMAGES, auto, None, None, "data")
    assert execution_of(sharded).bind((rows,), {})[0] is rows
    elsewhere = jax.device_put(IMAGES, jax.devices()[1])
    assert shard_shape(execution_of(sharded).bind((elsewhere,), {})[0]) == (4, 1, 8, 8)
    assert_close(sharded(rows), digits(IMAGES))
    assert_close(sharded(elsewhere), digits(IMAGES))
    assert_close(sharded(IMAGES.astype(np.float64)), digits(IMAGES))


def test_a_part_stays_on_the_mesh(digits: nnef_jax.Model, mesh: Mesh) -> None:
    sharded = digits.shard(mesh, batch="model", params="model")
    first = sharded.cut(outputs=["pool"])
    features = first(IMAGES)
    assert (len(features), shard_shape(features)[0]) == (8, 4)
    assert_close(features, digits.intermediates(IMAGES, names=["pool"])["pool"])


def test_gradients_of_fully_sharded_parameters(digits: nnef_jax.Model, auto: Mesh) -> None:
    """The gradient needs no jit, and is sharded as the parameters are."""
    sharded = digits.shard(auto, batch="data", params="data")
    gradient = jax.grad(lambda params: jnp.square(sharded.apply(params, IMAGES)).sum())(
        sharded.params
    )
    wanted = jax.grad(lambda params: jnp.square(digits.apply(params, IMAGES)).sum())(digits.params)
    assert_close(gradient, wanted)
    for label, x in sharded.params.items():
        assert gradient[label].sharding.is_equivalent_to(x.sharding, x.ndim)


def test_traced_inputs_are_divided(digits: nnef_jax.Model, auto: Mesh) -> None:
    sharded = digits.shard(auto, batch="data")

    def loss(params: Any, images: Any) -> jax.Array:
        return jnp.square(sharded.apply(params, images)).sum(axis=1).mean()

    gradient = jax.grad(loss)
    # Each device computes a part, so that gradients are summed over them.
    found, moved = result_and_collectives(gradient, sharded.params, IMAGES)
    assert "all-reduce" in moved
    wanted = jax.grad(lambda p: jnp.square(digits.apply(p, IMAGES)).sum(axis=1).mean())
    assert_close(found, jax.jit(wanted)(digits.params))
    assert_close(gradient(sharded.params, IMAGES), jax.jit(wanted)(digits.params))  # without jit
    stacked, probabilities = IMAGES.reshape(2, 4, 1, 8, 8), digits(IMAGES)
    assert_close(jax.vmap(sharded)(stacked), np.reshape(probabilities, (2, 4, 10)))
    mapped = jax.shard_map(sharded.apply, mesh=auto, in_specs=(P(), P("data")), out_specs=P("data"))
    assert_close(jax.jit(mapped)(sharded.params, IMAGES), probabilities)
    explicit = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    for model in (sharded, digits.shard(explicit, batch="data")):
        with pytest.raises(InputError, match="the batch of 7 in input 'image' does not divide"):
            jax.jit(model)(IMAGES[:7])


def test_states_are_divided_as_the_batch(auto: Mesh) -> None:
    model = lstm()
    ys, last = model.scan(XS)
    sharded = model.shard(auto, batch="data")
    state = sharded.init_state()
    assert {shard_shape(x) for x in state.values()} == {(BATCH // 2, HIDDEN)}
    host = {label: np.asarray(x) for label, x in state.items()}
    elsewhere = jax.device_put(host, jax.devices()[1])
    whole = {label: put(x, auto) for label, x in host.items()}
    for given in (None, state, host, elsewhere, whole):
        assert_close(sharded.scan(XS, state=given), (ys, last))
    names = ["new_h"]
    y, after, inside = sharded.step(host, XS[0], capture=names, edit={"new_c": jnp.zeros_like})
    wanted = model.step(host, XS[0], capture=names, edit={"new_c": jnp.zeros_like})
    assert_close((y, after, inside), wanted)
    assert {shard_shape(x) for x in (y, *after.values(), *inside.values())} == {(4, HIDDEN)}


def test_the_batch_may_be_another_axis(auto: Mesh) -> None:
    model = torch_networks.load("lstm")
    (run, *_) = torch_networks.runs("lstm")
    sharded = model.shard(auto, batch="data", batch_axis=1)
    outputs = sharded(**run.input)
    assert_close(outputs, model(**run.input))
    for array in outputs:
        assert shard_shape(array)[1] == array.shape[1] // 2


def test_a_dict_says_how_parameters_are_sharded(digits: nnef_jax.Model, mesh: Mesh) -> None:
    specs = {
        "conv*_filter": P("model"),
        "conv2_filter": P(None, "model"),
        "*_bias": P(None, "model"),
    }
    model = digits.shard(mesh, params={**specs, "conv1_bias": P()})
    shapes = {label: shard_shape(x) for label, x in model.params.items()}
    assert shapes["conv1_filter"] == (8, 1, 3, 3) and shapes["conv2_filter"] == (32, 8, 3, 3)
    assert shapes["linear_bias"] == (1, 5) and shapes["conv1_bias"] == (1, 16)
    assert_close(model(IMAGES), digits(IMAGES))


def test_a_dict_divides_what_lies_between_two_matrices() -> None:
    """The hidden units stay divided, so a call has one sum over the devices."""
    text = """version 1.0; graph net(x) -> (y) {
        x = external(shape = [8,64]);
        v = variable(shape = [256,64], label = 'v');
        w = variable(shape = [32,256], label = 'w');
        y = linear(relu(linear(x, v)), w); }"""
    shapes = {"v": (256, 64), "w": (32, 256)}
    data = {k: RANDOM.standard_normal(n).astype(np.float32) for k, n in shapes.items()}
    model = model_of(COMPOSITIONAL + text.split(";", 1)[1], data=data)
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
    sharded = model.shard(mesh, params={"v": P("model"), "w": P(None, "model")})
    x = RANDOM.standard_normal((8, 64)).astype(np.float32)
    result, counts = result_and_collectives(sharded.apply, sharded.params, x)
    assert counts == {"all-reduce": 1}
    assert_close(result, model(x), 1e-4)


@pytest.mark.parametrize(
    "kind", [pytest.param(AxisType.Auto, marks=pytest.mark.slow), AxisType.Explicit]
)
def test_fused_matrices_are_prepared(kind: AxisType) -> None:
    mesh = jax.make_mesh((1, 2), ("data", "model"), axis_types=(kind,) * 2)
    model, (x,) = transformer("q, k, v in one as [3, heads, items] (ViT by timm)", layers=1)
    sharded = model.shard(mesh, batch="data", params="model")
    assert shard_shape(sharded.params["0/qkv/weight"]) == (1, 192, 32)
    wanted, sums = model(x), {"all-reduce": 2, "all-gather": 2}
    prepared = sharded.prepare(sharded.params)
    with jax.set_mesh(mesh):
        for params, moved in ((sharded.params, {"all-to-all": 1}), (prepared, {})):
            found, collectives = result_and_collectives(sharded.apply, params, x)
            assert_close(found, wanted)
            assert collectives == sums | moved
        found, collectives = result_and_collectives(lambda x: sharded(x), x)
        assert collectives == sums
        assert_close(jax.vmap(sharded)(np.stack([x, x])), np.stack([wanted, wanted]))
    for y in (found, sharded(x), sharded.apply(prepared, x)):
        assert_close(y, wanted)
    names = [value.name for value in model.graph.values.values()][40:60:5]
    _, inside = sharded.apply(sharded.params, x, capture=names)
    assert_close(inside, model.intermediates(x, names=names))


def test_a_plan_says_how_parameters_lie(digits: nnef_jax.Model, mesh: Mesh) -> None:
    model, _ = transformer("grouped queries, gate and values in one (Llama)")
    plan = model.shard(mesh, params="model").plan
    found = {row.parameter: (row.sharding, row.why, row.moves) for row in plan}
    assert found["0/k/weight"] == (P(None, "model", None), "columns", "")
    assert found["0/up/weight"] == (P(None, None, "model"), "columns of each of 2 parts", "")
    assert found["0/down/weight"] == (P(None, None, "model"), "rows", "1 all-reduce")
    assert found["0/down/bias"] == (P(), "fewer than 1024 items", "")
    *_, last = str(plan).splitlines()
    assert last.split() == ["last/bias", "[1,1,32]", "fewer", "than", "1024", "items"]
    fully = digits.shard(mesh, batch="model", params="model").plan
    assert {row.moves for row in fully if row.sharding != P()} == {"1 all-gather"}
    assert digits.plan is None
    label = next(row.parameter for row in fully if row.why.startswith("fewer"))
    (chosen,) = (row for row in digits.shard(mesh, params={label: P("model")}).plan
                 if row.parameter == label)  # fmt: skip
    assert (chosen.sharding, chosen.why) == (P("model"), "")


CACHED_LABELS = ("query", "key", "output")
CACHED = """version 1.0;
extension tract_registry tract_core;
graph step(x, place, past) -> (y, kept)
{
    x = external(shape = [1,64]);
    place = external<integer>(shape = [1,1]);
    past = external(shape = [4,8,16]);
    query = variable(shape = [64,64], label = 'query');
    key = variable(shape = [64,64], label = 'key');
    output = variable(shape = [64,64], label = 'output');
    q = reshape(matmul(x, query), shape = [4,1,16]);
    k = reshape(matmul(x, key), shape = [4,1,16]);
    heads = constant<scalar>(shape = [4,1,1], value = [0.0,1.0,2.0,3.0]);
    row = tile(unsqueeze(place, axes = [0]), repeats = [4,1,1]);
    at = concat([tract_core_cast(heads, to = 'i64'), tract_core_cast(row, to = 'i64')], axis = 2);
    kept = tract_core_scatter_nd(past, at, k);
    weights = softmax(matmul(q, kept, transposeB = true), axes = [2]);
    y = matmul(reshape(matmul(weights, kept), shape = [1,64]), output);
}
"""


def test_caches_are_sharded_by_heads(mesh: Mesh) -> None:
    data = {x: RANDOM.standard_normal((64, 64)).astype(np.float32) / 8 for x in CACHED_LABELS}
    model = model_of(CACHED, data=data, state={"past": "kept"})
    sharded = model.shard(mesh, params="model")
    state, sharded_state = model.init_state(), sharded.init_state()
    for place in range(3):
        x = RANDOM.standard_normal((1, 64)).astype(np.float32)
        wanted, state = model.step(state, x, [[place]])
        y, sharded_state = sharded.step(sharded_state, x, [[place]])
        assert_close((y, sharded_state), (wanted, state))
        assert shard_shape(sharded_state["past"]) == (2, 8, 16)
    with jax.set_mesh(mesh):
        step = jax.jit(lambda state: sharded.step(state, x, [[3]]))
        assert collectives(step, sharded_state) == {"all-reduce": 1}
    *_, row = sharded.plan or ()
    assert (row.parameter, row.sharding) == ("past", P("model", None, None))


FIXED = """version 1.0;
graph fixed(x) -> (y)
{
    x = external(shape = [1,3]);
    y = relu(x);
}
"""
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "axis": ({"batch": "dat"}, InputError, "'dat', the axes of the mesh are data.*\n.*'data'"),
    "type": ({"batch": 2}, TypeError, "batch must be the name of an axis of the mesh, several"),
    "names": ({"params": ["data", 1]}, TypeError, "params must be the name of an axis"),
    "twice": ({"batch": ("data", "data")}, InputError, "names an axis of the mesh twice"),
    "label": ({"params": {"conv1_filte": P()}}, InputError, "called 'conv1_filte'\n.*conv1_filter"),
    "pattern": ({"params": {"block*": P()}}, InputError, "no parameter is called 'block\\*'"),
    "key": ({"params": {1: P()}}, TypeError, "by label or pattern, 1 is in it"),
    "spec": ({"params": {"conv*": "data"}}, TypeError, "must be a jax.sharding.PartitionSpec"),
    "spec axis": ({"params": {"conv*": P("dat")}}, InputError, "names 'dat'"),
    "rank": (
        {"params": {"linear_filter": P(None, None, "data")}},
        InputError,
        r"divides 3 axes, its shape is \[10,512\]",
    ),
    "extent": (
        {"params": {"conv1_filter": P(None, "data")}},
        InputError,
        r"axis 1 of \[16,1,3,3\] does not divide into 2 equal parts along 'data'",
    ),
    "batch axis": ({"batch": "data", "batch_axis": 4}, InputError, "no input has an axis 4"),
    "negative": ({"batch": "data", "batch_axis": -1}, InputError, "no input has an axis -1"),
    "no axis": ({"batch": "data", "batch_axis": "0"}, TypeError, "the number of an axis"),
}


@pytest.mark.parametrize(("options", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input(
    digits: nnef_jax.Model,
    auto: Mesh,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        digits.shard(auto, **options)


def test_meshes_and_batches_that_cannot_be(digits: nnef_jax.Model, auto: Mesh) -> None:
    for mesh in (jax.devices(), NamedSharding(auto, P())):
        with pytest.raises(TypeError, match=r"mesh must be a jax\.sharding\.Mesh"):
            digits.shard(mesh)  # pyright: ignore[reportArgumentType]
    manual = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Manual,))
    with pytest.raises(InputError, match="Manual"):
        digits.shard(manual)
    sharded = digits.shard(auto, batch="data")
    with pytest.raises(InputError, match=r"the batch of 7 in input 'image' .* 2 equal parts"):
        sharded(IMAGES[:7])
    with pytest.raises(InputError, match=r"input 'image' has shape \[8,8\]"):
        sharded(IMAGES[0, 0])
    fixed = model_of(FIXED)
    with pytest.raises(InputError, match="a batch of 1, which does not divide into 2") as caught:
        fixed.shard(auto, batch="data")
    assert "input_shapes" in caught.value.hint
    x = np.float32([[-1, 2, 3]])
    np.testing.assert_array_equal(fixed.shard(auto)(x), [[0, 2, 3]])
    opened = model_of(FIXED, input_shapes={"x": (None, 3)}).shard(auto, batch="data")
    np.testing.assert_array_equal(opened(np.repeat(x, 4, 0)), np.maximum(np.repeat(x, 4, 0), 0))
