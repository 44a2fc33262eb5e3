"""The rows of tract's registries that NNEF's table does not have."""

from __future__ import annotations

from importlib import import_module

from tests.op_cases.case import OpCase
from tests.op_cases.tract.spelling import spelled

FAMILIES = (
    "elementwise",
    "activation",
    "bits",
    "shape",
    "reduce",
    "window",
    "linear",
    "quantized",
    "indexing",
    "resize",
    "detection",
    "onnx",
    "attention",
    "recurrent",
    "signal",
)

CASES: tuple[OpCase, ...] = tuple(
    spelled(case)
    for family in FAMILIES
    for case in import_module(f"tests.op_cases.tract.{family}").CASES
)
