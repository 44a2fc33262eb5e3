"""Compares all cases of a list, compiled together, with what onnxruntime gave for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nnef_jax
from tests.onnx.runtime_cases import Case

Results = dict[str, list[Any]]


def results_of(cases: Sequence[Case]) -> Results:
    """Return the results of all cases by name."""
    models = [nnef_jax.load(case.model().SerializeToString()) for case in cases]
    taken: list[Any] = []
    for case, model in zip(cases, models, strict=True):
        arrays = {f"x{i}": x for i, x in enumerate(case.arrays())}
        taken.append([arrays[x.name] for x in model.inputs])

    def every(params: Any, inputs: Any) -> Any:
        return [m.apply(p, *xs) for m, p, xs in zip(models, params, inputs, strict=True)]

    results = jax.jit(every)([m.params for m in models], taken)
    return {
        case.name: [x] if isinstance(x, jax.Array) else list(x)
        for case, x in zip(cases, results, strict=True)
    }


def compare(case: Case, found: Results, recorded: Path, rtol: float) -> None:
    """Assert that the results of a case are those that were recorded."""
    with np.load(recorded) as wanted:
        for i, x in enumerate(found[case.name]):
            y = wanted[f"{case.name}/{i}"]
            assert x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=rtol, atol=case.atol)
