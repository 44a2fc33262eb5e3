"""Parameters that neither outputs nor states depend on: left on the host, marked, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import nnef_jax
from nnef_jax.cli import app
from nnef_jax.execution.runnable import execution_of
from tests.helpers import archive, model_of
from tests.text_support import PROVISIONAL
from tests.tract_text import graph

# `spare` is read by no operation, `deep` by one whose result nobody needs, `u` by the state alone.
_TEXT = """version 1.0;
graph net(x) -> (y)
{
    x = external(shape = [2]);
    w = variable(shape = [2], label = 'w');
    u = variable(shape = [2], label = 'u');
    s = variable(shape = [2], label = 's');
    spare = variable(shape = [1,300], label = 'deep/spare');
    deep = variable(shape = [2], label = 'deep/read');
    a = mul(deep, x);
    b = neg(a);
    y = mul(x, w);
    t = add(s, u);
    s2 = update(s, t);
}
"""
_DATA: dict[str, Any] = {
    "w": np.float32([2, 3]),
    "u": np.float32([1, 1]),
    "s": np.float32([0, 0]),
    "deep/spare": np.arange(300, dtype=np.float32)[None],
    "deep/read": np.float32([5, 7]),
}
X = np.float32([10, 100])
_UNUSED = {"deep/spare", "deep/read"}


def network(**options: Any) -> nnef_jax.Model:
    return model_of(_TEXT, data=_DATA, **options)


def test_params_are_what_is_read() -> None:
    assert network().params.keys() == {"w", "u"}
    assert network(unused=True).params.keys() == {"w", "u", *_UNUSED}


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("given", [set(), {"deep/read"}, _UNUSED])
def test_labels_that_nothing_reads_may_be_given(unused: bool, given: set[str]) -> None:
    model = network(unused=unused)
    params = model.params | {label: _DATA[label] for label in given}
    state = model.init_state()
    np.testing.assert_array_equal(model.apply(params, X), X * _DATA["w"])
    np.testing.assert_array_equal(jax.jit(model.apply)(params, X), X * _DATA["w"])
    y, after = model.step(state, X, params=params)
    np.testing.assert_array_equal(y, X * _DATA["w"])
    np.testing.assert_array_equal(after["s"], _DATA["u"])
    _, after = model.scan(np.stack([X, X]), params=params)
    np.testing.assert_array_equal(after["s"], 2 * _DATA["u"])
    gradient = jax.grad(lambda p: model.apply(p, X).sum())(params)
    assert all(not np.any(gradient[label]) for label in given)


def test_labels_are_still_checked() -> None:
    model = network()
    for params, message in (
        ({"w": _DATA["w"]}, "params lacks u"),
        (model.params | {"deep/reed": X}, "params has unknown deep/reed"),
        (model.params | {"deep/read": np.ones(5)}, r"'deep/read' has shape \[5\]"),
        (model.params | {"deep/read": X > 0}, "'deep/read' has dtype bool"),
    ):
        with pytest.raises(nnef_jax.InputError, match=message):
            model.apply(params, X)


@pytest.mark.parametrize("unused", [False, True])
def test_save_keeps_them(unused: bool, tmp_path: Path) -> None:
    model = network(unused=unused)
    model.save(tmp_path / "same")
    changed = {"deep/read": np.float32([1, 2])}
    model.save(tmp_path / "changed", params=network().params | changed)
    for name, wanted in (("same", _DATA), ("changed", _DATA | changed)):
        loaded = nnef_jax.load(tmp_path / name, unused=True)
        found = loaded.params | loaded.init_state()
        assert found.keys() == wanted.keys()
        for label, array in wanted.items():
            np.testing.assert_array_equal(found[label], array)


def test_public_save_wants_all_that_the_text_declares(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(nnef_jax.DataError, match="no array for variable 'deep/read'"):
        nnef_jax.write_archive(tmp_path / "net", _TEXT, model.params | model.init_state())


def test_what_is_computed_of_them_can_be_seen() -> None:
    for names in (["b"], ["deep", "spare"], None):
        found = network().intermediates(X, names=names)
        wanted = {"b": -_DATA["deep/read"] * X, "deep": _DATA["deep/read"]}
        for name in wanted.keys() & set(names or wanted):
            np.testing.assert_array_equal(found[name], wanted[name])


def test_they_can_be_calibrated() -> None:
    assert '"deep": ' in nnef_jax.calibrate(network(), [X], names=["deep", "y"])


def test_they_are_marked(tmp_path: Path) -> None:
    summary = str(network().summary())
    lines = {line.split()[0]: line for line in summary.splitlines() if line.strip()}
    assert "unused variable" in lines["deep/spare"] and "300" in lines["deep/spare"]
    assert "unused variable" in lines["deep/read"]
    assert "4 parameters, 302 unused, 2 state" in summary
    network().save(tmp_path / "net")
    result = CliRunner().invoke(app, ["summary", "--json", str(tmp_path / "net")])
    found = json.loads(result.stdout)
    assert {v["label"] for v in found["variables"] if v["unused"]} == _UNUSED
    assert found["counts"]["parameters"] == 4
    assert found["counts"]["unused_parameters"] == 302


def test_they_stay_on_the_host() -> None:
    model = network()
    model(X)
    assert not execution_of(model).network.data
    execution = execution_of(model)
    assert execution.definition.unread.keys() == _UNUSED
    assert all(isinstance(array, np.ndarray) for array in execution.definition.unread.values())
    assert all(isinstance(execution.arrays.stored(label), jax.Array) for label in model.params)


def test_a_cache_tells_both_kinds_apart(tmp_path: Path) -> None:
    for _ in range(2):
        for unused in (False, True):
            model = network(unused=unused, cache_dir=tmp_path)
            np.testing.assert_array_equal(model(X), X * _DATA["w"])


def test_a_structure_that_depends_on_open_extents_keeps_all() -> None:
    text = (
        PROVISIONAL
        + """
    fragment pick( x: tensor, w: tensor ) -> ( y: tensor )
    {
        y = x * w if shape_of(x)[0] > 1 else copy(x)
    }
    graph net(x) -> (y)
    {
        x = external(shape = [0])
        w = variable(shape = [1], label = 'w')
        y = pick(x, w)
    }"""
    )
    model = model_of(text, data={"w": np.float32([3])})
    assert model.params.keys() == {"w"}
    for items in (1, 2):
        x = np.ones(items, np.float32)
        np.testing.assert_array_equal(model(x), x * (3 if items > 1 else 1))


def test_variables_in_the_body_of_a_scan_of_tract() -> None:
    body = """fragment sum( a: T, s: T ) -> ( t: T )
    {
        w = variable<scalar>(label = 'w', shape = [1,2]);
        spare = variable<scalar>(label = 'spare', shape = [1,2]);
        t = s + a * w;
        u = a * spare;
    }"""
    text = graph(
        "zero = [[0.0, 0.0]]; y = tract_core_scan(body = 'sum', scan = [('a', x, 0, 1)], "
        "full = [], state = [('s', zero, 't')], output = [('t', 'full', 0, 1)]);",
        body,
        x="[3,2] f32",
    )
    data = {"w": np.float32([[2, 3]]), "spare": np.float32([[1, 1]])}
    model = model_of(text, data=data)
    assert model.params.keys() == {"w"}
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(model(x), np.cumsum(x * data["w"], axis=0))


def test_their_data_must_be_there_all_the_same() -> None:
    with pytest.raises(nnef_jax.ArchiveError, match=r"no member 'deep/read\.dat'"):
        nnef_jax.load(archive(graph=_TEXT))
