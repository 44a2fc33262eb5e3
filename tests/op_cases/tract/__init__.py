"""The rows of tract's registries that NNEF's table does not have."""

from __future__ import annotations

from importlib import import_module

from tests.op_cases.case import OpCase
from tests.op_cases.tract.spelling import spelled
from tests.reference.tract import FAMILIES

CASES: tuple[OpCase, ...] = tuple(
    spelled(case)
    for family in (*FAMILIES, "bits")
    for case in import_module(f"tests.op_cases.tract.{family}").CASES
)
