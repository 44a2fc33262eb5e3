"""The table of operation cases: data that every test of the operations runs on.

A row names an operation, its operands (descriptions of tensors, or literals) and its attributes.
From a row follow, always the same, its `inputs`, the `expected` results of the reference and a
`document`.
"""

from __future__ import annotations

from . import (
    activation,
    box,
    conv,
    elementwise,
    linear,
    normalize,
    pool,
    quantize,
    reduce,
    resample,
    roi,
    shape,
)
from .case import OpCase, Tensor, bind, document, evaluate, expected, inputs, tensors

ALL_CASES: tuple[OpCase, ...] = (
    *elementwise.CASES,
    *activation.CASES,
    *conv.CASES,
    *box.CASES,
    *pool.CASES,
    *resample.CASES,
    *reduce.CASES,
    *shape.CASES,
    *linear.CASES,
    *normalize.CASES,
    *quantize.CASES,
    *roi.CASES,
)

if len({case.name for case in ALL_CASES}) != len(ALL_CASES):
    raise ValueError("two operation cases have the same name")

__all__ = [
    "ALL_CASES",
    "OpCase",
    "Tensor",
    "bind",
    "document",
    "evaluate",
    "expected",
    "inputs",
    "tensors",
]
