"""`python -m benchmarks.kept_memory`: its networks are right, and it prints its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator

from benchmarks import kept_memory


def _normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("encoder", [_normal(2, 7, 128)]),
        ("llama", [np.array([[3, 1, 4]]), *[_normal(1, 1, 0, 64)] * 2]),
        ("llama", [np.array([[5, 9]]), _normal(1, 1, 5, 64), _normal(1, 1, 5, 64)]),
    ],
)
def test_networks_are_as_onnx_computes_them(
    name: str, arguments: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    build, _ = kept_memory.NETWORKS[name]
    network = build(128, 1)
    network.write(path)
    inputs = dict(zip(network.inputs, arguments, strict=True))
    wanted: Any = ReferenceEvaluator(str(path)).run(None, inputs)
    model = nnef_jax.load(path)
    found = model(*arguments)
    for x, y in zip(found if len(wanted) > 1 else [found], wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_lengths_are_in_a_fixed_order_with_the_edges_of_kernels() -> None:
    found = kept_memory.lengths(64)
    assert found == kept_memory.lengths(64)
    assert len({*found}) == 64
    assert {*kept_memory.EDGES} <= {*found} <= {*range(1, 513)}


def test_rows_are_printed(capfd: pytest.CaptureFixture[str]) -> None:
    told = ["--networks", "encoder", "--width", "64", "--layers", "1", "--lengths", "3"]
    kept_memory.main(told)
    rows = [line.split("  ") for line in capfd.readouterr().out.splitlines() if "after" in line]
    names = [next(filter(None, row)).strip() for row in rows]
    assert names == ["after load", "after the first call", "after 2 lengths", "after 3 lengths"]
