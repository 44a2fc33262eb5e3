"""Operators of com.microsoft and recurrent layers compute what onnxruntime does."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests.onnx.runtime_cases import CASES, RESULTS, Case


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """Return the results of all cases, compiled together."""
    models = [nnef_jax.load(case.model().SerializeToString()) for case in CASES]
    taken: list[Any] = []
    for case, model in zip(CASES, models, strict=True):
        arrays = {f"x{i}": x for i, x in enumerate(case.arrays())}
        taken.append([arrays[x.name] for x in model.inputs])

    def every(params: Any, inputs: Any) -> Any:
        return [m.apply(p, *xs) for m, p, xs in zip(models, params, inputs, strict=True)]

    results = jax.jit(every)([m.params for m in models], taken)
    return {
        case.name: [x] if isinstance(x, jax.Array) else list(x)
        for case, x in zip(CASES, results, strict=True)
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_those_of_onnxruntime(case: Case, found: dict[str, list[Any]]) -> None:
    with np.load(RESULTS) as wanted:
        for i, x in enumerate(found[case.name]):
            y = wanted[f"{case.name}/{i}"]
            assert x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=case.atol)
