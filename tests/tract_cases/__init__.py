"""The table of operation cases of tract's registries; rows are those of `tests.op_cases`.

Rows say what is meant by kind, and `spelling` writes them as tract does. What it can write in
several ways is in rows that name its operations.

From a row follow, always the same, its `inputs`, the `expected` results of the reference and a
`document` in the dialect.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from nnef_jax.formats.tract.declarations import registry_of
from tests.op_cases.case import OpCase, bind, inputs, tensors
from tests.operation_checks import wide
from tests.tract_cases.spelling import spelled
from tests.tract_reference import OPERATIONS

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

ALL_CASES: tuple[OpCase, ...] = tuple(
    spelled(case)
    for family in FAMILIES
    for case in import_module(f"tests.tract_cases.{family}").CASES
)

if len({case.name for case in ALL_CASES}) != len(ALL_CASES):
    raise ValueError("two operation cases have the same name")


def evaluate(case: OpCase, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the reference makes of these values of the case's tensors."""
    case = case.means or case
    result = OPERATIONS[case.operation](**bind(case, arrays), **case.attributes)
    parts = result if isinstance(result, (list, tuple)) else [result]
    return [np.asarray(part) for part in parts]


@functools.cache
def _own_results(case: OpCase) -> tuple[np.ndarray, ...]:
    return tuple(evaluate(case, [wide(x) for x in inputs(case)]))


def expected(case: OpCase) -> list[np.ndarray]:
    """The results of the case on its `inputs`, in 64 bits."""
    return list(_own_results(case))


def document(case: OpCase, real: str = "f32") -> str:
    """The case as a document of the dialect; `real` is the datum type of its real inputs."""
    return written(case, len(_own_results(case)), real)


def written(case: OpCase, count: int, real: str = "f32") -> str:
    """A case of so many results as a document of the dialect."""
    externals = tensors(case)
    names = ["result"] if count == 1 else [f"result{k}" for k in range(count)]
    arguments = [
        f"{name} = {literal(value)}"
        for name, value in (bind(case, [Name(n) for n in externals]) | case.attributes).items()
        if value is not False or name in case.attributes
    ]
    datum = {"f": real, "i": "i32", "b": "bool"}
    lines = [
        f"{name} = tract_core_external("
        f"shape = {literal(list(array.shape))}, datum_type = '{datum[array.dtype.kind]}');"
        for name, array in zip(externals, inputs(case), strict=True)
    ]
    lines.append(f"{', '.join(names)} = {case.operation}({', '.join(arguments)});")
    body = "\n".join(f"    {line}" for line in lines)
    registry = registry_of(case.operation) or "tract_nnef"
    return (
        f"version 1.0;\n\nextension tract_registry {registry};\n\n"
        f"graph network({', '.join(externals)}) -> ({', '.join(names)})\n{{\n{body}\n}}\n"
    )


class Name(str):
    """An identifier of the document, as opposed to a string literal."""


def literal(value: Any) -> str:
    """A value as it is written in a document."""
    match value:
        case Name():
            return str(value)
        case bool():
            return "true" if value else "false"
        case str():
            return f"'{value}'"
        case list():
            return "[" + ", ".join(map(literal, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(literal, value)) + ")"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case _:
            return repr(value)
