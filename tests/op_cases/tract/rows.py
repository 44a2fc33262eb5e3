"""Shared helpers for the rows of several families."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tests.op_cases import case as cases
from tests.op_cases.case import OpCase, Operand

LOGICAL = "its results are logical values"
INTEGERS = "its results are integers"
TYPES = "it holds no reals"
FEWER_BITS = "its results have fewer bits than its operands"

tract_case = partial(OpCase, dialect="tract")
row = partial(cases.row, dialect="tract")


def case(
    name: str,
    operation: str,
    operands: Mapping[str, Operand],
    not_differentiable: str = "",
    **attributes: Any,
) -> OpCase:
    """Return a row whose operands are named."""
    return tract_case(
        name, operation, dict(operands), attributes, not_differentiable=not_differentiable
    )


def short(kind: str) -> str:
    """Return the name of an operation without its registry's."""
    return kind.removeprefix("tract_core_").removeprefix("tract_")
