"""Errors that new users met: each says what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import nnef_jax
from tests.execution.test_citizen import X, counter, small


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: small(input_shapes={"x": (-1, 3)}), ValueError, "None is an extent that each"),
        (lambda: small()(X, replace={}), ValueError, r"the options edit= and capture="),
        (lambda: counter().scan({}, X), ValueError, r"scan\(\.\.\., state=state\)"),
        (
            lambda: small().apply(small().params | {"layer/ww": X}, X),
            ValueError,
            "did you mean 'layer/w'",
        ),
        (lambda: nnef_jax.calibrate(small(), X), TypeError, "must be a list of samples"),
    ],
)
def test_hints(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_export_is_named_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.InputError, match="params='beside' writes"):
        small().export(tmp_path / "net.onnx")
    assert not [*tmp_path.iterdir()]
    small().export(tmp_path / "net.jaxexport", params="beside")
    data = (tmp_path / "net.jaxexport").read_bytes()
    assert jax.export.deserialize(bytearray(data)).fun_name


def test_trees_of_other_options_say_how_they_differ() -> None:
    model = small()
    with pytest.raises(ValueError, match="precision='highest'"):
        jax.tree.map(lambda a, b: a, model, model.with_options(precision="highest"))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with pytest.raises(ValueError, match="on a mesh data=2"):
        jax.tree.map(lambda a, b: a, model, model.shard(mesh, batch="data"))


def test_the_text_of_calibrate_is_saved(tmp_path: Path) -> None:
    model = small()
    text = nnef_jax.calibrate(model, [X], bits=4)
    model.save(tmp_path / "quantised", quantize=text)
    assert (tmp_path / "quantised" / "graph.quant").read_text() == text
    for wrong in ("x: of", '"x": min_max_linear_quantize(min = 0.0);'):
        with pytest.raises(nnef_jax.NnefError):
            model.save(tmp_path / "wrong", quantize=wrong)
        assert not (tmp_path / "wrong").exists()


def test_a_model_says_how_it_runs() -> None:
    assert "precision='highest'" in repr(small().with_options(precision="highest"))
    assert repr(small()).endswith(")>")
