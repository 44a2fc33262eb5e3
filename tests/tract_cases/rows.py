"""What the rows of several families have in common."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from tests.op_cases.case import OpCase, Operand
from tests.tract_reference import OPERATIONS

LOGICAL = "its results are logical values"
INTEGERS = "its results are integers"
TYPES = "it holds no reals"
FEWER_BITS = "its results have fewer bits than its operands"


def case(
    name: str, kind: str, operands: Mapping[str, Operand], why: str = "", **attributes: Any
) -> OpCase:
    """A row; `why` says why it is not differentiable."""
    return OpCase(name, kind, dict(operands), attributes, not_differentiable=why)


def row(
    name: str,
    kind: str,
    *operands: Operand,
    why: str = "",
    tolerance: float = 1e-5,
    **attributes: Any,
) -> OpCase:
    """A row whose operands are the first parameters of the operation."""
    names = [name.rstrip("_") for name in signature(OPERATIONS[kind]).parameters]
    given = dict(zip(names[: len(operands)], operands, strict=True))
    return OpCase(name, kind, given, attributes, not_differentiable=why, tolerance=tolerance)


def short(kind: str) -> str:
    """The name of an operation without that of its registry."""
    return kind.removeprefix("tract_core_").removeprefix("tract_")
