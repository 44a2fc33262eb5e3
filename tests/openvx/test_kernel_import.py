"""The process of vxImportKernelFromURL, and the operations that it must know."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from nnef_jax import openvx
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.openvx.kernel_import import FEATURE_SET, KernelParameter


def test_process(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "graph.nnef").write_text(
        "version 1.0; graph net(x) -> (y, best) { x = external(shape = [2,3]); y = relu(x); "
        "best = argmax_reduce(x, axes = [1]); }"
    )
    kernel = openvx.import_kernel_from_url("nnef", folder.as_uri())
    assert kernel.parameters == (
        KernelParameter("x", "VX_INPUT", (2, 3), "VX_TYPE_FLOAT32"),
        KernelParameter("y", "VX_OUTPUT", (2, 3), "VX_TYPE_FLOAT32"),
        KernelParameter("best", "VX_OUTPUT", (2, 1), "VX_TYPE_INT32"),
    )
    y, best = kernel(np.float32([[-1, 2, 1], [3, -4, 0]]))
    assert np.asarray(y).tolist() == [[0, 2, 1], [3, 0, 0]]
    assert np.asarray(best).tolist() == [[1], [0]]
    with pytest.raises(nnef_jax.InputError, match="shape"):
        kernel(np.zeros((2, 4), np.float32))
    with pytest.raises(openvx.VxError, match=r"VX_ERROR_NOT_SUPPORTED.*'nnef', not from 'onnx'"):
        openvx.import_kernel_from_url("onnx", tmp_path)
    with pytest.raises(FileNotFoundError):
        openvx.import_kernel_from_url("nnef", tmp_path / "missing")
    with pytest.raises(TypeError, match="url must be a path"):
        openvx.import_kernel_from_url("nnef", 3)  # pyright: ignore[reportArgumentType]


def test_feature_set_is_of_operations_of_the_standard() -> None:
    assert set(FEATURE_SET) <= set(standard())


def test_the_official_models_use_the_feature_set(shared_cases: Path) -> None:
    used = set[str]()
    for path in (shared_cases / "nnef_core").glob("*/graph.nnef"):
        used |= set(re.findall(r"= (\w+)(?:<\w+>)?\(", path.read_text()))
    assert used and used <= set(FEATURE_SET)
