"""How a document is read: by NNEF 1.0 or as by tract, as its text says or as `load` is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from nnef_jax import SemanticError
from tests.cli_support import call, fails, ok
from tests.helpers import archive, model_of

# What `tract --nnef-tract-core` reads: nothing in it says of which registry its operations are.
SILENT = """version 1.0;
graph net( x ) -> ( y )
{
    x = tract_core_external(shape = [2, 3], datum_type = 'f32');
    y = tract_core_silu(x);
}
"""
# Valid by both, with another meaning: missing axes go to the end of a shape by tract alone, and
# max pools of NNEF 1.0 have zeros around the input.
BOTH = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [1, 1, 2]);
    y = max_pool(x, size = [1, 1, 3], padding = [(0, 0), (0, 0), (1, 1)], border = 'constant');
}
"""
TOLD = "version 1.0;\nextension tract_registry tract_core;\n" + SILENT.partition("\n")[2]
X = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], np.float32)


def test_a_document_that_names_no_registry() -> None:
    found = model_of(SILENT, dialect="tract")
    np.testing.assert_allclose(found(X), X / (1 + np.exp(-X)), rtol=1e-6)
    with pytest.raises(nnef_jax.NnefError) as caught:
        model_of(SILENT)
    unknown = [e for e in caught.value.errors if "unknown operation" in e.message]
    assert len(unknown) == 2 and all("dialect='tract'" in e.hint for e in unknown)


def test_the_same_text_in_two_dialects() -> None:
    negative = np.array([[[-2.0, -3.0]]], np.float32)
    np.testing.assert_array_equal(model_of(BOTH, dialect="nnef")(negative), [[[0.0, 0.0]]])
    np.testing.assert_array_equal(model_of(BOTH)(negative), [[[0.0, 0.0]]])
    np.testing.assert_array_equal(model_of(BOTH, dialect="tract")(negative), [[[-2.0, -2.0]]])


def test_nnef_alone() -> None:
    with pytest.raises(SemanticError, match="unknown operation 'tract_core_silu'"):
        model_of(TOLD, dialect="nnef")
    assert model_of(TOLD)(X).shape == model_of(TOLD, dialect="tract")(X).shape


@pytest.mark.parametrize("wrong", ["caffe", "", "Tract", None, 1, True, ["tract"]])
def test_there_is_no_other(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="dialect must be one of auto, nnef, tract, openvino, onnx, it is"
    ):
        nnef_jax.load(tmp_path / "nothing", dialect=wrong)
    with pytest.raises(
        ValueError, match="dialect must be one of auto, nnef, tract, openvino, onnx, it is"
    ):
        nnef_jax.convert(tmp_path / "nothing", dialect=wrong)


def test_conversion() -> None:
    assert nnef_jax.convert(archive(graph=SILENT), dialect="tract") == SILENT
    assert nnef_jax.convert(archive(graph=BOTH), dialect="nnef") == BOTH


def test_what_is_saved_keeps_its_text(tmp_path: Path) -> None:
    model_of(SILENT, dialect="tract").save(tmp_path / "saved.tar")
    assert nnef_jax.load(tmp_path / "saved.tar", dialect="tract")(X).shape == (2, 3)
    with pytest.raises(SemanticError):
        nnef_jax.load(tmp_path / "saved.tar")


def test_the_command_line(tmp_path: Path) -> None:
    path, x = tmp_path / "graph.nnef", tmp_path / "x.npy"
    path.write_text(SILENT)
    np.save(x, X)
    commands: list[list[Any]] = [
        ["summary", path],
        ["check", path],
        ["run", path, x],
        ["compile", path, "--cache-dir", tmp_path / "cache"],
    ]
    for command in commands:
        assert "unknown operation 'tract_core_silu'" in fails(*command)
        assert ok(*command, "--dialect", "tract")
    assert "NNEF 1.0 of tract" in ok("summary", path, "--dialect", "tract")
    assert "tract_core_silu" in ok("convert", path, "--flat", "--dialect", "tract")
    for command in [*commands, ["convert", path]]:
        code, out, err = call(*command, "--dialect", "caffe")
        assert (code, out) == (2, "")
        assert all(f"'{known}'" in err for known in ("auto", "nnef", "tract"))
