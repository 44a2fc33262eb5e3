"""Operators of com.microsoft and recurrent layers compute what onnxruntime does."""

from __future__ import annotations

import numpy as np
import pytest

import nnef_jax
from tests.onnx.comparison import in_two, wrong_cases
from tests.onnx.runtime_cases import CASES, RESULTS

# Codes of another type, and items of other lengths in what is computed for others.
SLOW = "lstm_dynamic_int8", "groups_padded", "groups_called_first", "groups_called_full"


@pytest.mark.parametrize("names", in_two((x.name for x in CASES), SLOW))
def test_results_are_those_of_onnxruntime(names: list[str]) -> None:
    assert wrong_cases(CASES, names, RESULTS, rtol=1e-5) == {}


def test_a_sequence_that_does_not_fit_its_buffer_is_not_a_number() -> None:
    """onnxruntime makes a longer buffer, which no program of one shape does."""
    case = next(case for case in CASES if case.name == "groups_called")
    inputs = {f"x{i}": x for i, x in enumerate(case.arrays())}
    inputs["x5"], inputs["x6"] = np.int32([8, 4]), np.int32(9)
    y, *kept = nnef_jax.load(case.model().SerializeToString())(**inputs)
    assert np.isnan(y[0]).all() and np.isfinite(y[1]).all()
    assert [x.shape for x in kept] == [(2, 2, 8, 16)] * 2
