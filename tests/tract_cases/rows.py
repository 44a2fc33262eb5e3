"""What the rows of several families have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.op_cases.case import OpCase, Operand

LOGICAL = "its results are logical values"
INTEGERS = "its results are integers"
TYPES = "it holds no reals"
FEWER_BITS = "its results have fewer bits than its operands"


def case(
    name: str, kind: str, operands: Mapping[str, Operand], why: str = "", **attributes: Any
) -> OpCase:
    """A row; `why` says why it is not differentiable."""
    return OpCase(name, kind, dict(operands), attributes, not_differentiable=why)


def short(kind: str) -> str:
    """The name of an operation without that of its registry."""
    return kind.removeprefix("tract_core_").removeprefix("tract_")
