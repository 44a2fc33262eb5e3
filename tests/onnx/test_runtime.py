"""Operators of com.microsoft and recurrent layers compute what onnxruntime does."""

from __future__ import annotations

import pytest

from tests.onnx.comparison import Results, compare, results_of
from tests.onnx.runtime_cases import CASES, RESULTS, Case


@pytest.fixture(scope="module")
def found() -> Results:
    """Return the results of all cases."""
    return results_of(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_those_of_onnxruntime(case: Case, found: Results) -> None:
    compare(case, found, RESULTS, rtol=1e-5)
