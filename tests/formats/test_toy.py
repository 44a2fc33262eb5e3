"""A format of one's own is a module and an entry in the list: all else takes it as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import ArchiveError, InputError, UnsupportedError, formats, write_tensor
from nnef_jax.reading.read import read

W = np.array([[1, 2], [3, 4], [5, 6]], np.float32) / 10
X = np.array([[1, 0, -1], [2, 1, 0]], np.float32)
NETWORK = {
    "inputs": {"x": [2, 3]},
    "parameters": {"w": [3, 2]},
    "outputs": ["y"],
    "operations": [
        ["p", "matmul", {"A": "x", "B": "w"}, {"transposeA": False, "transposeB": False}],
        ["y", "tanh", {"x": "p"}, {}],
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(formats.FORMATS, "toy", "tests.toy_format")
    path = tmp_path / "toy"
    path.mkdir()
    (path / "toy.json").write_text(json.dumps(NETWORK))
    with (path / "w.dat").open("wb") as file:
        write_tensor(file, W)
    return path


@pytest.mark.parametrize("place", [lambda p: p, lambda p: p / "toy.json"], ids=["folder", "file"])
def test_it_is_loaded_and_run(folder: Path, place: Callable[[Path], Path]) -> None:
    model = nnef_jax.load(place(folder))
    np.testing.assert_allclose(model(X), np.tanh(X @ W), rtol=1e-6)
    assert model.inputs == (nnef_jax.TensorSpec("x", (2, 3), "float32"),)
    table = str(model.summary())
    assert "12 multiply-adds" in table and "6 parameters" in table
    np.testing.assert_allclose(model.intermediates(X, names=["p"])["p"], X @ W, rtol=1e-6)


def test_it_is_differentiated(folder: Path) -> None:
    model = nnef_jax.load(folder)
    found = jax.grad(lambda params: model.apply(params, X).sum())(model.params)["w"]
    expected = jax.grad(lambda w: jnp.tanh(X @ w).sum())(W)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_shapes_and_states_are_those_of_every_format(folder: Path) -> None:
    model = nnef_jax.load(folder, input_shapes={"x": [None, 3]})
    assert model(np.ones((7, 3), np.float32)).shape == (7, 2)
    with pytest.raises(InputError, match="input_shapes gives 'x' rank 1, the graph declares"):
        nnef_jax.load(folder, input_shapes={"x": [3]})
    with pytest.raises(InputError, match="state names 'h', the graph's inputs are x"):
        nnef_jax.load(folder, state={"h": "y"})


def test_it_is_saved(folder: Path, tmp_path: Path) -> None:
    model = nnef_jax.load(folder)
    model.save(tmp_path / "saved.tgz", params={"w": 2 * W})
    saved = nnef_jax.load(tmp_path / "saved.tgz")
    assert read(tmp_path / "saved.tgz").frontend.dialect == "toy 1"
    np.testing.assert_allclose(saved(X), np.tanh(X @ (2 * W)), rtol=1e-6)


def test_what_it_does_not_write_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="a network of toy 1 cannot be converted"):
        nnef_jax.convert(folder)


def test_it_is_named_or_recognised(folder: Path) -> None:
    assert nnef_jax.load(folder, dialect="toy").graph.name == "toy"
    with pytest.raises(ArchiveError, match=r"no file '.*graph\.nnef'"):
        nnef_jax.load(folder, dialect="nnef")
    (folder / "toy.json").unlink()
    with pytest.raises(
        ArchiveError,
        match=r"has no graph\.nnef or \*\.xml or .* or \*\.onnx or toy\.json; it holds w\.dat",
    ):
        nnef_jax.load(folder)
