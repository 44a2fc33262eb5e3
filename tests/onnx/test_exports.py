"""Files of exporters, quantisers, optimisers and converters compute what onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from tests.onnx.comparison import in_two, wrong
from tests.onnx.exports import FOLDER, RESULTS

NAMES = [path.stem for path in sorted(FOLDER.glob("*.onnx"))]
_HALVES = 2**-9  # two units of float16: onnxruntime rounds less often on a CPU than the file says


def test_files_are_there() -> None:
    assert len(NAMES) == 10


# Networks that others are, quantised or fused; trees are among the cases of onnxruntime.
SLOW = "pictures-qdq", "pictures-float16", "trees", "words"


@pytest.mark.parametrize("names", in_two(NAMES, SLOW))
def test_results_are_those_of_onnxruntime(names: list[str]) -> None:
    with np.load(RESULTS) as recorded:

        def load(name: str) -> Any:
            return nnef_jax.load(FOLDER / f"{name}.onnx"), [recorded[f"{name}/x"]]

        def compare(name: str, x: Any, y: Any) -> None:
            accuracy = _HALVES if name.endswith("float16") else 1e-5
            atol = accuracy * max(float(np.abs(y).max()), 1.0)
            np.testing.assert_allclose(x, y, rtol=0, atol=atol)

        assert wrong(load, recorded, names, compare) == {}
