"""A slow, obviously right interpreter of the standard's operations in numpy: the tests' oracle.

It is written from the specification alone and shares no code with the library. Each operation is a
function with the parameters of its declaration (`lambda_` stands for `lambda`; `cast` takes the
name of the type as `dtype`). Tensors are numpy arrays of float64, int64 or bool; a literal operand
is a Python number. An array result is a list, several results are a tuple.
"""

from __future__ import annotations

from . import (  # noqa: F401  (importing a family enters its operations)
    activation,
    elementwise,
    linear,
    normalize,
    quantize,
    reduce,
    resample,
    roi,
    shape,
    windows,
)
from .table import OPERATIONS

__all__ = ["OPERATIONS"]
