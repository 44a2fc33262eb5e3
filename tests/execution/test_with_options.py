"""A model that runs in another way reads nothing again, and shares what it can."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.execution.test_citizen import (
    X,
    arrays,
    assert_close,
    compilations,
    counter,
    small,
    value,
)
from tests.helpers import model_of


def test_the_network_and_the_arrays_stay() -> None:
    model = small()
    params = model.params
    other = model.with_options(precision="highest", optimize=False)
    assert other.graph is model.graph
    assert other.params["layer/w"] is params["layer/w"]
    assert_close(other(X), value())
    assert_close(other.with_params(arrays(2))(X), value(2))


def test_what_is_compiled_is_shared_by_equal_options(tmp_path: Path) -> None:
    model = small()
    literal = model.with_options(optimize=False)
    assert_close(literal(X), value())
    assert_close(model(X), value())
    with compilations() as names:
        again = literal.with_options(optimize=True)
        assert_close(again(X), value())
        assert_close(again.with_options(optimize=False)(X), value())
        assert_close(model.with_params(arrays(2)).with_options(optimize=False)(X), value(2))
        few = model.with_options(max_executables=1)
        assert_close(few(X), value())
    assert names == []
    with compilations() as names:
        assert_close(model.with_options(cache_dir=tmp_path)(X), value())
    assert names
    assert [path for path in tmp_path.iterdir() if path.suffix == ".xla"]


def test_the_limit_holds() -> None:
    model = small(input_shapes={"x": (None, 3)})
    few = model.with_options(max_executables=1)
    for x in (X, X[:1], X):
        assert_close(few(x), value(x=x))
    with compilations() as names:
        few(X)
        assert names == []
        few(X[:1])
    assert names


def test_mesh_and_state_stay() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = small().shard(mesh, batch="data").with_options(precision="highest")
    y = sharded(X)
    assert len(y.devices()) == 2
    assert_close(y, value())
    other = counter().with_params(counter().params, state={"h": np.float32([1, 2])})
    assert_close(other.with_options(optimize=False).init_state()["h"], [1, 2])


def test_memory_of_a_state_is_taken() -> None:
    model = counter().with_options(donate_state=True)
    state = model.init_state()
    model.step(state, np.float32([1, 1]))
    assert state["h"].is_deleted()
    assert not counter().with_options(donate_state=False).init_state()["h"].is_deleted()


def test_it_is_a_tree_and_pickles() -> None:
    model = small().with_options(precision="highest")
    again = pickle.loads(pickle.dumps(model))
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert jax.tree.structure(small()) != jax.tree.structure(model)
    assert "HIGHEST" in jax.jit(lambda m: m(X)).lower(again).as_text()


@pytest.mark.parametrize(
    "name",
    [
        "input_shapes", "values", "dtype", "quantization", "expand", "dialect", "state", "rules",
        "unused", "limits", "progress", "weights",
    ],
)  # fmt: skip
def test_options_of_reading_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}' decides what is read: give it to load"):
        small().with_options(**{name: None})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precison": "highest"}, TypeError, "unexpected keyword argument 'precison'"),
        ({"precision": "highes"}, ValueError, "jax has no precision 'highes'"),
        ({"optimize": 1}, TypeError, "optimize must be True or False"),
        ({"optimize": "strictly"}, TypeError, "optimize must be True or False"),
        ({"autotune": None}, TypeError, "autotune must be True or False"),
        ({"max_executables": 0}, ValueError, "max_executables must be at least 1"),
        ({"cache_dir": ""}, nnef_jax.InputError, "cache_dir"),
    ],
)
def test_wrong_options(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small().with_options(**options)


def test_a_folder_does_not_go_with_rules(tmp_path: Path) -> None:
    registry = nnef_jax.Registry()
    registry.rule("relu", lambda x: x)(lambda x: x * 2)
    text = "version 1.0; graph n(x) -> (y) { x = external(shape = [2]); y = relu(x); }"
    model = model_of(text, rules=registry)
    with pytest.raises(ValueError, match="cache_dir does not go with rules"):
        model.with_options(cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_precisions_as_a_list() -> None:
    assert_close(small(precision=["highest", "highest"])(X), value())


def test_a_function_is_compiled_by_the_options_of_the_model() -> None:
    model = small()

    def loss(params: Any, x: Any) -> Any:
        return jnp.square(model.apply(params, x)).sum()

    gradient = model.jit(jax.grad(loss), static_argnums=())
    wanted = jax.grad(loss)(model.params, X)
    assert_close(gradient(model.params, X)["layer/w"], wanted["layer/w"])
    lowered = model.jit(loss).lower(model.params, X)
    assert_close(lowered.compile()(model.params, X), loss(model.params, X))


# The initial state


def total(model: nnef_jax.Model) -> Any:
    return model(np.float32([1, 1])).sum()


def test_derivatives_by_the_initial_state() -> None:
    """Its own is a constant, one that is given is not."""
    model, state = counter(), {"h": np.float32([1, 2])}
    for gradient in (jax.grad(total)(model), jax.jit(jax.grad(total))(model)):
        assert any(np.any(x) for x in gradient.params.values())
        np.testing.assert_array_equal(_state_of(gradient), [0, 0])

    def given(state: Any) -> Any:
        return total(model.with_params(model.params, state=state))

    def through_jit(state: Any) -> Any:
        return jax.jit(total)(model.with_params(model.params, state=state))

    def by_scan(state: Any) -> Any:
        return model.scan(np.ones((1, 2), np.float32), state=state)[0].sum()

    wanted = jax.grad(lambda s: model.step(s, np.float32([1, 1]))[0].sum())(state)["h"]
    assert np.any(wanted)
    for function in (given, through_jit, by_scan):
        np.testing.assert_allclose(jax.grad(function)(state)["h"], wanted)


def _state_of(model: Any) -> Any:
    leaves = jax.tree_util.tree_leaves_with_path(model)
    (state,) = [x for path, x in leaves if "state" in jax.tree_util.keystr(path)]
    return state


def test_derivatives_by_init_state() -> None:
    model = counter()
    gradient = jax.grad(lambda m: m.init_state()["h"].sum())(model)
    np.testing.assert_array_equal(_state_of(gradient), [0, 0])


def test_a_state_stays_given_as_a_tree_and_in_a_pickle() -> None:
    model = counter().with_params(counter().params, state={"h": np.float32([1, 2])})
    assert np.any(_state_of(jax.grad(total)(model)))
    for other in (jax.tree.map(jnp.asarray, model), pickle.loads(pickle.dumps(model))):
        assert np.any(_state_of(jax.grad(total)(other)))
    cut = model.cut(outputs=[model.outputs[0].name])
    assert np.any(_state_of(jax.grad(total)(cut)))
