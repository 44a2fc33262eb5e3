"""A model as jax and Python see it: on other parameters, a pytree, copied, pickled."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.graph import TensorType
from lowering.registry import Registry
from tests.helpers import model_of

NET = """
version 1.0;
graph small( x ) -> ( y )
{
    x = external(shape = [2,3]);
    w = variable(shape = [4,3], label = 'layer/w');
    b = variable(shape = [1,4], label = 'layer/b');
    spare = variable(shape = [2], label = 'spare');
    h = linear(x, w, b);
    y = tanh(h);
}
"""
COUNTER = """
version 1.0;
graph counter( x ) -> ( y )
{
    x = external(shape = [2]);
    w = variable(shape = [2], label = 'w');
    h = variable(shape = [2], label = 'h');
    z = x * w;
    y = h + z;
    n = update(h, y);
}
""".replace("version 1.0;", "version 1.0;\nextension KHR_enable_operator_expressions;")
X = np.float32([[1, 2, 3], [-1, 0, 1]])


def arrays(scale: float = 1) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    w, b = random.uniform(-1, 1, (4, 3)), random.uniform(-1, 1, (1, 4))
    shapes = {"layer/w": w * scale, "layer/b": b * scale, "spare": np.ones(2)}
    return {label: x.astype(np.float32) for label, x in shapes.items()}


def small(scale: float = 1, **options: Any) -> nnef_jax.Model:
    return model_of(NET, data=arrays(scale), **options)


def counter(**options: Any) -> nnef_jax.Model:
    return model_of(COUNTER, data={"w": np.float32([1, 2]), "h": np.float32([5, 6])}, **options)


def value(scale: float = 1, x: Any = X) -> np.ndarray:
    data = arrays(scale)
    return np.tanh(x @ data["layer/w"].T + data["layer/b"])


def assert_close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of what XLA compiles meanwhile."""
    from jax._src import compiler

    found: list[str] = []
    original = compiler.compile_or_get_cached

    def counting(backend: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(str(module.operation.attributes["sym_name"]).strip('"'))
        return original(backend, module, *args, **kwargs)

    compiler.compile_or_get_cached = counting
    try:
        yield found
    finally:
        compiler.compile_or_get_cached = original


# On other parameters


@pytest.mark.parametrize("kept", (False, True))
def test_models_on_other_parameters_share_what_is_compiled(kept: bool, tmp_path: Path) -> None:
    model = small(**({"cache_dir": tmp_path} if kept else {}))
    assert_close(model(X), value())
    with compilations() as first:
        assert_close(model.with_params(small(2).params)(X), value(2))
    x = jnp.asarray(X)
    with compilations() as second:
        assert_close(model.with_params(small(3).params)(X), value(3))
        assert_close(model.with_params(arrays(4))(X), value(4))
        assert_close(model.with_params(arrays(5)).with_params(arrays(6))(x), value(6))
    assert first == second == []
    files = sorted(path.suffix for path in tmp_path.iterdir())
    assert files.count(".xla") == kept and files.count(".bin") <= kept


def test_given_arrays_stay_where_they_are() -> None:
    model, other = small(), jax.devices()[1]
    params = jax.device_put(small(2).params, other)
    moved = model.with_params(params)
    assert moved.params["layer/w"] is params["layer/w"]
    y = moved(X)
    assert y.devices() == {other}
    assert_close(y, value(2))
    with pytest.raises(ValueError, match="incompatible devices"):
        moved(jax.device_put(X, jax.devices()[0]))
    y = model.with_params(small(3).params)(jax.device_put(X, other))
    assert y.devices() == {other}
    assert_close(y, value(3))


def test_sharded_parameters() -> None:
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("model"))
    params = arrays(2)
    params["layer/w"] = jax.device_put(params["layer/w"], rows)
    model = small().with_params(params)
    assert model.params["layer/w"].sharding == rows
    assert_close(model(X), value(2))


def test_parameters_that_are_traced() -> None:
    model = small()

    @jax.jit
    def halved(params: Any) -> Any:
        return model.with_params(jax.tree.map(lambda x: x / 2, params))(X)

    assert_close(halved(model.params), value(0.5))


def test_parameters_are_checked() -> None:
    model, params = small(), arrays()
    with pytest.raises(nnef_jax.InputError, match=r"params lacks layer/w and has unknown layer/v"):
        model.with_params({"layer/v" if k == "layer/w" else k: x for k, x in params.items()})
    with pytest.raises(nnef_jax.InputError, match=r"'layer/b' has shape \[4\]"):
        model.with_params({**params, "layer/b": np.ones(4, np.float32)})
    with pytest.raises(nnef_jax.InputError, match="params must be a dict"):
        model.with_params([1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(nnef_jax.InputError, match="state has unknown h"):
        model.with_params(params, state={"h": np.ones(2)})


def test_other_states_and_weak_types() -> None:
    model = counter()
    params = {"w": jnp.zeros(2) + 3}
    assert_close(model.with_params(params)(np.ones(2)), [8, 9])
    other = model.with_params(params, state={"h": np.float32([0, 1])})
    assert_close(other(np.ones(2)), [3, 4])
    assert_close(other.init_state()["h"], [0, 1])
    y, _ = other.scan(np.ones((2, 2), np.float32))
    assert_close(y, [[3, 4], [6, 7]])
    weak = jnp.broadcast_to(jnp.asarray(3.0), (2,))
    assert weak.weak_type
    with compilations() as compiled:
        assert_close(model.with_params({"w": weak})(np.ones(2)), [8, 9])
    assert "jit_counter" not in compiled


def test_parameters_that_nothing_reads_are_kept(tmp_path: Path) -> None:
    model = small().with_params(arrays(2))
    assert "spare" not in model.params
    model.with_params({**arrays(), "spare": np.full(2, 7.0, np.float32)}).save(tmp_path / "given")
    stored = nnef_jax.load(tmp_path / "given", unused=True)
    assert_close(stored.params["spare"], [7, 7])
    del (params := arrays(3))["spare"]
    whole = small(unused=True).with_params(params)
    assert_close(whole.params["spare"], [1, 1])
    assert_close(whole(X), value(3))


def test_traced_parameters_that_nothing_reads_are_left_out() -> None:
    model = small()
    halve = jax.jit(lambda p: model.with_params(jax.tree.map(lambda x: x / 2, p)))
    halved = halve(arrays(2))
    assert jax.tree.structure(halved) == jax.tree.structure(model)
    assert_close(halved(X), value(1))


def test_a_model_without_arrays_is_given_some() -> None:
    for model in (small(), counter()):
        state = model.init_state()
        for empty in (jax.eval_shape(lambda m: m, model), jax.tree.map(lambda _: None, model)):
            full = empty.with_params(model.params, state=state)
            x = np.ones(full.inputs[0].shape, np.float32)
            np.testing.assert_array_equal(full(x), model(x))
    part = jax.tree.map(lambda _: None, counter()).with_params(counter().params)
    with pytest.raises(nnef_jax.InputError, match="state: 'h' must be an array, it is None"):
        part(np.ones(2, np.float32))


# A tree


def test_leaves_have_paths_and_may_be_anything() -> None:
    model = counter()
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(model)]
    assert paths == [".params['w']", ".state['h']"]
    shapes = jax.tree.map(lambda x: x.shape, model)
    assert shapes.params == {"w": (2,)}
    with pytest.raises(nnef_jax.InputError, match="'w'"):
        shapes(np.ones(2, np.float32))
    tree = jax.tree.structure(model)
    for leaf in (None, object(), jax.ShapeDtypeStruct((2,), "float32")):
        assert isinstance(tree.unflatten([leaf, leaf]), nnef_jax.Model)
    zero = jax.tree.map(jnp.zeros_like, model)
    assert_close(zero(np.ones(2, np.float32)), [0, 0])
    assert jax.eval_shape(lambda m: m(np.ones(2, np.float32)), model).shape == (2,)


def test_two_loads_are_equal_trees_and_models_are_not() -> None:
    one, two = small(), small(2)
    assert one != two and len({one, two, one}) == 2
    assert jax.tree.structure(one) == jax.tree.structure(two)
    run = jax.jit(lambda model, x: model(x))
    assert_close(run(one, X), value())
    assert_close(run(two, X), value(2))
    assert run._cache_size() == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda: small(dtype="bfloat16"),
        lambda: small(optimize=False),
        lambda: small(precision="highest"),
        lambda: small(unused=True),
        lambda: small(limits=nnef_jax.Limits(nesting=100)),
        lambda: small(input_shapes={"x": (None, 3)}),
        lambda: model_of(NET.replace("tanh", "sin"), data=arrays()),
        lambda: model_of(NET.replace("    y", "   y"), data=arrays()),
        lambda: model_of(NET, data={**arrays(), "spare": np.float32([1, 2])}),
    ],
)
def test_what_differs_is_another_tree(other: Callable[[], nnef_jax.Model]) -> None:
    structure = jax.tree.structure(small())
    assert structure == jax.tree.structure(small())
    assert structure != jax.tree.structure(other())


def test_open_extents_are_equal_trees() -> None:
    one, two = (small(input_shapes={"x": (None, 3)}) for _ in range(2))
    one(X)
    assert jax.tree.structure(one) == jax.tree.structure(two)


def test_gradients_of_a_model_are_a_model() -> None:
    model = counter()
    x = np.float32([1, 2])
    gradient = jax.grad(lambda model: jnp.sum(model(x)))(model)
    assert isinstance(gradient, nnef_jax.Model)
    assert_close(gradient.params["w"], x)
    assert_close(gradient.init_state()["h"], [0, 0])  # a constant
    stepped = jax.tree.map(lambda p, g: p - g, model, gradient)
    assert_close(stepped(x), [5 + 0, 6 + 0])


def test_an_ensemble_is_a_model_of_stacked_leaves() -> None:
    models = [small(scale) for scale in (1, 2, 3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
    found = jax.vmap(lambda model, x: model(x), (0, None))(stacked, X)
    assert_close(found, np.stack([value(scale) for scale in (1, 2, 3)]))


def test_gradients_of_a_model_on_a_mesh() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def loss(model: Any) -> Any:
        return jnp.sum(model(X) ** 2)

    found, wanted = (
        jax.grad(loss)(model) for model in (small().shard(mesh, batch="data"), small())
    )
    jax.tree.map(assert_close, found.params, wanted.params)


def test_a_model_is_a_result_and_a_carry() -> None:
    model = counter()
    x = np.ones(2, np.float32)

    def body(model: Any, _: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + 1, model), model(x)

    last, ys = jax.lax.scan(body, model, None, length=3)
    assert_close(ys, [[6, 8], [8, 10], [10, 12]])
    assert_close(jax.jit(lambda model: model)(last)(x), [12, 14])
    assert last.graph.name == "counter" and "mul" in str(last.summary())


@pytest.mark.parametrize("shapes", ({}, {"x": (None, 3)}))
def test_a_part_is_a_tree_that_shares_and_pickles(shapes: Any) -> None:
    one, two = (small(scale, input_shapes=shapes).cut(outputs=["h"]) for scale in (1, 2))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.structure(one) != jax.tree.structure(small(input_shapes=shapes))
    assert jax.tree.structure(pickle.loads(pickle.dumps(one))) == jax.tree.structure(one)
    found = jax.jit(lambda model: model.cut(outputs=["h"])(X))(small(3, input_shapes=shapes))
    for h, scale in ((pickle.loads(pickle.dumps(two))(X), 2), (found, 3)):
        assert_close(np.tanh(h), value(scale))


# Copies


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_copies(copied: Callable[[Any], Any]) -> None:
    for model in (counter(), counter().with_params({"w": np.float32([1, 2])})):
        other = copied(model)
        assert other is not model
        assert_close(other(np.ones(2)), [6, 8])
        assert jax.tree.structure(other) == jax.tree.structure(model)


def test_a_deep_copy_outlives_donation() -> None:
    model = small()
    kept = copy.deepcopy(model.with_params(jax.tree.map(jnp.array, model.params)))
    model(X)
    also = copy.deepcopy(model)
    halve = jax.jit(lambda m: jax.tree.map(lambda x: x / 2, m), donate_argnums=0)
    assert_close(halve(model)(X), value(0.5))
    for other in (kept, also):
        assert_close(other(X), value())


@pytest.mark.parametrize("module", [pickle, cloudpickle])
def test_pickles(module: Any, tmp_path: Path) -> None:
    model = small(cache_dir=tmp_path / "cache", input_shapes={"x": (None, 3)})
    first, again = (module.loads(module.dumps(each)) for each in (model, model))
    model(X)
    other = module.loads(module.dumps(model.with_params(arrays(2))))
    for found, scale in ((first, 1), (other, 2)):
        assert jax.tree.structure(found) == jax.tree.structure(model)
        for x in (X, np.concatenate([X, X])):
            assert_close(found(x), value(scale, x))
    first.save(tmp_path / "saved")
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "saved")(X), again(X))
    with pytest.raises(nnef_jax.InputError, match=r"net|graph\.nnef:5"):
        first(np.ones((2, 4), np.float32))


def test_what_pickles_has_its_weights_once() -> None:
    text = NET.replace("[4,3]", "[4000,3]").replace("[1,4]", "[1,4000]")
    data = {**arrays(), "layer/w": np.ones((4000, 3)), "layer/b": np.ones((1, 4000))}
    data = {label: x.astype(np.float32) for label, x in data.items()}
    for dialect in ("nnef", "tract"):
        model = model_of(text, data=data, dialect=dialect, input_shapes={"x": (None, 3)})
        for _ in range(2):
            assert len(pickle.dumps(model)) < 4 * 16_000 + 16_000 + 60_000
            model(X)
        found = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
        assert_close(found(X[:1]), model(X[:1]))


def test_a_progress_that_cannot_be_pickled_is_left_behind() -> None:
    calls: list[int] = []
    model = small(progress=lambda done, of: calls.append(done))
    assert calls
    assert_close(pickle.loads(pickle.dumps(model))(X), value())


def _double(x: Any) -> Any:
    return x + x


def _same(x: TensorType) -> TensorType:
    return x


def test_rules_pickle_where_their_functions_do() -> None:
    rules, others = Registry(), Registry()
    rules.rule("tanh", _same)(_double)
    others.rule("tanh", _same)(lambda x: x + x)
    model, other = (small(rules=each) for each in (rules, others))
    found = pickle.loads(pickle.dumps(model))
    assert_close(found(X), model(X))
    assert jax.tree.structure(found) == jax.tree.structure(model)
    assert jax.tree.structure(other) != jax.tree.structure(model)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(other)
    assert_close(cloudpickle.loads(cloudpickle.dumps(other))(X), model(X))


def test_what_is_traced_does_not_pickle() -> None:
    with pytest.raises(nnef_jax.InputError, match="traced arrays"):
        jax.jit(lambda model: pickle.dumps(model) and 0)(small())
    shapes = jax.eval_shape(lambda model: model, small())
    assert pickle.loads(pickle.dumps(shapes)).params["layer/w"].shape == (4, 3)


def test_another_process_runs_what_is_pickled(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(pickle.dumps(small()))
    program = (
        "import pickle, sys, numpy as np\n"
        "model = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(np.asarray(model(np.float32([[1, 2, 3], [-1, 0, 1]]))).tolist())\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert_close(eval(run.stdout), value())


def test_outputs_pickle_and_are_of_one_type() -> None:
    text = NET.replace("-> ( y )", "-> ( y, h )")
    one, two = (model_of(text, data=arrays())(X) for _ in range(2))
    assert type(one) is type(two)
    found = pickle.loads(pickle.dumps(one))
    assert type(found) is type(one) and found._fields == ("y", "h")
    assert_close(found.y, value())
