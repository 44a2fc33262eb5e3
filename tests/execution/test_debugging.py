"""What jax has to find mistakes: it names operations of the network, and changes no result."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.config import traceback_in_locations_limit

import nnef_jax
from tests.execution.test_citizen import compilations
from tests.helpers import model_of

NET = """
version 1.0;
graph careful( x ) -> ( y )
{
    x = external(shape = [1,2,4,4]);
    w = variable(shape = [3,2,3,3], label = 'w');
    conv1 = conv(x, w);
    odd = log(conv1);
    twice = sub(odd, odd);
    y = relu(conv1);
    z = add(y, twice);
}
""".replace("-> ( y )", "-> ( z )")
# Sums of small integers are exact in any order.
X = np.random.default_rng(0).integers(1, 5, (1, 2, 4, 4)).astype(np.float32)
DATA = {"w": np.random.default_rng(1).integers(1, 5, (3, 2, 3, 3)).astype(np.float32)}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda model, x: model(x),
    "call, jax": lambda model, x: model(jnp.asarray(x)),
    "apply": lambda model, x: model.apply(model.params, x),
    "jit of apply": lambda model, x: jax.jit(model.apply)(model.params, x),
    "jit of a call": lambda model, x: jax.jit(lambda model, x: model(x))(model, x),
    "grad": lambda model, x: jax.grad(lambda x: model.apply(model.params, x).sum())(x),
    "step": lambda model, x: model.step({}, x),
    "scan": lambda model, x: model.scan(x[None]),
    "capture": lambda model, x: model(x, capture=["conv1"]),
    "other parameters": lambda model, x: model.with_params(DATA)(x),
}


@pytest.fixture(scope="module", params=[True, False], ids=["optimized", "as written"])
def model(request: pytest.FixtureRequest) -> nnef_jax.Model:
    found = model_of(NET, data=DATA, optimize=request.param)
    found(jnp.asarray(X))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_a_nan_names_the_operation_and_its_line(
    model: nnef_jax.Model, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with jax.debug_nans(True):
        np.testing.assert_array_equal(model(X), jax.nn.relu(model.intermediates(X)["conv1"]))
        with pytest.raises(FloatingPointError, match="nan") as error:
            CALLS[name](model, -X)
    assert any("graph.nnef:8:11: odd = log(" in note for note in error.value.__notes__)


def test_a_nan_where_what_is_compiled_is_kept(tmp_path: Any) -> None:
    model = model_of(NET, data=DATA, cache_dir=tmp_path)
    model(jnp.asarray(X))
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as error:
        model(jnp.asarray(-X))
    assert any("odd = log(" in note for note in error.value.__notes__)


def test_an_infinity_names_the_operation() -> None:
    model = model_of(NET.replace("sub(odd, odd)", "copy(odd)"), data=DATA)
    model(X)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf") as error:
        model(0 * X)
    assert any("odd = log(" in note for note in error.value.__notes__)


def test_a_nan_that_the_network_is_given_is_named(model: nnef_jax.Model) -> None:
    bad = DATA["w"].copy()
    bad[0] = np.nan
    for call, note in (
        (lambda: model(X * np.nan), "input 'x' has one before the network runs"),
        (
            lambda: jax.jit(model.apply)(model.params, X * np.nan),
            "input 'x' has one before the network runs",
        ),
        (lambda: model.scan(X[None] * np.nan), "input 'x' has one before the network runs"),
        (lambda: model.with_params({"w": bad})(X), "params 'w' has one before the network runs"),
        (lambda: model(X, edit={"y": lambda v: v * jnp.nan}), "in the edit of 'y'"),
    ):
        with jax.debug_nans(True), pytest.raises(FloatingPointError) as error:
            call()
        assert note in error.value.__notes__


@pytest.mark.parametrize(
    "setting", [jax.checking_leaks, lambda: jax.enable_checks(True), jax.disable_jit]
)
def test_settings_change_no_result(
    model: nnef_jax.Model, setting: Callable[[], AbstractContextManager[Any]]
) -> None:
    gradient = CALLS["grad"]
    wanted = model(X), gradient(model, X)
    with setting():
        for call in (CALLS["call, jax"], CALLS["jit of apply"], CALLS["jit of a call"]):
            np.testing.assert_allclose(call(model, X), wanted[0], rtol=1e-5)
        np.testing.assert_allclose(gradient(model, X), wanted[1], rtol=1e-4)


def test_without_jit_an_edit_has_values(model: nnef_jax.Model) -> None:
    seen: list[float] = []

    def note(value: Any) -> Any:
        seen.append(float(value.max()))
        return value

    with jax.disable_jit():
        model(X, edit={"conv1": note})
    np.testing.assert_allclose(seen, [model.intermediates(X)["conv1"].max()], rtol=1e-5)


@pytest.mark.parametrize("name", ["call", "jit", "grad", "scan"])
def test_prints_in_edits(
    model: nnef_jax.Model, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def show(value: Any) -> Any:
        jax.debug.print("max {x:.4f}", x=value.max())
        return value

    edit = {"conv1": show}
    calls: dict[str, Callable[[], Any]] = {
        "call": lambda: model(X, edit=edit),
        "jit": lambda: jax.jit(lambda x: model(x, edit=edit))(X),
        "grad": lambda: jax.grad(lambda x: model.apply(model.params, x, edit=edit).sum())(X),
        "scan": lambda: model.scan(X[None], edit=edit),
    }
    calls[name]()
    jax.effects_barrier()
    assert capsys.readouterr().out == f"max {model.intermediates(X)['conv1'].max():.4f}\n"


def test_functions_have_the_name_of_the_network(tmp_path: Any) -> None:
    for options in ({}, {"cache_dir": tmp_path}):
        model = model_of(NET, data=DATA, **options)
        with compilations() as compiled:
            model(X)
            model.step({}, X)
            model.scan(X[None])
            model.with_params(DATA)(X)
        assert {"jit_careful", "jit_careful_step", "jit_careful_scan"} <= set(compiled)
    assert "@jit_careful" in model.lower(X).as_text() or "@careful" in model.lower(X).as_text()


TWICE = """
version 1.0;
graph twice( x ) -> ( y )
{
    x = external(shape = [1,2,4,4]);
    first = relu(x);
    y =
        relu(first);
}
"""
LINES = {"first": "6", "y": "8"}  # the second runs what jax has traced for the first


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("optimize", [True, False])
def test_places_in_hlo_are_lines_of_the_document(platform: str, optimize: bool) -> None:
    model = model_of(TWICE, optimize=optimize)

    def total(x: Any) -> Any:
        return jax.vmap(lambda x: model.apply({}, x).sum())(x).sum()

    for function in (total, jax.grad(total)):
        with traceback_in_locations_limit(10):  # as for users
            lowered = jax.jit(function).trace(X[None]).lower(lowering_platforms=(platform,))
        found = dict(
            re.findall(r"^(#loc\d+) = loc\((.*)\)$", lowered.as_text(debug_info=True), re.M)
        )

        seen = set[str]()
        for location in found.values():
            if name := re.match(r'"[^"]*\b(first|y)\)*/', location):
                seen.add(name[1])
                assert f'graph.nnef":{LINES[name[1]]}:' in innermost(location, found), location
        assert seen == set(LINES)


def innermost(location: str, found: dict[str, str]) -> str:
    """Return the innermost place of a location, which holds or names others."""
    inner = re.search(r"#loc\d+", location)
    return innermost(found[inner[0]], found) if inner else location


def test_a_traceback_shows_the_line(model: nnef_jax.Model) -> None:
    with jax.debug_nans(True), pytest.raises(FloatingPointError) as error:
        model(-X)
    frames = traceback.extract_tb(error.value.__traceback__)
    assert ("odd", 8) in [(frame.name, frame.lineno) for frame in frames]
