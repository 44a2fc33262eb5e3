"""The tables of operation cases: data that every test of the operations runs on.

A row names an operation of its dialect, its operands (descriptions of tensors, or literals) and its
attributes. From a row follow, always the same, its `inputs`, the `expected` results of the
reference and a `document`.

Rows of tract's table are those that NNEF's table does not have. They say what is meant by kind,
and `tract.spelling` writes them as tract does. What it can write in several ways is in rows that
name its operations.
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
    tract,
)
from .case import OpCase, Tensor, bind, evaluate, expected, inputs, tensors
from .document import document, in_tract

NNEF: tuple[OpCase, ...] = (
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

TRACT: tuple[OpCase, ...] = tract.CASES

for _table in (NNEF, TRACT):
    if len({case.name for case in _table}) != len(_table):
        raise ValueError("two operation cases have the same name")

__all__ = [
    "NNEF",
    "TRACT",
    "OpCase",
    "Tensor",
    "bind",
    "document",
    "evaluate",
    "expected",
    "in_tract",
    "inputs",
    "tensors",
]
